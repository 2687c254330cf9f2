"""The candidate of a filter that the cost model takes, of those measured on an H200: nearly the fastest."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.planning_problems import profile

from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.plan.kernel_plan import Specialization, total_us
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.scan import filter as filters
from minrnn_gen.raw_scan.filter_kernels import filter_builder

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "filter_times_h200.json"
MEASURED: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
# Of what was measured (docs/lab-notes.md), and what the cost model was fitted to.
MEDIAN_MOST, WORST_MOST = 1.03, 1.10
# 32 banks of 4 bytes; of an access to 8 or 16 bytes half a warp or a quarter is served at once (CUDA C++ Programming Guide,
# shared memory of compute capability 5.x and later).
BANKS, BANK_BYTES, SERVED_BYTES = 32, 4, 128


def regret_of(measured: dict[str, Any]) -> float:
    builder = filter_builder(measured["precision"], measured["order"], Target(profile("h200"), profile_bytes("h200"), "spec"))
    sizes = Sizes(measured["batch"], measured["time"])
    solution = builder.solve(builder.key_of("filter", Specialization(measured["alignment_bytes"]), sizes))
    times = {json.dumps(candidate["variables"], sort_keys=True): candidate["ms"] for candidate in measured["candidates"]}
    ranked = sorted(
        (total_us(solution.family.predicted_us(solution.problem, candidate)), times[name])
        for candidate in solution.candidates
        if (name := json.dumps(dict(candidate), sort_keys=True)) in times
    )
    return float(ranked[0][1] / min(times.values()))


def test_picks_are_nearly_the_fastest_that_were_measured() -> None:
    regrets = [regret_of(measured) for measured in MEASURED]
    assert max(regrets) <= WORST_MOST
    assert statistics.median(regrets) <= MEDIAN_MOST


@pytest.mark.parametrize("order", range(1, filters.ORDER_MOST + 1))
def test_powers_in_shared_memory_are_read_in_as_many_accesses_as_banks_allow(order: int) -> None:
    words = order**2 * filters.DOUBLE_BYTES // BANK_BYTES
    at_once = 4 if words % 4 == 0 else 2
    lanes = SERVED_BYTES // (at_once * BANK_BYTES)
    accesses = 0
    for _ in range(0, filters.limits.WARP_LANES, lanes):
        for first in range(0, words, at_once):
            banks: dict[int, set[int]] = {}
            for lane in range(lanes):
                for word in range(lane * words + first, lane * words + first + at_once):
                    banks.setdefault(word % BANKS, set()).add(word)
            accesses += max(map(len, banks.values()))
    assert filters._cycles_per_powers(order) == accesses
