"""The groups of a call: pieces of time over one group's ranks, heads over the other's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.operators.recurrence import run
from minrnn_gen.torch.sequence_group.agreement import RefusedEverywhere, refuse
from minrnn_gen.torch.sequence_group.cells import run_pieces
from minrnn_gen.torch.sequence_group.group import Member, head_member_of, member_of
from minrnn_gen.torch.sequence_group.heads import agree_on_heads, counted_once, run_heads


@dataclass(frozen=True)
class Ranks:
    """This rank's places in the groups of a call: of time, of heads, or of both, which are axes of one mesh then."""

    time: Member | None
    heads: Member | None

    @classmethod
    def of(cls, sequence_group: Any, head_group: Any) -> Ranks:
        """Return the places in groups, one of them perhaps None; raises BadInput for anything but a group."""
        return cls(
            None if sequence_group is None else member_of(sequence_group),
            None if head_group is None else head_member_of(head_group),
        )

    @contextlib.contextmanager
    def refused_everywhere(self, tensor: Any) -> Iterator[None]:
        """Raise a refusal within, before the call itself, on all ranks of the groups."""
        try:
            yield
        except RefusedEverywhere:
            raise
        except BadInput as refusal:
            with contextlib.suppress(RefusedEverywhere):
                refuse(self.heads, tensor, refusal)
            refuse(self.time, tensor, refusal)
            raise

    @property
    def gathers(self) -> bool:
        """Whether every rank of heads has all channels of a call."""
        return self.heads is None or self.heads.gathers

    @property
    def shares(self) -> int:
        """How many ranks share the channels of a call."""
        return 1 if self.heads is None or self.heads.gathers else self.heads.size

    def counted_once(self, weight: Any) -> Any:
        """Return a weight of S.*, whose gradient is equal on all ranks of heads; only the first rank keeps it."""
        return weight if self.heads is None else counted_once(weight, self.heads)

    def run(self, kernel: Kernel, tensors: tuple[Any, ...], all_states: bool = False) -> Sequence[Any]:
        """Return y of this rank's piece, the final states and, with `all_states`, the states after every step."""
        if self.heads is None:
            return self._run_time(kernel, tensors, all_states)
        try:
            is_split = agree_on_heads(kernel, tensors, self.heads, self.time is not None)
        except RefusedEverywhere as refusal:
            refuse(self.time, tensors[0], refusal)
            raise
        return run_heads(kernel, tensors, self.heads, lambda part, own: self._run_time(part, own, all_states), is_split)

    def _run_time(self, kernel: Kernel, tensors: tuple[Any, ...], all_states: bool) -> Sequence[Any]:
        if self.time is None:
            return run(kernel.recipe, len(kernel.states), len(kernel.parameters), tensors, kernel, all_states)
        return run_pieces(kernel, tensors, self.time, all_states)
