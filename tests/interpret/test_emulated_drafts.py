"""Drafted steps on a cache, emulated under the race detector: as single steps, and nothing of what is not theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.drafts import check_drafts

import minrnn_gen
from minrnn_gen.call.array import wrap_numpy
from minrnn_gen.call.pool import PoolRows
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.run.drafts import Draft, places_on_host

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
    check_drafts(kernel, dtype={"bf16": "bfloat16", "fp16": "float16"}.get(kernel.spec.precision))


def test_places_by_a_kernel_are_those_by_numpy() -> None:
    """As on a GPU, where nothing is read back: slots that a pool lacks, and counts beyond a draft, are padding."""
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 4, "precision": "fp32"}, gpu="h200", device="interpret")
    random, slots, batch = np.random.default_rng(0), 70, 66

    def array(values: Any, dtype: Any = np.int64, stride: int = 1) -> Any:
        apart = np.full((batch, stride), -9, dtype)
        apart[:, 0] = values
        return wrap_numpy(apart[:, 0], "array")

    for number, folds in enumerate((False, False, True, True)):
        dtype, copies = (np.int64, np.int32)[number % 2], number == 3
        reads, drafts = random.permutation(slots)[:batch], random.integers(0, 4, (slots, 2))
        kept, wrong = random.integers(0, drafts[reads, 1] + 1), random.integers(0, batch, 8)
        into = random.permutation(slots)[:batch] if copies else None
        noted = [drafts.copy(), drafts.copy()]
        plain = reads.copy()
        plain[wrong] = -1
        reads[wrong[::2]] = random.choice([-1, -2, slots, 2**31 - 1], 4)
        kept[wrong[1::2]] = random.choice([-1, 4, 99], 4)
        rows = PoolRows(array(plain), None if into is None else array(into), -1, slots)
        accepted = None if copies else array(np.clip(kept, 0, drafts[plain, 1]), dtype, 2)
        lengths = array(random.integers(0, 4, batch)) if number == 1 else None
        draft = Draft(rows, wrap_numpy(noted[0], "drafts"), 4, 1 if folds else 3, accepted, lengths, folds)
        expected = places_on_host(draft)
        if copies:
            reads = plain
        rows = PoolRows(array(reads, dtype, 3), rows.into, -1, slots)
        given = replace(draft, rows=rows, drafts=wrap_numpy(noted[1], "drafts"))
        found = kernel.executor.gpu.places(given if copies else replace(given, accepted=array(kept, dtype, 2)), None)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(*noted)


@pytest.mark.parametrize("name", [name if name == "vectors" else pytest.param(name, marks=FULL) for name in SPECS])
def test_steps_on_slots_and_drafts_are_built_ahead(name: str) -> None:
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    kernel.prepare([(5, 1)], slots=True)
    built = set(kernel.plans)
    check_drafts(kernel, rounds=1)
    assert {key for key in set(kernel.plans) - built if key.kernel_pass != "forward"} == set()
