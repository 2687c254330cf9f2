"""Text of rounds of products: the argument of each, and in a backward the gradients of its products."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.program import Program

Places = tuple[tuple[str, str], ...]
"""(identifier, where its value is, or what it is) of each input, statement or result."""


@dataclass(frozen=True)
class RoundText:
    """One round as the templates read it, numbered from 1 on.

    `products` are its products in words, `gates` their places among all products, and `results` has (place, name). `prepared`
    are the names of values that `prepared_statements` compute before the awaited inputs of the statements arrive; without any,
    `inputs` are all inputs.
    """

    number: int
    products: str
    gates: tuple[int, ...]
    inputs: Places
    statements: Places
    results: Places
    prepared: tuple[str, ...] = ()
    prepared_inputs: Places = ()
    prepared_statements: Places = ()

    @property
    def argument(self) -> str:
        """The name of the argument."""
        ((_, name),) = self.results
        return name


def statements_of(program: Program) -> Places:
    """Return (identifier, value) of each statement of `program`."""
    return tuple((cuda_name(statement.name), statement.cuda) for statement in program.statements)


def result_names(program: Program) -> dict[str, str]:
    """Return the identifier of each result of `program` by its label."""
    return {label: cuda_name(name) for label, name in program.results}
