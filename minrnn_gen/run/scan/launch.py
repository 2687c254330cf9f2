"""The grid of each launch of a scan and its arguments, by the names of the kernel's signature."""

from __future__ import annotations

from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import STEP_X_AXES, ArrayNames
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.program.number import divided_up, least, most
from minrnn_gen.run.launch import (
    Launch,
    address_or_null,
    inputs_of,
    launch_in_grid,
    moved_gates,
    named,
    row_strides,
    stride_values,
    strides_by_axis,
    vector_values,
    x_strides,
)
from minrnn_gen.run.slots import step_states


def parts_of(plan: KernelPlan, call: Call, resident_blocks: int | None = None) -> int:
    """Return how many parts a scan divides the time of a column into, each with its own sums."""
    if plan.strategy == "cooperative":
        return _column_blocks(plan, call, resident_blocks)
    return _tiles(plan, call.time) if plan.variables.get("lookback") else plan.variables.get("cluster_blocks", 1)


def workspace_bytes_of(plan: KernelPlan, call: Call, resident_blocks: int | None = None) -> int:
    """Return the bytes, all ones before the launch, through which blocks pass states; 0 where none do.

    They hold the counter of taken tiles, then an aggregate for each tile and each group of tiles; where all blocks are
    resident, only an aggregate for each tile.
    """
    if plan.is_cooperative:
        if _column_blocks(plan, call, resident_blocks) == 1:
            return 0
        if plan.strategy == "coupled":
            tiles, groups = _tiles(plan, call.time), divided_up(_tiles(plan, call.time), plan.launch.group_tiles)
            sizes = plan.launch.partition
            return _columns(plan, call) * (tiles * sizes["map_bytes"] + groups * sizes["state_bytes"])
        if "map_bytes" in plan.launch.partition:  # of each block, one for all states
            return plan.packet_bytes * plan.launch.channels_per_block * _blocks(plan, call, resident_blocks)
        tiles = _tile_rows(plan, call) * divided_up(plan.problem.hidden_size, plan.launch.channels_per_block)
        return plan.packet_bytes * tiles * plan.packets_per_tile
    if not plan.variables.get("lookback"):
        return 0
    tiles = _tiles(plan, call.time)
    packets = _columns(plan, call) * (tiles + divided_up(tiles, plan.launch.group_tiles)) * plan.packets_per_tile
    return plan.workspace_head_bytes + plan.packet_bytes * packets


def forward_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    outputs: Outputs,
    workspace: Array | None = None,
    resident_blocks: int | None = None,
) -> Launch:
    """Return the launch of a forward of one direction on the arrays of `call` (x already projected), writing `outputs`.

    `workspace` has `workspace_bytes_of` bytes. Where blocks wait for others, the device holds `resident_blocks` of them, by
    default as many as the plan expects.
    """
    values = {
        **inputs_of(plan, names, call),
        "y": outputs.y.address,
        **row_strides(plan, call, "y", outputs.y),
        **(named("kept", names.states, outputs.kept) if outputs.kept else {}),
        **named("final", names.states, outputs.final),
        **_workspace(plan, workspace),
        "batch": call.batch,
        "time": call.time,
    }
    return launch_in_grid(_blocks(plan, call, resident_blocks), pack(signature(plan, names), values))


def backward_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    read_states: tuple[Array, ...],
    incoming: IncomingGradient,
    gradients: Gradients,
    workspace: Array | None = None,
    resident_blocks: int | None = None,
) -> Launch:
    """Return the launch of a backward of one direction, writing `gradients`; the last two as of a forward.

    `read_states` are the states after each step that the backward reads, in the cell's order, y where it is one of them.
    """
    values = {
        **inputs_of(plan, names, call),
        **named("saved", names.saved_states, read_states),
        "dy": incoming.dy.address,
        **row_strides(plan, call, "y", incoming.dy),
        **named("dfinal", names.states, incoming.dfinal),
        "dx": gradients.dx.address,
        **moved_gates(plan, names, call, "dx", gradients.dx, gradients.dx_moved),
        **x_strides(plan, call, "dx", gradients.dx),
        **named("dinput", names.inputs, gradients.dinputs),
        **named("dinitial", names.states, gradients.dinitial),
        "sums": address_or_null(gradients.sums),
        **_workspace(plan, workspace),
        "batch": call.batch,
        "time": call.time,
    }
    return launch_in_grid(_blocks(plan, call, resident_blocks), pack(signature(plan, names), values))


def step_launch_of(plan: KernelPlan, names: ArrayNames, call: Call, outputs: Outputs) -> Launch:
    """Return the launch of a single step, writing `outputs`."""
    values = {
        "x": call.x.address,
        **stride_values("x", STEP_X_AXES, strides_by_axis(call.x, call.x_axes)),
        **named("input", names.inputs, call.inputs),
        **vector_values(names, call),
        **step_states(names, call, outputs.final),
        "y": outputs.y.address,
        "batch": call.batch,
    }
    return launch_in_grid(
        divided_up(call.batch * plan.problem.hidden_size, plan.launch.threads), pack(signature(plan, names), values)
    )


def _columns(plan: KernelPlan, call: Call) -> int:
    """How many columns there are, each walked in the order of time."""
    if plan.problem.layout == "BDT" and plan.strategy != "cooperative":
        return call.batch * plan.problem.hidden_size
    return call.batch * divided_up(plan.problem.hidden_size, plan.launch.channels_per_block)


def _tiles(plan: KernelPlan, time: int) -> int:
    return most(1, divided_up(time, plan.launch.tile_steps))


def _tile_rows(plan: KernelPlan, call: Call) -> int:
    """The maximal number of tiles of a cooperative scan, summed over all sequences."""
    if call.sequences.cu_seqlens is not None:
        return call.time // plan.launch.tile_steps + call.batch
    return call.batch * divided_up(call.time, plan.launch.tile_steps)


def _column_blocks(plan: KernelPlan, call: Call, resident_blocks: int | None) -> int:
    """How many blocks of a cooperative scan share a column."""
    return most(1, least(_at_once(plan, resident_blocks) // _columns(plan, call), _tiles(plan, call.time)))


def _at_once(plan: KernelPlan, resident_blocks: int | None) -> int:
    """The maximal number of blocks that wait for each other in a scan by all blocks."""
    return plan.launch.resident_blocks if resident_blocks is None else least(plan.launch.resident_blocks, resident_blocks)


def _blocks(plan: KernelPlan, call: Call, resident_blocks: int | None) -> int:
    if plan.is_cooperative:
        return least(_at_once(plan, resident_blocks), _columns(plan, call) * _column_blocks(plan, call, resident_blocks))
    columns_per_block = plan.launch.channels_per_block if plan.problem.layout == "BDT" else 1
    if plan.variables.get("lookback"):
        # As many as fit: blocks take tiles until none is left.
        return least(plan.launch.resident_blocks, divided_up(_columns(plan, call) * _tiles(plan, call.time), columns_per_block))
    return divided_up(_columns(plan, call), columns_per_block) * plan.variables.get("cluster_blocks", 1)


def _workspace(plan: KernelPlan, workspace: Array | None) -> dict[str, Any]:
    has_workspace = plan.variables.get("lookback") or plan.is_cooperative
    return {"workspace_bytes": address_or_null(workspace)} if has_workspace else {}
