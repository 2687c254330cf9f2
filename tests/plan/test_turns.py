"""Turns of groups over the GPU, and the wait of a step for memory, by their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planning_problems import profile

from minrnn_gen.plan.dense.turns import memory_wait_ns, over_turns
from minrnn_gen.plan.many_sizes import Amount

GROUPS, AT_ONCE = st.integers(1, 5000), st.integers(1, 264)


def step_ns(groups: Amount) -> dict[str, Amount]:
    return {"fixed": 1000.0 + 0.0 * groups, "shared": 3.0 * groups}


@given(GROUPS, AT_ONCE)
def test_turns_take_every_group_once(groups: int, at_once: int) -> None:
    terms = over_turns(groups, at_once, step_ns)
    assert terms["fixed"] == 1000.0 * -(-groups // at_once)
    assert terms["shared"] == pytest.approx(3.0 * groups)


@given(st.lists(GROUPS, min_size=1, max_size=8), AT_ONCE)
def test_turns_of_many_sizes_are_those_of_each(sizes: list[int], at_once: int) -> None:
    together = over_turns(np.array(sizes), at_once, step_ns)
    each = [over_turns(groups, at_once, step_ns) for groups in sizes]
    for name, values in together.items():
        assert values == pytest.approx([terms[name] for terms in each])


@given(st.floats(1.0, 1e5), st.floats(0.0, 1e9))
def test_a_step_waits_no_longer_than_memory_takes(computed_ns: float, moved_bytes: float) -> None:
    """It waits at least for what exceeds the computation at the bandwidth of the datasheet, and never less with more bytes."""
    gpu = profile("h100")
    waited = memory_wait_ns(gpu, computed_ns, moved_bytes)
    datasheet_ns = moved_bytes / gpu.bandwidth_bytes_per_s * 1e9
    rounding = 1e-9 * (computed_ns + datasheet_ns)
    assert waited >= max(0.0, datasheet_ns - computed_ns) - rounding
    assert waited <= memory_wait_ns(gpu, computed_ns, 2 * moved_bytes) + rounding
    # The bandwidth that a step gets is more than half of the datasheet's.
    assert waited <= 2 * datasheet_ns + rounding
