"""The kernels of filters, emulated thread by thread, beside native code or NumPy: all orders, ends of tiles and of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emulated_code import HAS_COMPILER
from support.small_problems import WantedBuilder

from minrnn_gen.build.store import Store
from minrnn_gen.config.spec import load_spec
from minrnn_gen.gpu import memory
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.raw_scan import filters_cpu, filters_device
from minrnn_gen.raw_scan.filter_kernels import filter_spec
from minrnn_gen.raw_scan.filter_results import RESULTS, FilterPass, shape_of
from minrnn_gen.run.target import target_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

# Of the kernels here a tile has 512 steps.
THREADS, STEPS = 64, 8
TILE = THREADS * STEPS
# (order, dtype, rows, channels, time, whether there is a state).
CASES = [
    (2, "float32", 2, 1, 2 * TILE + 300, True),
    (1, "float64", 1, 3, TILE + 1, False),
    (4, "float64", 2, 2, 2 * TILE, True),
    (3, "float32", 3, 1, 2, True),
    (4, "float32", 1, 1, 1, False),
    # A group of tiles and the begin of the next one: the state after the group is published too.
    (2, "float32", 1, 1, 33 * TILE + 4, True),
]


def backend_of(order: int, dtype: str, folder: Path) -> EmulatedBackend:
    spec = filter_spec("fp32" if dtype == "float32" else "fp64", order)
    target = target_of(load_spec({"model": "min_gru", "hidden_size": 1, "gpu": "h200"}))
    wanted = (("threads", THREADS), ("steps_per_thread", STEPS))
    return EmulatedBackend(WantedBuilder(spec, target, Store(folder), wanted=wanted), ())


def inputs(order: int, dtype: str, rows: int, channels: int, time: int, has_state: bool) -> dict[str, Any]:
    """Return the arrays of both passes but y; poles lie up to a modulus of 0.999, two of them double."""
    random = np.random.default_rng(0)
    poles = np.array([0.999, 0.999, -0.7, 0.2])[:order]
    a = np.stack([np.poly(poles * random.uniform(0.9, 1)) for _ in range(channels)])
    signal, state = (rows, channels, time), (rows, channels, order)
    return {
        "x": random.normal(size=signal).astype(dtype),
        "b": random.normal(size=a.shape),
        "a": a,
        "zi": random.normal(size=state) if has_state else None,
        "dy": random.normal(size=signal).astype(dtype),
        "dzf": random.normal(size=state) if has_state else None,
    }


def emulated(backend: EmulatedBackend, kernel_pass: FilterPass, arrays: dict[str, Any], seed: int) -> list[Any]:
    """Return the results of the kernel of a pass, sums over tiles added up; raises KernelMisbehaved for a race."""
    described = {name: None if array is None else memory.inspect(array, name) for name, array in arrays.items()}
    with backend.seeded(seed):
        recorder = backend.begin(described["x"], None, described.values())
        results = recorder.finish(filters_device.run(kernel_pass, described, recorder), None).result
    return [array.sum(2, keepdims=True) if array.ndim == 4 else array for array in results]


def expected(kernel_pass: FilterPass, arrays: dict[str, Any]) -> list[Any]:
    described = {name: None if array is None else memory.inspect(array, name) for name, array in arrays.items()}
    x, order = described["x"], arrays["b"].shape[1] - 1
    written = RESULTS[kernel_pass].mapped(lambda kind: memory.new_array(x, *shape_of(kind, x, order)))
    filters_cpu.PASSES[kernel_pass](described, *written)
    return [array.owner for array in written]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_is_the_difference_equation(case: tuple[Any, ...], folder: Path) -> None:
    order, dtype = case[:2]
    backend, arrays = backend_of(order, dtype, folder), inputs(*case)
    own = {"filter": ("x", "b", "a", "zi"), "filter_backward": ("x", "y", "b", "a", "dy", "dzf")}
    roundoff = np.finfo(dtype).eps / 2
    for kernel_pass, names in own.items():
        wanted = expected(kernel_pass, {name: arrays[name] for name in names})
        if kernel_pass == "filter":
            arrays["y"] = wanted[0]
        seeds = [emulated(backend, kernel_pass, {name: arrays[name] for name in names}, seed) for seed in (1, 2)]
        for first, second, array in zip(*seeds, wanted, strict=True):
            np.testing.assert_array_equal(first, second)  # whatever the order in which threads and blocks run
            # Arithmetic is in float64, of which a double pole of 0.999 may lose a million roundings.
            allowed = (2 * roundoff if array.dtype == dtype else 0) + 1e6 * 2.0**-53
            np.testing.assert_allclose(first, array, rtol=0, atol=allowed * np.abs(array).max(initial=1e-300))


def low_pass(order: int, cutoff: float) -> Any:
    """Return the poles of a Butterworth filter; the cutoff is a part of the Nyquist frequency."""
    angles = np.pi * (2 * np.arange(order) + order + 1) / (2 * order)
    analog = np.tan(np.pi * cutoff / 2) * np.exp(1j * angles)
    return (1 + analog) / (1 - analog)


# Poles that lie close together, and some that do not.
POLES = {
    "low pass of order 4": low_pass(4, 0.005),
    "low pass of order 3": low_pass(3, 0.001),
    "band": np.array([0.998 * np.exp(sign * angle) for sign in (1j, -1j) for angle in (0.06, 0.08)]),
    "double pairs": 0.999 * np.exp(0.02j * np.array([1, -1, 1, -1])),
    "double": np.array([0.999, 0.999]),
    "near -1": np.array([-0.99, -0.99, -0.98, -0.98]),
    "apart": np.array([0.92, 0.72, 0.47, 0.06]),
}


def all_pole(x: Any, a: Any) -> Any:
    """Return y[t] = x[t] - a[1] y[t-1] - ..., step by step in the dtype of the arrays."""
    order = len(a) - 1
    y = np.zeros(order + len(x), x.dtype)
    for step, value in enumerate(x, order):
        y[step] = value - (a[:0:-1] * y[step - order : step]).sum()
    return y[order:]


# Every day a kernel of order 4 on its worst poles; the rest is part of the whole matrix.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "low pass of order 4" else pytest.mark.matrix_full) for name in POLES]
)
def test_tiles_lose_no_more_digits_than_steps(name: str, folder: Path) -> None:
    a = np.poly(POLES[name]).real
    order, x = len(a) - 1, np.random.default_rng(0).normal(size=9 * TILE + 5)
    exact = all_pole(x.astype(np.longdouble), a.astype(np.longdouble))
    allowed = 4 * np.abs(all_pole(x, a) - exact).max() + 16 * 2.0**-53 * np.abs(exact).max()
    backend, row, zeros = backend_of(order, "float64", folder), x[None, None], np.zeros((1, 1, order))
    arrays = {"x": row, "b": np.eye(1, order + 1), "a": a[None], "zi": zeros}
    backwards = {name: arrays[name] for name in ("b", "a")} | {"dy": row[..., ::-1].copy(), "dzf": zeros}
    y = emulated(backend, "filter", arrays, 1)[0]
    dx = emulated(backend, "filter_backward", {"x": row, "y": row} | backwards, 1)[0]
    for found in (y, dx[..., ::-1], expected("filter", arrays)[0]):
        assert np.abs(found[0, 0] - exact).max() <= allowed
