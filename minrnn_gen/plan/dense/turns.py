"""Turns in which the GPU takes groups of blocks that run all steps, and the memory that the blocks of a turn share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, where

# Of the bandwidth in the datasheet what steps get, and the norm by which memory and computation add up, which overlap but for
# where one of them falls behind: fitted to 53 passes on an H100 and 51 on an H200 (docs/lab-notes.md). A copy gets 0.89.
SHARE_OF_BANDWIDTH, MEMORY_NORM = 0.85, 2.7


def over_turns(groups: Amount, at_once: int, step_ns: Callable[[Amount], Mapping[str, Amount]]) -> dict[str, Amount]:
    """Return the terms of one step in all turns: of those with `at_once` groups, and of a last one with what is left.

    `step_ns` gives the terms of a step, in nanoseconds, where so many groups run.
    """
    full = maximum(0, ceil((groups + 1) / at_once) - 1)
    left = groups - full * at_once
    if isinstance(left, int):
        parts = [(count, running) for count, running in ((full, at_once), (1, left)) if count and running]
    else:
        parts = [(full, at_once), (where(left > 0, 1, 0), maximum(left, 1))]
    terms: dict[str, Amount] = {}
    for count, running in parts:
        for name, ns in step_ns(running).items():
            terms[name] = terms.get(name, 0.0) + count * ns
    return terms


def memory_wait_ns(gpu: GpuProfile, computed_ns: Amount, moved_bytes: Amount) -> Amount:
    """Return what a step of `computed_ns` takes longer since all blocks together move `moved_bytes` to and from memory."""
    memory_ns = moved_bytes / (SHARE_OF_BANDWIDTH * gpu.bandwidth_bytes_per_s) * 1e9
    together: Amount = (computed_ns**MEMORY_NORM + memory_ns**MEMORY_NORM) ** (1 / MEMORY_NORM)
    return together - computed_ns
