"""Text of scans over dual numbers: pairs of states as values and tangents of one state of a lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minrnn_gen.cell.dual import LoweredDual, LoweredDualBackward, Pair
from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward, Program
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.codegen.context import CellBackwardText, CellText, located
from minrnn_gen.codegen.rounds_text import Places, result_names
from minrnn_gen.codegen.signature_groups import own_gates


class _OfPairs:
    """Properties of both passes over dual numbers."""

    @property
    def pairs(self: Any) -> tuple[Pair, ...]:
        return self.dual.pairs  # type: ignore[no-any-return]

    @property
    def own_gates(self: Any) -> int:
        """The number of gates without their tangents."""
        return own_gates(len(self.gates))


@dataclass(frozen=True)
class DualText(_OfPairs, CellText):
    """A lowered forward over dual numbers as the templates read it."""

    dual: LoweredDual

    @classmethod
    def of(cls, steps: LoweredSteps, dual: LoweredDual) -> DualText:
        """Return the text of a cell's `steps` as a scan."""
        programs = (dual.coefficients, dual.carried, dual.output)
        scan = LoweredScan(*_names_of(steps), *programs, steps.equations, inputs=steps.inputs)
        return cls(scan, dual)

    def _member(self, state: str) -> str:
        return member_of(self.pairs, state, is_gradient=False)

    @property
    def step_maps(self) -> Places:
        names = result_names(self.lowered.coefficients)
        numbers = range(len(self.pairs))
        return tuple((_dual(names[f"a_{n}"], names[f"da_{n}"]), _dual(names[f"b_{n}"], names[f"db_{n}"])) for n in numbers)

    @property
    def output_inputs(self) -> Places:
        members = {state: self._member(state) for state in self.states}
        places = {f"state_{state}": f"state.{member}" for state, member in members.items()}
        places |= {f"previous_{state}": f"previous.{member}" for state, member in members.items()}
        places |= {name: f"carried.at[{index}]" for index, name in enumerate(self.carried)} | self._parameter_places
        return located(self.lowered.output, places)


@dataclass(frozen=True)
class DualBackwardText(_OfPairs, CellBackwardText):
    """A lowered backward over dual numbers as the templates read it; values are the gradients of tangents."""

    dual: LoweredDualBackward

    @classmethod
    def of(cls, steps: LoweredStepsBackward, dual: LoweredDualBackward) -> DualBackwardText:
        """Return the text of a cell's `steps` as a scan."""
        programs = (dual.adjoint, dual.gradients, steps.states, steps.output_state)
        return cls(LoweredScanBackward(*_names_of(steps), *programs, steps.equations, inputs=steps.inputs), dual)

    def _member(self, state: str) -> str:
        return member_of(self.pairs, state, is_gradient=True)

    @property
    def adjoint_results(self) -> Places:
        names = result_names(self.lowered.adjoint)
        zero = _dual("compute_t(0)", "compute_t(0)")
        results: list[tuple[str, Any]] = []
        for number, (state, tangent) in enumerate(self.pairs):
            results += [
                (f"a.at[{number}]", _dual(names[f"a_{number}"], names[f"da_{number}"])),
                (f"e.at[{number}]", zero),
                (f"f.at[{number}]", _dual(names[f"f_{tangent}"], names[f"f_{state}"])),
            ]
        return tuple(results)

    def _placed(self, program: Program) -> Places:
        deltas = {f"gradient_state_{state}": f"delta.{self._member(state)}" for state in self.states}
        return located(program, self._places | deltas)


def member_of(pairs: tuple[Pair, ...], state: str, is_gradient: bool) -> str:
    """Return where a state, or its gradient, is among the dual numbers of a lane."""
    number, pair = next((number, pair) for number, pair in enumerate(pairs) if state in pair)
    is_value = (state == pair[0]) != is_gradient
    return f"at[{number}].{'value' if is_value else 'tangent'}"


def _dual(value: str, tangent: str) -> str:
    return f"state_t({value}, {tangent})"


def _names_of(steps: LoweredSteps | LoweredStepsBackward) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return steps.name, steps.gates, steps.states, steps.parameters
