"""What the templates read of a lowered cell: names, straight-line statements, and where their values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.late import bias_name, step_behind_sums, sum_name
from minrnn_gen.cell.lowering import Lowered, LoweredBackward, LoweredScan, LoweredScanBackward, Program
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.cell.preparation import CutProgram, cut
from minrnn_gen.codegen.cell_names import CellNames
from minrnn_gen.codegen.vectors_text import VectorsBackwardText, VectorsText


@dataclass(frozen=True)
class CellText(CellNames):
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
        places = {f"W_{gate}": f"gate.at[{index}]" for index, gate in enumerate(self.gates)} | self._parameter_places
        return _located(self.lowered.coefficients, places)

    @property
    def step_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self.lowered.coefficients)

    @property
    def step_maps(self) -> tuple[tuple[str, str], ...]:
        """The names of a and b of each state."""
        names = _results(self.lowered.coefficients)
        return tuple((names[f"a_{state}"], names[f"b_{state}"]) for state in self.states)

    @property
    def step_carried(self) -> tuple[str, ...]:
        """The names of what is carried."""
        names = _results(self.lowered.coefficients)
        return tuple(names[label] for label in self.carried)

    @property
    def output_inputs(self) -> tuple[tuple[str, str], ...]:
        places = {f"state_{state}": f"state.at[{index}]" for index, state in enumerate(self.states)}
        places |= {f"previous_{state}": f"previous.at[{index}]" for index, state in enumerate(self.states)}
        places |= {name: f"carried.at[{index}]" for index, name in enumerate(self.carried)} | self._parameter_places
        return _located(self.lowered.output, places)

    @property
    def output_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self.lowered.output)

    @property
    def output_place(self) -> int:
        """The place of the output among the states; -1 where it is none of them."""
        label = dict(self.lowered.output.results)["y"]
        return next((index for index, state in enumerate(self.states) if label == f"state_{state}"), -1)

    @property
    def output_name(self) -> str:
        return _results(self.lowered.output)["y"]

    @property
    def _parameter_places(self) -> dict[str, str]:
        return {f"parameter_{name}": f"parameter.at[{index}]" for index, name in enumerate(self.parameters)}


@dataclass(frozen=True)
class CellBackwardText(CellNames):
    """A lowered backward as the templates read it."""

    lowered: LoweredScanBackward

    @property
    def scan_arithmetic(self) -> str:
        return "linear"  # gradients have either sign

    @property
    def looks_back(self) -> tuple[str, ...]:
        return self.lowered.looks_back

    @property
    def read_gates(self) -> tuple[int, ...]:
        """The places of the gates that the gradients depend on; the others are not read."""
        return tuple(self.gates.index(gate) for gate in self.lowered.read_gates)

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
        """The places of `previous_states` among all states."""
        return tuple(self.states.index(state) for state in self.previous_states)

    @property
    def current_places(self) -> tuple[int, ...]:
        """The places of `current_states` among all states."""
        return tuple(self.states.index(state) for state in self.current_states)

    @property
    def adjoint_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self.lowered.adjoint)

    @property
    def adjoint_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self.lowered.adjoint)

    @property
    def adjoint_results(self) -> tuple[tuple[str, str], ...]:
        names = _results(self.lowered.adjoint)
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
        return _statements(self.lowered.gradients)

    @property
    def gradients_results(self) -> tuple[tuple[str, str], ...]:
        names = _results(self.lowered.gradients)
        labels = [f"W_{gate}" for gate in self.gates] + [f"parameter_{name}" for name in self.parameters]
        return tuple((f"at[{index}]", names[f"gradient_{label}"]) for index, label in enumerate(labels))

    def _placed(self, program: Program) -> tuple[tuple[str, str], ...]:
        places = {f"W_{gate}": f"values.gate.at[{index}]" for index, gate in enumerate(self.gates)}
        places |= {f"parameter_{name}": f"parameter.at[{index}]" for index, name in enumerate(self.parameters)}
        for index, state in enumerate(self.states):
            places |= {
                f"previous_{state}": f"values.previous.at[{index}]",
                f"state_{state}": f"values.current.at[{index}]",
                f"delta_{state}": f"delta.at[{index}]",
            }
        places["gradient_y"] = "values.dy"
        return _located(program, places)


@dataclass(frozen=True)
class _StepsNames(CellNames):
    """What the templates read of a cell that is run step after step, in either pass."""

    lowered: LoweredSteps | LoweredStepsBackward

    @property
    def products(self) -> tuple[str, ...]:
        """The recurrent gates, in R's order."""
        return self.lowered.recurrent_gates

    @property
    def output_state(self) -> str | None:
        return self.lowered.output_state

    @property
    def output_place(self) -> int:
        """The place of the output among the states; -1 where it is none of them."""
        output = self.lowered.output_state
        return -1 if output is None else self.states.index(output)

    def _placed(self, program: Program) -> tuple[tuple[str, str], ...]:
        """(name, where its value is) of each input of `program`."""
        places = {"gradient_y": "dy"}
        for label, names, place in (
            ("W", self.gates, "gate"),
            ("R", self.products, "product"),
            ("previous", self.states, "previous"),
            ("parameter", self.parameters, "parameter"),
            ("gradient_state", self.states, "dstate"),
        ):
            places |= {f"{label}_{name}": f"{place}.at[{index}]" for index, name in enumerate(names)}
        for index, name in enumerate(self.products):
            places |= {sum_name(name): f"sum.at[{index}]", bias_name(name): f"product_bias.at[{index}]"}
        return tuple((cuda_name(name), places.get(name, "")) for name in program.inputs)


