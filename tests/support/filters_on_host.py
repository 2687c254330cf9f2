"""Kernels of filters in NumPy, which read and write memory by the addresses that they are given."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.fake_device import GivenKernels, contiguous
from support.fake_plan import plan_with

from minrnn_gen.call.array import wrap_numpy
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.raw_scan import filters_cpu
from minrnn_gen.raw_scan.filter_results import PASSED, FilterPass
from minrnn_gen.raw_scan.map_arguments import CARRIED

TILE_STEPS = 4
_SIGNALS = ("x", "y", "dy", "dx")
_WRITTEN = {"filter": ("y", "zf"), "filter_backward": ("dx", "db", "da", "dzi")}


@dataclass(frozen=True)
class FilterOnHost:
    """The kernel of one pass."""

    kernel_pass: FilterPass
    plan: Any
    storage: str
    order: int

    def resident_blocks(self, _device: int | None, _threads: int) -> int:
        """Return a few."""
        return 3

    def launch(self, _like: Any, blocks: int, _threads: int, arguments: tuple[Any, ...]) -> None:
        left = dict(zip(signature(self.plan, ArrayNames((), ())).names, arguments, strict=True))
        rows, time, channels = (left.pop(name) for name in ("rows", "time", "channels"))
        tiles = -(-time // TILE_STEPS)
        assert 0 < blocks <= rows * tiles and left.pop("workspace_bytes")
        row = (rows // channels, channels)

        def view(name: str, *shape: int) -> Any:
            return contiguous(left.pop(name), *shape, dtype=self.storage if name in _SIGNALS else CARRIED)

        arrays = {}
        for name in PASSED[self.kernel_pass]:
            values = (channels, self.order + 1) if name in "ba" else (*row, time if name in _SIGNALS else self.order)
            arrays[name] = wrap_numpy(view(name, *values), name)
        first = arrays["a"].owner[:, :1].copy()
        with np.errstate(all="ignore"):  # a recording's coefficients are any
            arrays |= {name: wrap_numpy(arrays[name].owner / first, name) for name in "ba"}
        written = []
        for name in _WRITTEN[self.kernel_pass]:
            if name in ("db", "da"):
                parts = view(name, *row, tiles, self.order + 1)
                parts[...] = 0
                written.append(parts[:, :, :1])
            else:
                written.append(view(name, *row, time if name in _SIGNALS else self.order))
        assert not left
        filters_cpu.PASSES[self.kernel_pass](arrays, *(wrap_numpy(array, "a result") for array in written))


def filter_kernels_on_host(precision: str, order: int, _device: int) -> GivenKernels:
    """Stand for `filter_kernels`."""

    @functools.cache
    def load(key: KernelKey) -> tuple[Any, Any]:
        plan = plan_with(
            entry={"filter": "filter_forward"}.get(key.kernel_pass, key.kernel_pass),
            specialization=key.specialization,
            tile_steps=TILE_STEPS,
            group_tiles=32,
            threads=32,
            workspace_head_bytes=16,
            variables={},
            strategy="filter",
            layout="BDT",
            group_exchange_bytes=0,
            is_cooperative=False,
        )
        kernel_pass: Any = key.kernel_pass
        return FilterOnHost(kernel_pass, plan, {"fp32": "float32", "fp64": "float64"}[precision], order), plan

    return GivenKernels(load)
