"""A step in parts between which it waits for other units: for means over them, or for the products of a round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minrnn_gen.cell.late import by_sums, late_names, sum_name
from minrnn_gen.cell.levels import Statistic, WholeProgram
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.preparation import cut, names_in
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.reciprocal_roots import with_reciprocal_roots
from minrnn_gen.cell.stages import is_constant_input


@dataclass(frozen=True)
class Wait:
    """The results of a part of a step, by label, and the names that arrive for the parts after it.

    The wait is either for the means of `statistics`, all at once, lists last: it needs all values, then the contributions of
    lists. Or it is for the results of the products of `round`, counted from 1 on.
    """

    needs: tuple[str, ...]
    arrives: tuple[str, ...]
    statistics: tuple[Statistic, ...] = ()
    round: int = 0

    @property
    def over(self) -> str:
        """Scope of its means, "head" or "all"; empty for a round."""
        return self.statistics[0].over if self.statistics else ""


@dataclass(frozen=True)
class StepInParts:
    """A program in parts: `preparation` waits for nothing, and `parts` run in order, with one of `waits` between each two.

    The results of a part are all names that later parts read; the last part has the results of the program. `needs` maps each
    label that a wait needs to a name of the part before it.
    """

    preparation: Program
    parts: tuple[Program, ...]
    waits: tuple[Wait, ...]
    needs: Mapping[str, str]

    @cached_property
    def prepared(self) -> tuple[str, ...]:
        """The names that later parts read of the preparation, except parameters."""
        return tuple(name for name, _ in self.preparation.results)

    @cached_property
    def held(self) -> tuple[str, ...]:
        """The names of the values that parts keep for later parts."""
        return tuple(dict.fromkeys(name for part in self.parts[:-1] for name, _ in part.results))


def waits_of(
    statistics: Sequence[Statistic], rounds: Sequence[Wait], program: Program, norm_parts: int = 1
) -> tuple[Wait, ...]:
    """Return the waits of a program in a possible order of arrival: means at the same depth together.

    Where a head has several parts, means over one and over all are waited for apart: other blocks exchange them.
    """
    labels, known = dict(program.results), {name: frozenset[str]() for name in program.inputs}
    arriving = {name for statistic in statistics for name in statistic.means}
    arriving.update(name for wait in rounds for name in wait.arrives)
    known |= {name: frozenset({name}) for name in arriving}
    for statement in program.statements:
        known[statement.name] = frozenset().union(*(known[name] for name in names_in(statement.expression)))
    arrived, means, others, waits = set[str](), [*statistics], [*rounds], list[Wait]()

    def is_ready(needs: Collection[str]) -> bool:
        return all(known[labels[label]] <= arrived for label in needs)

    while means or others:
        if ready := [statistic for statistic in means if is_ready(statistic.needs)]:
            if norm_parts > 1:
                ready = [statistic for statistic in ready if statistic.over == ready[0].over]
            wait = _wait_for(sorted(ready, key=lambda statistic: statistic.is_of_list))
            means = [statistic for statistic in means if statistic not in ready]
        else:
            wait = next(wait for wait in others if is_ready(wait.needs))
            others.remove(wait)
        arrived.update(wait.arrives)
        waits.append(wait)
    return tuple(waits)


def _wait_for(statistics: Sequence[Statistic]) -> Wait:
    values = (statistic.value_label for statistic in statistics)
    within = (statistic.within_label for statistic in statistics if statistic.is_of_list)
    return Wait((*values, *within), tuple(name for statistic in statistics for name in statistic.means), tuple(statistics))


def in_parts(program: Program, late: Collection[str], waits: Sequence[Wait], results: Collection[str]) -> StepInParts:
    """Return `program` cut where the names `late` arrive first, and at each of `waits`; the last part gives `results`."""
    labels = dict(program.results)
    needs = {label: labels[label] for wait in waits for label in wait.needs}
    rest = _passed_on(program, [(label, labels[label]) for label in results])
    parts = list[Program]()
    for number in reversed(range(len(waits) + 1)):
        # The part before a wait returns all that the wait needs.
        passed_on = [(label, needs[label]) for label in (waits[number - 1].needs if number else ())]
        arrives = waits[number - 1].arrives if number else late
        parted = cut(_passed_on(rest, [*rest.results, *passed_on]), arrives, f"before_{number}")
        # The last part's may be the program's as well.
        own = {label for label, _ in passed_on} - ({*results} if number == len(waits) else set())
        parts.insert(0, _passed_on(parted.rest, [result for result in parted.rest.results if result[0] not in own]))
        rest = parted.preparation
    of_waits = [[needs[label] for label in wait.needs] for wait in waits]
    return StepInParts(*_without_handing_on(rest, parts, of_waits), tuple(waits), needs)


def _passed_on(program: Program, results: Sequence[tuple[str, str]]) -> Program:
    return replace(program, results=tuple(dict.fromkeys(results)))


def _without_handing_on(
    preparation: Program, parts: Sequence[Program], needs: Sequence[Sequence[str]]
) -> tuple[Program, tuple[Program, ...]]:
    """Return programs whose results are names that later programs read, and whose inputs are names that they read."""
    programs, last, made = [preparation, *parts], len(parts), list[Program]()
    read = [{name for statement in program.statements for name in names_in(statement.expression)} for program in programs]
    read[last].update(name for _, name in parts[-1].results)
    for number, names in enumerate(needs, start=1):
        read[number].update(names)
    for number, program in enumerate(programs):
        own = [statement.name for statement in program.statements]
        handed = [] if number else [name for name in program.inputs if not is_constant_input(name)]
        elsewhere = set[str]().union(*read[number + 1 :])
        results = tuple((name, name) for name in (*own, *handed) if name in elsewhere)
        results = program.results if number == last else results
        read_here = read[number] | {name for _, name in results}
        inputs = dict.fromkeys((*program.inputs, *(needs[number - 1] if 0 < number < last else ())))
        inputs = {name: None for name in inputs if name in read_here and name not in own}
        made.append(replace(program, inputs=tuple(inputs), results=results))
    return made[0], tuple(made[1:])


def step_in_parts(lowered: LoweredSteps | LoweredStepsBackward) -> StepInParts:
    """Return a step with `whole` in parts; a forward is in terms of recurrent sums and biases."""
    assert lowered.whole is not None
    if isinstance(lowered, LoweredStepsBackward):
        return _backward_in_parts(lowered, lowered.whole)
    return _forward_in_parts(lowered, lowered.whole)


def _forward_in_parts(lowered: LoweredSteps, whole: WholeProgram) -> StepInParts:
    statistics, program = whole.statistics, with_reciprocal_roots(whole.program)
    rounds = [
        Wait((f"argument_{number}",), tuple(map(sum_name, of_round.gates)), round=number)
        for number, of_round in enumerate(lowered.rounds, start=1)
    ]
    sums = late_names(program, lowered.recurrent_gates, lowered.states)
    means = (name for statistic in statistics for name in statistic.means)
    program = by_sums(program, lowered.recurrent_gates, (*sums, *means))
    later = {name for wait in rounds for name in wait.arrives}
    waits, results = (
        waits_of(statistics, rounds, program, lowered.norm_parts),
        (*(f"state_{state}" for state in lowered.states), "y"),
    )
    return in_parts(program, [name for name in sums if name not in later], waits, results)


def _backward_in_parts(lowered: LoweredStepsBackward, whole: WholeProgram) -> StepInParts:
    """Return a step back in parts; the means of its forward are known, and so are all values that read no gradients."""
    rounds = [
        Wait(tuple(f"gradient_R_{gate}" for gate in of_round.gates), (f"gradient_argument_{number}",), round=number + 1)
        for number, of_round in enumerate(lowered.rounds)
    ]
    later = {name for wait in rounds for name in wait.arrives}
    first = [name for name in whole.program.inputs if name.startswith("gradient_") and name not in later]
    program = with_reciprocal_roots(whole.program)
    waits = waits_of(whole.statistics, rounds[::-1], program, lowered.norm_parts)
    results = [label for label, _ in program.results if label.startswith("gradient_")]
    return in_parts(program, first, waits, results)
