"""The grid and the argument list of each kernel, in the order of its signature; knows no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import alignment_of

# The x dimension of a grid (CUDA C++ Programming Guide, technical specifications).
GRID_BLOCKS_MAX = 2**31 - 1
# The counter alone on its cache line (templates/parts/tile_state.cuh.j2 has the same number).
WORKSPACE_HEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class Launch:
    """How many blocks, and the kernel's arguments, pointers as addresses."""

    blocks: int
    arguments: tuple[Any, ...]


def alignment_of_call(*arrays: Array) -> int:
    """Return the alignment, in bytes, of every contiguous run of the arrays: where it starts, and where it ends."""
    offsets = [array.pointer for array in arrays]
    for array in arrays:
        offsets.append(array.shape[-1] * array.itemsize)
        offsets += [
            stride * array.itemsize for stride, size in zip(array.strides[:-1], array.shape[:-1], strict=True) if size > 1
        ]
    return max(alignment_of(*offsets), arrays[0].itemsize)


def parts_of(plan: KernelPlan, time: int) -> int:
    """Return into how many parts a scan divides the time of a column, each with sums of its own."""
    return _tiles(plan, time) if plan.variables.get("lookback") else plan.variables.get("cluster_blocks", 1)


def workspace_bytes_of(plan: KernelPlan, call: Call) -> int:
    """Return the bytes, all ones before the launch, through which blocks hand states on; 0 where none do.

    A head with the counter of tiles taken, then a composition for each tile and each group of tiles.
    """
    if not plan.variables.get("lookback"):
        return 0
    tiles = _tiles(plan, call.time)
    packets = _columns(plan, call) * (tiles + -(-tiles // plan.group_tiles)) * plan.packets_per_tile
    return WORKSPACE_HEAD_BYTES + 2 * plan.arithmetic_bytes * packets


def forward_launch_of(plan: KernelPlan, call: Call, outputs: Outputs, workspace: Array | None = None) -> Launch:
    """Return the launch of a forward of one direction on the arrays of `call` (x already projected), writing `outputs`.

    `workspace` has the bytes that `workspace_bytes_of` asks for.
    """
    arguments = (
        *_inputs(plan, call),
        outputs.y.address,
        *_row_strides(plan, call, outputs.y),
        *pointers_of(outputs.kept),
        *pointers_of(outputs.final),
        *_workspace(plan, workspace),
        call.batch,
        call.time,
    )
    return launch_in_grid(_blocks(plan, call), arguments)


def backward_launch_of(
    plan: KernelPlan,
    call: Call,
    read_states: tuple[Array, ...],
    incoming: IncomingGradient,
    gradients: Gradients,
    workspace: Array | None = None,
) -> Launch:
    """Return the launch of a backward of one direction, writing `gradients`.

    `read_states` are the states after each step that the backward reads, in the cell's order, y where it is one of them.
    """
    arguments = (
        *_inputs(plan, call),
        *pointers_of(read_states),
        incoming.dy.address,
        *_row_strides(plan, call, incoming.dy),
        *pointers_of(incoming.dfinal),
        gradients.dx.address,
        *_x_strides(plan, call, gradients.dx),
        *pointers_of(gradients.dinitial),
        *pointers_of((gradients.sums,)),
        *_workspace(plan, workspace),
        call.batch,
        call.time,
    )
    return launch_in_grid(_blocks(plan, call), arguments)


def step_launch_of(plan: KernelPlan, call: Call, outputs: Outputs) -> Launch:
    """Return the launch of a single step, writing `outputs`."""
    strides = _strides_by_axis(call.x, call.x_axes)
    arguments = (
        call.x.address,
        *(strides[axis] for axis in "bgh"),
        *_vectors(call),
        *pointers_of(call.initial),
        outputs.y.address,
        *pointers_of(outputs.final),
        call.batch,
    )
    return launch_in_grid(-(-call.batch * plan.hidden_size // plan.threads), arguments)


def _inputs(plan: KernelPlan, call: Call) -> tuple[Any, ...]:
    """What forward and backward begin with: x, the vectors, the initial states, and where sequences begin and end."""
    arguments: tuple[Any, ...] = (
        call.x.address,
        *_x_strides(plan, call, call.x),
        *_vectors(call),
        *pointers_of(call.initial),
    )
    sequences = call.sequences
    if sequences.resets is not None:
        arguments += (sequences.resets.address, *_strides_of_kernel(call, _strides_by_axis(sequences.resets, "bt"), "bt"))
    if sequences.cu_seqlens is not None:
        # Each sequence ends where the next one begins.
        begins = sequences.cu_seqlens
        return (*arguments, begins.address, begins.address + begins.itemsize)
    # Where time is the innermost axis nothing is ever packed along it, so every sequence begins at 0.
    no_begins = () if plan.layout == "BDT" else (0,)
    return (*arguments, *no_begins, *pointers_of((sequences.lengths,)))


def _columns(plan: KernelPlan, call: Call) -> int:
    """How many columns there are, each walked in the order of time."""
    if plan.layout == "BDT":
        return call.batch * plan.hidden_size
    return call.batch * -(-plan.hidden_size // plan.channels_per_block)


def _tiles(plan: KernelPlan, time: int) -> int:
    return max(1, -(-time // plan.tile_steps))


def _blocks(plan: KernelPlan, call: Call) -> int:
    columns_per_block = plan.channels_per_block if plan.layout == "BDT" else 1
    if plan.variables.get("lookback"):
        # As many as there is room for: they take what there is to do.
        return min(plan.resident_blocks, -(-_columns(plan, call) * _tiles(plan, call.time) // columns_per_block))
    return -(-_columns(plan, call) // columns_per_block) * plan.variables.get("cluster_blocks", 1)


def _workspace(plan: KernelPlan, workspace: Array | None) -> tuple[int, ...]:
    return pointers_of((workspace,)) if plan.variables.get("lookback") else ()


def _x_strides(plan: KernelPlan, call: Call, array: Array) -> tuple[int, ...]:
    """The strides that a kernel asks for of an array with the axes of x."""
    return _strides_of_kernel(call, _strides_by_axis(array, call.x_axes), "bgh" if plan.layout == "BDT" else "btg")


def _row_strides(plan: KernelPlan, call: Call, array: Array) -> tuple[int, ...]:
    """The strides that a kernel asks for of an array with the axes of y."""
    return _strides_of_kernel(call, _strides_by_axis(array, Y_AXES[plan.layout]), "bh" if plan.layout == "BDT" else "bt")


def _strides_of_kernel(call: Call, strides: Mapping[str, int], axes: str) -> tuple[int, ...]:
    """Packed sequences lie one behind the other in time: from one to the next there is no stride."""
    return tuple(0 if axis == "b" and call.sequences.cu_seqlens is not None else strides[axis] for axis in axes)


def _strides_by_axis(array: Array, axes: str) -> Mapping[str, int]:
    return dict(zip(axes, array.strides, strict=True))


def launch_in_grid(blocks: int, arguments: tuple[Any, ...]) -> Launch:
    """Return a launch; raises BadInput for more blocks than a grid has."""
    if blocks > GRID_BLOCKS_MAX:
        raise BadInput(f"x needs {blocks} blocks, more than the {GRID_BLOCKS_MAX} of a grid; split the batch")
    return Launch(blocks, arguments)


def pointers_of(arrays: tuple[Array | None, ...]) -> tuple[int, ...]:
    """Return the addresses of arrays, 0 for those that are not there."""
    return tuple(array.address if array is not None else 0 for array in arrays)


def _vectors(call: Call) -> tuple[Any, ...]:
    """The bias, the parameters, and the mask that says which of them are float32."""
    vectors = (call.bias, *call.parameters)
    return (*pointers_of(vectors), mask_of(vectors))


def mask_of(vectors: tuple[Array | None, ...]) -> Any:
    """Return the mask that says, bit by bit, which vectors are float32."""
    import numpy

    return numpy.uint32(sum(1 << bit for bit, vector in enumerate(vectors) if vector is not None and vector.dtype == "float32"))
