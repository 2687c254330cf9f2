"""The form of the arrays of a call: all that its launches depend on but where the arrays are and what is in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from minrnn_gen.plan.problem import WIDEST_COPY_BYTES

Form = tuple[Hashable, ...]

# Two types of torch and one of CuPy have a form; beside them a few are remembered that have none.
_TYPES_HELD = 16


class Reading(NamedTuple):
    """A call's arrays by number, None where not given, and where they start (0 there); with the form of them all."""

    form: Form
    arrays: list[Any]
    addresses: list[int]

    def behind(self, arrays: list[Any], addresses: list[int]) -> Reading:
        """Return the reading with the arrays numbered behind others, which `form` has to tell apart already."""
        return Reading(self.form, arrays + self.arrays, addresses + self.addresses)


def read(what: Form, arrays: Sequence[Any], named: Sequence[tuple[object, tuple[str, ...]]] = ()) -> Reading | None:
    """Read `arrays`, each an array or None, and those of the mappings in `named`, in the order of their names.

    `what` tells calls apart that do different things with such arrays. None where there is no telling the form: arrays of other
    libraries than torch and CuPy or of both, arrays that a call looks at more closely (because they record gradients, or are
    conjugated on the way), and mappings with other names.
    """
    given = list(arrays)
    for mapping, names in named:
        if mapping is None:
            given += [None] * len(names)
        elif type(mapping) is dict and len(mapping) == len(names):
            for name in names:
                one = mapping.get(name)
                if one is None:
                    return None
                given.append(one)
        else:
            return None
    # Every type has a hash.
    describe = next((_describer_of(type(one)) for one in given if one is not None), None)  # type: ignore[arg-type]
    try:
        described = None if describe is None else describe(given)
    except (RuntimeError, TypeError, ValueError):
        return None  # a tensor without memory of its own
    return None if described is None else Reading((what, *described[0]), given, described[1])


_Described = tuple[list[Hashable], list[int]]
_Describer = Callable[[Sequence[Any]], _Described | None]


@lru_cache(maxsize=_TYPES_HELD)
def _describer_of(kind: type) -> _Describer | None:
    """Return what gives the forms and the addresses of arrays that are of the library of this very type, if it has them."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
        return _tensors
    if cupy is not None and kind is cupy.ndarray:
        return _cupy_arrays
    return None


def _tensors(given: Sequence[Any]) -> _Described | None:
    torch = sys.modules["torch"]
    kinds, are_recorded = (torch.Tensor, torch.nn.Parameter), torch.is_grad_enabled()
    form: list[Hashable] = []
    addresses: list[int] = []
    for one in given:
        if one is None:
            form.append(None)
            addresses.append(0)
            continue
        if type(one) not in kinds or (are_recorded and one.requires_grad) or one.is_neg() or one.is_conj():
            return None
        address = one.data_ptr()
        form += (one.shape, one.stride(), one.dtype, one.device, address % WIDEST_COPY_BYTES)
        addresses.append(address)
    return form, addresses


def _cupy_arrays(given: Sequence[Any]) -> _Described | None:
    kind = sys.modules["cupy"].ndarray
    if any(one is not None and type(one) is not kind for one in given):
        return None
    addresses = [0 if one is None else one.data.ptr for one in given]
    return [
        None if one is None else (one.shape, one.strides, one.dtype, one.device.id, address % WIDEST_COPY_BYTES)
        for one, address in zip(given, addresses, strict=True)
    ], addresses
