"""The host's time of a call, and the functions and operators that it calls, by library."""

from __future__ import annotations

import collections
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

import pydantic
import torch
from torch.profiler import ProfilerActivity, profile

# The C part of this package, the package itself, torch, and the rest: Python's own functions.
LIBRARIES = ("minrnn_gen", "torch", "python")
_CALLS, _ROUNDS, _WARMUP = 20, 5, 3


class HostCalls(pydantic.BaseModel):
    """The work of a host in one call.

    `us`: microseconds until the call returns, the least of several rounds. `operators`: those of torch's dispatcher that the
    call itself asks for, without those within them. `functions` of Python and C by library, and the `shares` of their time,
    which a profile lengthens.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    us: float
    operators: dict[str, int]
    functions: dict[str, int]
    shares: dict[str, float]

    @property
    def operator_count(self) -> int:
        """How many operators are asked for, collectives among them."""
        return sum(self.operators.values())


def host_calls(run: Callable[[], Any], finish: Callable[[], None], calls: int = _CALLS, rounds: int = _ROUNDS) -> HostCalls:
    """Return the host's work in one `run`; `finish` waits for the device, between rounds of `calls` calls.

    Calls are repeated before, so that what is decided once is decided already. Backwards run on the calling thread.
    """
    with torch.autograd.set_multithreading_enabled(False):
        for _ in range(_WARMUP):
            run()
        finish()
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(calls):
                run()
            seconds.append((time.perf_counter() - began) / calls)
            finish()
        operators = operators_of(run)
        finish()
        functions, shares = _functions_of(run, calls)
        finish()
    return HostCalls(us=1e6 * min(seconds), operators=operators, functions=functions, shares=shares)


def operators_of(run: Callable[[], Any]) -> dict[str, int]:
    """Return how often a call asks for each operator of torch's dispatcher, the ones within others left out."""
    counted: collections.Counter[str] = collections.Counter()

    def count(event: Any) -> None:
        if event.name.startswith(("aten::", "c10d::")):
            counted[event.name] += 1
            return
        for inner in event.cpu_children:  # a node of autograd
            count(inner)

    with profile(activities=[ProfilerActivity.CPU]) as watched:
        run()
    for event in watched.events():
        if event.cpu_parent is None:
            count(event)
    return dict(sorted(counted.items()))


def _functions_of(run: Callable[[], Any], calls: int) -> tuple[dict[str, int], dict[str, float]]:
    watched = cProfile.Profile()
    watched.enable()
    for _ in range(calls):
        run()
    watched.disable()
    counts, seconds = dict.fromkeys(LIBRARIES, 0), dict.fromkeys(LIBRARIES, 0.0)
    timings: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(watched).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, number, own, *_) in timings.items():
        where = f"{file} {name}"
        library = next((library for library in LIBRARIES if library in where), "python")
        counts[library] += number
        seconds[library] += own
    whole = sum(seconds.values()) or 1.0
    return {name: number // calls for name, number in counts.items()}, {name: value / whole for name, value in seconds.items()}
