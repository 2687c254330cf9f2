"""The keywords of a call: the same for a kernel, torch and JAX, each by its name in help and in errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import minrnn_gen
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.kernel import Kernel

OVER_TIME = [name for name in CallArguments._fields if name not in ("x", "R")]
OF_A_STEP = [name for name in OVER_TIME if name not in ("resets", "lengths", "cu_seqlens")]


def fronts() -> dict[str, tuple[Callable[..., Any], list[str]]]:
    calls: dict[str, tuple[Callable[..., Any], list[str]]] = {
        "kernel": (Kernel.__call__, OVER_TIME),
        "forward": (Kernel.forward, OVER_TIME),
        "reference": (Kernel.reference, OVER_TIME),
        "step": (Kernel.step, OF_A_STEP),
    }
    if torch := _optional("minrnn_gen.torch"):
        calls["torch"] = (torch.recurrence, OVER_TIME)
    if jax := _optional("minrnn_gen.jax"):
        calls |= {"jax": (jax.recurrence, OVER_TIME), "jax step": (jax.step, OF_A_STEP)}
    return calls


def _optional(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        return None


FRONTS = fronts()


@pytest.mark.parametrize("front", FRONTS)
def test_help_shows_each_keyword(front: str) -> None:
    call, names = FRONTS[front]
    shown = inspect.signature(call).parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())
    assert {shown[name].default for name in names} == {None}
    assert not (set(OVER_TIME) - set(names)) & shown.keys()


@pytest.mark.parametrize("front", FRONTS)
def test_another_keyword_is_refused_with_the_nearest(front: str) -> None:
    call, names = FRONTS[front]
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 4}, gpu="h100")
    for wrong, nearest in (("wieght", "weight"), ("recurrent_biases", "recurrent_bias")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}' \\(did you mean '{nearest}'\\?\\)"):
            call(kernel, [0.0], **{wrong: None})
    if names is OF_A_STEP:
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'resets'.*it takes weight, bias"):
            call(kernel, [0.0], resets=None)
