"""Racing: contenders measured in rounds until one leads by more than the noise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Contender = TypeVar("Contender")
Ended = Literal["decided", "budget", "rounds", "interrupted", "nothing"]

# The number of standard deviations by which two medians have to differ: with some hundred comparisons in a race, one in a
# hundred races drops a contender for bad luck.
DEVIATIONS = 4.0
# The standard deviation of a median is this much that of a mean (of a normal distribution, sqrt(pi / 2)).
OF_A_MEDIAN = 1.2533
# The median of |a - b| of two normal values is so many of their standard deviations.
OF_A_DIFFERENCE = 0.9539
# Clocks of devices tick every half microsecond, and no time is known better than this.
NOISE_LEAST = 0.002
# Contenders within one per cent of each other are alike.
ALIKE = 0.01
# Rounds after which more times help no further: their noise is not normally distributed.
ROUNDS_MOST = 40


@dataclass
class Race(Generic[Contender]):
    """The times of all contenders so far, the leader (None without times), and why the race ended."""

    times_us: dict[Contender, list[float]] = field(default_factory=dict)
    leader: Contender | None = None
    ended: Ended = "nothing"


def run_race(
    arriving: Iterable[Contender],
    measure: Callable[[Contender], Sequence[float] | None],
    seconds_left: Callable[[], float],
    known: Mapping[Contender, Sequence[float]] | None = None,
) -> Race[Contender]:
    """Race contenders as they arrive; `measure` times one a few times, or returns None for one that is eliminated.

    Each contender is measured once, except those with `known` times, which need not arrive. Then contenders that may still be
    the fastest are measured in rounds. Without seconds left nothing is measured, except the first contender. An interruption
    ends the race; the times measured by then count.
    """
    race = Race({contender: list(times_us) for contender, times_us in (known or {}).items()})
    try:
        race.ended = _first_times(race, arriving, measure, seconds_left) or _rounds(race, measure, seconds_left)
    except KeyboardInterrupt:
        race.ended = "interrupted"
    race.leader = leader_of(race.times_us)
    return race


def leader_of(times_us: Mapping[Contender, Sequence[float]]) -> Contender | None:
    """Return the contender with the smallest median, the first of equals."""
    return min(times_us, key=lambda contender: statistics.median(times_us[contender]), default=None)


def noise_of(times_us: Iterable[Sequence[float]]) -> float:
    """Return the relative standard deviation of one time, estimated over all contenders; outliers count little."""
    apart = [abs(math.log(a / b)) for times in times_us for a, b in itertools.combinations(times[-8:], 2)]
    return max(NOISE_LEAST, statistics.median(apart) / OF_A_DIFFERENCE if apart else 0.0)


def survivors_of(times_us: Mapping[Contender, Sequence[float]]) -> tuple[list[Contender], bool]:
    """Return the contenders that may still be the fastest, and whether their times are certain enough to call them alike."""
    leader = leader_of(times_us)
    if leader is None:
        return [], True
    noise = noise_of(times_us.values())
    best, certain = statistics.median(times_us[leader]), True
    survivors = []
    for contender, times in times_us.items():
        doubt = DEVIATIONS * noise * OF_A_MEDIAN * math.sqrt(1 / len(times) + 1 / len(times_us[leader]))
        behind = math.log(statistics.median(times) / best)
        if behind <= doubt:
            survivors.append(contender)
            certain = certain and (contender == leader or behind + doubt <= ALIKE)
    return survivors, certain


def _first_times(
    race: Race[Contender],
    arriving: Iterable[Contender],
    measure: Callable[[Contender], Sequence[float] | None],
    seconds_left: Callable[[], float],
) -> Ended | None:
    for contender in arriving:
        if contender in race.times_us:
            continue
        if race.times_us and seconds_left() <= 0:
            return "budget"
        if times := measure(contender):
            race.times_us[contender] = list(times)
    return None


def _rounds(
    race: Race[Contender], measure: Callable[[Contender], Sequence[float] | None], seconds_left: Callable[[], float]
) -> Ended:
    for _ in range(ROUNDS_MOST):
        survivors, certain = survivors_of(race.times_us)
        if certain:
            return "decided" if survivors else "nothing"
        for contender in survivors:
            if seconds_left() <= 0:
                return "budget"
            times = measure(contender)
            if times:
                race.times_us[contender] += times
            else:
                del race.times_us[contender]
    return "rounds"
