"""Subclasses of torch.nn's recurrent layers, computed by the kernels: their `super().forward` is ours."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any

import torch

from minrnn_gen.torch import nn as by_kernels

OURS: dict[type, Any] = {torch.nn.LSTM: by_kernels.LSTM, torch.nn.GRU: by_kernels.GRU, torch.nn.RNN: by_kernels.RNN}
_KEPT = 1024
# Methods that minrnn_gen never calls itself: a subclass may have its own.
_UNUSED = {"explain", "prepare", "step"}
_NEW_METHODS = ("__reduce__", "__reduce_ex__")


def base_of(kind: type) -> Any:
    """Return which of torch's classes a class is or is a subclass of; None for others, RNNBase among them."""
    return next((base for base in kind.__mro__ if base in OURS), None)


def is_by_kernels(kind: type) -> bool:
    """Say whether a class is one of minrnn_gen's or made by `combined`; subclasses of these do not count."""
    return "torch_class" in vars(kind)


@functools.lru_cache(_KEPT)
def combined(subclass: Any) -> Any:
    """Return a class with our methods after those of a subclass of torch's; raises TypeError where Python allows none."""
    ours = OURS[base_of(subclass)]
    named = {name: getattr(subclass, name) for name in ("__module__", "__qualname__", "__doc__")}

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {**named, "torch_class": subclass}
        if all(getattr(subclass, name) is getattr(object, name) for name in _NEW_METHODS):
            # No module has the class by its name.
            namespace["__reduce_ex__"] = lambda self, _protocol: (_unmade, (subclass,), self.__getstate__())

    return types.new_class(subclass.__name__, (subclass, ours), exec_body=fill)


def _unmade(subclass: type) -> Any:
    kind = combined(subclass)
    return kind.__new__(kind)


def name_of(kind: type) -> str:
    """Return the import name of a class; a combined class has the names of both."""
    base = base_of(kind)
    if base is not None and is_by_kernels(kind) and kind is not OURS[base]:
        return f"{name_of(vars(kind)['torch_class'])} over {name_of(OURS[base])}"
    return (
        f"torch.nn.{kind.__name__}" if kind.__module__ == "torch.nn.modules.rnn" else f"{kind.__module__}.{kind.__qualname__}"
    )


def reason_against(module: Any) -> str | None:
    """Say why an instance of a subclass cannot have our methods after its own; None where it can."""
    kind: Any = type(module)
    base = base_of(kind)
    if base is None:
        return "it has no forward of torch's to take the place of"
    own = kind.__mro__[: kind.__mro__.index(base)]
    for part in own:
        if "forward" in vars(part) and not _calls_super(vars(part)["forward"]):
            return f"the forward of {name_of(part)} does not call super().forward"
    names = {name for part in own for name in vars(part)}
    if called := sorted(names & _called_by_forward(base)):
        return f"it has its own {called[0]}, which only the forward of {name_of(base)} calls"
    if needed := sorted((names | {*vars(module)}) & _names_needed(base)):
        return f"it has its own {needed[0]}, a name that layers of minrnn_gen need"
    try:
        combined(kind)
    except TypeError as error:
        return f"its class has no subclass here ({' '.join(str(error).split())})"
    return None


@functools.cache
def _names_needed(base: Any) -> frozenset[str]:
    """Return the names that minrnn_gen's calls need but torch's class and its instances lack."""
    ours = OURS[base].__mro__
    added = {name for part in ours[: ours.index(base)] for name in vars(part)}
    return frozenset(added - {*dir(base(1, 1, device="meta"))} - _UNUSED)


def _calls_super(forward: Any) -> bool:
    """Say whether a function reads `super().forward` anywhere."""
    forward = inspect.unwrap(forward)
    return isinstance(forward, types.FunctionType) and _reads_super(forward.__code__)


def _reads_super(code: types.CodeType) -> bool:
    is_super = False
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "LOAD_SUPER_ATTR" or (is_super and name in ("LOAD_ATTR", "LOAD_METHOD")):
            if instruction.argval == "forward":
                return True
            is_super = False
        elif name == "LOAD_GLOBAL" and instruction.argval == "super":
            is_super = True
    return any(_reads_super(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


@functools.cache
def _called_by_forward(base: Any) -> frozenset[str]:
    """Return the methods of torch's class that its forward calls, directly or not, which ours does not."""
    called: set[str] = set()
    ahead = ["forward"]
    while ahead:
        function = inspect.unwrap(getattr(base, ahead.pop()))
        names = function.__code__.co_names
        new = {name for name in names if isinstance(getattr(base, name, None), types.FunctionType)} - called
        called |= new
        ahead += new
    return frozenset(called - {"forward", *dir(torch.nn.Module)})
