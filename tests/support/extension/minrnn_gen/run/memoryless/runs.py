"""Runs of memoryless cells: one launch for each direction of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minrnn_gen.run.memoryless.launch import forward_launch_of

from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.scan.runs import ScanRun, choose


@dataclass(frozen=True)
class MemorylessRun(ScanRun):
    """The kernels of one builder of a memoryless cell; its single steps and gradients are those of a diagonal cell."""

    def forward(self, recorder: Recorder, runs: Sequence[tuple[Call, Outputs]], states_out: StatesOut) -> None:
        """Run a call in each direction."""
        for part, outputs in runs:
            kernel = recorder.load(choose(recorder, "forward", part, states_out, part.x, outputs.y, *outputs.kept))
            kernel.launch(forward_launch_of(kernel.plan, self.names, part, outputs))
