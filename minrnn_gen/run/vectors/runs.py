"""Runs of cells with n values per channel: one launch for each direction of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, runs_of
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.backend import Launchable, Recorder, WideGradients
from minrnn_gen.run.cell_run import CellRun
from minrnn_gen.run.drafts import Draft, launch_starts
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan.runs import choose
from minrnn_gen.run.slots import with_slots
from minrnn_gen.run.vectors.launch import (
    checkpoint_values_of,
    part_values_of,
    shared_parts_of,
    vector_backward_launch_of,
    vector_draft_launch_of,
    vector_forward_launch_of,
    vector_step_launch_of,
    vector_workspace_bytes_of,
)


@dataclass(frozen=True)
class VectorsRun(CellRun):
    """The kernels of one builder of a cell with n values per channel; both passes have arrays of the same names."""

    @property
    def shared_axes(self) -> str:
        """The axes of inputs S.* of one direction."""
        return self.interface.shared_axes.replace("d", "")

    def forward(self, recorder: Recorder, runs: Sequence[tuple[Call, Outputs]], states_out: StatesOut) -> None:
        """Run a call in each direction."""
        for part, outputs in runs:
            self._run_forward(recorder, part, outputs, states_out)

    def _run_forward(self, recorder: Recorder, part: Call, outputs: Outputs, states_out: StatesOut) -> None:
        kernel = recorder.load(choose(recorder, "forward", part, states_out, part.x, outputs.y))
        wide = self.interface.vector_states
        axes = self.interface.states_axes(wide[0]) if wide else ""
        workspace = recorder.workspace(vector_workspace_bytes_of(kernel.plan, part))
        kernel.launch(vector_forward_launch_of(kernel.plan, self.names, part, self.shared_axes, outputs, axes, workspace))

    def step(self, recorder: Recorder, call: Call, outputs: Outputs) -> None:
        """Run one step."""
        specialization = with_slots(self.builder.hinted_specialization, call)
        kernel = recorder.load(recorder.choose("step", specialization, Sizes(call.batch, 1)))
        axes = self.shared_axes.replace("t", "")
        kernel.launch(vector_step_launch_of(kernel.plan, self.names, call, axes, outputs))

    def run_draft(self, recorder: Recorder, call: Call, outputs: Outputs, draft: Draft) -> None:
        """Run a draft on the pool in the initial states, after the kept steps of the last draft."""
        starts = launch_starts(recorder, self.builder, self.names, draft)
        narrow = self.interface.precision.arithmetic_dtype != next(state.dtype for state in call.initial if state)
        specialization = replace(self.builder.hinted_specialization, pool="storage" if narrow else "arithmetic", replays=True)
        kernel = recorder.load(recorder.choose("step", specialization, Sizes(draft.batch, 1)))
        kernel.launch(vector_draft_launch_of(kernel.plan, self.names, call, self.shared_axes, outputs, draft, starts))

    def backward(self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> WideGradients:
        """Run against time in each direction: forward once for the states at starts of tiles, then back tile by tile."""
        interface, call, projected = self.interface, forward.call, forward.projected
        carried, runs = interface.precision.arithmetic_dtype, len(interface.runs_reversed)
        kernels = []
        for run, part in runs_of(interface, projected) if call.batch else ():
            arriving = incoming_of_run(interface, incoming, run)
            dx = gradients_of_run(interface, projected.x_axes, gradients, run).dx
            kernels.append((part, arriving, recorder.load(choose(recorder, "backward", part, "none", part.x, arriving.dy, dx))))
        parts = {shared_parts_of(kernel.plan) for _, _, kernel in kernels} or {1}
        time_parts = {kernel.plan.variables["time_parts"] for _, _, kernel in kernels} or {1}
        # A run with fewer parts of time than the other leaves the rest unwritten.
        zeros = 0 if len(time_parts) > 1 else None
        # Steps beyond a length are not written, nor are the missing parts of a run with fewer parts than the other.
        fill = 0 if call.sequences.lengths is not None or len(parts) > 1 or not kernels else None
        of_steps = (max(parts), *interface.shape(interface.shared_axes, call.rows, call.time))
        dshared = tuple(recorder.new_array(of_steps, carried, fill=fill) for _ in interface.shared)
        of_channels = (runs, max(time_parts) * call.batch, interface.hidden_size, interface.state_size)
        vectors = tuple(recorder.new_array(of_channels, carried, fill=zeros) for _ in interface.vector_parameters)
        sums = None
        if call.bias is not None or interface.summed_parameters:
            of_parts = (runs, max(time_parts), interface.summed_count, call.batch, interface.hidden_size)
            sums = recorder.new_array(of_parts, carried, fill=zeros)
        written = Gradients(gradients.dx, gradients.dinitial, sums)
        for run, (part, arriving, kernel) in enumerate(kernels):
            of_run = replace(
                gradients_of_run(interface, projected.x_axes, written, run),
                dshared=self._of_direction(dshared, run),
                vectors=tuple(array.selected(0, run) for array in vectors),
            )
            self.run_back(recorder, kernel, part, arriving, of_run)
        return WideGradients(sums, vectors=vectors, shared=dshared)

    def run_back(
        self, recorder: Recorder, kernel: Launchable, part: Call, incoming: IncomingGradient, gradients: Gradients
    ) -> None:
        """Run one direction back; a first launch computes the ends of its parts of time where it has several."""
        carried = self.interface.precision.arithmetic_dtype
        checkpoints = recorder.new_array((checkpoint_values_of(kernel.plan, part),), carried)
        arrays = (part, self.shared_axes, incoming, gradients, checkpoints)
        ends = part_values_of(kernel.plan, part)
        part_ends = recorder.new_array((ends,), carried) if ends else None
        for phase in range(0 if ends else 1, 2):
            kernel.launch(vector_backward_launch_of(kernel.plan, self.names, *arrays, part_ends, phase))

    def _of_direction(self, arrays: tuple[Array, ...], run: int) -> tuple[Array, ...]:
        """Return one run's part of partial sums of the gradients of inputs S.*."""
        if not self.interface.directions:
            return arrays
        axis = 1 + self.interface.shared_axes.index("d")
        return tuple(array.selected(axis, run) for array in arrays)
