"""The grid of each launch of a kernel for n values per channel, and its arguments by name; knows no library."""

from __future__ import annotations

from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import STEP_X_AXES, ArrayNames
from minrnn_gen.codegen.signature_vectors import (
    DRAFT_X_AXES,
    DRAFT_Y_AXES,
    DSHARED_AXES,
    KEPT_AXES,
    SHARED_AXES,
    STEP_SHARED_AXES,
)
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.program.number import divided_up, most
from minrnn_gen.run.drafts import Draft
from minrnn_gen.run.launch import (
    Launch,
    address_or_null,
    inputs_of,
    launch_in_grid,
    named,
    row_strides,
    stride_values,
    strides_by_axis,
    vector_values,
    x_strides,
)
from minrnn_gen.run.slots import step_states


def checkpoint_values_of(plan: KernelPlan, call: Call) -> int:
    """Return how many values the states at the start of every tile take, at least one."""
    tiles = call.batch * divided_up(call.time, plan.launch.tile_steps)
    if call.sequences.cu_seqlens is not None:
        # A sequence begins one tile more than there are multiples of a tile's steps in it.
        tiles = call.time // plan.launch.tile_steps + call.batch + 1
    return most(1, tiles * plan.launch.partition["state_rows"] * plan.problem.hidden_size * plan.variables["lanes"])


def shared_parts_of(plan: KernelPlan) -> int:
    """Return the number of partial sums over channels for each gradient of an input S.*."""
    return plan.launch.partition["group_blocks"]


def part_bytes_of(plan: KernelPlan) -> int:
    """Return the bytes through which the parts of time of a block's channels pass states; 0 where time is not divided."""
    return plan.problem.arithmetic_bytes * plan.launch.partition["part_values"] * plan.variables.get("time_parts", 1)


def part_values_of(plan: KernelPlan, call: Call) -> int:
    """Return how many values the ends of the parts of time of a backward take; 0 where time is not divided."""
    columns = call.batch * plan.launch.partition["blocks_per_sequence"]
    return columns * plan.launch.partition["part_values"] * plan.variables["time_parts"]


def vector_workspace_bytes_of(plan: KernelPlan, call: Call) -> int:
    """Return the bytes, all ones before the launch, through which parts of time pass states; 0 where none do."""
    columns = call.batch * plan.launch.partition["blocks_per_sequence"]
    return plan.workspace_head_bytes + columns * part_bytes_of(plan) if part_bytes_of(plan) and columns else 0


def vector_forward_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    shared_axes: str,
    outputs: Outputs,
    states_axes: str,
    workspace: Array | None = None,
) -> Launch:
    """Return the launch of a forward of one direction, writing `outputs`.

    `shared_axes`: the axes of inputs S.*; `states_axes`: the axes of a state with the axis n after every step. `workspace` has
    `vector_workspace_bytes_of` bytes.
    """
    values: dict[str, Any] = {
        **inputs_of(plan, names, call),
        **_shared_inputs(names, call, SHARED_AXES, shared_axes),
        "y": outputs.y.address,
        **row_strides(plan, call, "y", outputs.y),
        **named("final", names.states, outputs.final),
        **({"workspace_bytes": address_or_null(workspace)} if part_bytes_of(plan) else {}),
        "batch": call.batch,
        "time": call.time,
    }
    if outputs.kept:
        values |= named("kept", names.states, outputs.kept)
        wide = [array for name, array in zip(names.states, outputs.kept, strict=True) if name in names.vector_states]
        strides = dict.fromkeys(KEPT_AXES, 0)
        if wide:
            strides = strides_by_axis(wide[0], states_axes)
        values |= stride_values("states", KEPT_AXES, _apart(call, strides))
    return _launch(plan, names, call, values)


