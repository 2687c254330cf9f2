"""Exchange between the ranks of a group: all-gathers, copies of one rank's values, and states sent to the neighbour."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from minrnn_gen.torch.sequence_group.group import Member, is_on_gpu
from minrnn_gen.torch.sequence_group.peer_buffers import PeerBuffers, peer_buffers_of

Around = Callable[[int], AbstractContextManager[None]]
"""Returns the context of an exchange to which this rank contributes this many bytes."""


def _nothing(_: int) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


# Of the process and not of a thread: backwards run on threads of autograd's.
_AROUND: list[Around] = [_nothing]


@contextlib.contextmanager
def watched(around: Around) -> Iterator[None]:
    """Enter `around` around every exchange of this process, to count or time them."""
    _AROUND.append(around)
    try:
        yield
    finally:
        _AROUND.remove(around)


class Recording(Protocol):
    """What a call enqueues, kept to be enqueued again; its exchanges are kept as functions, and not run."""

    def own(self, tensor: Any) -> Any:
        """Return a tensor with memory of the recording: a copy of one that is the caller's."""

    def exchange(self, enqueue: Callable[[], None]) -> None:
        """Keep an exchange."""

    def by_peer_buffers(self, buffers: PeerBuffers) -> None:
        """Note that exchanges are enqueued as all else is: by these buffers."""


class _Recorded(threading.local):
    by: Recording | None = None


_RECORDED = _Recorded()


@contextlib.contextmanager
def recorded_by(recording: Recording) -> Iterator[None]:
    """Give the exchanges of this thread to a recording."""
    _RECORDED.by = recording
    try:
        yield
    finally:
        _RECORDED.by = None


def _sent(tensor: Any) -> Any:
    """Return a tensor as it is sent: in memory that is there at every replay."""
    values = _real(tensor)
    return values if _RECORDED.by is None else _RECORDED.by.own(values)


def _exchange(enqueue: Callable[[], Any], contributed_bytes: int) -> None:
    """Enqueue an exchange, or give it to the recording of this thread."""

    def watched() -> None:
        with _AROUND[-1](contributed_bytes):
            enqueue()

    if _RECORDED.by is None:
        watched()
    else:
        _RECORDED.by.exchange(watched)


def _peer_buffers(member: Member, tensor: Any) -> PeerBuffers | None:
    """Return the buffers of a group if they carry a message like `tensor`, the same on all ranks."""
    buffers = peer_buffers_of(member.process_group) if member.graphs else None
    return buffers if buffers is not None and buffers.carries(tensor) else None


def _by(buffers: PeerBuffers, enqueue: Callable[[], None], contributed_bytes: int) -> None:
    """Enqueue an exchange by buffers, in a recording too."""
    if _RECORDED.by is not None:
        _RECORDED.by.by_peer_buffers(buffers)
    with _AROUND[-1](contributed_bytes):
        enqueue()


def is_watched() -> bool:
    """Whether exchanges are counted or timed, which those within graphs are not."""
    return len(_AROUND) > 1


@functools.lru_cache(maxsize=1)
def _gather_into() -> Any:
    """Return torch's gather into one tensor, which had another name before torch 2.13."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(tensor: Any, member: Member) -> Any:
    """Return the tensors of all ranks, which have one shape, in the order of ranks along a first axis."""
    real = _real(tensor)
    if real.numel() and (buffers := _peer_buffers(member, real)):
        gathered = real.new_empty((member.size, *real.shape))
        _by(buffers, lambda: buffers.gather(real, gathered), real.nbytes)
        return _as(tensor, gathered)
    own = _sent(tensor)
    gathered = own.new_empty((member.size, *own.shape))
    if own.numel():
        # On a GPU one launch, instead of one and a copy for each rank.
        gather, into = (_gather_into(), gathered) if is_on_gpu(own) else (dist.all_gather, [*gathered.unbind()])
        _exchange(lambda: gather(into, own, group=member.process_group), own.nbytes)
    return _as(tensor, gathered)


def all_gather_in_order(tensor: Any, member: Member, reverse: bool) -> list[Any]:
    """Return the tensors of all ranks in the order in which a recurrence passes their pieces."""
    return in_order(all_gather(tensor, member), reverse)


def in_order(gathered: Any, reverse: bool) -> list[Any]:
    """Return what `all_gather` returned in the order in which a recurrence passes the ranks' pieces."""
    of_ranks = [*gathered.unbind()]
    return of_ranks[::-1] if reverse else of_ranks


