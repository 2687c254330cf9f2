"""Several things made in parallel, on all cores: mainly kernels, since NVRTC releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from minrnn_gen.config.environment import core_count

# Called with the number made, and the total.
Watch = Callable[[int, int], None]

_Wanted = TypeVar("_Wanted")
_Made = TypeVar("_Made")


def unwatched(_done: int, _of: int) -> None:
    """Ignore progress."""


def made_at_once(make: Callable[[_Wanted], _Made], wanted: Iterable[_Wanted], watch: Watch = unwatched) -> tuple[_Made, ...]:
    """Return `make` of each of `wanted`, in their order.

    Each starts as soon as it is known, so that the first are made while the next are planned. Once all are known, `watch(done,
    of)` is called as they are ready. Raises the first error of `make`, and starts no others then.
    """
    # Two even on one core: while one waits for a lock of the store, another may be made.
    pool = ThreadPoolExecutor(max(2, core_count()))
    try:
        jobs = [pool.submit(make, item) for item in wanted]
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            watch(done, len(jobs))
        return tuple(job.result() for job in jobs)
    finally:
        pool.shutdown(cancel_futures=True)
