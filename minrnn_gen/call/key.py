"""The key of a call: everything that its launches depend on, except the addresses and contents of its arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from minrnn_gen.native import trip
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES

CallKey = tuple[Hashable, ...]

# Launches depend on where an array starts by its remainder of this alone.
ALIGNMENT_BYTES = WIDEST_COPY_BYTES

# Two types of torch and one of CuPy have keys; in addition to them a few are remembered that have none.
_TYPES_HELD = 16


class KeyedArrays(NamedTuple):
    """A call's arrays by slot, None where absent, their addresses (0 there), and their key."""

    key: CallKey
    arrays: list[Any]
    addresses: list[int]

    def behind(self, arrays: list[Any], addresses: list[int]) -> KeyedArrays:
        """Return the arrays in the slots after those of other `arrays`, which `key` already identifies."""
        return KeyedArrays(self.key, arrays + self.arrays, addresses + self.addresses)


def keyed(operation: Hashable, arrays: list[Any] | None) -> KeyedArrays | None:
    """Return the key of `arrays`, in the order of their slots: the first is an array, each other one may be None.

    `operation` distinguishes calls that do different things with such arrays. None if there is no key: for arrays of other
    libraries than torch and CuPy, or of both, and for arrays that a call inspects more closely (because they record gradients,
    or are conjugated on the way).
    """
    if arrays is None:
        return None
    describe = _describer_of(type(arrays[0]))  # type: ignore[arg-type]  # every type has a hash
    try:
        described = None if describe is None else describe(arrays)
    except (RuntimeError, TypeError, ValueError):
        return None  # a tensor without memory of its own
    return None if described is None else KeyedArrays((operation, described[0]), arrays, described[1])


def is_on_cpu(array: Any) -> bool:
    """Say whether an array is a tensor in host memory; no other array there has a call with a key."""
    return bool(getattr(array, "is_cpu", False))


_Described = tuple[Hashable, list[int]]
_Describer = Callable[[list[Any]], _Described | None]


@lru_cache(maxsize=_TYPES_HELD)
def _describer_of(kind: type) -> _Describer | None:
    """Return a function for the keys and addresses of arrays of the library of this very type, if there is one."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and hasattr(torch, "Tensor") and (kind is torch.Tensor or kind is torch.nn.Parameter):
        return trip.describer_of(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled) or _tensors
    if kind is getattr(cupy, "ndarray", None):
        return _cupy_arrays
    return None


def _tensors(arrays: list[Any]) -> _Described | None:
    torch = sys.modules["torch"]
    kinds, are_recorded = (torch.Tensor, torch.nn.Parameter), torch.is_grad_enabled()
    key: list[Hashable] = []
    addresses = [0] * len(arrays)
    for slot, array in enumerate(arrays):
        if array is None:
            continue
        if type(array) not in kinds or (are_recorded and array.requires_grad) or array.is_neg() or array.is_conj():
            return None
        address = array.data_ptr()
        if not address and array.numel():
            return None  # zeros without memory
        key += (slot, array.shape, array.stride(), array.dtype, array.device, address % ALIGNMENT_BYTES)
        addresses[slot] = address
    return tuple(key), addresses


def _cupy_arrays(arrays: list[Any]) -> _Described | None:
    kind = sys.modules["cupy"].ndarray
    if any(array is not None and type(array) is not kind for array in arrays):
        return None
    addresses = [0 if array is None else array.data.ptr for array in arrays]
    return tuple(
        (slot, array.shape, array.strides, array.dtype, array.device.id, addresses[slot] % ALIGNMENT_BYTES)
        for slot, array in enumerate(arrays)
        if array is not None
    ), addresses
