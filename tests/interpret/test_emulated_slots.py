"""Steps on pools of states, emulated under the race detector: in place as on rows, and nothing of what is not theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.norm_cells import GATES_TOGETHER
from support.pools import CALLS, FORMS, SLOTS, on_pool

import minrnn_gen
from minrnn_gen.call import pool_checks
from minrnn_gen.call.array import wrap_numpy
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.run.cache import call_on_slots

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

FULL = pytest.mark.matrix_full
# Of each kind of kernel that takes steps a spec; the last four run a forward of one step on rows of the pool.
SPECS: dict[str, dict[str, Any]] = {
    "scan": {"model": "min_gru", "hidden_size": 5},
    "diagonal": {"model": "ind_rnn", "hidden_size": 5, "precision": "bf16"},
    "vectors": {"model": "selective", "hidden_size": 6, "state_size": 4},
    "vectors in groups": {"model": "gated_linear", "hidden_size": 6, "state_size": 5, "groups": 2},
    "dense": {"model": "lstm", "hidden_size": 12},
    "dense, heads": {"model": "slstm", "hidden_size": 24, "heads": 2, "precision": "fp16"},
    "dense, fp64": {"model": "gru", "hidden_size": 10, "precision": "fp64"},
    "projected": {"model": "min_lstm", "hidden_size": 4, "input_size": 3},
    "projected units": {"model": "lstm_projected", "hidden_size": 8, "projection_size": 4},
    "rounds": {"model": "gru_reset_before", "hidden_size": 12},
    "norms": {"model": "layer_norm_lstm", "hidden_size": 8},
    "norms of products": {"model": GATES_TOGETHER, "hidden_size": 8},
}
# Every day one of these a kind of kernel; all calls of all with the whole matrix.
EVERYDAY = {"vectors": "in place", "dense": "into others"}


@pytest.mark.parametrize(
    ("name", "call"),
    [pytest.param(name, call, marks=() if EVERYDAY.get(name) == call else FULL) for name in SPECS for call in CALLS],
)
def test_a_step_in_place_is_a_step_on_rows(name: str, call: str) -> None:
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    number = [*CALLS].index(call)
    on_pool(kernel, call, (np.int32, np.int64)[number % 2], 1 + number % 3).check(kernel)


NARROW: dict[str, dict[str, Any]] = {
    "scan": {"model": "min_lstm", "hidden_size": 5, "precision": "bf16"},
    "diagonal": SPECS["diagonal"],
    "vectors": {"model": "selective", "hidden_size": 6, "state_size": 8, "precision": "bf16"},
    "vectors, one by one": {"model": "selective", "hidden_size": 6, "state_size": 5, "precision": "fp16"},
    "dense": {"model": "lstm", "hidden_size": 16, "precision": "bf16"},
    "dense, heads": SPECS["dense, heads"],
    "rounds": {**SPECS["rounds"], "precision": "fp16"},
}


@pytest.mark.parametrize("name", [name if name == "vectors" else pytest.param(name, marks=FULL) for name in NARROW])
def test_states_in_16_bits_are_rounded_once(name: str) -> None:
    kernel = minrnn_gen.compile({"training": False, **NARROW[name]}, gpu="h200", device="interpret")
    for call in ("in place", "into others"):
        on_pool(kernel, call, is_narrow=True).check(kernel)


# Over time, each with what its layout is.
OVER_TIME: dict[str, dict[str, Any]] = {
    "scan, TBD": {**SPECS["scan"], "layout": "TBD"},
    "vectors, BDT": {**SPECS["vectors"], "layout": "BDT"},
    "dense": SPECS["dense"],
    "projected": SPECS["projected"],
    "projected units": SPECS["projected units"],
    "rounds, reverse": {**SPECS["rounds"], "direction": "reverse"},
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) == ("dense", "packed") else FULL)
        for name, spec in OVER_TIME.items()
        for form in FORMS[1:]
        if form != "packed" or "layout" not in spec
    ],
)
def test_a_call_in_place_is_a_call_on_rows(name: str, form: str) -> None:
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **OVER_TIME[name]}, gpu="h200", device="interpret")
    for call in ("in place", "dropped"):
        on_pool(kernel, call, form=form).check(kernel)


@pytest.mark.parametrize("name", [name if name in ("scan", "dense") else pytest.param(name, marks=FULL) for name in SPECS])
def test_a_slot_that_the_pool_lacks_counts_as_padding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where slots are not read back."""
    monkeypatch.setattr(pool_checks, "check_values", lambda _: None)
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    for slot in (SLOTS, 2**31 - 1, -2, -(2**40)):
        step = on_pool(kernel, "in place")
        step.arrays["slots"][1] = slot
        step.check(kernel)


@pytest.mark.parametrize("name", ["vectors", *(pytest.param(name, marks=FULL) for name in SPECS if name != "vectors")])
def test_kernels_copy_and_clear_slots(name: str) -> None:
    """As a cache on a GPU does: a pair with a slot that does not exist is left out, and all are read before any is written."""
    kernel = minrnn_gen.compile({"precision": "fp32", "training": False, **SPECS[name]}, gpu="h200", device="interpret")
    cache = kernel.cache(4)
    for states in cache.states.values():
        states[...] = (np.arange(4) + 1).reshape(-1, *[1] * (states.ndim - 1))
    beyond = wrap_numpy(np.array([1, 0, 99]), "target")
    call = call_on_slots(wrap_numpy(np.array([0, 1, 2]), "source"), beyond, cache._pool)
    kernel.executor.gpu.move_slots(call, clears=False)
    assert all((states.reshape(4, -1) == [[2], [1], [3], [4]]).all() for states in cache.states.values())
    kernel.executor.gpu.move_slots(call, clears=True)
    assert all((states.reshape(4, -1) == [[0], [0], [3], [4]]).all() for states in cache.states.values())
