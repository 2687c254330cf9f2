"""The process group over whose ranks time is split, and the place of this rank in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch.distributed as dist

from minrnn_gen.errors import BadInput, nearest_name, shown

Way = Literal["summary", "correct", "pipeline"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class SequenceGroup:
    """A process group over which time is split, with a way of passing states on.

    group: a process group or a device mesh of one axis. way: "summary", "correct" or "pipeline"; None lets the cost formula
    choose. micro_batches: into how many groups, of sequences or, where there are fewer, of channels, a pipeline cuts
    a call at most; None lets the formula choose.
    Equal on all ranks.
    """

    group: Any
    way: Way | None = None
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        if self.way is not None and self.way not in WAYS:
            raise BadInput(f"way is {shown(self.way)}; one of {', '.join(WAYS)} is expected{nearest_name(self.way, WAYS)}")
        count = self.micro_batches
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise BadInput(f"micro_batches is {shown(count)}; an integer from 1 on is expected, or None")


@dataclass(frozen=True)
class Member:
    """This rank in a group of `size` ranks. `process_group` is torch's; `way` and `micro_batches` are as asked for."""

    process_group: Any
    rank: int
    size: int
    way: Way | None
    micro_batches: int | None

    def position(self, reverse: bool) -> int:
        """Return the place of this rank's piece in the order of the recurrence, which starts at 0."""
        return self.rank_at(self.rank, reverse)

    def rank_at(self, position: int, reverse: bool) -> int:
        """Return the rank that has the piece at `position`."""
        return self.size - 1 - position if reverse else position


def member_of(value: Any, name: str = "sequence_group") -> Member:
    """Return this rank's place in a group; raises BadInput for what is none, and on a rank outside of it."""
    asked = value if isinstance(value, SequenceGroup) else SequenceGroup(value)
    group = process_group_of(asked.group, name)
    return Member(group, group.rank(), group.size(), asked.way, asked.micro_batches)


def process_group_of(value: Any, name: str) -> Any:
    """Return torch's process group of a process group or a device mesh of one axis."""
    if not dist.is_available():
        raise BadInput(f"{name} was given, but this torch is without torch.distributed; install one that has it")
    if value is dist.GroupMember.NON_GROUP_MEMBER:
        raise BadInput(f"{name} is a group without this rank; call on the ranks of the group alone")
    if isinstance(value, dist.ProcessGroup):
        return value
    if isinstance(value, dist.device_mesh.DeviceMesh):
        if value.ndim != 1:
            axes = value.mesh_dim_names or tuple(range(value.ndim))
            raise BadInput(f"{name} is a device mesh of axes {axes}; one axis is expected: mesh['name']")
        return value.get_group()
    raise BadInput(
        f"{name} is a {type(value).__name__}; a process group of torch.distributed, a device mesh of one axis or a "
        f"SequenceGroup is expected"
    )
