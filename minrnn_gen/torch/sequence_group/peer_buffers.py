"""Exchanges between GPUs of one machine through buffers in their memory: a launch of one kernel, which graphs may contain.

Each rank has a buffer, into which the others store their messages (`templates/ranks/rank_exchange.cu.j2`). A host takes as long
for an exchange as for any launch. The counters of messages lie on the GPUs: a rank that replays an exchange meets one that
launches it. A wait is as long as the group's timeout at most; then the kernel ends with an error, and so does its process.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from minrnn_gen.gpu.module import LoadedKernel

WORD_BYTES = 4


@dataclass(eq=False)
class PeerBuffers:
    """The buffers of a group of `size` ranks, as rank `rank` on `device` sees them: `addresses` is on that device.

    `threads`: of a block of the kernel; `message_bytes`: the largest message that fits. Exchanges have one order on all ranks,
    that in which their hosts ask for them, on whatever stream.
    """

    kernel: LoadedKernel
    threads: int
    message_bytes: int
    device: torch.device
    rank: int
    size: int
    addresses: Any
    longest_ns: int
    _stream: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def carries(self, tensor: Any) -> bool:
        """Whether a message fits: whole words, on this device."""
        count = int(tensor.nbytes)
        return bool(tensor.device == self.device) and count % WORD_BYTES == 0 and count <= self.message_bytes

    def gather(self, own: Any, into: Any) -> None:
        """Store `own` [...] of each rank into `into` [ranks, ...]."""
        self._launch(own, into, self._others, self._others, is_gathered=True)

    def broadcast(self, values: Any, source: int) -> None:
        """Copy the values of rank `source` to all others."""
        if self.rank == source:
            self._launch(values, None, self._others, 0)
        else:
            self.receive(values, source)

    def send(self, values: Any, to: int) -> None:
        """Send values to a rank, which takes them by `receive`."""
        self._launch(values, None, 1 << to, 0)

    def receive(self, values: Any, source: int) -> None:
        """Receive values that a rank sent."""
        self._launch(None, values, 0, 1 << source)

    def take_turn(self) -> None:
        """Let the current stream wait for the exchanges so far, if they were on another one."""
        stream = torch.cuda.current_stream(self.device)
        with self._lock:
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream

    @property
    def _others(self) -> int:
        return (1 << self.size) - 1 & ~(1 << self.rank)

    def _launch(self, own: Any, into: Any, sends: int, receives: int, is_gathered: bool = False) -> None:
        if not torch.cuda.is_current_stream_capturing():
            self.take_turn()
        places = [0 if tensor is None else tensor.data_ptr() for tensor in (own, into)]
        words = (into if own is None else own).nbytes // WORD_BYTES
        stream = torch.cuda.current_stream(self.device).cuda_stream
        numbers = (words, self.rank, self.size, sends, receives, int(is_gathered), self.longest_ns)
        arguments = (self.addresses.data.ptr, *places, *numbers)
        self.kernel.launch_on(self.device.index, stream, self.size, self.threads, arguments)


_OF_GROUPS: dict[Any, PeerBuffers | None] = {}


def peer_buffers_of(process_group: Any) -> PeerBuffers | None:
    """Return the buffers of a group, None where it exchanges through its backend."""
    return _OF_GROUPS.get(process_group)


def has_met(process_group: Any) -> bool:
    """Whether the ranks of a group have tried to open buffers."""
    return process_group in _OF_GROUPS


def keep(process_group: Any, buffers: PeerBuffers | None) -> None:
    """Let exchanges of a group go through buffers from now on, or let them go through its backend, on all ranks alike."""
    _OF_GROUPS[process_group] = buffers


def forget(process_group: Any) -> None:
    """Forget a group that was destroyed."""
    _OF_GROUPS.pop(process_group, None)
