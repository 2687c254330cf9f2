"""The cell whose states begin from arrays of the caller at resets: an input X.* is added to each state that a step reads.

A reset makes a previous state 0, and the input is 0 at every other step, so that a step begins from their sum.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from minrnn_gen.build.recipe import cell_source_of, spec_from
from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.errors import BadInput

# Of a cell's name, with what is put behind it.
NAME_LENGTH = 64


@dataclass(frozen=True)
class ResettingRecipe:
    """The recipe of a kernel whose last inputs X.* are what its states begin from at resets.

    `inputs` has the name of the input of each state that a step reads, by the state's name, in the order of those inputs.
    """

    recipe: str
    inputs: tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=256)
def resetting_recipe(recipe: str) -> ResettingRecipe:
    """Return the recipe of the same kernel with such inputs; raises BadInput for a cell or a spec that has none."""
    spec = spec_from(recipe)
    source = cell_source_of(spec)
    cell = parse_cell(source)
    instead = "give zeros, or split the sequences at their resets by cu_seqlens and give each its state"
    if cell.vectors:
        raise BadInput(f"reset_states was given, but the cell {cell.name} has the axis n, whose resets are to zeros; {instead}")
    if spec.scan_arithmetic == "log":
        raise BadInput(f"reset_states was given, but the spec has scan_arithmetic: log, whose resets are to zeros; {instead}")
    rewriting = _Rewriting(cell)
    equations = [f"{symbol.name} = {rewriting.text(value)}" for symbol, value in cell.definitions]
    output = rewriting.text(cell.output)
    begins = [f"{rewriting.begins[name]} = {name}[t-1] + X.{added_input}" for name, added_input in rewriting.inputs]
    data = {
        **source.document.data,
        "name": f"{cell.name[: NAME_LENGTH - len('_resetting')]}_resetting",
        "equations": "\n".join((*begins, *equations)),
        "output": output,
        "gates": [*cell.gates],
        "states": [*cell.states],
        "inputs": [*cell.inputs, *(added_input for _, added_input in rewriting.inputs)],
    }
    said = {**json.loads(recipe), "model": data}
    return ResettingRecipe(json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False), rewriting.inputs)


@dataclass
class _Rewriting:
    """Expressions of a cell, in which each previous state is replaced by the one that a step begins from."""

    cell: Cell
    begins: dict[str, str] = field(init=False)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        cell = self.cell
        used = {
            *cell.gates,
            *cell.recurrent_gates,
            *cell.states,
            *cell.parameters,
            *(symbol.name for symbol, _ in cell.definitions),
        }
        names = _free_names("begin", used)
        self.begins = {state: next(names) for state in cell.states}

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Each state that was read, with the name of its input."""
        names = _free_names("begin", self.cell.inputs)
        return tuple((state, next(names)) for state in self.cell.states if state in self.read)

    def text(self, expression: Expr) -> str:
        return equation_text(self._rewritten(expression))

    def _rewritten(self, expression: Expr) -> Expr:
        if isinstance(expression, Symbol):
            return self._symbol(expression)
        name, operands = ex.operation(expression)
        if name == "number":
            return expression
        return ex.rebuilt(expression, [self._rewritten(operand) for operand in operands])

    def _symbol(self, symbol: Symbol) -> Symbol:
        if symbol.name.endswith("[t-1]"):
            state = symbol.name.removesuffix("[t-1]")
            self.read.add(state)
            return ex.named(self.begins[state])
        if not symbol.name.startswith("R."):
            return symbol
        # R multiplies what the step begins from, where a kernel's own reset makes the products of an output 0.
        gate = symbol.name.removeprefix("R.")
        argument = dict(self.cell.arguments).get(gate) or ex.previous(self._output_state)
        return ex.named(f"R.{gate}({self.text(argument)})")

    @property
    def _output_state(self) -> str:
        return next(state for state in self.cell.states if ex.current(state) == self.cell.output)


def _free_names(stem: str, used: Collection[str]) -> Iterator[str]:
    place = 0
    while True:
        name = f"{stem}{place}"
        if name not in used:
            yield name
        place += 1
