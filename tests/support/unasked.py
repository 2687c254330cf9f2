"""Backwards without the gradients of parameters with n values, as an export's caller may leave them out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.run.backend import Launchable, Recorder
from minrnn_gen.run.vectors.runs import VectorsRun


@dataclass(frozen=True)
class Unasked(VectorsRun):
    """Backwards that write no such gradients."""

    def run_back(
        self, recorder: Recorder, kernel: Launchable, part: Call, incoming: IncomingGradient, gradients: Gradients
    ) -> None:
        super().run_back(recorder, kernel, part, incoming, replace(gradients, vectors=()))


def leave_out_vectors(kernel: InterpretedKernel) -> None:
    """Have the backwards of a kernel with n values per channel leave the gradients of such parameters out."""
    run = kernel.executor.gpu
    assert isinstance(run._cells, VectorsRun)
    run._cells = Unasked(run._cells.interface, run._cells.builder)
