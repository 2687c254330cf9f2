"""Steps of cells with several products or norms as people write them in torch, in any dtype, for autograd to differentiate.

They share nothing with the code that is measured. A product `R(g, e)` multiplies e [B, units] by the matrix of the gate g.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# As the cells have them: Hafner et al., arXiv 2301.04104v2; Ba et al., arXiv 1607.06450.
RMS_EPSILON, LAYER_EPSILON = 1e-4, 1e-5
# (W [G][B, H], R, states, parameters) -> states; the first one is the output.
Step = Callable[[Any, Any, tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class WaitingStep:
    """The gates of W, the states, and a step of a cell; every state begins as 0. `projected` states have P units."""

    gates: tuple[str, ...]
    states: tuple[str, ...]
    step: Step
    projected: tuple[str, ...] = ()


def _rms_norm(x: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + RMS_EPSILON).rsqrt()


def _layer_norm(x: Any) -> Any:
    apart = x - x.mean(-1, keepdim=True)
    return apart * (apart.square().mean(-1, keepdim=True) + LAYER_EPSILON).rsqrt()


def _silu(x: Any) -> Any:
    return x * x.sigmoid()


def _block_gru(W: Any, R: Any, states: tuple[Any, ...], p: Mapping[str, Any]) -> tuple[Any, ...]:
    (h,) = states
    a = _silu(p["s"] * _rms_norm(R("a", h)))
    k = _silu(p["w"] * _rms_norm(W[0] + R("d", h) + R("e", a)))
    n, z = (R("r", k).sigmoid() * R("n", k)).tanh(), (R("z", k) - 1).sigmoid()
    return (z * n + (1 - z) * h,)


def _gru_reset_before(W: Any, R: Any, states: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[Any, ...]:
    (h,) = states
    z, r = (W[0] + R("z", h)).sigmoid(), (W[1] + R("r", h)).sigmoid()
    return (z * h + (1 - z) * (W[2] + R("n", r * h)).tanh(),)


def _gru(W: Any, R: Any, states: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[Any, ...]:
    (h,) = states
    r, z = (W[0] + R("r", h)).sigmoid(), (W[1] + R("z", h)).sigmoid()
    n = (W[2] + r * R("n", h)).tanh()
    return ((1 - z) * n + z * h,)


def _lstm(W: Any, R: Any, states: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[Any, ...]:
    h, c = states
    i, f, o = ((W[place] + R(gate, h)).sigmoid() for place, gate in ((0, "i"), (1, "f"), (3, "o")))
    c = f * c + i * (W[2] + R("z", h)).tanh()
    return o * c.tanh(), c


def _lstm_projected(W: Any, R: Any, states: tuple[Any, ...], p: Mapping[str, Any]) -> tuple[Any, ...]:
    h, c = _lstm(W, R, states, p)
    return R("p", h), c


def _layer_norm_lstm(W: Any, R: Any, states: tuple[Any, ...], p: Mapping[str, Any]) -> tuple[Any, ...]:
    h, c = states
    i, f, z, o = (W[place] + p[f"g{gate}"] * _layer_norm(R(gate, h)) for place, gate in enumerate("ifzo"))
    c = f.sigmoid() * c + i.sigmoid() * z.tanh()
    return o.sigmoid() * (p["gc"] * _layer_norm(c) + p["bc"]).tanh(), c


WAITING_STEPS = {
    "block_gru": WaitingStep(("k",), ("h",), _block_gru),
    "gru_reset_before": WaitingStep(("z", "r", "n"), ("h",), _gru_reset_before),
    "lstm_projected": WaitingStep(("i", "f", "z", "o"), ("h", "c"), _lstm_projected, ("h",)),
    "layer_norm_lstm": WaitingStep(("i", "f", "z", "o"), ("h", "c"), _layer_norm_lstm),
    "gru": WaitingStep(("r", "z", "n"), ("h",), _gru),
    "lstm": WaitingStep(("i", "f", "z", "o"), ("h", "c"), _lstm),
}


def product(matrix: Any, operand: Any) -> Any:
    """Return the product [B, N Dout] of a matrix [N, Dout, Din] and an operand [B, N Din], head by head."""
    heads, _, of = matrix.shape
    if heads == 1:
        return operand @ matrix[0].T
    return (operand.reshape(-1, heads, of).transpose(0, 1) @ matrix.transpose(1, 2)).transpose(0, 1).reshape(len(operand), -1)


def run_loop(xp: Any, step: Step, x: Any, R: Mapping[str, Any], states: tuple[Any, ...], parameters: Mapping[str, Any]) -> Any:
    """Return y [B, T, units] of pre-activations x [B, T, G, H], a call of `step` for every step; `xp` is torch."""
    outputs = []
    for gates in x.unbind(1):
        states = step(gates.unbind(1), lambda gate, operand: product(R[gate], operand), states, parameters)
        outputs.append(states[0])
    return xp.stack(outputs, 1)
