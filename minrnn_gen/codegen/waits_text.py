"""Steps with means over units as the persistent templates read them: their parts, and what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.levels import Statistic
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.waits import StepInParts, Wait
from minrnn_gen.codegen.levels_text import ProgramText
from minrnn_gen.codegen.rounds_text import Places, result_names, statements_of


@dataclass(frozen=True)
class WaitText(ProgramText):
    """A part of a step, counted by `part` from 1 on, and the wait after it.

    For means the part gives their values, and then the contributions of lists to the squares of the last `lists` means; `first`
    is the index of the first mean among all means of a step, and `count` how many arrive at once. `scope` says which units they
    are over, those of the head or of one of its parts. For a round, `number` from 1 on, the part gives the operand of
    `products` or, in a backward, their gradients; `gates` are their places. `held` has the values that later parts read.
    """

    part: int
    held: Places
    first: int = 0
    count: int = 0
    lists: int = 0
    has_squares: bool = False
    number: int = 0
    gates: tuple[int, ...] = ()
    products: str = ""
    scope: str = "of_head"

    @property
    def round(self) -> bool:
        """Whether the wait is for a round of products."""
        return self.number > 0


@dataclass(frozen=True)
class PartsText:
    """A step in parts as the persistent templates read it: `waits` with the part before each, then `last`."""

    prepared: tuple[str, ...]
    preparation: ProgramText
    held: tuple[str, ...]
    waits: tuple[WaitText, ...]
    last: ProgramText

    @property
    def mean_count(self) -> int:
        """The number of means of a step, each counted together with its mean of squares."""
        return sum(wait.count for wait in self.waits)

    @property
    def most_at_once(self) -> int:
        """The most means of one exchange."""
        return max(wait.count for wait in self.waits)

    @property
    def has_squares(self) -> bool:
        """Whether any of the means has the mean of squared differences with it."""
        return any(wait.has_squares for wait in self.waits)

    @property
    def rows_at_once(self) -> int:
        """The most values per unit that one exchange averages."""
        return max(wait.count + wait.lists for wait in self.waits)


def statistics_in(waits: Sequence[Wait]) -> tuple[Statistic, ...]:
    """Return all means of a step, in the order of their places."""
    return tuple(statistic for wait in waits for statistic in wait.statistics)


def places_of_means(waits: Sequence[Wait]) -> dict[str, str]:
    """Return the indices of the means of a step, each before the mean of its squares."""
    places: dict[str, str] = {}
    for place, statistic in enumerate(statistics_in(waits)):
        places |= {name: f"mean.at[{2 * place + add}]" for add, name in enumerate(statistic.means)}
    return places


def parts_text(
    step: StepInParts,
    placed: Callable[[Program, Mapping[str, str]], Places],
    results: Callable[[Mapping[str, str]], Places],
    round_of: Callable[[Wait], tuple[tuple[int, ...], str]],
    norm_parts: int = 1,
) -> PartsText:
    """Return the text of a step in parts.

    `placed` returns the indices of a program's inputs, `results` those of the last results by their names, and
    `round_of` the indices of a round's gates, and a text of its products.
    """
    means = places_of_means(step.waits)
    elsewhere = {name: f"prepared.{cuda_name(name)}" for name in step.prepared}
    elsewhere |= {name: f"held.{cuda_name(name)}" for name in step.held}
    waits, first = [], 0
    for number, (part, wait) in enumerate(zip(step.parts, step.waits, strict=False), start=1):
        inputs = placed(part, means | elsewhere)
        held = tuple((cuda_name(name), cuda_name(name)) for name, _ in part.results)
        gates, products = round_of(wait) if wait.round else ((), "")
        values = tuple((f"at[{row}]", cuda_name(step.needs[label])) for row, label in enumerate(wait.needs))
        waits.append(
            WaitText(
                inputs,
                statements_of(part),
                values,
                number,
                held,
                first,
                len(wait.statistics),
                sum(statistic.is_of_list for statistic in wait.statistics),
                any(statistic.squares for statistic in wait.statistics),
                wait.round,
                gates,
                products,
                "of_part" if norm_parts > 1 and wait.over == "head" else "of_head",
            )
        )
        first += len(wait.statistics)
    last = step.parts[-1]
    return PartsText(
        tuple(map(cuda_name, step.prepared)),
        ProgramText(placed(step.preparation, means), statements_of(step.preparation), ()),
        tuple(map(cuda_name, step.held)),
        tuple(waits),
        ProgramText(placed(last, means | elsewhere), statements_of(last), results(result_names(last))),
    )
