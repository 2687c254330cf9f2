"""Several things made at once, on all cores: kernels above all, since NVRTC releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from minrnn_gen.config.environment import core_count

# How many are made, of how many.
Watch = Callable[[int, int], None]

_Wanted = TypeVar("_Wanted")
_Made = TypeVar("_Made")


def unwatched(_done: int, _of: int) -> None:
    """Show nobody how many are made."""


def made_at_once(make: Callable[[_Wanted], _Made], wanted: Iterable[_Wanted], watch: Watch = unwatched) -> tuple[_Made, ...]:
    """Return what `make` makes of each of `wanted`, in their order.

    Each is begun as soon as it is known, so that the first are made while the next are planned. `watch(done, of)` is called as
    they are ready, when all are known. Raises what `make` raises first, and begins no other then.
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
