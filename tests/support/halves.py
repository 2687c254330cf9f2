"""Dense cells whose time is in two halves, each a launch of its own, as in layers that run beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.call.pieces import pieces_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.dense.runs import Backward, DenseRun


@dataclass(frozen=True)
class Halves(DenseRun):
    """Backwards in two halves."""

    def run_back(self, recorder: Recorder, backward: Backward, kernel: KernelKey | None = None) -> None:
        arrays, interface = backward.arrays, self.interface
        first, second = pieces_of(backward.part.time, 2)
        shape, dtype = interface.state_shape(backward.part.batch), interface.precision.arithmetic_dtype
        between = tuple(recorder.new_array(shape, dtype) for _ in interface.states)
        later = backward.piece(interface, second, arrays.incoming.dfinal, between)
        earlier = backward.piece(interface, first, between, arrays.gradients.dinitial)
        for half in (later, earlier):
            super().run_back(recorder, half, kernel)


def take_halves(kernel: InterpretedKernel) -> None:
    """Have the backwards of a kernel of a dense cell take its time in halves."""
    run = kernel.executor.gpu
    assert isinstance(run._cells, DenseRun)
    run._cells = Halves(run._cells.interface, run._cells.builder, run._cells.backend)
