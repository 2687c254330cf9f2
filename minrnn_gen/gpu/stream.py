"""The current stream of a library, and streams of other libraries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minrnn_gen.call.array import Array, torch_stream
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu.device import Placed

# The stream on which a thread enqueues now, if not a library's.
_REDIRECTED = threading.local()
# Streams in use at once, as objects.
_STREAMS_HELD = 64


def is_capturing(like: Array) -> bool:
    """Say whether the current stream of the library of `like` is recording a graph."""
    if like.device is None:
        return False
    runtime = gpu_device.cupy_module().cuda.runtime
    stream = current_stream(like)
    with gpu_device.on_device(like.device):
        try:
            return bool(runtime.streamIsCapturing(stream))
        except runtime.CUDARuntimeError:
            # The answer on the default stream while another one is captured.
            return True


def current_stream(like: Placed) -> int:
    """Return the handle of the current stream of the library of `like` on its device, or of `redirected` work."""
    assert like.device is not None
    if (redirected_to := getattr(_REDIRECTED, "stream", None)) is not None:
        return int(redirected_to)
    if like.library == "torch":
        return torch_stream(like.device)
    cupy = gpu_device.cupy_module()
    with gpu_device.on_device(like.device):
        return int(cupy.cuda.get_current_stream().ptr)


@contextmanager
def redirected(stream: int) -> Iterator[None]:
    """In this context, enqueue the package's work on `stream`; the libraries' current streams do not change."""
    _REDIRECTED.stream = stream
    try:
        yield
    finally:
        _REDIRECTED.stream = None


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of another library."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version and the handle."""
        return 0, self.handle


@lru_cache(maxsize=_STREAMS_HELD)
def external_stream(handle: int) -> Any:
    """Return the stream of another library as one of CuPy's."""
    return gpu_device.cupy_module().cuda.Stream.from_external(_Stream(handle))
