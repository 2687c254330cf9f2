"""Exchange between the ranks of a group: all-gathers, copies of one rank's values, and states sent to the neighbour."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from minrnn_gen.torch.sequence_group.group import Member, is_on_gpu

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


def _contributing(count: int) -> AbstractContextManager[None]:
    return _AROUND[-1](count)


@functools.lru_cache(maxsize=1)
def _gather_into() -> Any:
    """Return torch's gather into one tensor, which had another name before torch 2.13."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(tensor: Any, member: Member) -> Any:
    """Return the tensors of all ranks, which have one shape, in the order of ranks along a first axis."""
    own = _real(tensor)
    gathered = own.new_empty((member.size, *own.shape))
    if own.numel():
        with _contributing(own.nbytes):
            if is_on_gpu(own):  # a launch instead of one and a copy for each rank
                _gather_into()(gathered, own, group=member.process_group)
            else:
                dist.all_gather([*gathered.unbind()], own, group=member.process_group)
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
    values = _real(tensor)
    if member.rank != source:
        values = torch.empty_like(values)
    if values.numel():
        with _contributing(values.nbytes if member.rank == source else 0):
            dist.broadcast(values, group=member.process_group, group_src=source)
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
        with _contributing(summed.nbytes):
            dist.all_reduce(summed, group=member.process_group)
    return summed


class Neighbours:
    """The ranks before and after a piece in the order of the recurrence, `backward` from the last piece to the first."""

    def __init__(self, member: Member, reverse: bool, backward: bool = False) -> None:
        position = member.position(reverse)
        step = -1 if backward else 1
        self._group = member.process_group
        self._before = self._rank(member, position - step, reverse)
        self._behind = self._rank(member, position + step, reverse)
        self._sends: list[tuple[Any, Any]] = []

    @staticmethod
    def _rank(member: Member, position: int, reverse: bool) -> int | None:
        return member.rank_at(position, reverse) if 0 <= position < member.size else None

    def receive(self, like: Any) -> Any:
        """Return the tensor from the rank before, shaped `like`; None at the first piece."""
        if self._before is None:
            return None
        real = torch.view_as_real(like) if like.is_complex() else like
        values = torch.empty_like(real, memory_format=torch.contiguous_format)
        if values.numel():
            with _contributing(0):
                dist.irecv(values, group=self._group, group_src=self._before).wait()
        return _as(like, values)

    def send(self, tensor: Any) -> None:
        """Start to send a tensor to the next rank, if there is one."""
        values = _real(tensor)
        if self._behind is not None and values.numel():
            with _contributing(values.nbytes):
                self._sends.append((dist.isend(values, group=self._group, group_dst=self._behind), values))

    def finish(self) -> None:
        """Wait until everything sent has left, and let go of its memory."""
        for work, _ in self._sends:
            with _contributing(0):
                work.wait()
        self._sends.clear()


def _real(tensor: Any) -> Any:
    """Return a tensor in a form that every backend sends: without gaps, complex numbers as pairs."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_complex():
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return torch.view_as_real(tensor.resolve_conj().contiguous())


def _as(like: Any, values: Any) -> Any:
    return torch.view_as_complex(values) if like.is_complex() else values
