"""The compiled kernels of raw scans: a cell of two gates, built like any other."""

from __future__ import annotations

from functools import lru_cache

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.precision import ComplexName, PrecisionName
from minrnn_gen.raw_scan.arrangement import RawLayout
from minrnn_gen.run.kernels import CompiledKernels

RawPrecision = PrecisionName | ComplexName

# Sizes, dtypes and devices in use at once; an evicted kernel is compiled, or read from the cache, again.
KERNELS_HELD = 256

# The output is the state, which a backward reads.
ARRAY_NAMES = ArrayNames(states=("h",), parameters=(), saved_states=("h",), output_state="h")
_EQUATIONS = {False: "h[t] = W.a * h[t-1] + W.b", True: "h[t] = exp(W.a) * h[t-1] + W.b"}


class RawSpec(Spec):
    """A spec that allows complex numbers, as the raw cell does."""

    precision: RawPrecision = "fp32"  # type: ignore[assignment]  # a wider choice than a user's


@lru_cache(maxsize=KERNELS_HELD)
def raw_kernels(precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, device: int) -> CompiledKernels:
    """Return the kernels for the live device number `device`, kept until `KERNELS_HELD` others have been used since."""
    live = gpu_device.live_device(device)
    if live is None:
        raise ToolchainMissing(f"a is on CUDA device {device}, but {gpu_device.why_no_gpu()}: {INSTALL_CUDA}")
    target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
    return CompiledKernels(raw_builder(precision, hidden_size, layout, log_a, target), ())


def raw_builder(precision: RawPrecision, hidden_size: int, layout: RawLayout, log_a: bool, target: Target) -> Builder:
    """Return the builder of the kernels of h[t] = a[t] h[t-1] + b[t], gates a and b, for `target`."""
    return Builder(raw_spec(precision, log_a, hidden_size, layout), target, Store(cache_folder()))


def raw_spec(precision: RawPrecision, log_a: bool, hidden_size: int = 1, layout: RawLayout = "BTD") -> RawSpec:
    """Return the recurrence as a spec, of a cell with gates a and b."""
    return RawSpec(
        model={"name": "log_scan" if log_a else "scan", "equations": _EQUATIONS[log_a], "gates": ["a", "b"]},
        hidden_size=hidden_size,
        precision=precision,
        layout=layout,
    )
