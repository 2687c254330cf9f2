"""Workspaces of native code, which threads keep."""

from __future__ import annotations

import threading
from typing import Any

import numpy

# The memory that a thread keeps for its next call; it releases larger memory.
WORKSPACE_KEPT_BYTES = 1 << 25


class Workspace(threading.local):
    """Memory in which kernels of this thread work."""

    def __init__(self) -> None:
        """Begin with none."""
        self._memory = numpy.empty(0, numpy.uint8)
        self._address = 0

    def of(self, size_bytes: int) -> tuple[int, Any]:
        """Return the address of at least `size_bytes` uninitialised bytes, and their owner."""
        if self._memory.size >= size_bytes:
            return self._address, self._memory
        memory = numpy.empty(size_bytes, numpy.uint8)
        address = int(memory.ctypes.data)
        if size_bytes <= WORKSPACE_KEPT_BYTES:
            self._memory, self._address = memory, address
        return address, memory


WORKSPACE = Workspace()
