"""Copies of less than 16 bytes come through L1: tiles that it does not hold cost memory again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.planning_problems import real_solution

from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.plan.scan import time as scans_in_time

TILE = {"warps": 2, "time_warps": 1, "stages": 2, "lookback": 0}


@pytest.mark.parametrize("alignment_bytes", (4, 8))
@pytest.mark.parametrize(("steps_per_lane", "is_held"), ((4, True), (8, False)))
def test_only_tiles_beyond_l1_cost_more(alignment_bytes: int, steps_per_lane: int, is_held: bool) -> None:
    """On an H200 44 x 642 x 3,520 in bf16 took 414 us with four steps for each lane and 491 with eight."""
    problem = real_solution("min_gru", "h200", 3520, "bf16", "BDT", "backward", WIDEST_COPY_BYTES, batch=44).problem
    narrow = replace(problem, specialization=Specialization(alignment_bytes))
    candidate = {**TILE, "steps_per_lane": steps_per_lane}
    wide_us, narrow_us = (scans_in_time.predicted_us(of, candidate)["memory"] for of in (problem, narrow))
    assert narrow_us == wide_us if is_held else narrow_us > 1.05 * wide_us
