"""The surrogate functions of SpikingJelly as equations; classes, arguments and defaults are the library's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from minrnn_gen.compat.neurons import Surrogate, number
from minrnn_gen.errors import BadInput, kind_of


@dataclass(frozen=True)
class _OfAlpha:
    alpha: float
    spiking: bool = True


@dataclass(frozen=True)
class ATan(_OfAlpha):
    """Gradient alpha / 2 / (1 + (pi / 2 alpha x)^2)."""

    alpha: float = 2.0


@dataclass(frozen=True)
class Sigmoid(_OfAlpha):
    """Gradient alpha s (1 - s), s = sigmoid(alpha x)."""

    alpha: float = 4.0


@dataclass(frozen=True)
class SoftSign(_OfAlpha):
    """Gradient alpha / 2 / (1 + |alpha x|)^2, the fast sigmoid."""

    alpha: float = 2.0


@dataclass(frozen=True)
class SuperSpike(_OfAlpha):
    """Gradient alpha / (1 + |x|)^2."""

    alpha: float = 1.0


@dataclass(frozen=True)
class PiecewiseQuadratic(_OfAlpha):
    """Gradient alpha - alpha^2 |x| where that is positive, else 0: a triangle."""

    alpha: float = 1.0


@dataclass(frozen=True)
class PiecewiseExp(_OfAlpha):
    """Gradient alpha / 2 exp(-alpha |x|)."""

    alpha: float = 1.0


@dataclass(frozen=True)
class Erf(_OfAlpha):
    """Gradient alpha / sqrt(pi) exp(-(alpha x)^2)."""

    alpha: float = 2.0


@dataclass(frozen=True)
class Rect(_OfAlpha):
    """Gradient alpha where |x| < 1 / (2 alpha), else 0."""

    alpha: float = 1.0


@dataclass(frozen=True)
class NonzeroSignLogAbs(_OfAlpha):
    """Gradient 1 / (1 / alpha + |x|)."""

    alpha: float = 1.0


@dataclass(frozen=True)
class QPseudoSpike(_OfAlpha):
    """Gradient (1 + 2 |x| / (alpha - 1))^-alpha."""

    alpha: float = 2.0


@dataclass(frozen=True)
class LogTailedReLU(_OfAlpha):
    """Gradient alpha up to 0, then 1 up to 1, then 1 / x."""

    alpha: float = 0.0


@dataclass(frozen=True)
class S2NN:
    """Gradient alpha s (1 - s), s = sigmoid(alpha x), below 0, and beta / (1 + x) from there on."""

    alpha: float = 4.0
    beta: float = 1.0
    spiking: bool = True


@dataclass(frozen=True)
class PiecewiseLeakyReLU:
    """Gradient 1 / (2 w) where |x| < w, else c."""

    w: float = 1.0
    c: float = 0.01
    spiking: bool = True


@dataclass(frozen=True)
class LeakyKReLU:
    """Gradient k from 0 on, leak below."""

    leak: float = 0.0
    k: float = 1.0
    spiking: bool = True


@dataclass(frozen=True)
class DeterministicPass:
    """Gradient 1."""

    spiking: bool = True


def _even(text: str) -> str:
    """Return an odd function from its expression `text` of |over|."""
    return f"where(over >= 0, {text.format('over')}, -({text.format('(-over)')}))"


def _quasi_pseudo(alpha: float) -> str:
    power = number(1 - alpha, "1 - alpha")
    return _even(f"-0.5 * exp({power} * log1p({number(2 / (alpha - 1), '2 / (alpha - 1)')} * {{0}}))")


def _triangle(alpha: float) -> str:
    inside = f"{alpha} * over - {alpha * alpha / 2} * over * abs(over)"
    return f"where(abs(over) <= {1 / alpha}, {inside}, 0)"


# For each class a function of `over` with its gradient; nothing reads its value.
_TEXTS: dict[str, Callable[..., str]] = {
    "ATan": lambda alpha: f"atan({math.pi / 2 * alpha} * over) / {math.pi}",
    "Sigmoid": lambda alpha: f"sigmoid({alpha} * over)",
    "SoftSign": lambda alpha: f"softsign({alpha} * over) / 2",
    "SuperSpike": lambda alpha: f"{alpha} * softsign(over)",
    "PiecewiseQuadratic": _triangle,
    "PiecewiseExp": lambda alpha: _even(f"-0.5 * exp(-{alpha} * {{0}})"),
    "Erf": lambda alpha: f"erf({alpha} * over) / 2",
    "Rect": lambda alpha: f"where(abs(over) < {0.5 / alpha}, {alpha} * over, 0)",
    "NonzeroSignLogAbs": lambda alpha: _even(f"log1p({alpha} * {{0}})"),
    "QPseudoSpike": _quasi_pseudo,
    "LogTailedReLU": lambda alpha: f"where(over > 1, log(over), where(over > 0, over, {alpha} * over))",
    "S2NN": lambda alpha, beta: f"where(over < 0, sigmoid({alpha} * over), {beta} * log1p(over))",
    "PiecewiseLeakyReLU": lambda w, c: f"where(abs(over) < {w}, over / {2 * w}, {c} * over)",
    "LeakyKReLU": lambda leak, k: f"where(over >= 0, {k} * over, {leak} * over)",
    "DeterministicPass": lambda: "over",
}
# Numbers that have to be above a bound.
_ABOVE = {"w": 0.0, "QPseudoSpike.alpha": 1.0}
_ALLOWED_ZERO = {"LogTailedReLU.alpha", "PiecewiseLeakyReLU.c", "LeakyKReLU.leak", "LeakyKReLU.k", "S2NN.beta"}
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    kind.__name__: tuple(field.name for field in fields(kind) if field.name != "spiking")
    for kind in (
        *(ATan, Sigmoid, SoftSign, SuperSpike, PiecewiseQuadratic, PiecewiseExp, Erf, Rect, NonzeroSignLogAbs, QPseudoSpike),
        *(LogTailedReLU, S2NN, PiecewiseLeakyReLU, LeakyKReLU, DeterministicPass),
    )
}


def surrogate_of(function: Any) -> Surrogate:
    """Return the equations of a surrogate function, one of this module or the library's own; raises BadInput for others."""
    name = type(function).__name__
    if name not in _TEXTS or not all(hasattr(function, argument) for argument in _ARGUMENTS[name]):
        raise BadInput(f"surrogate_function is {kind_of(function)}; one of {', '.join(_TEXTS)} is expected")
    if not getattr(function, "spiking", True):
        raise BadInput(f"surrogate_function is {name} with spiking=False, which emits no spikes; leave spiking True")
    arguments = [getattr(function, argument) for argument in _ARGUMENTS[name]]
    for argument, value in zip(_ARGUMENTS[name], arguments, strict=True):
        where = f"{name}.{argument}"
        number(value, f"{argument} of {name}")
        least = _ABOVE.get(where, _ABOVE.get(argument, 0.0))
        if value < least or (value == least and where not in _ALLOWED_ZERO):
            raise BadInput(f"{argument} of {name} is {value}; more than {least:g} is expected")
    return Surrogate(_TEXTS[name](*map(float, arguments)))
