"""The grid of each launch and its arguments, by the names of the kernel's signature; knows no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import SCAN_X_AXES, SCAN_Y_AXES, STEP_X_AXES, ArrayNames, named_arrays, stride_names
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import alignment_of
from minrnn_gen.program.number import bounds, divided_up, divisor_of, least, most

# The x dimension of a grid (CUDA C++ Programming Guide, technical specifications).
GRID_BLOCKS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Launch:
    """How many blocks, and the kernel's arguments in the order of its signature, pointers as addresses."""

    blocks: int
    arguments: tuple[Any, ...]


def alignment_of_call(*arrays: Array) -> int:
    """Return the alignment, in bytes, of every contiguous run of the arrays: where it starts, and where it ends."""
    offsets = [pointer_divisor(array.pointer) for array in arrays]
    for array in arrays:
        strides = zip(array.strides[:-1], array.shape[:-1], strict=True)
        steps = [array.shape[-1], *(stride for stride, size in strides if bounds(size)[1] > 1)]
        offsets += [divisor_of(step) * array.itemsize for step in steps]
    return max(alignment_of(*offsets), arrays[0].itemsize)


def parts_of(plan: KernelPlan, call: Call, resident_blocks: int | None = None) -> int:
    """Return into how many parts a scan divides the time of a column, each with sums of its own."""
    if plan.strategy == "cooperative":
        return _column_blocks(plan, call, resident_blocks)
    return _tiles(plan, call.time) if plan.variables.get("lookback") else plan.variables.get("cluster_blocks", 1)


def workspace_bytes_of(plan: KernelPlan, call: Call, resident_blocks: int | None = None) -> int:
    """Return the bytes, all ones before the launch, through which blocks hand states on; 0 where none do.

    A head with the counter of tiles taken, then a composition for each tile and each group of tiles; of blocks that are all
    resident a composition for each tile.
    """
    if plan.strategy == "cooperative":
        if _column_blocks(plan, call, resident_blocks) == 1:
            return 0
        tiles = _tile_rows(plan, call) * divided_up(plan.problem.hidden_size, plan.launch.channels_per_block)
        return 2 * plan.problem.arithmetic_bytes * tiles * plan.packets_per_tile
    if not plan.variables.get("lookback"):
        return 0
    tiles = _tiles(plan, call.time)
    packets = _columns(plan, call) * (tiles + divided_up(tiles, plan.launch.group_tiles)) * plan.packets_per_tile
    return plan.workspace_head_bytes + 2 * plan.problem.arithmetic_bytes * packets


