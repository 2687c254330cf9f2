"""Text of coupled states: the constants of a channel, a step that reads them, and the maps of a step, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.phases import Phase, in_channel_and_step, map_labels, phases_of
from minrnn_gen.cell.preparation import CutProgram
from minrnn_gen.codegen.rounds_text import Places, result_names, statements_of
from minrnn_gen.codegen.steps_text import StepsText


@dataclass(frozen=True)
class ProgramText:
    """A program as the templates read it."""

    inputs: Places
    statements: Places
    results: Places = ()


@dataclass(frozen=True)
class PhaseText(ProgramText):
    """One phase as the templates read it, with the program of a step's map.

    `places`: the indices of its states among all states. `type` is the C++ type of its map's numbers. `first_value` (in CUDA)
    and `first_state` are the offsets of its numbers among those that blocks exchange. `keeps_power`: A of all steps is one
    matrix.
    """

    number: int = 0
    form: str = ""
    type: str = "compute_t"
    states: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    first_value: str = "0"
    first_state: int = 0
    keeps_power: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether its maps are composed in double precision, whatever the cell's arithmetic."""
        return self.form == "FULL"

    @property
    def size(self) -> int:
        """How many states it has."""
        return len(self.states)


@dataclass(frozen=True)
class CoupledText(StepsText):
    """One step of a cell of coupled states as the templates read it."""

    @cached_property
    def phases(self) -> tuple[PhaseText, ...]:
        """The phases in their order."""
        texts, first_state = list[PhaseText](), 0
        for number, phase in enumerate(phases_of(self.lowered.maps)):
            texts.append(self._phase(number, phase, first_state))
            first_state += len(phase.states)
        return tuple(texts)

    @property
    def scans(self) -> tuple[PhaseText, ...]:
        """The phases that scan maps; finite memory has none."""
        return tuple(phase for phase in self.phases if phase.results)

    @property
    def powers(self) -> tuple[PhaseText, ...]:
        """The phases whose A is the same for all steps."""
        return tuple(phase for phase in self.phases if phase.keeps_power)

    @property
    def wide_phases(self) -> tuple[PhaseText, ...]:
        """The phases that are carried in double precision."""
        return tuple(phase for phase in self.phases if phase.is_wide)

    @property
    def late_step(self) -> ProgramText:
        """A step that reads the constants of a channel."""
        return ProgramText(self._late_inputs(self._cuts[0]), statements_of(self._cuts[0].rest))

    @property
    def preparations(self) -> tuple[ProgramText, ...]:
        """The programs of a channel's constants: each gives the constants that earlier programs do not."""
        texts, known = list[ProgramText](), 0
        for parts in self._cuts:
            last = max((self._constants[value] + 1 for value in self._values(parts).values()), default=0)
            own = {place: name for name, value in self._values(parts).items() if (place := self._constants[value]) >= known}
            results = tuple((f"value.at[{place}]", cuda_name(name)) for place, name in own.items())
            texts.append(ProgramText(self._placed(parts.preparation), statements_of(parts.preparation), results))
            known = max(known, last)
        return tuple(text for text in texts if text.results)

    @property
    def constant_count(self) -> int:
        """The number of a channel's constants."""
        return len(self._constants)

    @cached_property
    def _cuts(self) -> tuple[CutProgram, ...]:
        """The step and the maps, each in two parts: of parameters alone, and the rest."""
        programs = [self.lowered.step]
        programs += [phase.program.restricted(map_labels(phase)) for phase in phases_of(self.lowered.maps) if phase.program]
        return tuple(map(in_channel_and_step, programs))

    @cached_property
    def _constants(self) -> dict[int, int]:
        """The index of each prepared value that is read."""
        read = (value for parts in self._cuts for value in self._values(parts).values())
        return {value: place for place, value in enumerate(dict.fromkeys(read))}

    @cached_property
    def _numbered(self) -> dict[Expr, int]:
        """The numbers of prepared values by their expressions, since programs give equal values different names."""
        return {}

    def _values(self, parts: CutProgram) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for statement in parts.preparation.statements:
            value = _renamed(statement.expression, numbers)
            numbers[statement.name] = self._numbered.setdefault(value, len(self._numbered))
        return {name: numbers[name] for name in parts.values if name in numbers}

    def _late_inputs(self, parts: CutProgram) -> Places:
        places = {cuda_name(f"state_{name}"): f"next.state.at[{place}]" for place, name in enumerate(self.states)}
        places |= {
            cuda_name(name): f"constant.value.at[{self._constants[value]}]" for name, value in self._values(parts).items()
        }
        places |= {cuda_name(f"parameter_{name}"): f"constant.parameter.at[{n}]" for n, name in enumerate(self.parameters)}
        return tuple((name, places.get(name, place)) for name, place in self._placed(parts.rest))

    def _phase(self, number: int, phase: Phase, first_state: int) -> PhaseText:
        first_value = " + ".join(f"Phase{earlier}::VALUES" for earlier in range(number)) or "0"
        memory = PhaseText(
            (),
            (),
            (),
            number=number,
            form=phase.form.upper(),
            states=phase.states,
            places=tuple(map(self.states.index, phase.states)),
            first_value=first_value,
            first_state=first_state,
        )
        if phase.program is None:
            return memory
        scans = [other.states for other in phases_of(self.lowered.maps) if other.program]
        parts, size = self._cuts[1 + scans.index(phase.states)], len(phase.states)
        names, labels = result_names(parts.rest), map_labels(phase)
        of_places = [*(f"a.at[{n}]" for n in range(len(labels) - size)), *(f"b.at[{row}]" for row in range(size))]
        return replace(
            memory,
            inputs=self._late_inputs(parts),
            statements=statements_of(parts.rest),
            results=tuple((place, names[label]) for place, label in zip(of_places, labels, strict=True)),
            type="double" if phase.form == "full" else "compute_t",
            keeps_power=phase.is_constant,
        )


def _renamed(expression: Expr, numbers: Mapping[str, int]) -> Expr:
    """Return an expression with numbers for the names of other values."""
    operands = ex.operation(expression)[1]
    if operands:
        return ex.rebuilt(expression, [_renamed(operand, numbers) for operand in operands])
    (name,) = [symbol.name for symbol in ex.symbols_of(expression)] or [""]
    return ex.named(f"value {numbers[name]}") if name in numbers else expression
