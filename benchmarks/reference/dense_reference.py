"""Reference of dense cells in float64, step by step, with gradients, which results of dense cells are compared with.

Functions take NumPy's arrays and torch's, as in `scan_reference`, and share nothing with the code that is measured. Arrays of
one step are [heads, batch, units]; d before a name is the gradient by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reference.scan_reference import Array, sigmoid, softplus

Arrays = Sequence[Array]


@dataclass(frozen=True)
class Forward:
    """Forward pass of a cell: y [T, N, B, D], the last states, and the values of every step that `gradients` reads."""

    y: Array
    states: dict[str, Array]
    before: list[Array]
    kept: list[tuple[Array, ...]]


@dataclass(frozen=True)
class DenseReference:
    """Dense cell, its gates and states in order; every state begins as 0, and the output is the first state.

    `step(xp, W, R, before)` returns (states after, the values that `back` reads). `back(xp, kept, dafter)` returns
    (dW, dR, dbefore), where dbefore of the output lacks the part that goes through R.
    """

    gates: tuple[str, ...]
    states: tuple[str, ...]
    step: Callable[[Any, Arrays, Arrays, Arrays], tuple[Arrays, tuple[Array, ...]]]
    back: Callable[[Any, tuple[Array, ...], Arrays], tuple[Arrays, Arrays, Arrays]]

    def run(self, xp: Any, x: Array, R: Array) -> Forward:
        """Return the forward pass over pre-activations x [T, G, N, B, D] with R [Gr, N, D, D] (gate, head, out, in)."""
        products = _side_by_side(xp, R).swapaxes(-1, -2)  # [N, in, Gr out]
        states: Arrays = [xp.zeros_like(x[0, 0]) for _ in self.states]
        y, before, kept = [], [], []
        for gates in x:
            before.append(states[0])
            states, read = self.step(xp, list(gates), _parts(states[0] @ products, len(R)), states)
            y.append(states[0])
            kept.append(read)
        return Forward(xp.stack(y), dict(zip(self.states, states, strict=True)), before, kept)

    def gradients(self, xp: Any, forward: Forward, R: Array, dy: Array) -> tuple[Array, Array]:
        """Return (dx [T, G, N, B, D], dR [Gr, N, D, D]) of sum(dy * y), dy [T, N, B, D]."""
        products = _side_by_side(xp, R)  # [N, Gr out, in]
        dproducts = xp.zeros_like(products)
        dstates: Arrays = [xp.zeros_like(dy[0]) for _ in self.states]
        dx: list[Array] = []
        for t in reversed(range(len(dy))):
            dW, dR, dstates = self.back(xp, forward.kept[t], [dstates[0] + dy[t], *dstates[1:]])
            dx.append(xp.stack(list(dW)))
            joined = xp.concatenate(list(dR), -1)
            dproducts = dproducts + joined.swapaxes(-1, -2) @ forward.before[t]
            dstates = [dstates[0] + joined @ products, *dstates[1:]]
        heads, _, units = products.shape
        return xp.stack(dx[::-1]), dproducts.reshape(heads, len(R), units, units).swapaxes(0, 1)


def _side_by_side(xp: Any, R: Array) -> Array:
    """Return R [Gr, N, D, D] as [N, Gr * D, D]."""
    return xp.concatenate(list(R), 1)


def _parts(joined: Array, count: int) -> list[Array]:
    units = joined.shape[-1] // count
    return [joined[..., part * units : (part + 1) * units] for part in range(count)]


def _elman(xp: Any, W: Arrays, R: Arrays, _: Arrays) -> tuple[Arrays, tuple[Array, ...]]:
    h = xp.tanh(W[0] + R[0])
    return [h], (h,)


def _elman_back(xp: Any, kept: tuple[Array, ...], dafter: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    (h,), (dh,) = kept, dafter
    da = [dh * (1 - h * h)]
    return da, da, [xp.zeros_like(h)]


def _lstm(xp: Any, W: Arrays, R: Arrays, before: Arrays) -> tuple[Arrays, tuple[Array, ...]]:
    raw_i, raw_f, raw_z, raw_o = (w + r for w, r in zip(W, R, strict=True))
    i, f, z, o = sigmoid(xp, raw_i), sigmoid(xp, raw_f), xp.tanh(raw_z), sigmoid(xp, raw_o)
    c = f * before[1] + i * z
    bounded = xp.tanh(c)
    return [o * bounded, c], (i, f, z, o, before[1], bounded)


def _lstm_back(xp: Any, kept: tuple[Array, ...], dafter: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    i, f, z, o, before, bounded = kept
    dh, dc = dafter
    dc = dc + dh * o * (1 - bounded * bounded)
    da = [dc * z * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - z * z), dh * bounded * o * (1 - o)]
    return da, da, [xp.zeros_like(dh), dc * f]


def _gru(xp: Any, W: Arrays, R: Arrays, before: Arrays) -> tuple[Arrays, tuple[Array, ...]]:
    r, z = sigmoid(xp, W[0] + R[0]), sigmoid(xp, W[1] + R[1])
    n = xp.tanh(W[2] + r * R[2])
    return [(1 - z) * n + z * before[0]], (r, z, n, R[2], before[0])


def _gru_back(_: Any, kept: tuple[Array, ...], dafter: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    r, z, n, product, before = kept
    (dh,) = dafter
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * product * r * (1 - r), dh * (before - n) * z * (1 - z)
    return [dr, dz, dn], [dr, dz, dn * r], [dh * z]


def _slstm(xp: Any, W: Arrays, R: Arrays, before: Arrays) -> tuple[Arrays, tuple[Array, ...]]:
    raw_i, raw_f, raw_z, raw_o = (w + r for w, r in zip(W, R, strict=True))
    _, c, n, m = before
    z, o, nothing = xp.tanh(raw_z), sigmoid(xp, raw_o), xp.zeros_like(raw_i)
    log_f = m - softplus(xp, -raw_f)
    m = xp.where(n == 0, raw_i, xp.where(raw_i >= log_f, raw_i, log_f))
    # m is the larger of raw_i and log_f, so neither exceeds it; only at the first step log_f may.
    i, f = (xp.exp(xp.where(value <= m, value - m, nothing)) for value in (raw_i, log_f))
    f_follows = xp.where(log_f <= m, nothing + 1, nothing)
    sum_n = f * n + i
    n_after, c_after = xp.where(sum_n >= 1, sum_n, nothing + 1), f * c + i * z
    kept = (i, f, z, o, c, n, c_after, n_after, sum_n, f_follows * sigmoid(xp, -raw_f))
    return [o * c_after / n_after, c_after, n_after, m], kept


def _slstm_back(xp: Any, kept: tuple[Array, ...], dafter: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    i, f, z, o, c, n, c_after, n_after, sum_n, slope_f = kept
    dh, dc, dn, _ = dafter  # m is detached
    ratio = c_after / n_after
    dc = dc + dh * o / n_after
    dn = xp.where(sum_n >= 1, dn - dh * o * ratio / n_after, xp.zeros_like(dn))
    da = [(dc * z + dn) * i, (dc * c + dn * n) * f * slope_f, dc * i * (1 - z * z), dh * ratio * o * (1 - o)]
    return da, da, [xp.zeros_like(dh), dc * f, dn * f, xp.zeros_like(dh)]


# Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014 with the reset after the product; arXiv 2405.04517.
DENSE_REFERENCES = {
    "elman": DenseReference(("h",), ("h",), _elman, _elman_back),
    "lstm": DenseReference(("i", "f", "z", "o"), ("h", "c"), _lstm, _lstm_back),
    "gru": DenseReference(("r", "z", "n"), ("h",), _gru, _gru_back),
    "slstm": DenseReference(("i", "f", "z", "o"), ("h", "c", "n", "m"), _slstm, _slstm_back),
}
