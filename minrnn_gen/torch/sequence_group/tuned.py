"""The way of passing states on by measurement: a step of the caller's runs in every way, and the fastest is settled."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.torch.sequence_group.agreement import RefusedEverywhere, compared
from minrnn_gen.torch.sequence_group.clock import Clock
from minrnn_gen.torch.sequence_group.group import WAYS, Member, SequenceGroup, Way, member_of

# The formula's own choice stays unless another way is faster by more. Measured twice in one run, a way differed from itself by
# 3.4 % at most over two H100, 3.1 % over four and 1.3 % over two H200 (in 69 pairs of benchmarks/results/distributed_*.json).
MARGIN = 0.05
# A median of five leaves two outliers out.
ROUNDS = 5
# As those that are timed, so that arrays come to lie where they do then. A first call compiles, the next one notes its arrays,
# one more is captured, and its backward after that: eight calls on a GPU, of four in each round.
ROUNDS_BEFORE = 2

Step = Callable[[SequenceGroup], Any]


@dataclass(frozen=True)
class TunedSequenceGroup(SequenceGroup):
    """A `SequenceGroup` whose way was measured by `tune_sequence_group`.

    times_ms: {way: median milliseconds of a step, of the slowest rank}; None is the cost formula's own choice, and a way that
    the step refuses is left out. The same on all ranks.
    """

    times_ms: Mapping[Way | None, float] = field(default_factory=dict, compare=False)


def tune_sequence_group(sequence_group: Any, step: Step, *, rounds: int = ROUNDS) -> TunedSequenceGroup:
    """Return a group with the way in which `step` is fastest, the same on all ranks; calls with it repeat bit for bit.

    sequence_group: as a call takes it; its `micro_batches` and `graphs` are kept, and `way` is left out. step: a function of a
    `SequenceGroup`, which runs the calls that count, on this rank's piece of typical data, with their backward if they have
    one. All ranks pass it together. It runs 1 + (2 + rounds) · 4 times in each way on GPUs, 3 + rounds times on CPUs, and
    everything that it does stays done: it should update no weights, or those of a copy, and gradients that it adds to `.grad`
    are the caller's to clear. rounds: of timing, all ways in turn, by the events of GPUs or the clock of the host. A round's
    time is that of the slowest rank.

    The ways are "summary", "correct", "pipeline" and None, the cost formula's own choice for each call. None stays unless the
    median of another is faster by more than 5 %. A way that a call of the step refuses on all ranks is left out.

    Raises BadInput on every rank for wrong arguments, where ranks differ in them, and where the formula's choice is refused.
    Whatever else `step` raises passes through. Where it raises on one rank alone, the others wait for that rank until the
    timeout of the group, and raise what the backend does.
    """
    member = member_of(sequence_group)
    asked = sequence_group if isinstance(sequence_group, SequenceGroup) else SequenceGroup(sequence_group)
    clock = Clock.of(member.process_group)
    form = {"rounds": rounds, "micro_batches": asked.micro_batches, "graphs": asked.graphs}
    refusal = _refusal(asked, step, rounds)
    _compare(member, clock, {} if refusal else form, refusal)
    groups = {way: group for way in (None, *WAYS) if _runs(step, group := replace(asked, way=way))}
    _compare(member, clock, {"ways that are not refused": [*groups]})
    times_ms = _times_ms(clock, [partial(step, group) for group in groups.values()], rounds)
    medians_ms = dict(zip(groups, times_ms, strict=True))
    return TunedSequenceGroup(asked.group, fastest(medians_ms), asked.micro_batches, asked.graphs, medians_ms)


def fastest(times_ms: Mapping[Way | None, float]) -> Way | None:
    """Return the way that takes least, None for the formula's choice where no other is faster than that by `MARGIN`."""
    best = min(times_ms, key=times_ms.__getitem__)
    return best if times_ms[best] * (1 + MARGIN) < times_ms[None] else None


def _refusal(asked: SequenceGroup, step: Any, rounds: Any) -> BadInput | None:
    if asked.way is not None:
        return BadInput(f"sequence_group has the way {asked.way!r}, and a way is to be measured; leave it out")
    if not callable(step):
        return BadInput(f"step is {kind_of(step)}; a function of a SequenceGroup is expected")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        return BadInput(f"rounds is {shown(rounds)}; an integer from 1 on is expected")
    return None


def _compare(member: Member, clock: Clock, form: Mapping[str, Any], refusal: BadInput | None = None) -> None:
    """Raise BadInput on every rank where one refuses, or where forms differ."""
    compared(member, clock.device, {"form": form, "refusal": str(refusal or "")}, refusal)


def _runs(step: Step, group: SequenceGroup) -> bool:
    """Run a step, its first time in a way; return whether all ranks could, and raise where even the formula's choice fails."""
    try:
        step(group)
    except RefusedEverywhere:
        if group.way is None:
            raise
        return False
    return True


def _times_ms(clock: Clock, runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the median time of each run, a round's that of the slowest rank."""
    times_ms = [[clock.ms_of(run) for run in runs] for _ in range(ROUNDS_BEFORE + rounds)]
    return [statistics.median(of_run) for of_run in zip(*clock.slowest(times_ms[ROUNDS_BEFORE:]), strict=True)]
