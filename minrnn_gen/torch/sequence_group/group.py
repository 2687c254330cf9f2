"""The process group over whose ranks time is split, and the place of this rank in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch.distributed as dist

from minrnn_gen.errors import BadInput, kind_of, nearest_name, shown

Way = Literal["summary", "correct", "pipeline"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class SequenceGroup:
    """A process group over which time is split, with a way of passing states on.

    group: a process group or a device mesh of one axis. way: "summary", "correct" or "pipeline"; None lets the cost formula
    choose. micro_batches: the most groups into which a pipeline cuts a call, along sequences or, where these are too few, along
    channels; None lets the formula choose. graphs: whether calls on GPUs are launched as CUDA graphs where their arrays come
    again, and GPUs of one machine pass states through each other's memory. Equal on all ranks.
    """

    group: Any
    way: Way | None = None
    micro_batches: int | None = None
    graphs: bool = True

    def __post_init__(self) -> None:
        if self.way is not None and self.way not in WAYS:
            raise BadInput(f"way is {shown(self.way)}; one of {', '.join(WAYS)} is expected{nearest_name(self.way, WAYS)}")
        count = self.micro_batches
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise BadInput(f"micro_batches is {shown(count)}; an integer from 1 on is expected, or None")
        if not isinstance(self.graphs, bool):
            raise BadInput(f"graphs is {shown(self.graphs)}; True or False is expected")


@dataclass(frozen=True)
class HeadGroup:
    """A process group over which heads are split, and whether a rank holds all heads of an array or only its own.

    group: a process group or a device mesh of one axis. gathers: whether every rank passes all heads of pre-activations and
    states, and gets all of y. If not, arguments and results have the rank's own heads alone, and inputs S.* its own groups
    where the ranks divide their number. Then no array passes between ranks but the gradient of an x that is projected, and of
    S.* of groups that several ranks read. Equal on all ranks.
    """

    group: Any
    gathers: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.gathers, bool):
            raise BadInput(f"gathers is {shown(self.gathers)}; True or False is expected")


@dataclass(frozen=True)
class Member:
    """This rank in a group of `size` ranks. `process_group` is torch's, the others are as asked for.

    `way`, `micro_batches` and `graphs` are those of a `SequenceGroup`, `gathers` that of a `HeadGroup`.
    """

    process_group: Any
    rank: int
    size: int
    way: Way | None = None
    micro_batches: int | None = None
    gathers: bool = True
    graphs: bool = False

    def position(self, reverse: bool) -> int:
        """Return the place of this rank's piece in the order of the recurrence, which starts at 0."""
        return self.rank_at(self.rank, reverse)

    def rank_at(self, position: int, reverse: bool) -> int:
        """Return the rank that has the piece at `position`."""
        return self.size - 1 - position if reverse else position


def is_on_gpu(tensor: Any) -> bool:
    """Return whether a call's tensors are on a GPU, where no host waits for values."""
    return bool(tensor.is_cuda)


def is_alive(process_group: Any) -> bool:
    """Return whether a process group was not destroyed."""
    try:
        return bool(dist.get_process_group_ranks(process_group))
    except KeyError:
        return False


def member_of(value: Any) -> Member:
    """Return this rank's place in a group over which time is split; raises BadInput for anything else, and outside it."""
    asked = value if isinstance(value, SequenceGroup) else SequenceGroup(value)
    group = process_group_of(asked.group, "sequence_group")
    return Member(group, group.rank(), group.size(), asked.way, asked.micro_batches, graphs=asked.graphs)


def head_member_of(value: Any) -> Member:
    """Return this rank's place in a group over which heads are split; raises BadInput as `member_of` does."""
    asked = value if isinstance(value, HeadGroup) else HeadGroup(value)
    group = process_group_of(asked.group, "head_group")
    return Member(group, group.rank(), group.size(), gathers=asked.gathers)


def process_group_of(value: Any, name: str) -> Any:
    """Return torch's process group of a process group or a device mesh of one axis."""
    if not dist.is_available():
        raise BadInput(f"{name} was given, but this torch lacks torch.distributed; install one that has it")
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
        f"{name} is {kind_of(value)}; a process group of torch.distributed, a device mesh of one axis or a "
        f"{'SequenceGroup' if name == 'sequence_group' else 'HeadGroup'} is expected"
    )
