"""A single step of a dense cell: by a kernel for steps, or as a forward of one step; on rows of states, or on a pool."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, Sizes, alignment_of, step_sequences_max
from minrnn_gen.run.backend import Backend, Launchable, Recorder
from minrnn_gen.run.dense.launch import step_launch_of, workspace_bytes_of
from minrnn_gen.run.expected_time import single_step_us
from minrnn_gen.run.launch import alignment_of_call
from minrnn_gen.run.slots import new_rows, rows_from_pool, rows_into_pool, with_slots


class RunsForward(Protocol):
    """Runs a call of one direction."""

    def __call__(self, recorder: Recorder, part: Call, outputs: Outputs, single_step: bool) -> None: ...


@dataclass(frozen=True)
class DenseStep:
    """The steps of one dense cell.

    `run_forward` serves steps of many sequences, steps that no step kernel fits, and steps in which a product waits for
    another, if `choose_forward` gives a kernel that takes them in one launch and in less time.
    """

    interface: Interface
    builder: Builder
    backend: Backend
    names: ArrayNames
    run_forward: RunsForward
    choose_forward: Callable[[Recorder, Call, Outputs], KernelKey]

    def run(self, recorder: Recorder, call: Call, outputs: Outputs) -> None:
        """Run one step."""
        if (key := self._choose(recorder, call, outputs)) is not None:
            self._run_kernel(recorder, recorder.load(key), call, outputs)
            return
        # These kernels read a row of channels at once.
        part = replace(call, x=call.x if call.x.strides[-1] == 1 else recorder.contiguous(call.x))
        if call.pool is None:
            self.run_forward(recorder, part, outputs, single_step=True)
            return
        hinted = self.builder.hinted_specialization
        final = new_rows(recorder, call)
        part = rows_from_pool(recorder, hinted, self.names, part)
        self.run_forward(recorder, part, replace(outputs, final=final), single_step=True)
        rows_into_pool(recorder, hinted, self.names, call, final, outputs.y)

    def _run_kernel(self, recorder: Recorder, kernel: Launchable, call: Call, outputs: Outputs) -> None:
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, call.batch))
        resident = kernel.resident_blocks() if kernel.plan.group_exchange_bytes else 0
        launch_of = partial(step_launch_of, kernel.plan, self.names, call, outputs)
        if call.pool is None:
            kernel.launch(launch_of(workspace=workspace, resident_blocks=resident))
            return
        lowered = self.builder.lowered
        output = lowered.states.index(getattr(lowered, "output_state", ""))  # what R multiplies
        next_output = recorder.new_array((call.batch, self.interface.hidden_size), self.interface.precision.arithmetic_dtype)
        kernel.launch(launch_of(next_output, workspace, resident))
        rows = [next_output if index == output else None for index in range(len(self.names.states))]
        rows_into_pool(recorder, self.builder.hinted_specialization, self.names, call, rows)

    def _is_faster_as_forward(self, recorder: Recorder, call: Call, outputs: Outputs, of_step: KernelPlan) -> bool:
        """Whether a forward of one step is one launch without copies and faster, in a cell whose step waits within itself."""
        if not self.builder.cell_shape.makes_again or call.pool is not None or call.x.strides[-1] != 1:
            return False
        forward = self.backend.plan(self.choose_forward(recorder, call, outputs))
        if not forward.is_persistent:
            return False
        batch = of_step.problem.batch  # near the call's, which an exported program does not know yet
        return single_step_us(self.builder, forward, batch) < single_step_us(self.builder, of_step, batch)

    def _choose(self, recorder: Recorder, call: Call, outputs: Outputs) -> KernelKey | None:
        """The kernel for a step, None where the step runs as a forward of one step."""
        interface, builder = self.interface, self.builder
        assert call.R is not None
        if call.batch > step_sequences_max(builder.target.profile, math.prod(interface.R_shape)):
            return None
        rows = (call.R, *(state for state in call.initial if state is not None))
        alignment = alignment_of(alignment_of_call(*rows), interface.head_dim * interface.precision.storage_bytes)
        key = recorder.choose("step", with_slots(Specialization(alignment), call), Sizes(call.batch, 1))
        plan = self.backend.plan(key)
        if plan.strategy != "decode" or self._is_faster_as_forward(recorder, call, outputs, plan):
            return None
        return key
