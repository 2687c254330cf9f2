"""The compiled kernels of linear filters: their recursion is a cell, built like any other, with its own passes."""

from __future__ import annotations

from functools import lru_cache

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.precision import PrecisionName
from minrnn_gen.raw_scan.kernels import KERNELS_HELD, RawSpec
from minrnn_gen.run.kernels import CompiledKernels


@lru_cache(maxsize=KERNELS_HELD)
def filter_kernels(precision: PrecisionName, order: int, device: int) -> CompiledKernels:
    """Return the kernels for the live device number `device`, kept until `KERNELS_HELD` others have been used since."""
    live = gpu_device.live_device(device)
    if live is None:
        raise ToolchainMissing(f"x is on CUDA device {device}, but {gpu_device.why_no_gpu()}: {INSTALL_CUDA}")
    target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
    return CompiledKernels(filter_builder(precision, order, target), ())


def filter_builder(precision: PrecisionName, order: int, target: Target) -> Builder:
    """Return the builder of the kernels of filters of an order for `target`."""
    return Builder(filter_spec(precision, order), target, Store(cache_folder()))


def filter_spec(precision: PrecisionName, order: int) -> RawSpec:
    """Return the recursion of a filter as a spec: its last results are states, and its coefficients parameters."""
    delays = range(1, order + 1)
    products = "".join(f" - a{delay} * h{delay}[t-1]" for delay in delays)
    others = "".join(f"\nh{delay}[t] = h{delay - 1}[t-1]" for delay in delays[1:])
    model = {
        "name": f"filter_of_order_{order}",
        "equations": f"h1[t] = W.x{products}{others}",
        "parameters": [f"a{delay}" for delay in delays],
    }
    return RawSpec(model=model, hidden_size=1, precision=precision, layout="BDT")