@dataclass(frozen=True)
class StepsText(_StepsNames):
    """One step of a cell as the templates read it."""

    lowered: LoweredSteps

    @property
    def step_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self.lowered.step)

    @property
    def step_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self.lowered.step)

    @property
    def step_results(self) -> tuple[tuple[str, str], ...]:
        names = _results(self.lowered.step)
        return (
            *((f"state.at[{index}]", names[f"state_{state}"]) for index, state in enumerate(self.states)),
            ("y", names["y"]),
        )

    @property
    def prepared(self) -> tuple[str, ...]:
        """The values of a step that are free of recurrent sums and previous states, and are read with them."""
        return tuple(map(cuda_name, self._behind_sums.values))

    @property
    def prepared_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self._behind_sums.preparation)

    @property
    def prepared_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self._behind_sums.preparation)

    @property
    def late_inputs(self) -> tuple[tuple[str, str], ...]:
        return _handed_on(self._placed(self._behind_sums.rest), self.prepared)

    @property
    def late_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self._behind_sums.rest)

    @cached_property
    def _behind_sums(self) -> CutProgram:
        return step_behind_sums(self.lowered.step, self.products, self.states)


@dataclass(frozen=True)
class StepsBackwardText(_StepsNames):
    """The vector-Jacobian product of one step as the templates read it."""

    lowered: LoweredStepsBackward

    @property
    def read_gates(self) -> tuple[int, ...]:
        """The places of the gates that the gradients depend on; the others are not read."""
        return tuple(self.gates.index(gate) for gate in self.lowered.read_gates)

    @property
    def read_products(self) -> tuple[int, ...]:
        """The places of the products that the gradients depend on."""
        return tuple(self.products.index(gate) for gate in self.lowered.read_products)

    @property
    def gates_of_products(self) -> tuple[int, ...]:
        """Of each product the place of a gate that has the same gradient, as where only their sum is read; -1 without one."""
        names = _results(self.lowered.backward)
        of_gates = [names[f"gradient_W_{gate}"] for gate in self.gates]
        of_products = [names[f"gradient_R_{product}"] for product in self.products]
        return tuple(of_gates.index(name) if name in of_gates else -1 for name in of_products)

    @property
    def saved_states(self) -> tuple[str, ...]:
        """The states whose values after each step the kernel reads."""
        return self.lowered.read_states

    @property
    def saved_dtypes(self) -> tuple[tuple[str, str], ...]:
        """`saved_states` with their dtypes in memory: the output is read from y."""
        return tuple((state, "storage_t" if state == self.output_state else "compute_t") for state in self.saved_states)

    @property
    def saved_places(self) -> tuple[int, ...]:
        """The places of `saved_states` among all states."""
        return tuple(self.states.index(state) for state in self.saved_states)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The values of a step that are free of the gradients that arrive, and are read with them."""
        return tuple(map(cuda_name, self._cut.values))

    @property
    def prepared_inputs(self) -> tuple[tuple[str, str], ...]:
        return self._placed(self._cut.preparation)

    @property
    def prepared_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self._cut.preparation)

    @property
    def backward_inputs(self) -> tuple[tuple[str, str], ...]:
        return _handed_on(self._placed(self._cut.rest), self.prepared)

    @property
    def backward_statements(self) -> tuple[tuple[str, str], ...]:
        return _statements(self._cut.rest)

    @cached_property
    def _cut(self) -> CutProgram:
        program = self.lowered.backward
        return cut(program, [name for name in program.inputs if name.startswith("gradient_")])

    @property
    def backward_results(self) -> tuple[tuple[str, str], ...]:
        names = _results(self.lowered.backward)
        return tuple(
            (f"{place}.at[{index}]", names[f"gradient_{label}_{name}"])
            for label, listed, place in (
                ("W", self.gates, "gate"),
                ("R", self.products, "product"),
                ("previous", self.states, "previous"),
                ("parameter", self.parameters, "parameter"),
            )
            for index, name in enumerate(listed)
        )


def _located(program: Program, places: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (identifier, where its value is) of each input of `program`."""
    return tuple((cuda_name(name), places[name]) for name in program.inputs)


def _handed_on(inputs: tuple[tuple[str, str], ...], prepared: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return (identifier, where its value is) of inputs of which some are among what is `prepared`."""
    return tuple((name, f"prepared.{name}" if name in prepared else place) for name, place in inputs)


def _statements(program: Program) -> tuple[tuple[str, str], ...]:
    """Return (identifier, value) of each statement of `program`."""
    return tuple((cuda_name(statement.name), statement.cuda) for statement in program.statements)


def _results(program: Program) -> dict[str, str]:
    """Return the identifier of each result of `program` by its label."""
    return {label: cuda_name(name) for label, name in program.results}


AnyLowered = Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward


def context_of(cell: AnyLowered) -> CellNames | VectorsText | VectorsBackwardText:
    """Return a lowered cell as the templates read it."""
    match cell:
        case LoweredScan():
            return CellText(cell)
        case LoweredScanBackward():
            return CellBackwardText(cell)
        case LoweredSteps():
            return StepsText(cell)
        case LoweredStepsBackward():
            return StepsBackwardText(cell)
        case LoweredVectors():
            return VectorsText(cell)
        case LoweredVectorsBackward():
            return VectorsBackwardText(cell)
