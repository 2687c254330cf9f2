"""GPU of the benchmark, used through torch: its clock, random arrays, a copy, and the versions installed."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.report.record import COPY
from minrnn_gen import __version__
from minrnn_gen.errors import ToolchainMissing, needing
from minrnn_gen.precision import precision_of

# More than twice the L2 cache of any GPU (60 MB on an H200, 126 MB on a B200). The writes take four milliseconds, in which the
# host prepares the call: the events then enclose the device's work alone. A single millisecond was too short where threads of
# other libraries interrupted the host.
FLUSH_BYTES, FLUSHES = 1 << 30, 16

# Distributions whose version can change a number.
_DISTRIBUTIONS = (
    "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cublas",
    "nvidia-cublas-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "accelerated-scan", "fla-core", "flashrnn", "jax", "jaxlib",
    "mamba-ssm", "transformers", "numpy",
)  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """GPU number 0, its clock, and arrays on it; every random array differs from the last."""

    torch: Any
    seed: int = 0

    @cached_property
    def _flush(self) -> Any:
        return self.torch.empty(FLUSH_BYTES, dtype=self.torch.uint8, device="cuda")

    @cached_property
    def _generator(self) -> Any:
        return self.torch.Generator("cuda").manual_seed(self.seed)

    @property
    def name(self) -> str:
        """The driver's name of the GPU."""
        return str(self.torch.cuda.get_device_name(0))

    def dtype(self, precision: str) -> Any:
        """Return the storage dtype of a precision."""
        return getattr(self.torch, precision_of(precision).storage_dtype)

    def normal(self, *shape: int) -> Any:
        """Return standard normal values in float32."""
        return self.torch.randn(shape, device="cuda", generator=self._generator)

    def uniform(self, *shape: int) -> Any:
        """Return values between 0 and 1 in float32."""
        return self.torch.rand(shape, device="cuda", generator=self._generator)

    def time(self, run: Run, on_host: bool) -> tuple[float, Arrays]:
        """Return (milliseconds, results) of one run, after the L2 cache was overwritten.

        The time is between two events on torch's current stream; `on_host` it is the host's, the device idle before and after.
        """
        cuda = self.torch.cuda
        for _ in range(FLUSHES):
            self._flush.zero_()
        if on_host:
            cuda.synchronize()
            began = time.perf_counter()
            results = run()
            return 1e3 * (time.perf_counter() - began), results
        start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        results = run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)), results

    def poison_of(self, results: Arrays) -> Callable[[], None]:
        """Return the function that fills the next results' memory with NaN: torch hands out the blocks freed last."""
        kinds = [
            (result.shape, result.dtype)
            for result in results.values()
            if isinstance(result, self.torch.Tensor) and result.is_cuda and result.is_floating_point()
        ]

        def poison() -> None:
            # All at once, or every array would get the same memory.
            _ = [self.torch.full(shape, float("nan"), dtype=dtype, device="cuda") for shape, dtype in kinds]

        return poison

    def seconds(self) -> float:
        """Return the host's clock in seconds."""
        return time.perf_counter()

    def finish(self) -> None:
        """Wait for the device; raises the error of a launch that failed there."""
        self.torch.cuda.synchronize()

    def peak_bytes(self, run: Run) -> int:
        """Return the bytes that a run takes of torch's allocator at its peak, beyond what was there before it."""
        cuda = self.torch.cuda
        self.finish()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        run()
        self.finish()
        return int(cuda.max_memory_allocated() - before)

    def release(self) -> None:
        """Free the last problem's memory; its arrays lie in reference cycles, which only a collection ends."""
        gc.collect()
        self.torch.cuda.empty_cache()

    def graph_of(self, run: Run) -> Run:
        """Return the replay of `run` as one CUDA graph; its results are the same arrays every time."""
        cuda = self.torch.cuda
        # One run on a side stream, as torch requires before a capture: it compiles and loads the kernels.
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            run()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            results = run()

        # The graph reads the memory of what `run` holds.
        held = (graph, run)

        def replayed() -> Arrays:
            held[0].replay()
            return results

        return replayed

    def copy(self, moved_bytes: int) -> Contender:
        """Return the copy that reads and writes `moved_bytes` in sum: the lower bound of every kernel bound by memory."""

        def prepare() -> Run:
            source = self.torch.randint(0, 256, (moved_bytes // 2,), dtype=self.torch.uint8, device="cuda")
            target = self.torch.empty_like(source)

            def run() -> Arrays:
                target.copy_(source)
                return {}

            return run

        return Contender(COPY, prepare)

    def kernel_shares(self, run: Run, runs: int = 5) -> dict[str, float]:
        """Return {kernel: share of the device's time} of the launches of `run`, by torch's profiler."""
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(runs):
                run()
            self.finish()
        return shares_of([(event.key, float(event.self_device_time_total)) for event in profile.key_averages()])


def open_gpu() -> Gpu:
    """Return the GPU; raises ToolchainMissing where there is no torch, or none that sees a GPU."""
    with needing("torch", "the benchmark", "pip install torch"):
        import torch
    if not torch.cuda.is_available():
        raise ToolchainMissing("the benchmark needs an NVIDIA GPU that torch can use; 'minrnn-gen doctor' looks for one")
    return Gpu(torch)


def shares_of(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return {name: share of the sum} of (name, time) pairs, equal names added and times of 0 left out."""
    total = sum(time for _, time in times)
    shares: dict[str, float] = {}
    for name, elapsed in times:
        if elapsed > 0:
            shares[name] = shares.get(name, 0.0) + elapsed / total
    return {name: round(share, 4) for name, share in shares.items()}


def versions() -> dict[str, str]:
    """Return {distribution: version} of the installed distributions that can change a number."""
    installed = {"minrnn-gen": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in _DISTRIBUTIONS:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed
