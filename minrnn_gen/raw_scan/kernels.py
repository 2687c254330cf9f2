"""The compiled kernels of raw scans: a cell of two gates, built like any other."""

from __future__ import annotations

import threading
from functools import lru_cache

from minrnn_gen.build.builder import Builder, Target
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.codegen.signature import ArrayNames
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu import module
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.precision import ComplexName, PrecisionName
from minrnn_gen.raw_scan.arrangement import RawLayout

RawPrecision = PrecisionName | ComplexName

# Sizes, dtypes and devices in use at once; a kernel that falls out is compiled or read from the cache again.
KERNELS_HELD = 256

# The output is the state, which a backward reads.
ARRAY_NAMES = ArrayNames(states=("h",), parameters=(), saved_states=("h",), output_state="h")
_EQUATIONS = {False: "h[t] = W.a * h[t-1] + W.b", True: "h[t] = exp(W.a) * h[t-1] + W.b"}


class RawSpec(Spec):
    """A spec that may be of complex numbers, as the raw cell's may."""

    precision: RawPrecision = "fp32"  # type: ignore[assignment]  # a wider choice than a user's


class RawKernels:
    """The kernels of raw scans of one precision, size and layout on one device, each built when first asked for."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._ready: dict[KernelKey, tuple[LoadedKernel, KernelPlan]] = {}
        self._lock = threading.Lock()

    def ready(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> tuple[LoadedKernel, KernelPlan]:
        """Return the kernel to launch and its plan; raises ToolchainMissing where NVRTC is not installed."""
        key = self._builder.choose(kernel_pass, specialization, sizes)
        if key not in self._ready:
            with self._lock:
                if key not in self._ready:
                    self._ready[key] = self._built(key)
        return self._ready[key]

    def _built(self, key: KernelKey) -> tuple[LoadedKernel, KernelPlan]:
        built = self._builder.build(key)
        if built.cubin is None:
            raise ToolchainMissing(f"a scan on a GPU needs NVRTC, which is not installed: {INSTALL_CUDA}")
        plan = built.plan
        return module.loaded_kernel(built.cubin, plan), plan


@lru_cache(maxsize=KERNELS_HELD)
def raw_kernels(precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, device: int) -> RawKernels:
    """Return the kernels for the live device number `device`, kept until `KERNELS_HELD` others have been used since."""
    live = gpu_device.live_device(device)
    if live is None:
        raise ToolchainMissing(f"a is on CUDA device {device}, but CuPy, which launches the kernels, is not installed")
    target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
    return RawKernels(raw_builder(precision, hidden_size, layout, log_a, target))


def raw_builder(precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, target: Target) -> Builder:
    """Return what builds the kernels of h[t] = a[t] h[t-1] + b[t], gates a and b, for `target`."""
    spec = RawSpec(
        model={"name": "log_scan" if log_a else "scan", "equations": _EQUATIONS[log_a], "gates": ["a", "b"]},
        hidden_size=hidden_size,
        precision=precision,
        layout=layout,
    )
    return Builder(spec, target, Store(cache_folder()))
