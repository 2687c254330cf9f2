"""Exchange between the ranks of a group: all-gathers, copies of one rank's values, and states sent to the neighbour."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from minrnn_gen.torch.sequence_group.group import Member


def all_gather(tensor: Any, member: Member) -> list[Any]:
    """Return the tensors of all ranks, which have one shape, in the order of ranks."""
    own = _real(tensor)
    gathered = [torch.empty_like(own) for _ in range(member.size)]
    if own.numel():
        dist.all_gather(gathered, own, group=member.process_group)
    return [_as(tensor, values) for values in gathered]


def broadcast(tensor: Any, source: int, member: Member) -> Any:
    """Return the values that rank `source` has in its tensor; those of other ranks have the shape alone."""
    values = _real(tensor).clone()
    if values.numel():
        dist.broadcast(values, group=member.process_group, group_src=source)
    return _as(tensor, values)


def sum_in_order(tensor: Any, member: Member) -> Any:
    """Return the sum over the ranks, added in the order of ranks: the same bits on every rank and every time."""
    first, *others = all_gather(tensor, member)
    for values in others:
        first = first + values
    return first


class Neighbours:
    """The ranks before and behind a piece in the order of the recurrence, `backward` from the last piece to the first."""

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
        values = torch.empty_like(_real(like))
        if values.numel():
            dist.recv(values, group=self._group, group_src=self._before)
        return _as(like, values)

    def send(self, tensor: Any) -> None:
        """Start to send a tensor to the rank behind, if there is one."""
        values = _real(tensor)
        if self._behind is not None and values.numel():
            self._sends.append((dist.isend(values, group=self._group, group_dst=self._behind), values))

    def finish(self) -> None:
        """Wait until everything sent has left, and let go of its memory."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()


def _real(tensor: Any) -> Any:
    """Return a tensor as what every backend sends: without gaps, complex numbers as pairs."""
    tensor = tensor.detach().resolve_conj().contiguous()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _as(like: Any, values: Any) -> Any:
    return torch.view_as_complex(values) if like.is_complex() else values