def forward_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    outputs: Outputs,
    workspace: Array | None = None,
    resident_blocks: int | None = None,
) -> Launch:
    """Return the launch of a forward of one direction on the arrays of `call` (x already projected), writing `outputs`.

    `workspace` has the bytes that `workspace_bytes_of` asks for. Where blocks wait for others, the device holds
    `resident_blocks` of them, by default as many as the plan expects.
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
        **x_strides(plan, call, "dx", gradients.dx),
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
        **vector_values(names, call),
        **named("initial", names.states, call.initial),
        "y": outputs.y.address,
        **named("final", names.states, outputs.final),
        "batch": call.batch,
    }
    return launch_in_grid(
        divided_up(call.batch * plan.problem.hidden_size, plan.launch.threads), pack(signature(plan, names), values)
    )


def inputs_of(plan: KernelPlan, names: ArrayNames, call: Call) -> dict[str, Any]:
    """Return what forward and backward begin with: x, the vectors, the initial states, and where sequences begin and end."""
    values = {
        "x": call.x.address,
        **x_strides(plan, call, "x", call.x),
        **vector_values(names, call),
        **named("initial", names.states, call.initial),
    }
    sequences = call.sequences
    if sequences.resets is not None:
        values["resets"] = sequences.resets.address
        values |= _strides(call, "resets", "bt", sequences.resets, "bt")
    if sequences.cu_seqlens is not None:
        # Each sequence ends where the next one begins.
        begins = sequences.cu_seqlens
        return values | {"begins": begins.address, "ends": begins.address + begins.itemsize}
    # Where time is the innermost axis nothing is ever packed along it, so every sequence begins at 0.
    no_begins = {} if plan.problem.layout == "BDT" else {"begins": 0}
    return values | no_begins | {"ends": address_or_null(sequences.lengths)}


def _columns(plan: KernelPlan, call: Call) -> int:
    """How many columns there are, each walked in the order of time."""
    if plan.problem.layout == "BDT":
        return call.batch * plan.problem.hidden_size
    return call.batch * divided_up(plan.problem.hidden_size, plan.launch.channels_per_block)


def _tiles(plan: KernelPlan, time: int) -> int:
    return most(1, divided_up(time, plan.launch.tile_steps))


def _tile_rows(plan: KernelPlan, call: Call) -> int:
    """How many tiles all sequences of a cooperative scan have together, at most."""
    if call.sequences.cu_seqlens is not None:
        return call.time // plan.launch.tile_steps + call.batch
    return call.batch * divided_up(call.time, plan.launch.tile_steps)


def _column_blocks(plan: KernelPlan, call: Call, resident_blocks: int | None) -> int:
    """How many blocks of a cooperative scan share a column."""
    return most(1, least(_at_once(plan, resident_blocks) // _columns(plan, call), _tiles(plan, call.time)))


def _at_once(plan: KernelPlan, resident_blocks: int | None) -> int:
    """How many blocks of a cooperative scan wait for each other at most."""
    return plan.launch.resident_blocks if resident_blocks is None else least(plan.launch.resident_blocks, resident_blocks)


def _blocks(plan: KernelPlan, call: Call, resident_blocks: int | None) -> int:
    if plan.strategy == "cooperative":
        return least(_at_once(plan, resident_blocks), _columns(plan, call) * _column_blocks(plan, call, resident_blocks))
    columns_per_block = plan.launch.channels_per_block if plan.problem.layout == "BDT" else 1
    if plan.variables.get("lookback"):
        # As many as there is room for: they take what there is to do.
        return least(plan.launch.resident_blocks, divided_up(_columns(plan, call) * _tiles(plan, call.time), columns_per_block))
    return divided_up(_columns(plan, call), columns_per_block) * plan.variables.get("cluster_blocks", 1)


def _workspace(plan: KernelPlan, workspace: Array | None) -> dict[str, Any]:
    hands_on = plan.variables.get("lookback") or plan.strategy == "cooperative"
    return {"workspace_bytes": address_or_null(workspace)} if hands_on else {}


def x_strides(plan: KernelPlan, call: Call, name: str, array: Array) -> dict[str, int]:
    """Return the strides that a kernel asks for of an array with the axes of x."""
    return _strides(call, name, SCAN_X_AXES[plan.problem.layout], array, call.x_axes)


def row_strides(plan: KernelPlan, call: Call, name: str, array: Array) -> dict[str, int]:
    """Return the strides that a kernel asks for of an array with the axes of y."""
    return _strides(call, name, SCAN_Y_AXES[plan.problem.layout], array, Y_AXES[plan.problem.layout])


def _strides(call: Call, name: str, wanted: str, array: Array, axes: str) -> dict[str, int]:
    """Packed sequences lie one behind the other in time: from one to the next there is no stride."""
    by_axis = strides_by_axis(array, axes)
    if call.sequences.cu_seqlens is not None:
        by_axis["b"] = 0
    return stride_values(name, wanted, by_axis)


def strides_by_axis(array: Array, axes: str) -> dict[str, int]:
    """Return the strides of an array with these axes, by axis."""
    return dict(zip(axes, array.strides, strict=True))


def stride_values(name: str, wanted: str, by_axis: Mapping[str, int]) -> dict[str, int]:
    """Return the strides of an array along the axes that are wanted, by the names of their parameters."""
    return {parameter: by_axis[axis] for parameter, axis in stride_names(name, wanted)}


def launch_in_grid(blocks: int, arguments: tuple[Any, ...]) -> Launch:
    """Return a launch; raises BadInput for more blocks than a grid has."""
    if bounds(blocks)[0] > GRID_BLOCKS_MAX:
        raise BadInput(f"x needs {blocks} blocks, more than the {GRID_BLOCKS_MAX} of a grid; split the batch")
    return Launch(blocks, arguments)


def address_or_null(array: Array | None) -> int:
    """Return the address of an array, 0 where there is none."""
    return 0 if array is None else array.address


def named(prefix: str, names: tuple[str, ...], arrays: Sequence[Array | None]) -> dict[str, int]:
    """Return the addresses of the arrays that a cell has by name, by the names of their parameters."""
    addresses = [0 if array is None else array.address for array in arrays]
    return dict(zip(named_arrays(prefix, names), addresses, strict=True))


def vector_values(names: ArrayNames, call: Call, recurrent: bool = False) -> dict[str, Any]:
    """Return the biases, the parameters, and the mask that says which of them are float32."""
    vectors: tuple[Array | None, ...] = (call.bias, *call.parameters)
    values = {"bias": address_or_null(call.bias)}
    if recurrent:
        vectors = (call.bias, call.recurrent_bias, *call.parameters)
        values["recurrent_bias"] = address_or_null(call.recurrent_bias)
    return values | named("parameter", names.parameters, call.parameters) | {"float32_vectors": mask_of(vectors)}


def mask_of(vectors: tuple[Array | None, ...]) -> Any:
    """Return the mask that says, bit by bit, which vectors are float32."""
    import numpy

    return numpy.uint32(sum(1 << bit for bit, vector in enumerate(vectors) if vector is not None and vector.dtype == "float32"))
