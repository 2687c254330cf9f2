"""The surrogate gradients of snnTorch as equations; functions, arguments and defaults are the library's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from minrnn_gen.compat.neurons import Surrogate, number
from minrnn_gen.compat.spikingjelly_surrogate import ATan, surrogate_of
from minrnn_gen.errors import BadInput, kind_of


def atan(alpha: float = 2.0) -> Surrogate:
    """Return the gradient alpha / 2 / (1 + (pi / 2 alpha u)^2)."""
    return surrogate_of(ATan(_positive(alpha, "alpha")))


def fast_sigmoid(slope: float = 25) -> Surrogate:
    """Return the gradient 1 / (1 + slope |u|)^2."""
    slope = _positive(slope, "slope")
    return Surrogate(f"softsign({slope} * over) / {slope}")


def sigmoid(slope: float = 25) -> Surrogate:
    """Return the gradient slope s (1 - s), s = sigmoid(slope u)."""
    return Surrogate(f"sigmoid({_positive(slope, 'slope')} * over)")


def straight_through_estimator() -> Surrogate:
    """Return the gradient 1."""
    return Surrogate("over")


def triangular(threshold: float = 1) -> Surrogate:
    """Return the gradient threshold below 0, and -threshold from there on."""
    bound = _positive(threshold, "threshold")
    return Surrogate(f"-{bound} * abs(over)")


def heaviside() -> Surrogate:
    """Return the gradient 1 where there is a spike, else 0."""
    return Surrogate("where(over > 0, over, 0)")


def spike_rate_escape(beta: float = 1, slope: float = 25) -> Surrogate:
    """Return the gradient slope exp(-beta |u - 1|)."""
    rate, scale = _positive(beta, "beta"), float(slope) / float(beta)
    above, below = f"-exp(-{rate} * (over - 1))", f"exp({rate} * (over - 1))"
    return Surrogate(f"{number(scale, 'slope')} * where(over >= 1, {above}, {below})")


def SFS(slope: float = 25, B: float = 1) -> Surrogate:
    """Return the gradient of `fast_sigmoid` above B, else 0."""
    return Surrogate(f"where(over > {number(B, 'B')}, {fast_sigmoid(slope).text}, 0)")


_MAKERS: dict[str, Callable[..., Surrogate]] = {
    made.__name__: made
    for made in (atan, fast_sigmoid, sigmoid, straight_through_estimator, triangular, heaviside, spike_rate_escape, SFS)
}


def spike_grad_of(spike_grad: Any) -> Surrogate:
    """Return the equations of a spike_grad, one of this module or a function that snntorch.surrogate made.

    Raises BadInput for other functions: no equation gives their derivative.
    """
    if isinstance(spike_grad, Surrogate):
        return spike_grad
    made = getattr(spike_grad, "__qualname__", "").partition(".")[0]
    if getattr(spike_grad, "__module__", None) == "snntorch.surrogate" and made in _MAKERS:
        arguments = inspect.getclosurevars(spike_grad).nonlocals
        return _MAKERS[made](**arguments)
    raise BadInput(f"spike_grad is {kind_of(spike_grad)}; what one of {', '.join(_MAKERS)} returns is expected")


def _positive(value: float, name: str) -> float:
    number(value, name)
    if value <= 0:
        raise BadInput(f"{name} is {value}; more than 0 is expected")
    return float(value)
