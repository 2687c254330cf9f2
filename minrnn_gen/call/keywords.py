"""The keyword arguments of a call by name and type, the same for kernels, torch and JAX."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, cast, get_type_hints

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.errors import nearest_name

Function = TypeVar("Function", bound=Callable[..., Any])


class StepArrays(TypedDict, total=False):
    """Keyword arguments of a single step: arrays by name, each None where it is absent."""

    weight: Any
    bias: Any
    recurrent_bias: Any
    parameters: Mapping[str, Any] | None
    state: Mapping[str, Any] | None
    shared: Mapping[str, Any] | None
    inputs: Mapping[str, Any] | None


class CallArrays(StepArrays, total=False):
    """Keyword arguments of a call over time."""

    resets: Any
    reset_states: Mapping[str, Any] | None
    holds: Any
    lengths: Any
    cu_seqlens: Any


_STEP_TYPES = get_type_hints(StepArrays)
_CALL_TYPES = get_type_hints(CallArrays)


def call_arguments(x: Any, R: Any, arrays: CallArrays) -> CallArguments:
    """Return the arguments of a call over time, from which reset states and holds were already removed.

    Raises TypeError for a keyword that it does not take.
    """
    return _arguments(x, R, arrays, _CALL_TYPES)


def step_arguments(x_t: Any, R: Any, arrays: StepArrays) -> CallArguments:
    """Return the arguments of a single step; raises TypeError for a keyword that it does not take."""
    return _arguments(x_t, R, cast("CallArrays", arrays), _STEP_TYPES)


def _arguments(x: Any, R: Any, arrays: CallArrays, allowed: Mapping[str, Any]) -> CallArguments:
    for name in arrays:
        if name not in allowed:
            known, nearest = ", ".join(allowed), nearest_name(name, allowed)
            raise TypeError(f"a call got an unexpected keyword argument {name!r}{nearest}; it takes {known}")
    return CallArguments(x, R, **cast("dict[str, Any]", arrays))


def shows_call(function: Function) -> Function:
    """Give a function with **arrays: Unpack[CallArrays] a signature with each keyword by its name."""
    return shows_keywords(function, _CALL_TYPES, {})


def shows_step(function: Function) -> Function:
    """Give a function with **arrays: Unpack[StepArrays] a signature with each keyword by its name."""
    return shows_keywords(function, _STEP_TYPES, {})


def shows_keywords(function: Function, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> Function:
    """Give a function with ** a signature with each of these keywords by its name, before its own keywords.

    A * that only collects arguments to refuse them is left out.

    A keyword without a default is None by default.
    """
    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    collected = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    kept = [parameter for parameter in signature.parameters.values() if parameter.kind not in collected]
    own = {parameter.name for parameter in kept}
    shown = [
        inspect.Parameter(name, keyword, default=defaults.get(name), annotation=annotation)
        for name, annotation in types.items()
        if name not in own
    ]
    first = [parameter for parameter in kept if parameter.kind is not keyword]
    last = [parameter for parameter in kept if parameter.kind is keyword]
    function.__signature__ = signature.replace(parameters=[*first, *shown, *last])  # type: ignore[attr-defined]
    return function
