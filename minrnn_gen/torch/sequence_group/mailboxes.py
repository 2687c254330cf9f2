"""Exchanges between GPUs of one machine through mailboxes in their memory: a launch of one kernel, which graphs may contain.

Each rank has a mailbox, into which the others store their messages (`templates/rank_exchange.cu.j2`). A host takes as long for
an exchange as for any launch. What counts the messages lies on the GPUs: a rank that replays an exchange meets one that
launches it. A wait is as long as the group's timeout at most; then the kernel ends with an error, and so does its process.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from minrnn_gen.codegen.render import RankExchange
from minrnn_gen.gpu.module import LoadedKernel

WORD_BYTES = 4
# Beyond the messages of a mailbox: counters, a line of memory for each rank.
LINE_BYTES = 128


def mailbox_bytes(plan: RankExchange, ranks: int) -> int:
    """Return the size of a rank's mailbox."""
    return ranks * (LINE_BYTES + plan.slots * plan.slot_words * WORD_BYTES)


@dataclass(eq=False)
class Mailboxes:
    """The mailboxes of a group of `size` ranks, as rank `rank` on `device` sees them: `addresses` is on that device.

    Exchanges have one order on all ranks, that in which their hosts ask for them, on whatever stream.
    """

    plan: RankExchange
    kernel: LoadedKernel
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

    @property
    def message_bytes(self) -> int:
        """The largest message that fits."""
        return self.plan.slot_words * WORD_BYTES

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
        self.kernel.launch_on(self.device.index, stream, self.size, self.plan.threads, arguments)


_OF_GROUPS: dict[Any, Mailboxes | None] = {}


def mailboxes_of(process_group: Any) -> Mailboxes | None:
    """Return the mailboxes of a group, None where it exchanges through its backend."""
    return _OF_GROUPS.get(process_group)


def has_met(process_group: Any) -> bool:
    """Whether the ranks of a group have tried to open mailboxes."""
    return process_group in _OF_GROUPS


def keep(process_group: Any, mailboxes: Mailboxes | None) -> None:
    """Let exchanges of a group go through mailboxes from now on, or let them go through its backend, on all ranks alike."""
    _OF_GROUPS[process_group] = mailboxes


def forget(process_group: Any) -> None:
    """Forget a group that was destroyed."""
    _OF_GROUPS.pop(process_group, None)
