"""Checks of a raw scan's arrays: shapes, dtypes, device."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays, keyed
from minrnn_gen.call.validate import Inspect, check_place
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.gpu import memory
from minrnn_gen.precision import STORAGE_DTYPES, Precision, precision_storing, why_unsupported


@dataclass(frozen=True, slots=True)
class Recurrence:
    """h[t] = a[t] h[t-1] + b[t] along `axis` of `shape`; `log_a`: a holds logarithms; `reverse`: from the last t on."""

    shape: tuple[int, ...]
    axis: int
    precision: Precision
    log_a: bool
    reverse: bool

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def sequences(self) -> int:
        """The number of independent recurrences, before and after `axis`."""
        return math.prod(self.state_shape)


@dataclass(frozen=True, slots=True)
class ScanCall:
    """The checked arrays of a scan, which have slots in this order; `h0` is None for zeros."""

    recurrence: Recurrence
    a: Array
    b: Array
    h0: Array | None


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """The checked arrays of a backward, which have slots in this order; `h0` and `dfinal` are None for zeros."""

    recurrence: Recurrence
    a: Array
    y: Array
    dy: Array
    h0: Array | None
    dfinal: Array | None


def keyed_scan(arrays: Sequence[Any], *, log_a: Any, reverse: Any, axis: Any) -> KeyedArrays | None:
    """Return the arrays of a scan or its backward, unchecked, in the order of their slots, with their key; None without one."""
    if not (type(log_a) is bool and type(reverse) is bool and type(axis) is int):
        return None  # may equal what is allowed, as 1.0 does
    return keyed((log_a, reverse, axis), [*arrays])


def check_scan(a: Any, b: Any, h0: Any, *, log_a: bool, reverse: bool, axis: int, inspect: Inspect | None = None) -> ScanCall:
    """Check the arguments of `scan`, whose arrays `inspect` describes; raises BadInput with one sentence."""
    describe = inspect or inspected
    first = describe(a, "a")
    recurrence = _recurrence(first, log_a, reverse, axis)
    state = check_state(first, recurrence.axis, recurrence.precision.arithmetic_dtype, h0, "h0", 2, describe)
    return ScanCall(recurrence, first.with_slot(0), _like(first, b, "b", 1, describe), state)


def check_scan_backward(
    a: Any, y: Any, dy: Any, h0: Any, dfinal: Any, *, log_a: bool, reverse: bool, axis: int
) -> BackwardCall:
    """Check the arguments of `scan_backward`; raises BadInput with one sentence."""
    first = inspected(a, "a")
    recurrence = _recurrence(first, log_a, reverse, axis)
    carried = recurrence.precision.arithmetic_dtype
    return BackwardCall(
        recurrence,
        first.with_slot(0),
        _like(first, y, "y", 1, inspected),
        _like(first, dy, "dy", 2, inspected),
        check_state(first, recurrence.axis, carried, h0, "h0", 3, inspected),
        check_state(first, recurrence.axis, carried, dfinal, "dfinal", 4, inspected),
    )


def _recurrence(a: Array, log_a: object, reverse: object, axis: object) -> Recurrence:
    precision = precision_storing(a.dtype)
    if precision is None:
        why, allowed = why_unsupported(a.dtype), ", ".join(STORAGE_DTYPES)
        raise BadInput(f"a has dtype {a.dtype}; one of {allowed} is expected and nothing is cast silently{why}")
    for name, value in (("log_a", log_a), ("reverse", reverse)):
        check_flag(value, name)
    if log_a and precision.arithmetic_dtype.startswith("complex"):
        raise BadInput(f"log_a is given with a of {a.dtype}, whose logarithm has many values; pass a itself, without log_a")
    return Recurrence(a.shape, axis_of(a.shape, axis, "a"), precision, bool(log_a), bool(reverse))


def check_flag(value: object, name: str) -> None:
    """Refuse everything but True and False."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {shown(value)}; True or False is expected")


def axis_of(shape: tuple[int, ...], axis: Any, name: str) -> int:
    """Return the axis of time, counted from the first; raises BadInput where `name`, of this shape, lacks it."""
    count = len(shape)
    if not count:
        raise BadInput(f"{name} has no axes; an array with an axis of time is expected")
    try:
        index = operator.index(axis)
    except TypeError:
        index = count  # no integer: as wrong as one out of range
    if not -count <= index < count:
        raise BadInput(
            f"axis is {shown(axis)}, but {name} has shape {list(shape)}; allowed are the integers {-count} to {count - 1}"
        )
    return index % count


def _like(a: Array, value: Any, name: str, slot: int, inspect: Inspect) -> Array:
    array = inspect(value, name)
    if array.dtype != a.dtype:
        raise BadInput(f"{name} has dtype {array.dtype}; that of a, {a.dtype}, is expected and nothing is cast silently")
    if array.shape != a.shape:
        raise BadInput(f"{name} has shape {list(array.shape)}; that of a, {list(a.shape)}, is expected")
    return beside(a, array).with_slot(slot)


def check_state(like: Array, axis: int, carried: str, value: Any, name: str, slot: int, inspect: Inspect) -> Array | None:
    """Return a state of dtype `carried`, of the shape of `like` without its axis of time; raises BadInput for other states."""
    if value is None:
        return None
    array = inspect(value, name)
    if array.dtype != carried:
        raise BadInput(f"{name} has dtype {array.dtype}; {carried} is expected beside {like.name} of {like.dtype}")
    expected = like.shape[:axis] + like.shape[axis + 1 :]
    if array.shape != expected:
        raise BadInput(
            f"{name} has shape {list(array.shape)}; {list(expected)}, that of {like.name} without axis {axis}, is expected"
        )
    return beside(like, array).with_slot(slot)


def beside(a: Array, array: Array) -> Array:
    """Return an array that is on the device of `a`, on a GPU also in its library; raises BadInput for other arrays."""
    check_place(array, a)
    if a.device is not None and array.library != a.library:
        raise BadInput(
            f"{array.name} is of {array.library}, but {a.name} is of {a.library}, and the streams of two libraries do not wait "
            f"for each other; convert one of them"
        )
    return array


def inspected(value: Any, name: str) -> Array:
    """Describe an array of any library; raises BadInput for other objects, and for a tensor whose gradients are recorded."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        value = numpy.asarray(value)  # the state of a single sequence; a scalar has no memory to look at
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(value, getattr(torch, "Tensor", ()))
    if torch is not None and is_tensor and value.requires_grad and torch.is_grad_enabled():
        raise BadInput(
            f"{name} requires grad, which a scan of arrays does not record; call minrnn_gen.torch.scan, or call under "
            f"torch.no_grad()"
        )
    return memory.inspect(value, name)
