"""Memory of calls on tensors in host memory: workspaces that threads keep, and large tensors in large pages."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy

# Memory that a thread keeps for its next call; of more it lets go.
WORKSPACE_KEPT_BYTES = 1 << 25
# Smaller ones the C library keeps for the next call. NumPy asks the system for large pages: the first touch of small ones takes
# longer than their use.
LARGE_BYTES = 1 << 25
ALIGNMENT_BYTES = 64


class Workspace(threading.local):
    """Memory in which kernels of this thread work."""

    def __init__(self) -> None:
        """Begin with none."""
        self._memory = numpy.empty(0, numpy.uint8)
        self._address = 0

    def of(self, size_bytes: int) -> tuple[int, Any]:
        """Return the address of at least so many bytes, of any values, and what holds them."""
        if self._memory.size >= size_bytes:
            return self._address, self._memory
        memory = numpy.empty(size_bytes, numpy.uint8)
        address = int(memory.ctypes.data)
        if size_bytes <= WORKSPACE_KEPT_BYTES:
            self._memory, self._address = memory, address
        return address, memory


WORKSPACE = Workspace()


def is_large(shape: tuple[int, ...], dtype: Any) -> bool:
    """Say whether a tensor of a shape and dtype takes large pages."""
    return bool(math.prod(shape) * dtype.itemsize >= LARGE_BYTES)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor of any values; a large one in large pages, where the system gives them to those who ask."""
    torch = sys.modules["torch"]
    if not is_large(shape, dtype):
        return torch.empty(shape, dtype=dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    memory = numpy.empty(size_bytes + ALIGNMENT_BYTES, numpy.uint8)
    first = -int(memory.ctypes.data) % ALIGNMENT_BYTES
    return torch.from_numpy(memory[first : first + size_bytes]).view(dtype).view(shape)


def multiply(first: Any, second: Any) -> Any:
    """Return the product of two matrices of torch."""
    torch = sys.modules["torch"]
    shape = first.shape[0], second.shape[1]
    if not is_large(shape, first.dtype):
        return first.mm(second)
    with torch.no_grad():
        return torch.mm(first, second, out=empty(shape, first.dtype))


def project(x: Any, weight: Any) -> Any:
    """Return tensors x [.., inputs] times the transposed weight [outputs, inputs], as a matrix where it is large."""
    torch = sys.modules["torch"]
    rows, (outputs, inputs) = x.numel() // weight.shape[1], weight.shape
    if not is_large((rows, outputs), x.dtype):
        return torch._C._nn.linear(x, weight)
    return multiply(x.view(rows, inputs), weight.t())
