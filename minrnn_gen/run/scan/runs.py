"""Runs of scans and diagonal cells: one launch for each direction of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import Projects, projected_at
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.plan.kernel_plan import Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program.number import most
from minrnn_gen.run.backend import Launchable, Recorder, WideGradients
from minrnn_gen.run.cell_run import CellRun
from minrnn_gen.run.kept import kept_by_name
from minrnn_gen.run.launch import alignment_of_call
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan.launch import backward_launch_of, forward_launch_of, parts_of, step_launch_of, workspace_bytes_of
from minrnn_gen.run.scan.projected import ProjectedScan
from minrnn_gen.run.slots import with_slots


@dataclass(frozen=True)
class ScanRun(CellRun):
    """The kernels of one builder of a scan or a diagonal cell."""

    projects: Projects = projected_at

    @cached_property
    def projected(self) -> ProjectedScan:
        """The kernels that multiply x by the weight themselves."""
        return ProjectedScan(self.interface, self.builder, self.names, self.projects)

    def forward_from_inputs(
        self, recorder: Recorder, call: Call, outputs: Outputs, states_out: StatesOut, saves: bool
    ) -> Call | None:
        """Run a call together with its projection, where one kernel for both is faster."""
        return self.projected.forward(recorder, call, outputs, states_out, saves)

    def forward(self, recorder: Recorder, runs: Sequence[tuple[Call, Outputs]], states_out: StatesOut) -> None:
        """Run a call in each direction."""
        for part, outputs in runs:
            self._run_forward(recorder, part, outputs, states_out)

    def _run_forward(self, recorder: Recorder, part: Call, outputs: Outputs, states_out: StatesOut) -> None:
        rows = (*rows_of_x(part), outputs.y, *outputs.kept, *part.inputs)
        kernel = recorder.load(choose(recorder, "forward", part, states_out, *rows))
        resident = resident_blocks_of(kernel)
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, part, resident))
        kernel.launch(forward_launch_of(kernel.plan, self.names, part, outputs, workspace, resident))

    def step(self, recorder: Recorder, call: Call, outputs: Outputs) -> None:
        """Run one step."""
        specialization = with_slots(self.builder.hinted_specialization, call)
        kernel = recorder.load(recorder.choose("step", specialization, Sizes(call.batch, 1)))
        kernel.launch(step_launch_of(kernel.plan, self.names, call, outputs))

    def backward(self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> WideGradients:
        """Run against time in each direction."""
        interface, call = self.interface, forward.call
        runs = list(self._runs_back(recorder, forward, incoming, gradients)) if call.batch else []
        sums = None
        if call.bias is not None or call.parameters:
            parts = [parts_of(run.kernel.plan, run.call, run.resident_blocks) for run in runs] or [1]
            shape = (len(interface.runs_reversed), most(*parts), interface.summed_count, call.batch, interface.hidden_size)
            # A run of fewer parts than the other leaves the rest as it is.
            fill = 0 if any(part != parts[0] for part in parts) else None
            sums = recorder.new_array(shape, interface.precision.arithmetic_dtype, fill=fill)
        written = replace(gradients, sums=sums)
        for index, run in enumerate(runs):
            plan, part = run.kernel.plan, gradients_of_run(interface, forward.projected.x_axes, written, index)
            workspace = recorder.workspace(workspace_bytes_of(plan, run.call, run.resident_blocks))
            arrays = (run.call, run.read_states, run.incoming, part, workspace, run.resident_blocks)
            run.kernel.launch(backward_launch_of(plan, self.names_backward, *arrays))
        return WideGradients(sums)

    def _runs_back(
        self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients
    ) -> Iterator[_RunBack]:
        interface, projected, storage = self.interface, forward.projected, self.interface.precision.storage_dtype
        states = (recorder.cast(array, storage) for array in read_states(self.builder, forward.outputs))
        read = Outputs(forward.outputs.y, tuple(states), ())
        for run, part in runs_of(interface, projected):
            states_of_run, arriving = outputs_of_run(interface, read, run).kept, incoming_of_run(interface, incoming, run)
            written = gradients_of_run(interface, projected.x_axes, gradients, run)
            rows = (*rows_of_x(part), arriving.dy, written.dx, *states_of_run, *part.inputs, *written.dinputs)
            kernel = choose(recorder, "backward", part, "none", *rows)
            loaded = recorder.load(kernel)
            yield _RunBack(part, states_of_run, arriving, loaded, resident_blocks_of(loaded))


@dataclass(frozen=True, slots=True)
class _RunBack:
    """One run of a backward: its part of the call, of the states that it reads and of the incoming gradients, and its kernel.

    `resident_blocks`: None unless the kernel's blocks wait for each other.
    """

    call: Call
    read_states: tuple[Array, ...]
    incoming: IncomingGradient
    kernel: Launchable
    resident_blocks: int | None


def rows_of_x(call: Call) -> tuple[Array, ...]:
    """Return the arrays that have the gates of a call."""
    return (call.x,) if call.moved is None else (call.x, call.moved)


def resident_blocks_of(kernel: Launchable) -> int | None:
    """Return how many blocks the device holds at once, None for a kernel whose blocks do not wait for each other."""
    return kernel.resident_blocks() if kernel.plan.is_cooperative else None


def sizes_of(call: Call) -> Sizes:
    """Return the sizes of a call; packed sequences count with their mean length."""
    packed = call.sequences.cu_seqlens is not None
    return Sizes(call.batch, call.time // call.batch if packed else call.time)


def choose(recorder: Recorder, kernel_pass: KernelPass, call: Call, states_out: StatesOut, *rows: Array) -> KernelKey:
    """Return the kernel for a call of one direction whose arrays of x and y are `rows`."""
    return recorder.choose(kernel_pass, specialization_of(call, states_out, *rows), sizes_of(call))


def specialization_of(call: Call, states_out: StatesOut, *rows: Array) -> Specialization:
    """Return the specialization for a call of one direction whose arrays of x and y are `rows`."""
    return Specialization(
        alignment_of_call(*rows),
        reverse=call.reverse,
        resets=call.sequences.resets is not None,
        states_out=states_out,
        packed=call.sequences.cu_seqlens is not None,
    )


def read_states(builder: Builder, outputs: Outputs) -> tuple[Array, ...]:
    """Return the states that a backward reads, as written; y where it is one of them."""
    lowered = builder.lowered_backward
    states = {name: array for name, array in kept_by_name(builder, outputs.kept).items() if array is not None}
    return tuple(outputs.y if name == lowered.output_state else states[name] for name in lowered.read_states)
