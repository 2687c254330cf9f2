"""The compiled kernels of raw scans: a cell of two gates, built like any other."""

from __future__ import annotations

import threading
from functools import lru_cache

from minrnn_gen.build.builder import Builder, Target
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.codegen.signature import ArrayNames
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu import module
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.precision import ComplexName, PrecisionName
from minrnn_gen.raw_scan.arrangement import RawLayout

RawPrecision = PrecisionName | ComplexName

# Sizes, dtypes and devices in use at once; a kernel that falls out is compiled or read from the cache again.
KERNELS_HELD = 256
# Planned for as many channels as 8 sequences of a layer 1536 wide have: scans that matter fill the GPU.
TYPICAL_CHANNELS = 8 * 1536
# And for long ones, unless a tile of several warps along one row, 1,024 steps in fp32, would be longer than a sequence is.
TYPICAL_TIME, TYPICAL_MEDIUM_TIME, MEDIUM_STEPS = 16384, 512, 1024

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
        self._ready: dict[tuple[KernelPass, Specialization], tuple[LoadedKernel, KernelPlan]] = {}
        self._lock = threading.Lock()

    def ready(self, kernel_pass: KernelPass, specialization: Specialization) -> tuple[LoadedKernel, KernelPlan]:
        """Return the kernel to launch and its plan; raises ToolchainMissing where NVRTC is not installed."""
        key = (kernel_pass, specialization)
        if key not in self._ready:
            with self._lock:
                if key not in self._ready:
                    self._ready[key] = self._built(kernel_pass, specialization)
        return self._ready[key]

    def specialization_of(self, sizes: Sizes, alignment_bytes: int, reverse: bool) -> Specialization:
        """Return the specialization of a call."""
        return self._builder.specialization_of(sizes, alignment_bytes, reverse)

    def _built(self, kernel_pass: KernelPass, specialization: Specialization) -> tuple[LoadedKernel, KernelPlan]:
        built = self._builder.build(kernel_pass, specialization)
        if built.cubin is None:
            raise ToolchainMissing("a scan on a GPU needs NVRTC, which is not installed: pip install 'minrnn-gen[cuda13]'")
        plan = built.plan
        return module.loaded_kernel(built.cubin, plan), plan


@lru_cache(maxsize=KERNELS_HELD)
def raw_kernels(
    precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, typical_time: int, device: int
) -> RawKernels:
    """Return the kernels for the live device number `device`, kept until `KERNELS_HELD` others have been used since."""
    live = gpu_device.live_device(device)
    if live is None:
        raise ToolchainMissing(f"a is on CUDA device {device}, but CuPy, which launches the kernels, is not installed")
    target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
    return RawKernels(raw_builder(precision, hidden_size, layout, log_a, typical_time, target))


def typical_time_of(time: int) -> int:
    """Return the sequence length that kernels for `time` steps are planned for."""
    return TYPICAL_MEDIUM_TIME if time <= MEDIUM_STEPS else TYPICAL_TIME


def raw_builder(
    precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, typical_time: int, target: Target
) -> Builder:
    """Return what builds the kernels of h[t] = a[t] h[t-1] + b[t], gates a and b, for `target`."""
    spec = RawSpec(
        model={"name": "log_scan" if log_a else "scan", "equations": _EQUATIONS[log_a], "gates": ["a", "b"]},
        hidden_size=hidden_size,
        precision=precision,
        layout=layout,
        batch=max(1, TYPICAL_CHANNELS // hidden_size),
        time=typical_time,
    )
    return Builder(spec, target, Store(cache_folder()))
