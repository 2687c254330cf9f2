"""A drawn call in torch, of which arrays are changed between forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from support.differentiable import change, flat
from support.drawn_calls import Subject

import minrnn_gen.torch as wing
from minrnn_gen.layers import kernels


def silently_wrong(subject: Subject) -> list[str]:
    """Return the arrays of a call a change of which makes gradients wrong, instead of being refused by torch."""
    try:
        expected = _gradients(subject, None)
        names = [*_arguments(subject)[1], "y", *(f"final {name}" for name in subject.interface.states)]
        return [name for name in names if not _is_refused_or_right(subject, name, expected)]
    finally:
        kernels._KERNELS.pop(subject.on_cpu.recipe, None)  # each drawn cell is met once


def _is_refused_or_right(subject: Subject, name: str, expected: list[Any]) -> bool:
    try:
        found = _gradients(subject, name)
    except RuntimeError as refused:
        if "modified by an inplace operation" in str(refused):
            return True
        raise
    return all(_same(one, other) for one, other in zip(found, expected, strict=True))


def _same(one: Any, other: Any) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _gradients(subject: Subject, changed: str | None) -> list[Any]:
    """Return the gradients of all arrays; `changed` is the array that is changed before the backward."""
    keywords, named = _arguments(subject)
    y, final, *_ = wing.recurrence(subject.on_cpu, **keywords, all_states=subject.has("all_states"))
    dy = _tensor(subject.y_of(subject.arrays["dy"]))
    if changed is not None:
        change((named | {"y": y} | {f"final {name}": state for name, state in final.items()})[changed])
    leaves = [tensor for tensor in named.values() if tensor.requires_grad]
    return list(torch.autograd.grad([y, *final.values()], leaves, [dy, *map(torch.ones_like, final.values())]))


def _arguments(subject: Subject) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `recurrence`, and their tensors by name."""
    keywords: dict[str, Any] = {"x": subject.x_of(subject.arrays["x"]), **subject.keywords, **subject.of_steps}
    tensors = {
        name: {inner: _tensor(one).requires_grad_() for inner, one in value.items()}
        if isinstance(value, Mapping)
        else _tensor(value).requires_grad_()
        for name, value in keywords.items()
    }
    tensors |= {name: _tensor(subject.arrays[name]) for name in ("resets", "lengths") if subject.has(name)}
    named = {f"{name} {place}": tensor for name, value in tensors.items() for place, tensor in enumerate(flat(value))}
    return tensors, named


def _tensor(values: Any) -> Any:
    """Return a copy of an array, of NumPy's bfloat16 too."""
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(values.copy())
