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
