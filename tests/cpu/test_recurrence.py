"""h[t] = a h[t-1] + b in NumPy: the parallel scan is the sequential one, and what is chosen is a matter of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel_inputs import RAW_KINDS, drawn_coefficients, drawn_state
from support.oracle import assert_within, oracle

from minrnn_gen.cpu import recurrence
from minrnn_gen.cpu.recurrence import scan, scan_parallel, scan_sequential
from minrnn_gen.precision import precision_of

seeds = st.integers(0, 2**32 - 1)
times = st.one_of(st.integers(0, 40), st.integers(0, 700))


@given(seeds, times, st.integers(1, 3))
def test_on_integers_the_scans_agree_exactly(seed: int, time: int, size: int) -> None:
    random = np.random.default_rng(seed)
    a, b, initial = random.integers(-1, 2, (time, size)), random.integers(-9, 10, (time, size)), random.integers(-9, 10, size)
    expected = [initial]
    for t in range(time):
        expected.append(a[t] * expected[-1] + b[t])
    for found in (scan_sequential(a, b, initial), scan_parallel(a, b, initial), scan(a, b, initial)):
        assert found.dtype == a.dtype and np.array_equal(found, np.array(expected))


@given(st.sampled_from(RAW_KINDS), seeds, times)
def test_the_parallel_scan_is_within_the_bound_of_any_order(kind: str, seed: int, time: int) -> None:
    gates = {name: value.astype(np.float32) for name, value in drawn_coefficients(kind, seed, (time, 2, 3)).items()}
    state = {"h": drawn_state("raw", seed, 2, 3)["h"].astype(np.float32)}
    expected = oracle(np, "raw", gates, state, {}, precision_of("fp32"))
    found = scan_parallel(gates["a"], gates["b"], state["h"])
    assert np.array_equal(found[0], state["h"])
    assert_within(expected.y, expected.y_bound, found[1:])


@pytest.mark.parametrize("block", [1, 6, 36, 600, 1 << 16])
def test_blocks_of_time_are_carried_on(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "PARALLEL_BLOCK_ELEMENTS", block)
    random = np.random.default_rng(0)
    a, b, initial = random.choice([-1, 0, 1, 1], (101, 2, 3)), random.integers(-9, 10, (101, 2, 3)), np.full((2, 3), 5)
    assert np.array_equal(scan_parallel(a, b, initial), scan_sequential(a, b, initial))


@given(seeds, times)
def test_complex_coefficients(seed: int, time: int) -> None:
    random = np.random.default_rng(seed)
    a = random.uniform(0, 1, (time, 4)) * np.exp(1j * random.uniform(-4, 4, (time, 4)))
    b, initial = (random.normal(size=(*shape, 4, 2)) @ np.array([1, 1j]) for shape in ((time,), ()))
    np.testing.assert_allclose(scan_parallel(a, b, initial), scan_sequential(a, b, initial), rtol=1e-11, atol=1e-11)


@given(seeds, st.sampled_from((np.nan, np.inf, -np.inf, 3e38)), st.sampled_from("ab"))
def test_no_element_depends_on_another(seed: int, poison: float, which: str) -> None:
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {name: random.uniform(-1, 1, (400, 6)).astype(np.float32) for name in "ab"}
    clean = scan(values["a"], values["b"], np.ones(6, np.float32))
    values[which][random.integers(400), 2] = poison
    found = scan(values["a"], values["b"], np.ones(6, np.float32))
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(found[:, others], clean[:, others])


def test_where_coefficients_grow_no_product_overflows() -> None:
    """The state stays 0 while the product of the coefficients does not."""
    a, zeros = np.full((500, 2), 10, np.float32), np.zeros((500, 2), np.float32)
    a[:, 1] = 0.5
    assert not scan(a, zeros, zeros[0]).any()
    assert np.isnan(scan_parallel(a, zeros, zeros[0])).any()


def test_the_sizes_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*shape: int) -> str:
        called: list[str] = []
        for name in ("scan_sequential", "scan_parallel"):
            monkeypatch.setattr(recurrence, name, lambda *given, name=name: called.append(name) or scan_sequential(*given))
        scan(np.ones(shape), np.ones(shape), np.ones(shape[1:]))
        return " ".join(called)

    assert chosen(255, 1) == chosen(255, 8, 16) == chosen(256, 1, 129) == chosen(4096, 8, 64) == "scan_sequential"
    assert chosen(256, 1) == chosen(256, 8, 16) == chosen(65536, 1, 1) == "scan_parallel"


def test_either_is_to_be_had_on_request() -> None:
    a, b, initial = np.full((300, 1), 0.9), np.full((300, 1), 0.7), np.ones(1)
    assert np.array_equal(scan(a, b, initial, "sequential"), scan_sequential(a, b, initial))
    assert np.array_equal(scan(a, b, initial, "parallel"), scan_parallel(a, b, initial))
    assert not np.array_equal(scan_sequential(a, b, initial), scan_parallel(a, b, initial))
