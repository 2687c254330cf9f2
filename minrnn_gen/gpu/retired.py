"""Graphs whose owners are gone, destroyed between captures: to destroy one within a capture ends it.

Python may collect garbage at any time, also while a caller captures a stream, and with it whatever owns a graph.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from typing import Any

_retired: deque[Any] = deque()


def outlive(owner: object, graphs: Any) -> None:
    """Keep `graphs`, which do not refer to their owner, from its end until the next `destroy_retired`."""
    weakref.finalize(owner, _retired.append, graphs).atexit = False


def destroy_retired() -> None:
    """Destroy what was kept; called before this thread begins a capture of its own, and so within none."""
    with contextlib.suppress(IndexError):  # another thread may take the last one
        while True:
            _retired.popleft()
