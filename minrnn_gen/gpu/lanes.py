"""Lanes: side streams of a library's current stream, on which steps of one run are enqueued, and the events between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from minrnn_gen.gpu.device import cupy_module, on_device


class Lanes:
    """Lanes of one device for one thread; the thread's next run may use them as soon as this run is enqueued."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._held: list[Any] = []
        self._streams: list[int] = []
        self._events: list[int] = []

    def fork(self, stream: int, lanes: int) -> None:
        """Make `lanes` lanes wait for the work on `stream`."""
        cupy = cupy_module()
        with on_device(self._device):
            while len(self._streams) < lanes:
                self._held.append(cupy.cuda.Stream(non_blocking=True))
                self._streams.append(int(self._held[-1].ptr))
            event = self._event(0)
            cupy.cuda.runtime.eventRecord(event, stream)
            for lane in range(lanes):
                cupy.cuda.runtime.streamWaitEvent(self._streams[lane], event)

    def begin(self, lane: int, waits: Sequence[int]) -> int:
        """Make a lane wait for steps of other lanes, by number, and return the handle of its stream."""
        runtime, stream = cupy_module().cuda.runtime, self._streams[lane]
        for step in waits:
            runtime.streamWaitEvent(stream, self._events[step + 1])
        return stream

    def end(self, lane: int, step: int) -> None:
        """Record the end of step number `step` of a run, on its lane, for steps that wait for it."""
        cupy_module().cuda.runtime.eventRecord(self._event(step + 1), self._streams[lane])

    def join(self, stream: int, lanes: int) -> None:
        """Make `stream` wait for the lanes."""
        runtime = cupy_module().cuda.runtime
        event = self._event(0)
        for lane in range(lanes):
            runtime.eventRecord(event, self._streams[lane])
            runtime.streamWaitEvent(stream, event)

    def _event(self, number: int) -> int:
        while len(self._events) <= number:
            with on_device(self._device):
                self._held.append(cupy_module().cuda.Event(disable_timing=True))
            self._events.append(int(self._held[-1].ptr))
        return self._events[number]


_HERE = threading.local()


def lanes_of(device: int) -> Lanes:
    """Return the lanes of a device for this thread."""
    of_device: dict[int, Lanes] = _HERE.__dict__.setdefault("of_device", {})
    return of_device.get(device) or of_device.setdefault(device, Lanes(device))
