"""How long tests wait: seconds of an idle machine, times how slow this one is now. The only place with limits of time.

A limit guards against what hangs. Where other work has the cores, everything takes several times as long and nothing hangs.
"""

from __future__ import annotations

import os
import time
from functools import cache

# CPU seconds of `_loop` on an idle core of a server of 2023.
REFERENCE_SECONDS = 0.05
# Beyond that a machine is of no use, and a limit of minutes would be one of hours.
SLOWNESS_MOST = 30.0


def within(seconds: float) -> float:
    """Return the limit, here and now, of what takes less than so many seconds on an idle machine."""
    return seconds * slowness()


def slowness() -> float:
    """Return how many times as long as on an idle machine things take: by a loop at the start, and by who waits for cores."""
    own, with_others = _measured()
    return min(max(1.0, with_others, own * waiting()), SLOWNESS_MOST)


def waiting() -> float:
    """Return how many processes there are for each core, on average over the last minute; 1 where the system does not say."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, os.getloadavg()[0] / cores) if hasattr(os, "getloadavg") else 1.0


@cache
def _measured() -> tuple[float, float]:
    """Return the slowness of this process's own core, and with what other processes took of it, measured once."""
    began, own = time.perf_counter(), time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number * number % 7
    return (time.process_time() - own) / REFERENCE_SECONDS, (time.perf_counter() - began) / REFERENCE_SECONDS
