"""Calls on pools of states in host memory, and what is said of slots and pools that do not fit."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from support.pools import CALLS, FORMS, SLOTS, on_pool

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 8},
    {"model": "lstm", "hidden_size": 8, "heads": 2, "precision": "fp64"},
    {"model": "selective", "hidden_size": 4, "state_size": 3, "precision": "bf16"},
    {"model": "lstm_projected", "hidden_size": 8, "projection_size": 4},
)


def kernel_of(spec: dict[str, Any]) -> Kernel:
    return minrnn_gen.compile({"precision": "fp32", "training": False, **spec}, gpu="h200")


# Every day native code of a dense cell, and NumPy.
@pytest.mark.parametrize(
    ("spec", "is_native"),
    [
        pytest.param(spec, is_native, marks=() if is_native == (spec is SPECS[1]) else pytest.mark.matrix_full)
        for spec in SPECS
        for is_native in (True, False)
    ],
    ids=str,
)
def test_a_call_in_place_is_a_call_on_rows(spec: dict[str, Any], is_native: bool) -> None:
    kernel = kernel_of(spec)
    if not is_native:
        kernel.executor.cpu.native.kernels.__dict__["forward"] = None
    for number, (call, form) in enumerate(itertools.product(CALLS, FORMS)):
        is_narrow = number % 2 == 0
        on_pool(kernel, call, (np.int32, np.int64)[number % 2], 1 + number % 3, form, is_narrow).check(kernel)


LIVE = [3, 1, 0, 2, 4]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "beyond": (
        {"slots": [3, 1, SLOTS, 2, 4]},
        r"slots\[2\] is 9; a slot of the pool, 0 to 8, or pad_slot, -1",
    ),
    "negative": ({"slots": [3, -2, 0, 2, 4]}, r"slots\[1\] is -2; a slot of the pool"),
    "twice": ({"slots": [3, 1, 3, 2, 4]}, r"slots\[2\] is 3, which sequence 0 writes too"),
    "read by another": ({"into_slots": [5, 6, 7, 8, 1]}, r"into_slots\[4\] is 1, which sequence 1 reads too"),
    "float": ({"slots": np.zeros(5, np.float32)}, "slots has dtype float32; int64 or int32 is expected"),
    "short": ({"slots": [0, 1]}, r"slots has shape \[2\]; \[5\] is expected"),
    "alone": ({"slots": None, "into_slots": LIVE}, "into_slots was given without slots"),
    "pad": ({"pad_slot": True}, "pad_slot is (a bool|bool|True); a whole number is expected"),
    "no pool": ({"state": None}, "slots were given, but state lacks 'h'; give the pool, all of h"),
    "rows": ({"state": {"h": np.zeros((SLOTS, 7), np.float32)}}, r"state\['h'\] has shape \[9, 7\]; \[9, 8\] is expected"),
    "dtype": ({"state": {"h": np.zeros((SLOTS, 8), np.float16)}}, r"state\['h'\] has dtype float16; float32 is expected"),
    "gaps": (
        {"state": {"h": np.zeros((SLOTS, 16), np.float32)[:, ::2]}},
        r"needs \[1\], and slots have to be at least 8",
    ),
    "overlap": (
        {"state": {"h": np.lib.stride_tricks.as_strided(np.zeros(80, np.float32), (SLOTS, 8), (16, 4))}},
        "slots have to be at least 8 elements apart",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_slots_and_pools_that_do_not_fit_are_refused_in_a_sentence(wrong: str) -> None:
    kernel, (changes, expected) = kernel_of(SPECS[0]), WRONG[wrong]
    pool = np.zeros((SLOTS, 8), np.float32)
    arrays: dict[str, Any] = {"state": {"h": pool}, "slots": LIVE, **changes}
    for name in ("slots", "into_slots"):
        if isinstance(arrays.get(name), list):
            arrays[name] = np.array(arrays[name])
    with pytest.raises(BadInput, match=expected) as refused:
        kernel.step(np.zeros((5, 2, 8), np.float32), **arrays)
    assert "\n" not in str(refused.value) and not re.search(r"\.\s", str(refused.value))
    assert not pool.any()


def test_a_cache_begins_with_zeros_and_copies_and_clears_slots() -> None:
    kernel = kernel_of(SPECS[1])
    cache = kernel.cache(4)
    assert cache.slots == 4 and not any(states.any() for states in cache.states.values())
    for states in cache.states.values():
        states[...] = np.arange(4)[:, None] + 1
    cache.copy([0, 1], np.array([1, 0], np.int32))
    cache.copy(2, 3)
    cache.clear([2])
    assert all((states[:, 0] == [2, 1, 0, 3]).all() for states in cache.states.values())


CACHES: dict[str, tuple[Any, str]] = {
    "beyond": (lambda cache: cache.copy(0, 4), r"target\[0\] is 4; a slot of the pool, 0 to 3, is expected"),
    "twice": (lambda cache: cache.copy([0, 1], [2, 2]), "target has slot 2 2 times; each slot is written once at most"),
    "many": (lambda cache: cache.copy([0, 1], [2]), r"target has shape \[1\]; \[2\] is expected"),
    "negative": (lambda cache: cache.clear(-1), r"slots\[0\] is -1; a slot of the pool"),
    "none": (lambda cache: cache.clear(None), "slots is a NoneType; a slot, or int32 or int64"),
}


@pytest.mark.parametrize("wrong", CACHES)
def test_slots_that_a_cache_lacks_are_refused(wrong: str) -> None:
    call, sentence = CACHES[wrong]
    with pytest.raises(BadInput, match=sentence):
        call(kernel_of(SPECS[0]).cache(4))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"slots": 0}, "slots is 0; a positive integer is expected"),
        ({"slots": 2, "draft": True}, "draft is true; the steps of the longest draft, 0 for none, are expected"),
        ({"slots": 2, "dtype": "bfloat16"}, "dtype is 'bfloat16'; float32 is expected"),
    ],
)
def test_caches_that_there_are_none_of_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        kernel_of(SPECS[0]).cache(**options)
