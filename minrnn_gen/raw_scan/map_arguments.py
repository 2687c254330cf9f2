"""Checks of the arrays of a scan of maps: forms, shapes, dtypes, device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from minrnn_gen.call.array import Array
from minrnn_gen.call.validate import Inspect
from minrnn_gen.errors import BadInput, nearest_name, shown
from minrnn_gen.raw_scan.arguments import axis_of, beside, check_flag, check_state, inspected

Form = Literal["scalar", "rotation", "dual", "full"]
FORMS: tuple[Form, ...] = get_args(Form)
# States and maps of the forms other than scalar are stored in these dtypes.
MAP_DTYPES = ("float64", "float32")
# A map of more values composes to m**2 + m of them, which no kernel holds in registers.
SIZES = (2, 3, 4)
# Full maps are composed, and their states carried, in double precision.
CARRIED = "float64"


@dataclass(frozen=True, slots=True)
class MapRecurrence:
    """h[t] = A[t] h[t-1] + b[t] of full maps along `axis` of b's `shape`, [..., T, ..., m]; `reverse`: from the last t on.

    `is_constant`: A is [..., m, m] with the axes of b after time alone.
    """

    shape: tuple[int, ...]
    axis: int
    dtype: str
    reverse: bool
    is_constant: bool

    @property
    def size(self) -> int:
        """m."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.shape[: self.axis])

    @property
    def time(self) -> int:
        return self.shape[self.axis]

    @property
    def channel_shape(self) -> tuple[int, ...]:
        return self.shape[self.axis + 1 : -1]

    @property
    def channels(self) -> int:
        return math.prod(self.channel_shape)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def map_shape(self) -> tuple[int, ...]:
        """The shape of A."""
        return (*(self.channel_shape if self.is_constant else self.shape[:-1]), self.size, self.size)


@dataclass(frozen=True, slots=True)
class MapCall:
    """The checked arrays of a scan of full maps, which have slots in this order; `h0` is None for zeros."""

    recurrence: MapRecurrence
    a: Array
    b: Array
    h0: Array | None


@dataclass(frozen=True, slots=True)
class MapBackwardCall:
    """The checked arrays of a backward, which have slots in this order; `h0` and `dfinal` are None for zeros."""

    recurrence: MapRecurrence
    a: Array
    y: Array
    dy: Array
    h0: Array | None
    dfinal: Array | None


def check_form(form: Any, log_a: Any = False) -> Form:
    """Return the form of the maps; raises BadInput for an unknown name, and for logarithms of maps."""
    if not isinstance(form, str) or form not in FORMS:
        raise BadInput(f"form is {shown(form)}; one of {', '.join(FORMS)} is expected{nearest_name(form, FORMS)}")
    if form != "scalar" and log_a is not False:
        raise BadInput(f"log_a is given with form {form!r}, whose maps are composed as they are; pass a itself, without log_a")
    return form


def check_pairs(a: Any, b: Any, axis: Any, reverse: Any, name: str = "b", **states: Any) -> tuple[int, bool]:
    """Return the axis of time of b, counted from the first, and whether a is constant; for rotations and dual numbers.

    a, b, called `name`, and the states by name, any of which may be None, are arrays of any library. Raises BadInput for
    shapes and dtypes that do not fit.
    """
    shape = tuple(b.shape)
    check_flag(reverse, "reverse")
    index, dtype = _axis_of_maps(shape, axis, name), _check_dtype(b, name)
    if shape[-1] != 2:
        raise BadInput(f"{name} has shape {list(shape)}; pairs of numbers along its last axis are expected, [..., 2]")
    for other, array in {"a": a, **states}.items():
        if array is not None and _dtype_of(array) != dtype:
            raise BadInput(
                f"{other} has dtype {_dtype_of(array)}; that of {name}, {dtype}, is expected and nothing is cast silently"
            )
    without_time = shape[:index] + shape[index + 1 :]
    for other, array in states.items():
        if array is not None and tuple(array.shape) != without_time:
            raise BadInput(
                f"{other} has shape {list(array.shape)}; {list(without_time)}, that of {name} without axis {index}, is expected"
            )
    constant = shape[index + 1 :]
    if tuple(a.shape) not in (shape, constant):
        raise BadInput(
            f"a has shape {list(a.shape)}; {list(shape)}, that of {name}, is expected, or {list(constant)} for all steps"
        )
    return index, tuple(a.shape) != shape


