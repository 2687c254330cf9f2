"""The grid and the argument list of each kernel, in the order of its signature; knows no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.arguments import Call, IncomingGradient
from minrnn_gen.arrays import Array
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import alignment_of

# The x dimension of a grid (CUDA C++ Programming Guide, technical specifications).
GRID_BLOCKS_MAX = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """How many blocks, and the kernel's arguments; a launch of no blocks is to be skipped."""

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


def launch_of(plan: KernelPlan, call: Call, y: Array, final: tuple[Array, ...]) -> Launch:
    """Return the launch of `plan` on the arrays of `call` (x already projected), writing `y` and `final`."""
    if plan.kernel_pass == "step":
        return _step(plan, call, y, final)
    blocks, strides = _grid(plan, call)
    arguments = (
        call.x.pointer,
        *strides,
        *_vectors(call),
        *_pointers(call.initial),
        y.pointer,
        *_pointers(final),
        call.batch,
        call.time,
    )
    return _checked(blocks, arguments)


def backward_launch_of(
    plan: KernelPlan,
    call: Call,
    y: Array,
    gradient: IncomingGradient,
    dx: Array,
    dinitial: tuple[Array, ...],
    sums: Array | None,
) -> Launch:
    """Return the launch of a backward, writing `dx`, `dinitial` and, where given, `sums` [gates + parameters, B, H]."""
    blocks, strides = _grid(plan, call)
    arguments = (
        call.x.pointer,
        *strides,
        *_vectors(call),
        *_pointers(call.initial),
        y.pointer,
        gradient.dy.pointer,
        *_pointers(gradient.dfinal),
        dx.pointer,
        *_pointers(dinitial),
        *_pointers((sums,)),
        call.batch,
        call.time,
    )
    return _checked(blocks, arguments)


def _grid(plan: KernelPlan, call: Call) -> tuple[int, tuple[int, ...]]:
    """The blocks of a scan, and the strides of x that its kernel asks for."""
    stride = dict(zip(call.x_axes, call.x.strides, strict=True))
    if plan.layout == "BDT":
        return -(-call.batch * plan.hidden_size // plan.channels_per_block), tuple(stride[axis] for axis in "bgh")
    return call.batch * -(-plan.hidden_size // plan.channels_per_block), tuple(stride[axis] for axis in "btg")


def _step(plan: KernelPlan, call: Call, y: Array, final: tuple[Array, ...]) -> Launch:
    stride: Mapping[str, int] = dict(zip(call.x_axes, call.x.strides, strict=True))
    arguments = (
        call.x.pointer,
        *(stride[axis] for axis in "bgh"),
        *_vectors(call),
        *_pointers(call.initial),
        y.pointer,
        *_pointers(final),
        call.batch,
    )
    return _checked(-(-call.batch * plan.hidden_size // plan.threads), arguments)


def _checked(blocks: int, arguments: tuple[Any, ...]) -> Launch:
    if blocks > GRID_BLOCKS_MAX:
        raise BadInput(f"x needs {blocks} blocks, more than the {GRID_BLOCKS_MAX} of a grid; split the batch")
    return Launch(blocks, arguments)


def _pointers(arrays: tuple[Array | None, ...]) -> tuple[int, ...]:
    return tuple(array.pointer if array is not None else 0 for array in arrays)


def _vectors(call: Call) -> tuple[Any, ...]:
    """The bias, the parameters, and the mask that says which of them are float32."""
    import numpy

    vectors = (call.bias, *call.parameters)
    mask = sum(1 << bit for bit, vector in enumerate(vectors) if vector is not None and vector.dtype == "float32")
    return (*_pointers(vectors), numpy.uint32(mask))
