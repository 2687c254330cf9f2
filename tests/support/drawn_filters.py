"""Linear filters drawn at random, and what scipy makes of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

signal = pytest.importorskip("scipy.signal")


def polynomial(random: np.random.Generator, order: int, largest: float) -> Any:
    """Return real coefficients whose roots are pairs and single ones within a circle, some of them double."""
    roots: list[complex] = []
    while len(roots) < order:
        root = largest * math.sqrt(random.uniform()) * np.exp(1j * random.uniform(0, math.pi))
        new = [root, root.conjugate()] if len(roots) + 2 <= order and random.uniform() < 0.7 else [root.real]
        roots += new * (2 if len(roots) + 2 * len(new) <= order and random.uniform() < 0.3 else 1)
    return np.real(np.atleast_1d(np.poly(roots))) * random.uniform(0.5, 2)


@st.composite
def filters(draw: Any) -> dict[str, Any]:
    """Return a filter in float64 as scipy takes it, with time as the last axis; of channels of their own, or of all alike."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from((None, 1, 3)))
    orders = [draw(st.sampled_from((0, 1, 2, 3, 8))) for _ in range(2)]
    one = [
        (polynomial(random, orders[0], 0.98), polynomial(random, orders[1], 1.5)) for _ in range(1 if count is None else count)
    ]
    a, b = (np.stack(each) for each in zip(*one, strict=True))
    shape = (draw(st.integers(0, 3)), *(() if count is None else (count,)), draw(st.sampled_from((0, 1, 2, 5, 40, 512, 700))))
    zi = random.normal(size=(*shape[:-1], max(orders))) if draw(st.booleans()) else None
    x = random.normal(size=shape)
    return {"x": x, "a": a if count else a[0], "b": b if count else b[0], "zi": zi}


def of_scipy(drawn: dict[str, Any]) -> tuple[Any, Any]:
    """Return (y, zf) channel by channel."""
    x, a, b = (drawn[name] for name in "xab")
    zi = drawn["zi"]
    zi = np.zeros((*x.shape[:-1], max(a.shape[-1], b.shape[-1]) - 1)) if zi is None else zi
    if not x.size:
        return x, zi
    if a.ndim == 1:
        return signal.lfilter(b, a, x, zi=zi)
    each = [signal.lfilter(b[c], a[c], x[:, c], zi=zi[:, c]) for c in range(len(a))]
    return tuple(np.stack(part, axis=1) for part in zip(*each, strict=True))
