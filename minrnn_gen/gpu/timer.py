"""Timing of runs by the GPU's own clock, each with a cold L2 cache, and control of the memory that they get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minrnn_gen.gpu.device import cupy_module

# Twice the cache, so that no earlier contents are left.
FLUSHED_OF_L2 = 2
# The device writes for this long before a run, while the host prepares it: the events then enclose the device's work alone.
FLUSH_SECONDS = 1.5e-3
# The byte of which every floating-point number is a NaN.
POISON = 0xFF
# Arrays begin at multiples of it; less aligned arrays begin at an offset from one.
WIDEST_ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class ColdClock:
    """Times runs on CuPy's current device and stream."""

    l2_bytes: int
    bandwidth_bytes_per_s: float

    def time_us(self, run: Callable[[], Any]) -> float:
        """Run once after the L2 cache was overwritten, and return the time between events around the run.

        Waits for the end; raises errors of the device.
        """
        cuda = cupy_module().cuda
        began, ended = cuda.Event(), cuda.Event()
        self._flush()
        began.record()
        run()
        ended.record()
        ended.synchronize()
        return 1e3 * float(cuda.get_elapsed_time(began, ended))

    @cached_property
    def _flushed(self) -> Any:
        return cupy_module().empty(FLUSHED_OF_L2 * self.l2_bytes, "u1")

    def _flush(self) -> None:
        size_bytes = self._flushed.nbytes
        # A fill only writes: it moves half of a copy's bytes in that time.
        for _ in range(math.ceil(FLUSH_SECONDS * self.bandwidth_bytes_per_s / 2 / size_bytes)):
            self._flushed.data.memset_async(0, size_bytes)


def poison(sizes_bytes: Iterable[int]) -> None:
    """Leave NaN in the memory that CuPy's pool hands out next for arrays of these sizes."""
    cupy = cupy_module()
    # All are allocated at once; otherwise each would get the same memory.
    arrays = [cupy.empty(size_bytes, "u1") for size_bytes in sizes_bytes]
    for array in arrays:
        array.data.memset_async(POISON, array.nbytes)


def repeated(values: Any, shape: tuple[int, ...], alignment_bytes: int) -> Any:
    """Return a CuPy array of the values of a NumPy array [N], repeated, aligned to exactly `alignment_bytes`."""
    cupy = cupy_module()
    words = cupy.asarray(values.view(f"u{values.itemsize}"))
    count, size = math.prod(shape), words.size
    memory = cupy.empty(count + WIDEST_ALIGNMENT_BYTES // values.itemsize, words.dtype)
    first = alignment_bytes % WIDEST_ALIGNMENT_BYTES // values.itemsize
    flat, whole = memory[first : first + count], count // size * size
    flat[:whole].reshape(count // size, size)[...] = words
    flat[whole:] = words[: count - whole]
    return flat.view(values.dtype).reshape(shape)


def release_memory() -> None:
    """Return unused memory to the driver."""
    cupy_module().get_default_memory_pool().free_all_blocks()
