"""Request of a call of FlashRNN's function, from its arguments or one of its configs, checked against the supported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minrnn_gen.errors import BadInput, nearest_name, shown
from minrnn_gen.precision import PRECISION_NAMES, precision_of

FUNCTIONS = ("elman", "gru", "lstm", "slstm")
BACKENDS = ("vanilla", "vanilla_fwbw", "cuda", "cuda_fused", "triton_fused")
PRECISIONS = {precision_of(name).storage_dtype: name for name in PRECISION_NAMES}

# The orders of axes that are taken unless a config says otherwise, in FlashRNN's letters: S state, B batch, T time, G gate,
# H head, D unit of a head, P unit of the previous output.
INPUT, RECURRENT, BIAS, OUTPUT = "BTGHD", "GHDP", "GHD", "SBTHD"

# Keys of a config for features that are not supported here, with the value that disables each.
_ABSENT: tuple[tuple[str, Any, str], ...] = (
    ("gradient_recurrent_cut", False, "set gradient_recurrent_clipval, or detach R"),
    ("forward_clipval", None, "clip what comes out"),
    ("initial_val", 0.0, "pass states"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A function, the precision it is computed in, the bound on recurrent gradients, and the orders of the axes."""

    function: str
    precision: str
    gradient_clip: float | None = None
    input_order: str = INPUT
    recurrent_order: str = RECURRENT
    bias_order: str = BIAS
    output_order: str = OUTPUT


def request_of(function: Any, config: Any, backend: Any, dtype: Any) -> Request:
    """Return the request; `config` replaces the other arguments and may be any object with their names.

    Raises BadInput for an unknown name and for anything that the kernels here do not support.
    """
    function = getattr(config, "function", function)
    _check_name("function", function, FUNCTIONS)
    _check_name("backend", getattr(config, "backend", backend), BACKENDS)
    dtype = getattr(config, "dtype", dtype) or "bfloat16"
    _check_name("dtype", dtype, tuple(PRECISIONS))
    for name, neutral, instead in _ABSENT:
        setting = getattr(config, name, neutral)
        if any(part != neutral for part in (setting if isinstance(setting, list | tuple) else [setting])):
            raise BadInput(f"config.{name} is {shown(setting)}, but only {neutral} is supported; {instead}")
    clip = getattr(config, "gradient_recurrent_clipval", None)
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 < clip < math.inf):
        raise BadInput(f"config.gradient_recurrent_clipval is {shown(clip)}; a number greater than 0, or None, is expected")
    return Request(
        function,
        PRECISIONS[dtype],
        clip,
        *(
            _order(config, name, usual)
            for name, usual in (
                ("input_shape", INPUT),
                ("recurrent_shape", RECURRENT),
                ("bias_shape", BIAS),
                ("output_shape", OUTPUT),
            )
        ),
    )


def _check_name(what: str, name: Any, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        raise BadInput(f"{what} is {shown(name)}{nearest_name(name, allowed)}; allowed are {', '.join(allowed)}")


def _order(config: Any, name: str, usual: str) -> str:
    axis_order = getattr(config, name, usual)
    if not isinstance(axis_order, str) or sorted(axis_order) != sorted(usual):
        raise BadInput(f"config.{name} is {shown(axis_order)}; the letters {usual} in any order are expected")
    return axis_order
