"""Names of a lowered cell that templates read, whatever its class and pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from minrnn_gen.cell.lowering import Lowered, LoweredBackward, LoweredScanBackward
from minrnn_gen.cell.lowering_steps import LoweredStepsBackward
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
from minrnn_gen.codegen.header import comment


@dataclass(frozen=True)
class CellNames:
    """Names of a lowered cell that templates read in either pass, in the order of the arrays."""

    lowered: Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward

    @property
    def name(self) -> str:
        return self.lowered.name

    @property
    def equation_lines(self) -> tuple[str, ...]:
        return tuple(comment(line) for line in self.lowered.equations.splitlines() if line.strip())

    @property
    def gates(self) -> tuple[str, ...]:
        return self.lowered.gates

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of states that a scan composes as dual numbers."""
        return ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs X.*, whose values stand after those of the gates."""
        return () if isinstance(self.lowered, LoweredVectors | LoweredVectorsBackward) else self.lowered.inputs

    @property
    def known(self) -> str:
        """The number of a step's values that are known before it, as text in CUDA."""
        return "GATES + INPUTS" if self.inputs else "GATES"

    @property
    def gate_rows(self) -> str:
        """The number of known values in parentheses, for use as a factor."""
        return f"({self.known})" if self.inputs else self.known

    @property
    def known_labels(self) -> tuple[str, ...]:
        """The names of the known values in a program, in the order of their places."""
        return (*(f"W_{gate}" for gate in self.gates), *(f"X_{name}" for name in self.inputs))

    @property
    def states(self) -> tuple[str, ...]:
        return self.lowered.states

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.lowered.parameters


@dataclass(frozen=True)
class GradientNames(CellNames):
    """Additional names for a cell's gradients: the known values that these depend on."""

    lowered: LoweredScanBackward | LoweredStepsBackward

    @property
    def read_gates(self) -> tuple[int, ...]:
        """The indices of the gates that the gradients depend on; the others are not read."""
        return tuple(self.gates.index(gate) for gate in self.lowered.read_gates)

    @property
    def read_input_names(self) -> tuple[str, ...]:
        """The inputs X.* that the gradients depend on; the others are not read."""
        return self.lowered.read_inputs

    @property
    def read_inputs(self) -> tuple[int, ...]:
        """The indices of the inputs that the gradients depend on, among all inputs X.*."""
        return tuple(map(self.inputs.index, self.read_input_names))

    @property
    def gradient_paths(self) -> tuple[int, int]:
        """Which gradients of states depend on which others in one step, and in any number, as bits."""
        return cast(LoweredStepsBackward, self.lowered).gradient_paths
