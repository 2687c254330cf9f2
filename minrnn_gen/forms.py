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
    describe = None
    form: list[Hashable] = [what]
    addresses: list[int] = []
    try:
        for one in given:
            if one is None:
                form.append(None)
                addresses.append(0)
                continue
            its = _describer_of(type(one))  # type: ignore[arg-type]  # every type has a hash
            described = its(one) if its and describe in (None, its) else None
            if described is None:
                return None
            describe = its
            form.append(described[0])
            addresses.append(described[1])
    except (RuntimeError, TypeError, ValueError):
        return None  # a tensor without memory of its own
    return Reading(tuple(form), given, addresses)


_Describer = Callable[[Any], tuple[Form, int] | None]


@lru_cache(maxsize=_TYPES_HELD)
def _describer_of(kind: type) -> _Describer | None:
    """Return what gives the form and the address of an array of this very type, if it has one."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
        return _tensor_form
    if cupy is not None and kind is cupy.ndarray:
        return _cupy_form
    return None


def _tensor_form(tensor: Any) -> tuple[Form, int] | None:
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        return None
    if tensor.is_neg() or tensor.is_conj():
        return None
    address = tensor.data_ptr()
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, address % WIDEST_COPY_BYTES), address


def _cupy_form(array: Any) -> tuple[Form, int] | None:
    address = array.data.ptr
    return (array.shape, array.strides, array.dtype, array.device.id, address % WIDEST_COPY_BYTES), address