def broadcast(tensor: Any, source: int, member: Member) -> Any:
    """Return rank `source`'s values, there the tensor itself if it has no gaps; other ranks' tensors give only the shape."""
    values = _real(tensor) if member.rank == source else torch.empty_like(_real(tensor))
    contributed_bytes = values.nbytes if member.rank == source else 0
    if values.numel() and (buffers := _peer_buffers(member, values)):
        _by(buffers, lambda: buffers.broadcast(values, source), contributed_bytes)
        return _as(tensor, values)
    values = _sent(tensor) if member.rank == source else values
    if values.numel():
        _exchange(lambda: dist.broadcast(values, group=member.process_group, group_src=source), contributed_bytes)
    return _as(tensor, values)


def sum_in_order(tensor: Any, member: Member) -> Any:
    """Return the sum over the ranks, added in the order of ranks: the same bits on every rank and every time."""
    return sum_all(all_gather(tensor, member))


def sum_all(tensors: Sequence[Any]) -> Any:
    """Return the sum of tensors, added in their order."""
    first, *others = tensors
    return sum(others, start=first)


def sum_over_ranks(tensor: Any, member: Member) -> Any:
    """Return the sum over the ranks, in an order of the backend's."""
    summed = tensor.contiguous().clone()
    if summed.numel():
        _exchange(lambda: dist.all_reduce(summed, group=member.process_group), summed.nbytes)
    return summed


class Neighbours:
    """The ranks before and after a piece in the order of the recurrence, `backward` from the last piece to the first."""

    def __init__(self, member: Member, reverse: bool, backward: bool = False) -> None:
        position = member.position(reverse)
        step = -1 if backward else 1
        self._member, self._group = member, member.process_group
        self._before = self._rank(member, position - step, reverse)
        self._behind = self._rank(member, position + step, reverse)
        self._sends: list[tuple[Any, Any]] = []
        self._has_started = False

    @staticmethod
    def _rank(member: Member, position: int, reverse: bool) -> int | None:
        return member.rank_at(position, reverse) if 0 <= position < member.size else None

    def receive(self, like: Any) -> Any:
        """Return the tensor from the rank before, shaped `like`; None at the first piece."""
        if self._before is None:
            return None
        real = torch.view_as_real(like) if like.is_complex() else like
        values = torch.empty_like(real, memory_format=torch.contiguous_format)
        buffers, source = _peer_buffers(self._member, values), self._before
        if values.numel() and buffers is not None:
            _by(buffers, lambda: buffers.receive(values, source), 0)
        elif values.numel():
            _exchange(lambda: _wait(dist.irecv(values, group=self._group, group_src=self._before)), 0)
        return _as(like, values)

    def send(self, tensor: Any) -> None:
        """Start to send a tensor to the next rank, if there is one."""
        if self._behind is not None and tensor.numel():
            real, to = _real(tensor), self._behind
            if (buffers := _peer_buffers(self._member, real)) is not None:
                _by(buffers, lambda: buffers.send(real, to), real.nbytes)
                return
            values, self._has_started = _sent(tensor), True

            def start() -> None:
                self._sends.append((dist.isend(values, group=self._group, group_dst=self._behind), values))

            _exchange(start, values.nbytes)

    def finish(self) -> None:
        """Wait until everything sent has left, and let go of its memory."""
        if self._has_started:
            _exchange(self._finish, 0)

    def _finish(self) -> None:
        for work, _ in self._sends:
            _wait(work)
        self._sends.clear()


def _wait(work: Any) -> None:
    """Wait for what was started: on a GPU the stream waits, and not the host."""
    if work is not None:
        work.wait()


def _real(tensor: Any) -> Any:
    """Return a tensor in a form that every backend sends: without gaps, complex numbers as pairs."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_complex():
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return torch.view_as_real(tensor.resolve_conj().contiguous())


def _as(like: Any, values: Any) -> Any:
    return torch.view_as_complex(values) if like.is_complex() else values
