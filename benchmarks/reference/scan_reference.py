"""Reference of scans and their cells in float64, with gradients, which every result is compared with.

Functions take NumPy's arrays and torch's: `xp` is the module of the arrays. All arrays are time first, [T, ...], float64.
Nothing here is shared with the code that is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Array = Any  # of NumPy or torch


def scan(xp: Any, a: Array, b: Array) -> Array:
    """Return h [T, ...] of h[t] = a[t] h[t-1] + b[t], h before the first step 0.

    In square-root blocks of time, all blocks at once: 2 sqrt(T) steps instead of T, each of them sequential arithmetic.
    """
    steps = len(a)
    if not steps:
        return b
    length = math.ceil(math.sqrt(steps))
    padding = -steps % length
    if padding:
        a = xp.concatenate([a, xp.ones_like(a[:padding])])
        b = xp.concatenate([b, xp.zeros_like(b[:padding])])
    blocks = (len(a) // length, length, *a.shape[1:])
    a, b = a.reshape(blocks), b.reshape(blocks)
    h, product = xp.empty_like(b), xp.empty_like(a)
    h[:, 0], product[:, 0] = b[:, 0], a[:, 0]
    for step in range(1, length):
        h[:, step] = a[:, step] * h[:, step - 1] + b[:, step]
        product[:, step] = a[:, step] * product[:, step - 1]
    carry = xp.zeros_like(b[0, 0])
    for block in range(blocks[0]):
        product[block] *= carry
        h[block] += product[block]
        carry = h[block, -1]
    return h.reshape(-1, *blocks[2:])[:steps]


def scan_gradients(xp: Any, a: Array, h: Array, dy: Array) -> tuple[Array, Array]:
    """Return (da, db) of sum(dy * h): db[t] = dy[t] + a[t+1] db[t+1], da[t] = db[t] h[t-1]."""
    nothing = xp.zeros_like(a[:1])
    following = xp.concatenate([a[1:], nothing])
    db = xp.flip(scan(xp, xp.flip(following, (0,)), xp.flip(dy, (0,))), (0,))
    return db * xp.concatenate([nothing, h[:-1]]), db


def sigmoid(xp: Any, x: Array) -> Array:
    """Logistic function, without overflow."""
    return 0.5 * (1 + xp.tanh(0.5 * x))


def softplus(xp: Any, x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return xp.logaddexp(x, xp.zeros_like(x))


def selective_scan(xp: Any, u: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, z: Array) -> Array:
    """Return y [T, B, C] = (sum of C h over N + D u) silu(z), h[t] = exp(s A) h[t-1] + s u B, s = softplus(dt).

    u, dt and z [T, B, C], A [C, N], B and C [T, B, N], D [C]. arXiv 2312.00752, section 3.2.
    """
    step, total = softplus(xp, dt), D * u
    for n in range(A.shape[1]):
        total = total + C[..., n, None] * scan(xp, xp.exp(step * A[:, n]), step * u * B[..., n, None])
    return total * z * sigmoid(xp, z)


def selective_step(
    xp: Any, h: Array, u: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, z: Array
) -> dict[str, Array]:
    """Return y [B, C] and the state [B, C, N] after one step of `selective_scan` from the state h; the others without T."""
    step = softplus(xp, dt)[..., None]
    after = xp.exp(step * A) * h + step * u[..., None] * B[:, None]
    return {"y": ((after * C[:, None]).sum(-1) + D * u) * z * sigmoid(xp, z), "h": after}


def selective_scan_gradients(
    xp: Any, dy: Array, u: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, z: Array
) -> dict[str, Array]:
    """Return the gradients of sum(dy * y) by the arguments of `selective_scan`, "d" before their names."""
    step, gate = softplus(xp, dt), sigmoid(xp, z)
    dtotal, total = dy * z * gate, D * u
    dstep, du = xp.zeros_like(u), dtotal * D
    dA, dB, dC = (xp.zeros_like(array) for array in (A, B, C))
    for n in range(A.shape[1]):
        a, b, c = A[:, n], B[..., n, None], C[..., n, None]
        decay = xp.exp(step * a)
        h = scan(xp, decay, step * u * b)
        total = total + c * h
        dC[..., n] = (dtotal * h).sum(-1)
        ddecay, ddrive = scan_gradients(xp, decay, h, dtotal * c)
        dA[:, n] = (ddecay * decay * step).sum(0).sum(0)
        dB[..., n] = (ddrive * step * u).sum(-1)
        dstep = dstep + ddecay * decay * a + ddrive * u * b
        du = du + ddrive * step * b
    return {
        "du": du,
        "ddt": dstep * sigmoid(xp, dt),
        "dA": dA,
        "dB": dB,
        "dC": dC,
        "dD": (dtotal * u).sum(0).sum(0),
        "dz": dy * total * gate * (1 + z * (1 - gate)),
    }


@dataclass(frozen=True)
class CellReference:
    """Cell h[t] = (1 - z) h[t-1] + z v: its gates in order, and z, v and their derivatives by the gates.

    `share(xp, gates)` is z; `share_slopes` its derivative by the pre-activation of each gate but the last; `candidate` and
    `candidate_slope` are v and its derivative by the last gate.
    """

    gates: tuple[str, ...]
    share: Callable[[Any, Sequence[Array]], Array]
    share_slopes: Callable[[Any, Sequence[Array]], Sequence[Array]]
    candidate: Callable[[Any, Array], Array] = lambda _xp, v: v
    candidate_slope: Callable[[Any, Array], Array] = lambda xp, v: xp.ones_like(v)

    def coefficients(self, xp: Any, gates: Sequence[Array]) -> tuple[Array, Array]:
        """Return (a, b) of the recurrence; every gate is [T, ...]."""
        z = self.share(xp, gates)
        return 1 - z, z * self.candidate(xp, gates[-1])

    def run(self, xp: Any, gates: Sequence[Array]) -> Array:
        """Return y [T, ...] from a state of 0."""
        return scan(xp, *self.coefficients(xp, gates))

    def gradients(self, xp: Any, gates: Sequence[Array], dy: Array) -> list[Array]:
        """Return the gradients of sum(dy * y) by the gates."""
        a, b = self.coefficients(xp, gates)
        da, db = scan_gradients(xp, a, scan(xp, a, b), dy)
        dz = db * self.candidate(xp, gates[-1]) - da
        slopes = self.share_slopes(xp, gates)
        return [*(dz * slope for slope in slopes), db * (1 - a) * self.candidate_slope(xp, gates[-1])]


def _new_share(xp: Any, gates: Sequence[Array]) -> Array:
    """Share i / (f + i) with f = sigmoid(W.f), i = sigmoid(W.i), as the sigmoid of log i - log f."""
    return sigmoid(xp, softplus(xp, -gates[0]) - softplus(xp, -gates[1]))


def _new_share_slopes(xp: Any, gates: Sequence[Array]) -> Sequence[Array]:
    z = _new_share(xp, gates)
    return [-z * (1 - z) * sigmoid(xp, -gates[0]), z * (1 - z) * sigmoid(xp, -gates[1])]


def _update_slopes(xp: Any, gates: Sequence[Array]) -> Sequence[Array]:
    z = sigmoid(xp, gates[0])
    return [z * (1 - z)]


def _positive(xp: Any, v: Array) -> Array:
    return xp.where(v >= 0, v + 0.5, sigmoid(xp, v))


def _positive_slope(xp: Any, v: Array) -> Array:
    return xp.where(v >= 0, xp.ones_like(v), sigmoid(xp, v) * sigmoid(xp, -v))


# arXiv 2410.01201: minGRU section 3.1, minLSTM section 3.2, the candidate of the log-space model in appendix B.
CELL_REFERENCES = {
    "min_gru": CellReference(("z", "h"), lambda xp, gates: sigmoid(xp, gates[0]), _update_slopes),
    "min_gru_log": CellReference(
        ("z", "h"), lambda xp, gates: sigmoid(xp, gates[0]), _update_slopes, _positive, _positive_slope
    ),
    "min_lstm": CellReference(("f", "i", "h"), _new_share, _new_share_slopes),
    "min_lstm_log": CellReference(("f", "i", "h"), _new_share, _new_share_slopes, _positive, _positive_slope),
}


def relative_error(got: Array, expected: Array) -> float:
    """Return the norm of the difference over the norm of `expected`; NaN where anything is NaN."""
    difference = got - expected
    return float((difference * difference).sum() ** 0.5 / (expected * expected).sum() ** 0.5)
