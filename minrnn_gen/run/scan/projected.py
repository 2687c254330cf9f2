"""Runs of a scan together with its input projection, one launch for both, where that is faster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import Projects
from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Sizes
from minrnn_gen.program.number import bounds, least
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.launch import Launch, address_or_null, launch_in_grid, named, vector_values


@dataclass(frozen=True)
class ProjectedScan:
    """The kernels of one builder of a scan that multiply x by the weight themselves."""

    interface: Interface
    builder: Builder
    names: ArrayNames
    projects: Projects

    def forward(self, recorder: Recorder, call: Call, outputs: Outputs, states_out: StatesOut, saves: bool) -> Call | None:
        """Run a call, and return it with the pre-activations where it `saves`; None where it is run by two kernels.

        Where nothing is saved, it returns the same call.
        """
        specialization = self._specialization(call, states_out)
        if specialization is None:
            return None
        kernel = recorder.load(recorder.choose("forward", specialization, Sizes(call.batch, call.time)))
        preactivations = None
        if saves:
            shape = self.interface.shape(self.interface.preactivation_axes, call.rows, call.time)
            preactivations = recorder.new_array(shape, call.x.dtype)
        blocks = least(kernel.resident_blocks(), _tiles(kernel.plan, call))
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, call, blocks))
        kernel.launch(launch_of(kernel.plan, self.names, call, outputs, preactivations, workspace, blocks))
        if preactivations is None:
            return call
        return replace(call, x=preactivations, x_axes=self.interface.preactivation_axes, weight=None)

    def _specialization(self, call: Call, states_out: StatesOut) -> Specialization | None:
        """Return the key of the kernel for a call; None where the call does not fit one, or two kernels are faster."""
        sequences, x, weight = call.sequences, call.x, call.weight
        is_plain = sequences.resets is None and sequences.lengths is None and sequences.cu_seqlens is None
        if weight is None or not is_plain or states_out != "none" or not call.batch or not call.time:
            return None
        if not all(map(_is_whole, (x, weight))):
            return None
        return self.projects(self.builder, Sizes(call.batch, call.time))


def _is_whole(array: Array) -> bool:
    """Say whether an array is contiguous and aligned for copies."""
    if pointer_divisor(array.pointer) < WIDEST_COPY_BYTES:
        return False
    expected = 1
    for size, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if bounds(size)[1] > 1 and stride != expected:
            return False
        expected *= size
    return True


def _tiles(plan: KernelPlan, call: Call) -> int:
    return call.batch * (call.time // plan.launch.tile_steps) * (plan.problem.hidden_size // plan.launch.channels_per_block)


def workspace_bytes_of(plan: KernelPlan, call: Call, blocks: int) -> int:
    """Return the bytes, all ones before the launch, of the maps of all blocks and the states between tiles."""
    states = call.batch * (call.time // plan.launch.tile_steps) * plan.problem.state_count * plan.problem.hidden_size
    return blocks * plan.budget.shared_map["maps"] + 2 * plan.problem.arithmetic_bytes * states


def launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    outputs: Outputs,
    preactivations: Array | None,
    workspace: Array | None,
    blocks: int,
) -> Launch:
    """Return the launch of a call whose x is not projected, writing `outputs`, and `preactivations` if they are kept."""
    assert call.weight is not None
    values = {
        "x": call.x.address,
        "weight": call.weight.address,
        **vector_values(names, call),
        **named("initial", names.states, call.initial),
        "y": outputs.y.address,
        "preactivations": address_or_null(preactivations),
        **named("final", names.states, outputs.final),
        "workspace_bytes": address_or_null(workspace),
        "batch": call.batch,
        "time": call.time,
    }
    return launch_in_grid(blocks, pack(signature(plan, names), values))
