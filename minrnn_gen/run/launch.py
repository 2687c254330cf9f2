"""A launch as blocks and arguments, and array arguments by the names of a kernel's signature; knows no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.codegen.signature_groups import SCAN_X_AXES, SCAN_Y_AXES, ArrayNames, named_arrays, own_gates, stride_names
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import alignment_of
from minrnn_gen.program.number import bounds, divisor_of

# The x dimension of a grid (CUDA C++ Programming Guide, technical specifications).
GRID_BLOCKS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Launch:
    """How many blocks, and the kernel's arguments in the order of its signature, pointers as addresses."""

    blocks: int
    arguments: tuple[Any, ...]


def alignment_of_call(*arrays: Array) -> int:
    """Return the alignment, in bytes, of the start and end of every contiguous run of the arrays."""
    offsets = [pointer_divisor(array.pointer) for array in arrays]
    for array in arrays:
        strides = zip(array.strides[:-1], array.shape[:-1], strict=True)
        steps = [array.shape[-1], *(stride for stride, size in strides if bounds(size)[1] > 1)]
        offsets += [divisor_of(step) * array.itemsize for step in steps]
    return max(alignment_of(*offsets), arrays[0].itemsize)


def inputs_of(plan: KernelPlan, names: ArrayNames, call: Call) -> dict[str, Any]:
    """Return the first arguments of forward and backward: x, vectors, initial states, and the begins and ends of sequences."""
    values = {
        "x": call.x.address,
        **moved_gates(plan, names, call, "x", call.x, call.moved),
        **x_strides(plan, call, "x", call.x),
        **named("input", names.inputs, call.inputs),
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


def moved_gates(
    plan: KernelPlan, names: ArrayNames, call: Call, name: str, array: Array, moved: Array | None
) -> dict[str, int]:
    """Return the address of the tangents of gates in a scan over dual numbers: an array apart, or their part of `array`.

    Gradients of tangents that lie apart may be absent.
    """
    if not (names.is_dual and plan.is_scan):
        return {}
    if call.moved is not None:
        return {f"{name}_moved": address_or_null(moved)}
    axis = call.x_axes.index("g")
    own = own_gates(array.shape[axis])
    return {f"{name}_moved": array.narrowed(axis, own, array.shape[axis] - own).address}


def x_strides(plan: KernelPlan, call: Call, name: str, array: Array) -> dict[str, int]:
    """Return a kernel's strides of an array with the axes of x."""
    return _strides(call, name, SCAN_X_AXES[plan.problem.layout], array, call.x_axes)


def row_strides(plan: KernelPlan, call: Call, name: str, array: Array) -> dict[str, int]:
    """Return a kernel's strides of an array with the axes of y."""
    return _strides(call, name, SCAN_Y_AXES[plan.problem.layout], array, Y_AXES[plan.problem.layout])


def _strides(call: Call, name: str, wanted: str, array: Array, axes: str) -> dict[str, int]:
    """Return strides with 0 between packed sequences, which follow each other in time."""
    by_axis = strides_by_axis(array, axes)
    if call.sequences.cu_seqlens is not None:
        by_axis["b"] = 0
    return stride_values(name, wanted, by_axis)


def strides_by_axis(array: Array, axes: str) -> dict[str, int]:
    """Return the strides of an array with these axes, by axis."""
    return dict(zip(axes, array.strides, strict=True))


def stride_values(name: str, wanted: str, by_axis: Mapping[str, int]) -> dict[str, int]:
    """Return the strides of an array along the `wanted` axes, by the names of their parameters."""
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
    """Return the addresses of a cell's named arrays, by the names of their parameters."""
    addresses = [0 if array is None else array.address for array in arrays]
    return dict(zip(named_arrays(prefix, names), addresses, strict=True))


def vector_values(names: ArrayNames, call: Call, recurrent: bool = False) -> dict[str, Any]:
    """Return the biases, the parameters, and the mask of the float32 vectors among them."""
    vectors: tuple[Array | None, ...] = (call.bias, *call.parameters)
    values = {"bias": address_or_null(call.bias)}
    if recurrent:
        vectors = (call.bias, call.recurrent_bias, *call.parameters)
        values["recurrent_bias"] = address_or_null(call.recurrent_bias)
    return values | named("parameter", names.parameters, call.parameters) | {"float32_vectors": mask_of(vectors)}


def mask_of(vectors: tuple[Array | None, ...]) -> Any:
    """Return a mask with a bit for each vector, set for float32."""
    import numpy

    return numpy.uint32(sum(1 << bit for bit, vector in enumerate(vectors) if vector is not None and vector.dtype == "float32"))
