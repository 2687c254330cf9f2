"""Context of the templates: a lowered cell's names, its straight-line statements, and where their values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.lowering import Lowered, LoweredBackward, LoweredScan, LoweredScanBackward, Program
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.codegen.cell_names import CellNames, GradientNames
from minrnn_gen.codegen.coupled_text import CoupledText
from minrnn_gen.codegen.rounds_text import result_names, statements_of
from minrnn_gen.codegen.steps_text import StepsBackwardText, StepsText
from minrnn_gen.codegen.vectors_text import VectorsBackwardText, VectorsText


@dataclass(frozen=True)
class _ScanNames(CellNames):
    """Names of a scan in either pass."""

    @property
    def map_count(self) -> int:
        """The number of maps of a step: one for each state, or for each pair of them."""
        return len(self.pairs or self.states)

    @property
    def members(self) -> tuple[str, ...]:
        """Where each state, or its gradient, is among those of a lane."""
        return tuple(map(self._member, self.states))

    def _member(self, state: str) -> str:
        return f"at[{self.states.index(state)}]"


@dataclass(frozen=True)
class CellText(_ScanNames):
    """A lowered forward as the templates read it: straight-line statements, and where their values are."""

    lowered: LoweredScan

    @property
    def scan_arithmetic(self) -> str:
        return self.lowered.scan_arithmetic

    @property
    def carried(self) -> tuple[str, ...]:
        return self.lowered.carried

    @property
    def step_inputs(self) -> tuple[tuple[str, str], ...]:
        """(name, where its value is) of each input of `step_of`."""
        places = {label: f"gate.at[{index}]" for index, label in enumerate(self.known_labels)} | self._parameter_places
        return located(self.lowered.coefficients, places)

    @property
    def step_statements(self) -> tuple[tuple[str, str], ...]:
        return statements_of(self.lowered.coefficients)

    @property
    def step_maps(self) -> tuple[tuple[str, str], ...]:
        """The names of a and b of each state."""
        names = result_names(self.lowered.coefficients)
        return tuple((names[f"a_{state}"], names[f"b_{state}"]) for state in self.states)

    @property
    def step_carried(self) -> tuple[str, ...]:
        """The names of what is carried."""
        names = result_names(self.lowered.coefficients)
        return tuple(names[label] for label in self.carried)

    @property
    def output_inputs(self) -> tuple[tuple[str, str], ...]:
        places = {f"state_{state}": f"state.at[{index}]" for index, state in enumerate(self.states)}
        places |= {f"previous_{state}": f"previous.at[{index}]" for index, state in enumerate(self.states)}
        places |= {name: f"carried.at[{index}]" for index, name in enumerate(self.carried)} | self._parameter_places
        return located(self.lowered.output, places)

    @property
    def output_statements(self) -> tuple[tuple[str, str], ...]:
        return statements_of(self.lowered.output)

    @property
    def output_place(self) -> int:
        """The index of the output among the states; -1 if the output is not a state."""
        label = dict(self.lowered.output.results)["y"]
        return next((index for index, state in enumerate(self.states) if label == f"state_{state}"), -1)

    @property
    def output_name(self) -> str:
        return result_names(self.lowered.output)["y"]

    @property
    def _parameter_places(self) -> dict[str, str]:
        return {f"parameter_{name}": f"parameter.at[{index}]" for index, name in enumerate(self.parameters)}


@dataclass(frozen=True)
class CellBackwardText(_ScanNames, GradientNames):
    """A lowered backward as the templates read it."""

    lowered: LoweredScanBackward

    @property
    def scan_arithmetic(self) -> str:
        return "linear"  # gradients have either sign

    @property
    def looks_back(self) -> tuple[str, ...]:
        return self.lowered.looks_back

    @property
    def saved_states(self) -> tuple[str, ...]:
        """The states whose values after each step the kernel reads."""
        return self.lowered.read_states

    @property
    def previous_states(self) -> tuple[str, ...]:
        return self.lowered.previous_states

    @property
    def current_states(self) -> tuple[str, ...]:
        return self.lowered.current_states

    @property
    def previous_places(self) -> tuple[int, ...]:
        """The indices of `previous_states` among all states."""
        return tuple(self.states.index(state) for state in self.previous_states)

    @property
    def current_places(self) -> tuple[int, ...]:
        """The indices of `current_states` among all states."""
        return tuple(self.states.index(state) for state in self.current_states)

    @property
    def adjoint_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self.lowered.adjoint)

    @property
    def adjoint_statements(self) -> tuple[tuple[str, str], ...]:
        return statements_of(self.lowered.adjoint)

    @property
    def adjoint_results(self) -> tuple[tuple[str, str], ...]:
        names = result_names(self.lowered.adjoint)
        return tuple(
            (f"{part}.at[{index}]", names[f"{part}_{state}"])
            for part in "aef"
            for index, state in enumerate(self.states)
            if part != "f" or state in self.looks_back
        )

    @property
    def gradients_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self.lowered.gradients)

    @property
    def gradients_statements(self) -> tuple[tuple[str, str], ...]:
        return statements_of(self.lowered.gradients)

    @property
    def gradients_results(self) -> tuple[tuple[str, str], ...]:
        names = result_names(self.lowered.gradients)
        labels = [f"W_{gate}" for gate in self.gates] + [f"parameter_{name}" for name in self.parameters]
        labels += [f"X_{name}" for name in self.inputs]
        return tuple((f"at[{index}]", names[f"gradient_{label}"]) for index, label in enumerate(labels))

    def _placed(self, program: Program) -> tuple[tuple[str, str], ...]:
        return located(program, self._places)

    @property
    def _places(self) -> dict[str, str]:
        places = {label: f"values.gate.at[{index}]" for index, label in enumerate(self.known_labels)}
        places |= {f"parameter_{name}": f"parameter.at[{index}]" for index, name in enumerate(self.parameters)}
        for index, state in enumerate(self.states):
            places |= {
                f"previous_{state}": f"values.previous.at[{index}]",
                f"state_{state}": f"values.current.at[{index}]",
                f"delta_{state}": f"delta.at[{index}]",
            }
        places["gradient_y"] = "values.dy"
        return places


def located(program: Program, places: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (identifier, where its value is) of each input of `program`."""
    return tuple((cuda_name(name), places[name]) for name in program.inputs)


AnyLowered = Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward


def context_of(cell: AnyLowered, products_added: bool = False) -> CellNames | VectorsText | VectorsBackwardText:
    """Return a lowered cell as the templates read it; `products_added` as its specialization has it."""
    match cell:
        case LoweredScan():
            return CellText(cell)
        case LoweredScanBackward():
            return CellBackwardText(cell)
        case LoweredSteps():
            return CoupledText(cell) if cell.maps else StepsText(cell)
        case LoweredStepsBackward():
            return StepsBackwardText(cell, products_added)
        case LoweredVectors():
            return VectorsText(cell)
        case LoweredVectorsBackward():
            return VectorsBackwardText(cell)
