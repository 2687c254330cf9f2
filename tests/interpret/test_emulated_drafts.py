"""Drafted steps on a cache, emulated under the race detector: as single steps, and nothing of what is not theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.drafts import LONG_STEPS, NOTES, check_drafts, placed

import minrnn_gen
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

FULL = pytest.mark.matrix_full
# Of each kind of kernel that takes steps a spec; the last two run a forward of one step on rows of the pool.
SPECS: dict[str, dict[str, Any]] = {
    "scan": {"model": "min_gru", "hidden_size": 5},
    "scan, reverse": {"model": "min_gru", "hidden_size": 5, "direction": "reverse"},
    "diagonal": {"model": "ind_rnn", "hidden_size": 5, "precision": "bf16", "layout": "BDT"},
    "vectors": {"model": "selective", "hidden_size": 6, "state_size": 4},
    "dense": {"model": "lstm", "hidden_size": 12, "layout": "TBD"},
    "dense, heads": {"model": "slstm", "hidden_size": 24, "heads": 2, "precision": "fp16"},
    "projected": {"model": "min_lstm", "hidden_size": 4, "input_size": 3},
    "projected units": {"model": "lstm_projected", "hidden_size": 8, "projection_size": 4},
    "rounds": {"model": "gru_reset_before", "hidden_size": 12},
    "norms": {"model": "layer_norm_lstm", "hidden_size": 8},
}


@pytest.mark.parametrize("name", [name if name == "vectors" else pytest.param(name, marks=FULL) for name in SPECS])
def test_drafts_are_single_steps_whatever_is_kept(name: str) -> None:
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    is_forward = kernel.spec.direction == "forward"
    check_drafts(kernel, has_lengths=is_forward)
    check_drafts(kernel, rounds=2, has_lengths=is_forward, steps=LONG_STEPS)
    check_drafts(kernel, dtype={"bf16": "bfloat16", "fp16": "float16"}.get(kernel.spec.precision))


def test_places_by_a_kernel_are_those_by_numpy() -> None:
    """As on a GPU, where nothing is read back: slots that a pool lacks, and counts beyond a draft, are padding."""
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 4, "precision": "fp32"}, gpu="h200", device="interpret")
    for note in NOTES:
        found = placed(note, kernel)
        for name, values in placed(note).items():
            np.testing.assert_array_equal(found[name], values, note)


@pytest.mark.parametrize("name", [name if name == "vectors" else pytest.param(name, marks=FULL) for name in SPECS])
def test_steps_on_slots_and_drafts_are_built_ahead(name: str) -> None:
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    kernel.prepare([(5, 1)], slots=True)
    built = set(kernel.plans)
    check_drafts(kernel, rounds=1)
    assert {key for key in set(kernel.plans) - built if key.kernel_pass != "forward"} == set()
