"""What a single array has to be: its dtype, shape, strides and place; each refusal is one sentence that names the array."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.errors import BadInput

AXIS_NAMES = {"b": "batch", "t": "time", "d": "directions", "g": "gates", "h": "hidden", "i": "input"}
# The axes of x whose sizes the caller chooses, call by call.
FREE_AXES = "bt"


def check_dtype(array: Array, allowed: tuple[str, ...]) -> None:
    """Refuse a dtype that is not in `allowed`."""
    if array.dtype not in allowed:
        raise BadInput(f"{array.name} has dtype {array.dtype}; {' or '.join(allowed)} is expected and nothing is cast silently")


def check_exact_shape(array: Array, shape: tuple[int, ...]) -> None:
    """Refuse every shape but `shape`."""
    if array.shape != shape:
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {list(shape)} is expected")


def check_axes(array: Array, axes: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each of `axes`, letters of `AXIS_NAMES`; those that are not free must have their size in `sizes`."""
    fixed = [AXIS_NAMES[axis] if axis in FREE_AXES else f"{AXIS_NAMES[axis]}={sizes[axis]}" for axis in axes]
    wanted = f"[{', '.join(fixed)}]"
    if len(array.shape) != len(axes):
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {len(axes)} axes {wanted} are expected")
    for axis, size in zip(axes, array.shape, strict=True):
        if axis not in FREE_AXES and size != sizes[axis]:
            raise BadInput(
                f"{array.name} has shape {list(array.shape)}; {wanted} is expected, but its {AXIS_NAMES[axis]} axis is {size}"
            )
    return dict(zip(axes, array.shape, strict=True))


def check_contiguous(array: Array) -> None:
    """Refuse strides that leave gaps or turn axes around."""
    if not array.is_contiguous:
        raise BadInput(
            f"{array.name} has strides {list(array.strides)}; {list(contiguous_strides(array.shape))} (contiguous) is expected"
        )


def check_innermost_axis(array: Array, axes: str, layout: str) -> None:
    """Refuse gaps along the last axis; the others may have any stride."""
    if math.prod(array.shape) and array.shape[-1] > 1 and array.strides[-1] != 1:
        raise BadInput(
            f"{array.name} has stride {array.strides[-1]} along its last axis ({AXIS_NAMES[axes[-1]]}); "
            f"layout {layout} needs stride 1 there"
        )


def check_plain(array: Array, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """Return a contiguous array of one of `dtypes` and of exactly `shape`; refuse any other."""
    check_dtype(array, dtypes)
    check_exact_shape(array, shape)
    check_contiguous(array)
    return array


def check_place(array: Array, beside: Array) -> None:
    """Refuse an array that is not in the memory that `beside` is in."""
    if array.device != beside.device:
        raise BadInput(f"{array.name} is {_place(array)}, but {beside.name} is {_place(beside)}; move it there")


def _place(array: Array) -> str:
    return "in host memory" if array.device is None else f"on CUDA device {array.device}"
