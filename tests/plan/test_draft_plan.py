"""How drafts are taken back: the choice between states and inputs grows with their steps."""

from __future__ import annotations

import pytest
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen


@pytest.mark.parametrize("batch", [1, 64])
def test_steps_that_run_again_take_longer_in_longer_drafts(batch: int) -> None:
    with nothing_compiled():
        spec = {"model": "selective", "hidden_size": 2048, "state_size": 16, "precision": "fp32", "batch": batch}
        executor = minrnn_gen.compile({**spec, "training": False}, gpu="h200").executor
        plans = [executor.draft_plan(steps) for steps in (1, 2, 4, 8, 16)]
    times = [plan.replay_us for plan in plans]
    assert times == sorted(set(times))
    # Steps of a draft have one launch, whatever their number, and single steps one each.
    assert all(plan.replay_us < plan.snapshots_us for plan in plans[2:])


def test_states_in_16_bits_are_half_of_the_bytes() -> None:
    with nothing_compiled():
        spec = {"model": "selective", "hidden_size": 4096, "state_size": 128, "precision": "bf16", "batch": 64}
        executor = minrnn_gen.compile({**spec, "training": False}, gpu="h200").executor
        wide, narrow = (executor.draft_plan(4, pool) for pool in ("arithmetic", "storage"))
    states = 2 * 4096 * 128
    assert wide.snapshots_bytes - narrow.snapshots_bytes == 4 * 2 * states
    assert wide.replay_bytes - narrow.replay_bytes == 2 * states
    # Parameters of n values are read for each sequence, whatever the dtype of its state.
    assert narrow.snapshots_us < 0.8 * wide.snapshots_us