def vector_backward_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    shared_axes: str,
    incoming: IncomingGradient,
    gradients: Gradients,
    checkpoints: Array,
    part_ends: Array | None = None,
    phase: int = 1,
) -> Launch:
    """Return the launch of a backward of one direction, writing `gradients`, whose `dshared` have parts in front.

    `checkpoints` has `checkpoint_values_of` values, and `part_ends` has `part_values_of`. If `part_ends` has any, a launch
    before, of `phase` 0, writes them.
    """
    values: dict[str, Any] = {
        **inputs_of(plan, names, call),
        **_shared_inputs(names, call, SHARED_AXES, shared_axes),
        "dy": incoming.dy.address,
        **row_strides(plan, call, "y", incoming.dy),
        **named("dfinal", names.states, incoming.dfinal),
        "dx": gradients.dx.address,
        **x_strides(plan, call, "dx", gradients.dx),
        **named("dinitial", names.states, gradients.dinitial),
        **named("dparameter", names.vector_parameters, gradients.vectors or (None,) * len(names.vector_parameters)),
        "sums": address_or_null(gradients.sums),
        "checkpoints": checkpoints.address,
        **({"part_ends": part_ends.address, "phase": phase} if part_ends is not None else {}),
        "batch": call.batch,
        "time": call.time,
    }
    for name, array in zip(names.shared, gradients.dshared, strict=True):
        values[f"dshared_{name}"] = array.address
        values |= stride_values(f"dstrides_{name}", DSHARED_AXES, _apart(call, strides_by_axis(array, f"p{shared_axes}")))
    return _launch(plan, names, call, values)


def vector_step_launch_of(plan: KernelPlan, names: ArrayNames, call: Call, shared_axes: str, outputs: Outputs) -> Launch:
    """Return the launch of a single step, writing `outputs`; `shared_axes` are those of its inputs S.*."""
    values = {
        "x": call.x.address,
        **stride_values("x", STEP_X_AXES, strides_by_axis(call.x, call.x_axes)),
        **vector_values(names, call),
        **_shared_inputs(names, call, STEP_SHARED_AXES, shared_axes),
        "y": outputs.y.address,
        **step_states(names, call, outputs.final),
        "batch": call.batch,
    }
    lanes = call.batch * plan.problem.hidden_size * plan.variables["lanes"]
    return launch_in_grid(divided_up(lanes, plan.launch.threads), pack(signature(plan, names), values))


def vector_draft_launch_of(
    plan: KernelPlan, names: ArrayNames, call: Call, shared_axes: str, outputs: Outputs, draft: Draft, starts: Array
) -> Launch:
    """Return the launch that runs a draft after the kept steps of the last draft; the initial states of `call` are the pool."""
    kept_x, *kept = draft.inputs
    values = {
        "x": call.x.address,
        **stride_values("x", DRAFT_X_AXES, strides_by_axis(call.x, call.x_axes)),
        **vector_values(names, call),
        **named("pool", names.states, call.initial),
        **{f"slot_stride_{name}": state.strides[0] for name, state in zip(names.states, call.initial, strict=True) if state},
        "starts": starts.address,
        "lengths": address_or_null(draft.lengths),
        **_shared_inputs(names, call, SHARED_AXES, shared_axes),
        "kept_x": kept_x.address,
        **named("kept", names.shared, kept),
        "y": outputs.y.address,
        **stride_values("y", DRAFT_Y_AXES, strides_by_axis(outputs.y, Y_AXES[plan.problem.layout])),
        "places": draft.places,
        "batch": draft.batch,
        "time": call.time,
    }
    blocks = draft.batch * plan.launch.partition["blocks_per_sequence"]
    return launch_in_grid(blocks, pack(signature(plan, names), values))


def _launch(plan: KernelPlan, names: ArrayNames, call: Call, values: dict[str, Any]) -> Launch:
    blocks = call.batch * plan.launch.partition["blocks_per_sequence"] * plan.variables.get("time_parts", 1)
    return launch_in_grid(blocks, pack(signature(plan, names), values))


def _shared_inputs(names: ArrayNames, call: Call, wanted: str, axes: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, array in zip(names.shared, call.shared, strict=True):
        values[f"shared_{name}"] = array.address
        values |= stride_values(f"strides_{name}", wanted, _apart(call, strides_by_axis(array, axes)))
    return values


def _apart(call: Call, by_axis: dict[str, int]) -> dict[str, int]:
    """Return strides with 0 between packed sequences, which follow each other in time."""
    return by_axis | {"b": 0} if call.sequences.cu_seqlens is not None else by_axis