def check_scan_of_maps(
    a: Any, b: Any, h0: Any, *, reverse: bool, axis: int, inspect: Inspect | None = None, carried: str = CARRIED
) -> MapCall:
    """Check the arguments of a scan of full maps; raises BadInput with one sentence. `carried` is the dtype of h0."""
    describe = inspect or inspected
    first, maps = describe(b, "b"), describe(a, "a")
    recurrence = _recurrence(first, maps, reverse, axis)
    state = check_state(first, recurrence.axis, carried, h0, "h0", 2, describe)
    return MapCall(recurrence, beside(first, maps).with_slot(0), first.with_slot(1), state)


def check_scan_of_maps_backward(a: Any, y: Any, dy: Any, h0: Any, dfinal: Any, *, reverse: bool, axis: int) -> MapBackwardCall:
    """Check the arguments of the backward of a scan of full maps; raises BadInput with one sentence."""
    first, maps, gradient = inspected(y, "y"), inspected(a, "a"), inspected(dy, "dy")
    recurrence = _recurrence(first, maps, reverse, axis)
    if gradient.dtype != first.dtype or gradient.shape != first.shape:
        raise BadInput(
            f"dy has dtype {gradient.dtype} and shape {list(gradient.shape)}; those of y, {first.dtype} and "
            f"{list(first.shape)}, are expected"
        )
    return MapBackwardCall(
        recurrence,
        beside(first, maps).with_slot(0),
        first.with_slot(1),
        beside(first, gradient).with_slot(2),
        check_state(first, recurrence.axis, CARRIED, h0, "h0", 3, inspected),
        check_state(first, recurrence.axis, CARRIED, dfinal, "dfinal", 4, inspected),
    )


def _recurrence(b: Array, a: Array, reverse: Any, axis: Any) -> MapRecurrence:
    check_flag(reverse, "reverse")
    index = _axis_of_maps(b.shape, axis, b.name)
    _check_dtype(b, b.name)
    if a.dtype != b.dtype:
        raise BadInput(f"a has dtype {a.dtype}; that of {b.name}, {b.dtype}, is expected and nothing is cast silently")
    size = b.shape[-1]
    if size not in SIZES:
        raise BadInput(
            f"{b.name} has states of {size} values along its last axis; a scan of maps takes 2 to 4: split them into "
            f"blocks that follow each other, as second-order sections do"
        )
    for is_constant in (False, True):
        recurrence = MapRecurrence(b.shape, index, b.dtype, reverse, is_constant)
        if a.shape == recurrence.map_shape:
            return recurrence
    varying = list(MapRecurrence(b.shape, index, b.dtype, reverse, is_constant=False).map_shape)
    raise BadInput(f"a has shape {list(a.shape)}; {varying} is expected, or {list(recurrence.map_shape)} for all steps")


def _axis_of_maps(shape: tuple[int, ...], axis: Any, name: str) -> int:
    """Return the axis of time, counted from the first; the last axis is that of the states' values."""
    if len(shape) < 2:
        raise BadInput(f"{name} has shape {list(shape)}; an axis of time and a last axis of the state's values are expected")
    index = axis_of(shape, axis, name)
    if index == len(shape) - 1:
        raise BadInput(
            f"axis is {shown(axis)}, the last one of {name}, which is that of a state's values; another one is that of time"
        )
    return index


def _dtype_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_dtype(array: Any, name: str) -> str:
    dtype = _dtype_of(array)
    if dtype not in MAP_DTYPES:
        raise BadInput(f"{name} has dtype {dtype}; a scan of maps takes {' or '.join(MAP_DTYPES)}: cast it")
    return dtype
