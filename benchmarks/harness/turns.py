"""Medians of functions that are run in turn on the GPU, each with a cold L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

OURS = "minrnn_gen"
ROUNDS, SLOW_ROUNDS = 11, 3
# Slower ones are timed in few rounds.
SLOW_MS = 50.0
# Three times so many keep the GPU busy for 2 ms, until the host has launched what is timed.
FLUSHED_BYTES = 1 << 31


def milliseconds(runs: Mapping[str, Callable[[], Any]], on_host: bool = False) -> dict[str, float]:
    """Return the median milliseconds of each run, by events; `on_host` by the host's clock, from idle to idle."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS):
        for name, run in runs.items():
            if turn >= SLOW_ROUNDS and statistics.median(times[name]) > SLOW_MS:
                continue
            for _ in range(3):
                flushed.fill_(turn)
            if on_host:
                torch.cuda.synchronize()
                began = time.perf_counter()
                run()
                torch.cuda.synchronize()
                times[name].append(1e3 * (time.perf_counter() - began))
                continue
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            run()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after))
    return {name: statistics.median(each) for name, each in times.items()}


def line_of(title: str, times: Mapping[str, float]) -> str:
    """Return a line of milliseconds, each with the share of it that ours takes."""
    cells = (f"{name} {ms:.3f}" + ("" if name == OURS else f" ({times[OURS] / ms:.2f})") for name, ms in times.items())
    return f"{title}: {', '.join(cells)}"
