"""Who is the fastest: contenders measured in turn until one is ahead of the others by more than the noise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Contender = TypeVar("Contender")
Ended = Literal["decided", "budget", "rounds", "interrupted", "nothing"]

# Of two medians, how many standard deviations apart they are told apart at: with some hundred comparisons in a race, one in a
# hundred races drops a contender for bad luck.
DEVIATIONS = 4.0
# The standard deviation of a median is this much that of a mean (of a normal distribution, sqrt(pi / 2)).
OF_A_MEDIAN = 1.2533
# The median of |a - b| of two normal values is so many of their standard deviations.
OF_A_DIFFERENCE = 0.9539
# Clocks of devices tick every half microsecond, and no time is known better than this.
NOISE_LEAST = 0.002
# Contenders within one per cent are alike to whoever uses them.
ALIKE = 0.01
# Rounds after which nothing more is to be learnt: noise that does not add up to a normal distribution.
ROUNDS_MOST = 40


@dataclass
class Race(Generic[Contender]):
    """The times of everybody so far, the leader (None where nobody has any), and why it ended."""

    times_us: dict[Contender, list[float]] = field(default_factory=dict)
    leader: Contender | None = None
    ended: Ended = "nothing"


def run_race(
    arriving: Iterable[Contender],
    visit: Callable[[Contender], Sequence[float] | None],
    seconds_left: Callable[[], float],
    known: Mapping[Contender, Sequence[float]] | None = None,
) -> Race[Contender]:
    """Race contenders as they arrive; `visit` measures one a few times, or returns None for one that is out.

    Everybody is visited once, but for those whose times are `known`, who need not arrive; then the ones that may still be the
    fastest take turns. No visit begins when no seconds are left, but for the first. An interruption ends the race, and what is
    known by then counts.
    """
    race = Race({one: list(times_us) for one, times_us in (known or {}).items()})
    try:
        race.ended = _first_visits(race, arriving, visit, seconds_left) or _rounds(race, visit, seconds_left)
    except KeyboardInterrupt:
        race.ended = "interrupted"
    race.leader = leader_of(race.times_us)
    return race


def leader_of(times_us: Mapping[Contender, Sequence[float]]) -> Contender | None:
    """Return who has the least median, the first of equals."""
    return min(times_us, key=lambda one: statistics.median(times_us[one]), default=None)


def noise_of(times_us: Iterable[Sequence[float]]) -> float:
    """Return the relative standard deviation of one time, as all contenders together show it; outliers count little."""
    apart = [abs(math.log(a / b)) for its in times_us for a, b in itertools.combinations(its[-8:], 2)]
    return max(NOISE_LEAST, statistics.median(apart) / OF_A_DIFFERENCE if apart else 0.0)


def survivors_of(times_us: Mapping[Contender, Sequence[float]]) -> tuple[list[Contender], bool]:
    """Return who may still be the fastest, and whether they are known well enough to be called alike."""
    leader = leader_of(times_us)
    if leader is None:
        return [], True
    noise = noise_of(times_us.values())
    best, certain = statistics.median(times_us[leader]), True
    survivors = []
    for one, its in times_us.items():
        doubt = DEVIATIONS * noise * OF_A_MEDIAN * math.sqrt(1 / len(its) + 1 / len(times_us[leader]))
        behind = math.log(statistics.median(its) / best)
        if behind <= doubt:
            survivors.append(one)
            certain = certain and (one == leader or behind + doubt <= ALIKE)
    return survivors, certain


def _first_visits(
    race: Race[Contender],
    arriving: Iterable[Contender],
    visit: Callable[[Contender], Sequence[float] | None],
    seconds_left: Callable[[], float],
) -> Ended | None:
    for one in arriving:
        if one in race.times_us:
            continue
        if race.times_us and seconds_left() <= 0:
            return "budget"
        if times := visit(one):
            race.times_us[one] = list(times)
    return None


def _rounds(
    race: Race[Contender], visit: Callable[[Contender], Sequence[float] | None], seconds_left: Callable[[], float]
) -> Ended:
    for _ in range(ROUNDS_MOST):
        survivors, certain = survivors_of(race.times_us)
        if certain:
            return "decided" if survivors else "nothing"
        for one in survivors:
            if seconds_left() <= 0:
                return "budget"
            times = visit(one)
            if times:
                race.times_us[one] += times
            else:
                del race.times_us[one]
    return "rounds"
