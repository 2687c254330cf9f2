"""CUDA graphs: launches captured once, with their own memory, and launched together on any stream."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from minrnn_gen.call.array import Array, as_numpy, contiguous_strides
from minrnn_gen.gpu import retired
from minrnn_gen.gpu.device import cupy_module, on_device
from minrnn_gen.gpu.stream import external_stream

ALIGNMENT_BYTES = 256  # of the driver's allocations


class Scratch:
    """Named pieces of memory on one device."""

    def __init__(self, sizes_bytes: Mapping[str, int], pointers: Mapping[str, int]) -> None:
        """Take pieces of `sizes_bytes` that start at `pointers`."""
        self.sizes_bytes, self._pointers = dict(sizes_bytes), dict(pointers)

    @classmethod
    def laid_out(cls, sizes_bytes: Mapping[str, int], memory: int) -> Self:
        """Lay pieces out from the address `memory` on, which has `scratch_bytes_of(sizes_bytes)`, with its slot."""
        pointers = {}
        for name, size_bytes in sizes_bytes.items():
            pointers[name] = memory
            memory += padded(size_bytes)
        return cls(sizes_bytes, pointers)

    def __getitem__(self, name: str) -> int:
        """Return where a piece starts."""
        return self._pointers[name]

    def beside(self, **pointers: int) -> Scratch:
        """Return these pieces and more, by name, which start at `pointers`."""
        return Scratch(self.sizes_bytes, {**self._pointers, **pointers})


def scratch_bytes_of(sizes_bytes: Mapping[str, int]) -> int:
    """Return the total bytes of the pieces, each at a multiple of `ALIGNMENT_BYTES`."""
    return sum(map(padded, sizes_bytes.values()))


def padded(size_bytes: int) -> int:
    """Return bytes rounded up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def copy_heads_first(device: int | None, stream: int, R: Array, source: int, target: int) -> None:
    """Enqueue a copy of a contiguous R [gates, heads, D, D] at the address `source` to [heads, gates, D, D] at `target`."""
    gates, heads, *matrix = R.shape
    if device is None:
        shape, strides = (heads, gates, *matrix), contiguous_strides((heads, gates, *matrix))
        to = as_numpy(replace(R, pointer=target, shape=shape, strides=strides, owner=None))
        to[...] = as_numpy(replace(R, pointer=source)).swapaxes(0, 1)
        return
    cupy = cupy_module()

    def at(address: int, shape: tuple[int, ...]) -> Any:
        memory = cupy.cuda.UnownedMemory(address, math.prod(shape) * R.itemsize, None, device)
        return cupy.ndarray(shape, f"u{R.itemsize}", cupy.cuda.MemoryPointer(memory, 0))

    with on_device(device), external_stream(stream):
        at(target, (heads, gates, *matrix))[...] = at(source, (gates, heads, *matrix)).swapaxes(0, 1)


def clear(device: int, stream: int, pointer: int, size_bytes: int) -> None:
    """Enqueue zeros."""
    with on_device(device):
        cupy_module().cuda.runtime.memsetAsync(pointer, 0, size_bytes, stream)


class CapturedGraph:
    """CUDA graph of the work that `enqueue(scratch, stream)` enqueues, on one device; owns its scratch.

    The work is enqueued once before capture, on a scratch of zeros. All runs of the graph share that memory: on the GPU they
    wait for each other, whatever streams they are on; the host does not. May be used from several threads.
    """

    def __init__(self, device: int, sizes_bytes: Mapping[str, int], enqueue: Callable[[Scratch, int], None]) -> None:
        cupy = cupy_module()
        retired.destroy_retired()
        self._device = device
        self._lock = threading.Lock()
        self._last_stream: int | None = None
        with on_device(device):
            self._memory = cupy.cuda.alloc(scratch_bytes_of(sizes_bytes))
            self.scratch = Scratch.laid_out(sizes_bytes, self._memory.ptr)
            self._event = cupy.cuda.Event(disable_timing=True)
            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.runtime.memsetAsync(self._memory.ptr, 0, scratch_bytes_of(sizes_bytes), stream.ptr)
            # Once before capture: modules that load on first use cannot load during capture.
            enqueue(self.scratch, stream.ptr)
            stream.synchronize()
            with stream:
                stream.begin_capture()
                try:
                    enqueue(self.scratch, stream.ptr)
                finally:
                    self._graph = stream.end_capture()
        retired.outlive(self, self._graph)

    @contextmanager
    def on(self, stream: int) -> Iterator[Callable[[], None]]:
        """Give a function that launches the graph on `stream`, to no other thread until the block ends.

        Other work that the block enqueues there may use the scratch as well.
        """
        runtime = cupy_module().cuda.runtime
        with self._lock, on_device(self._device):
            if self._last_stream not in (None, stream):
                runtime.streamWaitEvent(stream, self._event.ptr)
            external = external_stream(stream)
            yield lambda: self._graph.launch(external)
            runtime.eventRecord(self._event.ptr, stream)
            self._last_stream = stream

    def finish(self) -> None:
        """Wait until the last run has ended, so that its memory may be freed."""
        with self._lock:
            self._event.synchronize()
