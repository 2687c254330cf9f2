"""`minrnn_gen.torch.replace`: a model's recurrent layers of torch.nn, computed by the kernels from now on.

A layer gets the class of its name in `minrnn_gen.torch.nn`, which is a subclass of its own, and stays the same object; an
instance of a subclass gets a class that has ours after the subclass's own methods, so that its `super().forward` is ours. So
everything that refers to it or belongs to it stays too: parameters and their ties, hooks, names, mode, device, and the same
layer at several places of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from minrnn_gen.errors import BadInput, MinrnnError, kind_of, nearest_name, shown
from minrnn_gen.torch import nn as by_kernels
from minrnn_gen.torch.drop_in.subclasses import OURS, base_of, combined, is_by_kernels, name_of, reason_against
from minrnn_gen.torch.dtypes import PRECISIONS

_DEVICES = ("cpu", "cuda", "meta")


@dataclass(frozen=True)
class ReplacedLayer:
    """A recurrent layer of a model. `names`: its names in the model, the empty name for the model itself."""

    names: tuple[str, ...]
    before: str
    after: str

    def __str__(self) -> str:
        return f"{_places(self.names)}: {self.before} is now {self.after}"


@dataclass(frozen=True)
class LeftLayer:
    """A recurrent layer that is not replaced, and the reason."""

    names: tuple[str, ...]
    layer: str
    reason: str

    def __str__(self) -> str:
        return f"{_places(self.names)}: {self.layer} is left: {self.reason}"


@dataclass(frozen=True)
class Replacement:
    """The recurrent layers of a model in the order of `named_modules()`: which have been replaced, and which are left."""

    replaced: tuple[ReplacedLayer, ...]
    left: tuple[LeftLayer, ...]

    def __str__(self) -> str:
        total = len(self.replaced) + len(self.left)
        if not total:
            return "no recurrent layers of torch.nn"
        lines = [f"replaced {len(self.replaced)} of {total} recurrent layer{'s' if total > 1 else ''}"]
        return "\n  ".join([*lines, *map(str, self.replaced), *map(str, self.left)])


def replace(model: Any, *, leave: Iterable[str] = (), subclasses: bool = False, back: bool = False) -> Replacement:
    """Let the kernels compute every LSTM, GRU and RNN of torch.nn in a model, in place.

    A layer keeps its identity: parameters, hooks, names, mode, requires_grad, device, dtype and ties are untouched, and
    optimizers that have its parameters go on with them. LSTMCell, GRUCell and RNNCell are left: torch launches a single step
    faster. Layers that the kernels do not compute are left too. leave: names of layers, or patterns such as `decoder.*`, that
    stay as they are. subclasses: replace instances of subclasses too, whose `super().forward` the kernels then compute. Without
    it they are left, as are subclasses whose `forward` does not call `super().forward`. back: give layers that have been
    replaced their classes again.

    Return the replaced layers, and those left, with the reason. Raises BadInput for a model that is no module, and for a name
    to be left that no recurrent layer has; the model is untouched then.
    """
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"model is {kind_of(model)}; a torch.nn.Module is expected")
    for argument, flag in (("subclasses", subclasses), ("back", back)):
        if not isinstance(flag, bool):
            raise BadInput(f"{argument} is {shown(flag)}; True or False is expected")
    layers = _recurrent_layers(model)
    patterns = _patterns(leave, [name for names, _ in layers for name in names])
    replaced, left = [], []
    for names, module in layers:
        reason = _reason_to_leave(module, subclasses, back)
        if reason is None and any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            reason = "as asked for"
        before = _written(module)
        if reason is None and back:
            module.use_torch()
        elif reason is None:
            reason = _take_over(module)
        if reason is None:
            replaced.append(ReplacedLayer(names, before, name_of(type(module))))
        else:
            left.append(LeftLayer(names, before, reason))
    return Replacement(tuple(replaced), tuple(left))


def _recurrent_layers(model: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Return each recurrent layer of a model once, with all its names."""
    names: dict[Any, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase) or _scripted(module):
            names.setdefault(module, []).append(name)
    return [(tuple(places), module) for module, places in names.items()]


def _patterns(leave: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of names to leave; each must match a recurrent layer."""
    if isinstance(leave, str) or not isinstance(leave, Iterable):
        raise BadInput(f"leave is {shown(leave)}; a list of names of layers is expected")
    patterns = tuple(leave)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise BadInput(f"leave has {shown(pattern)}; names of layers are expected")
        if not any(fnmatchcase(name, pattern) for name in names):
            there = f"recurrent layers are {', '.join(names)}" if names else "the model has no recurrent layers"
            raise BadInput(f"leave has {pattern!r}, which is no recurrent layer{nearest_name(pattern, names)}; {there}")
    return patterns


def _reason_to_leave(module: Any, subclasses: bool, back: bool) -> str | None:
    """Return why a layer is left whatever its sizes are, or None."""
    if _scripted(module):
        return "torch.jit has compiled it; replace the layers of the model before"
    if torch.nn.utils.parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations)
        return f"{names} {'has' if len(module.parametrizations) == 1 else 'have'} parametrizations; register them afterwards"
    kind: Any = type(module)
    if isinstance(module, torch.nn.RNNCellBase):
        return "torch launches a single step faster; a layer over whole sequences gains"
    if isinstance(module, by_kernels.ByKernels):
        return None if back and is_by_kernels(kind) else "it is computed by the kernels already"
    if back:
        return "it is torch's own already"
    if "forward" in vars(module):
        return "it has a forward of its own, which may compute something else"
    if kind in OURS:
        return None
    what = f"it is a subclass of {name_of(base_of(kind) or torch.nn.RNNBase)}"
    if reason := reason_against(module):
        return f"{what}, and {reason}"
    return None if subclasses else f"{what}; replace(model, subclasses=True) takes it"


def _take_over(module: Any) -> str | None:
    """Give a layer the class that runs the kernels; where there is none, leave the layer unchanged and return the reason."""
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.device.type not in _DEVICES:
            return f"{name} is on {parameter.device}, and the kernels run on CUDA GPUs and in host memory"
        if parameter.dtype not in PRECISIONS:
            return f"{name} has dtype {parameter.dtype}; the kernels have {', '.join(map(str, PRECISIONS))}"
    before: Any = type(module)
    module.__class__ = OURS[before] if before in OURS else combined(before)
    try:
        module.use_kernels()
    except MinrnnError as error:
        module.__class__ = before
        return str(error)
    return None


def _scripted(module: Any) -> bool:
    """Say whether a module is a recurrent layer compiled by torch.jit."""
    return isinstance(module, torch.jit.ScriptModule) and getattr(module, "original_name", None) in by_kernels.__all__


def _written(module: Any) -> str:
    """Return the call that constructs a layer, as text."""
    name = module.original_name if _scripted(module) else name_of(type(module))
    return f"{name}({module.extra_repr()})"


def _places(names: Sequence[str]) -> str:
    return " and ".join(name or "the model itself" for name in names)
