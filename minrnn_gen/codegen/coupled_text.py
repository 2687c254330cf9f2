"""Text of coupled states: the maps of a step, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.phases import Phase, phases_of
from minrnn_gen.codegen.rounds_text import Places, result_names, statements_of
from minrnn_gen.codegen.steps_text import StepsText


@dataclass(frozen=True)
class PhaseText:
    """One phase as the templates read it.

    `places` are those of its states among all, `type` that of its map's numbers. `first_value` and `first_state` are the places
    of its numbers among those that blocks pass on, the first in CUDA. `results` has (place, name) of a step's map.
    `is_constant`: its A is the same for all steps.
    """

    number: int
    form: str
    type: str
    states: tuple[str, ...]
    places: tuple[int, ...]
    first_value: str
    first_state: int
    inputs: Places
    statements: Places
    results: Places
    is_constant: bool

    @property
    def size(self) -> int:
        """How many states it has."""
        return len(self.states)

    @property
    def keeps_power(self) -> bool:
        """Whether A of several steps is a power of one matrix."""
        return self.is_constant and self.form != "MEMORY"


@dataclass(frozen=True)
class CoupledText(StepsText):
    """One step of a cell of coupled states as the templates read it."""

    @cached_property
    def phases(self) -> tuple[PhaseText, ...]:
        """The phases in their order."""
        phases, texts, first_state = phases_of(self.lowered.maps), list[PhaseText](), 0
        for number, phase in enumerate(phases):
            first_value = " + ".join(f"Phase{earlier}::VALUES" for earlier in range(number)) or "0"
            texts.append(self._text(number, phase, first_value, first_state))
            first_state += len(phase.states)
        return tuple(texts)

    @property
    def scans(self) -> tuple[PhaseText, ...]:
        """The phases that are more than memory."""
        return tuple(phase for phase in self.phases if phase.statements or phase.results)

    @property
    def is_wide(self) -> bool:
        """Whether states are carried in double precision."""
        return any(phase.form == "FULL" for phase in self.phases)

    def _text(self, number: int, phase: Phase, first_value: str, first_state: int) -> PhaseText:
        places, form = tuple(map(self.states.index, phase.states)), phase.form.upper()
        inputs: Places = ()
        statements: Places = ()
        results: Places = ()
        if phase.program is not None:
            names, size = result_names(phase.program), len(places)
            columns = size if phase.form == "full" else 1
            entries = ((row, column) for row in range(size) for column in range(columns))
            of_a = ((f"a.at[{n}]", names[f"a_{row}_{column}"]) for n, (row, column) in enumerate(entries))
            results = (*of_a, *((f"b.at[{row}]", names[f"b_{row}"]) for row in range(size)))
            after = {cuda_name(f"state_{name}"): f"next.state.at[{place}]" for place, name in enumerate(self.states)}
            inputs = tuple((name, after.get(name, place)) for name, place in self._placed(phase.program))
            statements = statements_of(phase.program)
        map_type = "double" if phase.form == "full" else "compute_t"
        of_step = (inputs, statements, results, phase.is_constant)
        return PhaseText(number, form, map_type, phase.states, places, first_value, first_state, *of_step)
