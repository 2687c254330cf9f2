"""The GPU at hand measured for the cost model, by kernels of some milliseconds each; as a program it prints JSON."""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy

from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.codegen.render import Microbenchmark, Types, render_microbenchmark
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device, memory
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.gpu.timer import ColdClock
from minrnn_gen.plan.limits import LINE_BYTES, WARP_LANES

RUNS = 5
# Turns of a short and of a long run: their difference has neither the launch nor the first misses in it.
TURNS = 2000, 6000
# As in the templates in templates/rulers.
EXCHANGE_THREADS, BUSY_THREADS, CHAINS, CLUSTER_BLOCKS = 128, 512, 4, 8
# Blocks that exchange over the grid, as kernels of large cells have.
GRID_BLOCKS = 64
# Multiply-adds of one tile, m16n8k16.
PRODUCTS_PER_TILE = 16 * 8 * 16
# Bytes of a copy and of a pointer chase, or a sixteenth of a smaller memory: more than any cache.
COPIED_BYTES, CHASED_BYTES, SHARE_OF_MEMORY = 2 << 30, 1 << 30, 16


@dataclass(frozen=True)
class Microbenchmarks:
    """Measures one GPU, CuPy's number 0."""

    live: LiveDevice

    def rates(self) -> Iterator[tuple[str, float]]:
        """Yield (number of the profile, value): those of `gpu_profile.MEASURED` that this GPU has."""
        yield "copy_bandwidth_bytes_per_s", self._copy_bandwidth()
        yield "memory_latency_ns", self._memory_latency_ns()
        nothing = self._kernel("every_gpu", "nothing")
        yield "launch_us", self._median_us(lambda: self._launch(nothing, 1, EXCHANGE_THREADS, 0))
        exchange = self._kernel("every_gpu", "block_exchange")
        sm_count = self.live.profile.sm_count
        out = self._memory(sm_count * BUSY_THREADS)
        yield "block_exchange_ns", self._ns_per_turn(exchange, sm_count, (out.data.ptr,))
        if self.live.profile.has_clusters:
            cluster = self._kernel("cluster", "cluster_exchange", CLUSTER_BLOCKS)
            yield "cluster_exchange_ns", self._ns_per_turn(cluster, CLUSTER_BLOCKS, (out.data.ptr,))
        yield "grid_exchange_ns", self._grid_exchange_ns()
        if self.live.profile.has_bf16_arithmetic:
            per_warp = PRODUCTS_PER_TILE / WARP_LANES
            yield "products_per_sm_cycle", self._per_cycle(self._kernel("matrix", "products"), per_warp)
        yield "transcendentals_per_sm_cycle", self._per_cycle(self._kernel("every_gpu", "transcendentals"), 1.0)

    def sm_clock_hz(self) -> float:
        """Return the clock of the SMs while they compute."""
        kernel = self._kernel("every_gpu", "transcendentals")
        (short_us, short), (long_us, long) = self._busy(kernel)
        return 1e6 * (long - short) / (long_us - short_us)

    @cached_property
    def _clock(self) -> ColdClock:
        return ColdClock(self.live.profile.l2_bytes, self.live.profile.bandwidth_bytes_per_s)

    @cached_property
    def _cubins(self) -> dict[str, bytes]:
        return {}

    def _kernel(self, ruler: str, entry: str, cluster_blocks: int = 1, is_cooperative: bool = False) -> LoadedKernel:
        arch = self.live.profile.arch
        if ruler not in self._cubins:
            plan = Microbenchmark(ruler, Types(arch, "bfloat16"))
            self._cubins[ruler] = compile_source(render_microbenchmark(plan), plan).cubin
        return LoadedKernel(self._cubins[ruler], entry, arch, 0, cluster_blocks, is_cooperative)

    @staticmethod
    def _memory(words: int) -> Any:
        return device.cupy_module().zeros(words, "u8")

    @staticmethod
    def _launch(kernel: LoadedKernel, blocks: int, threads: int, *arguments: int) -> None:
        stream = device.cupy_module().cuda.get_current_stream().ptr
        kernel.launch_on(0, stream, blocks, threads, arguments)

    def _median_us(self, run: Callable[[], Any]) -> float:
        run()
        return statistics.median(self._clock.time_us(run) for _ in range(RUNS))

    def _ns_per_turn(
        self, kernel: LoadedKernel, blocks: int, arguments: tuple[int, ...], before: Callable[[], None] = lambda: None
    ) -> float:
        def run(turns: int) -> float:
            def launch() -> None:
                before()
                self._launch(kernel, blocks, EXCHANGE_THREADS, *arguments, turns)

            return self._median_us(launch)

        short, long = map(run, TURNS)
        return 1e3 * (long - short) / (TURNS[1] - TURNS[0])

    def _busy(self, kernel: LoadedKernel) -> list[tuple[float, float]]:
        """Return (microseconds, cycles) of a short and of a long run on all SMs."""
        sm_count = self.live.profile.sm_count
        out, cycles = self._memory(sm_count * BUSY_THREADS), self._memory(sm_count)
        timings = []
        for turns in TURNS:
            arguments = (kernel, sm_count, BUSY_THREADS, out.data.ptr, cycles.data.ptr, turns)
            us = self._median_us(functools.partial(self._launch, *arguments))
            timings.append((us, float(numpy.median(memory.to_host(cycles)))))
        return timings

    def _per_cycle(self, kernel: LoadedKernel, per_thread: float) -> float:
        (_, short), (_, long) = self._busy(kernel)
        return per_thread * CHAINS * BUSY_THREADS * (TURNS[1] - TURNS[0]) / (long - short)

    def _grid_exchange_ns(self) -> float:
        kernel = self._kernel("every_gpu", "grid_exchange", is_cooperative=True)
        blocks = min(GRID_BLOCKS, self.live.profile.sm_count)
        turns_of_blocks, gave_up = self._memory(blocks), self._memory(1)

        def clear() -> None:
            turns_of_blocks.data.memset_async(0, turns_of_blocks.nbytes)

        ns = self._ns_per_turn(kernel, blocks, (turns_of_blocks.data.ptr, gave_up.data.ptr), clear)
        if int(memory.to_host(gave_up)[0]):
            raise ToolchainMissing("blocks of a grid waited for each other in vain; is something else running on this GPU?")
        return ns

    def _copy_bandwidth(self) -> float:
        size_bytes = self._size_bytes(COPIED_BYTES)
        source, target = (self._memory(size_bytes // 8) for _ in range(2))
        us = self._median_us(lambda: target.data.copy_from_device_async(source.data, size_bytes))
        return 2e6 * size_bytes / us

    def _memory_latency_ns(self) -> float:
        count = self._size_bytes(CHASED_BYTES) // LINE_BYTES
        order = numpy.random.default_rng(0).permutation(count).astype("u4")
        following = numpy.empty(count, "u4")
        following[order] = numpy.roll(order, -1)
        lines = device.cupy_module().zeros((count, LINE_BYTES // 4), "u4")
        lines[:, 0] = memory.to_device(following)
        out, kernel = self._memory(1), self._kernel("every_gpu", "chase")

        def run(steps: int) -> float:
            return self._median_us(lambda: self._launch(kernel, 1, 1, lines.data.ptr, out.data.ptr, steps))

        short, long = map(run, TURNS)
        return 1e3 * (long - short) / (TURNS[1] - TURNS[0])

    def _size_bytes(self, most: int) -> int:
        return min(most, self.live.profile.memory_bytes // SHARE_OF_MEMORY // LINE_BYTES * LINE_BYTES)


def main() -> None:
    """Print the measured numbers as one JSON object."""
    live = device.live_device()
    if live is None:
        raise SystemExit("no GPU, or no CuPy to use it")
    rulers = Microbenchmarks(live)
    rates = dict(rulers.rates())
    sys.stdout.write(json.dumps({"rates": rates, "sm_clock_hz": rulers.sm_clock_hz()}) + "\n")


if __name__ == "__main__":
    main()
