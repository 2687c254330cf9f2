"""Linear filters drawn at random, and `lfilter` and `sosfilt` of torch's tensors against scipy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
signal = pytest.importorskip("scipy.signal")
# Sections of a Butterworth filter: its order, its band, whether there are states, and a seed.
SECTIONS = st.tuples(st.integers(1, 8), st.sampled_from(("low", "high", "band")), st.booleans(), st.integers(0, 2**32 - 1))


def polynomial(random: np.random.Generator, order: int, largest: float) -> Any:
    """Return real coefficients whose roots are pairs and single ones within a circle, some of them double."""
    roots: list[complex] = []
    while len(roots) < order:
        root = largest * math.sqrt(random.uniform()) * np.exp(1j * random.uniform(0, math.pi))
        new = [root, root.conjugate()] if len(roots) + 2 <= order and random.uniform() < 0.7 else [root.real]
        roots += new * (2 if len(roots) + 2 * len(new) <= order and random.uniform() < 0.3 else 1)
    return np.real(np.atleast_1d(np.poly(roots))) * random.uniform(0.5, 2)


@st.composite
def filters(draw: Any, orders: tuple[int, ...] = (0, 1, 2, 3, 8)) -> dict[str, Any]:
    """Return a filter in float64 as scipy takes it, with time as the last axis; of channels of their own, or of all alike.

    `orders`: of its numerator and of its denominator.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from((None, 1, 3)))
    poles, zeros = (draw(st.sampled_from(orders)) for _ in range(2))
    one = [(polynomial(random, poles, 0.98), polynomial(random, zeros, 1.5)) for _ in range(1 if count is None else count)]
    a, b = (np.stack(each) for each in zip(*one, strict=True))
    shape = (draw(st.integers(0, 3)), *(() if count is None else (count,)), draw(st.sampled_from((0, 1, 2, 5, 40, 512, 700))))
    zi = random.normal(size=(*shape[:-1], max(poles, zeros))) if draw(st.booleans()) else None
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


def tensors(arrays: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """Return NumPy's arrays as tensors; None stays None."""
    return {name: None if one is None else torch.from_numpy(one).to(device) for name, one in arrays.items()}


def check_against_scipy(drawn: dict[str, Any], device: str = "cpu") -> None:
    """Compare a drawn filter and its last state with scipy's."""
    expected, last = of_scipy(drawn)
    found = wing.lfilter(**tensors(drawn, device))
    y, zf = (found, None) if drawn["zi"] is None else found
    size = 1 + np.abs(expected).max(initial=0)
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=0, atol=1e-9 * size)
    if zf is not None:
        np.testing.assert_allclose(zf.cpu().numpy(), last, rtol=0, atol=1e-8 * (size + np.abs(last).max(initial=0)))


def check_sections_against_scipy(order: int, kind: str, has_state: bool, seed: int, device: str = "cpu") -> None:
    """Compare the sections of `SECTIONS` and their last states with scipy's."""
    random = np.random.default_rng(seed)
    edges = np.sort(random.uniform(0.05, 0.9, 2)) + np.array([0, 0.05])
    sos = signal.butter(order, edges if kind == "band" else edges[0], kind, output="sos")
    arrays = {"sos": sos, "x": random.normal(size=(2, 3, 300)), "zi": random.normal(size=(len(sos), 2, 3, 2))}
    arrays["zi"] = arrays["zi"] if has_state else np.zeros_like(arrays["zi"])
    expected, last = signal.sosfilt(**arrays)
    given = tensors(arrays, device)
    found = wing.sosfilt(given["sos"], given["x"], given["zi"] if has_state else None)
    each = given["sos"].expand(3, *sos.shape)
    assert torch.equal(wing.sosfilt(each, given["x"]), wing.sosfilt(given["sos"], given["x"]))
    y, zf = found if has_state else (found, None)
    allowed = 1e-11 * max(np.abs(expected).max(), np.abs(last).max(), np.abs(arrays["zi"]).max())
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=0, atol=allowed)
    if zf is not None:
        np.testing.assert_allclose(zf.cpu().numpy(), last, rtol=0, atol=allowed)
