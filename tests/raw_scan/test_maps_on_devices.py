"""Scans of full maps as GPUs run them, by kernels of coupled states: here by the emulator, or in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emulated_code import HAS_COMPILER
from support.host_code import BY
from support.small_problems import WantedBuilder

import minrnn_gen
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.raw_scan import maps_device
from minrnn_gen.raw_scan.map_arguments import check_scan_of_maps, check_scan_of_maps_backward
from minrnn_gen.raw_scan.maps_device import MapKernel
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.kernels import CompiledKernels

# (rows, time, channels, m, whether maps are constant, whether time runs backwards, whether states are given).
CASES = [
    (2, 40, 3, 2, False, False, True),
    (1, 7, 9, 3, False, True, True),
    (3, 5, 1, 4, False, False, False),
    (2, 33, 2, 2, True, True, False),
    (1, 6, 8, 3, True, False, True),
    (2, 0, 3, 2, False, False, True),
    (2, 1, 3, 2, False, True, False),
]


def arrays_of(case: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a scan and those of its backward."""
    rows, time, channels, size, is_constant, _, has_states = case
    random = np.random.default_rng(0)
    shape, state = (rows, time, channels, size), (rows, channels, size)
    maps = random.normal(size=(*(shape[2:] if is_constant else shape), size))
    a = 0.9 * np.linalg.qr(maps)[0] if maps.size else maps
    b, dy, h0, dfinal = (
        random.normal(size=shape),
        random.normal(size=shape),
        random.normal(size=state),
        random.normal(size=state),
    )
    h0, dfinal = (h0, dfinal) if has_states else (None, None)
    return {"a": a, "b": b, "h0": h0}, {"dy": dy, "h0": h0, "dfinal": dfinal}


def assert_equal_to_host(case: tuple[Any, ...]) -> None:
    forward, backward = arrays_of(case)
    options = {"reverse": case[5], "axis": 1}
    y, final = minrnn_gen.scan(**forward, form="full", **options)
    gradients = minrnn_gen.scan_backward(forward["a"], y, **backward, form="full", **options)
    found = maps_device.scan(check_scan_of_maps(**forward, **options))
    da, db, dh0 = maps_device.scan_backward(check_scan_of_maps_backward(forward["a"], y, **backward, **options))
    for one, other in zip((*found, da.sum(0) if case[4] else da, db, dh0), (y, final, *gradients), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * max(1, np.abs(other).max(initial=0)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_maps_become_a_cell(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def executor_of(kernel: MapKernel, _device: int | None) -> Executor:
        builder = Builder(kernel.spec, Target.named("h200"), Store(tmp_path))
        return Executor(interface_of(builder, builder.cell_shape), builder, CudaBackend(CompiledKernels(builder, ())))

    monkeypatch.setattr(maps_device, "executor_of", executor_of)
    with BY["numpy"]():
        assert_equal_to_host(case)


@pytest.mark.matrix_full
@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize(
    "case", [(2, 300, 3, 2, False, False, True), (1, 70, 9, 3, False, True, True), (1, 300, 9, 2, True, False, True)], ids=str
)
def test_a_kernel_scans_maps(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tile by tile over blocks, forwards and backwards, without a race."""
    backends = []

    def executor_of(kernel: MapKernel, _device: int | None) -> Executor:
        wanted = (("threads", 64), ("stages", 2), ("chunk_tiles", 1))
        builder = WantedBuilder(kernel.spec, Target.named("h200"), Store(tmp_path), wanted=wanted)
        backend = EmulatedBackend(builder, ())
        backends.append(backend)
        return Executor(interface_of(builder, builder.cell_shape), builder, backend)

    monkeypatch.setattr(maps_device, "executor_of", executor_of)
    assert_equal_to_host(case)
    # Maps of more states in double precision are too many registers.
    family = "coupled_forward" if case[3] == 2 else "diagonal_forward"
    assert {kernel.plan.name for backend in backends for kernel in backend.built.values()} == {family}
