"""Drafted steps on a cache in host memory: taken back as if they had never been, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.drafts import check_drafts

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

FULL = pytest.mark.matrix_full
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 8, "layout": "TBD"},
    {"model": "lstm", "hidden_size": 8, "heads": 2, "precision": "fp64"},
    {"model": "selective", "hidden_size": 4, "state_size": 3, "precision": "bf16", "layout": "BDT"},
    {"model": "min_lstm", "hidden_size": 4, "input_size": 3},
)


def kernel_of(spec: dict[str, Any]) -> Kernel:
    return minrnn_gen.compile({"precision": "fp32", "training": False, **spec}, gpu="h200")


# Every day native code of a dense cell, and NumPy with n values.
@pytest.mark.parametrize(
    ("spec", "is_native"),
    [
        pytest.param(spec, is_native, marks=() if (spec, is_native) in ((SPECS[1], True), (SPECS[2], False)) else FULL)
        for spec in SPECS
        for is_native in (True, False)
    ],
    ids=str,
)
def test_drafts_are_single_steps_whatever_is_kept(spec: dict[str, Any], is_native: bool) -> None:
    kernel = kernel_of(spec)
    if not is_native:
        kernel.executor.cpu.native.kernels.__dict__["forward"] = None
    check_drafts(kernel)
    check_drafts(kernel, has_lengths=True, dtype="bfloat16" if spec.get("precision") == "bf16" else None)


def test_a_copy_begins_where_a_draft_does_and_ends_it() -> None:
    kernel = kernel_of(SPECS[0])
    cache, x = kernel.cache(4, 2), np.random.default_rng(0).standard_normal((2, 1, 2, 8), dtype=np.float32)
    kernel.verify_draft(x, cache=cache, slots=np.array([1]))
    kernel.verify_draft(x, cache=cache, slots=np.array([1]), accepted=np.array([1]))
    one = kernel.step(x[0])[1]["h"]
    cache.copy([1, 3], [2, 0])
    assert np.array_equal(cache.states["h"][[0, 2, 3]], np.concatenate([0 * one, one, 0 * one]))
    cache.commit([1, 2], np.array([0, 0]))
    assert np.array_equal(cache.states["h"][1], one[0])
    cache.clear(1)
    y, _ = kernel.verify_draft(x, cache=cache, slots=np.array([1]), accepted=np.array([0]))
    assert np.array_equal(y[0], one)


X, SLOT = np.zeros((2, 1, 2, 8), np.float32), np.array([1])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "many": ({"accepted": np.array([3])}, r"accepted\[0\] is 3, but the last draft of slot 1 has 2 steps; 0 to 2 is expected"),
    "negative": ({"accepted": np.array([-1])}, r"accepted\[0\] is -1, but the last draft"),
    "none yet": ({"accepted": np.array([1]), "slots": np.array([0])}, "slot 0 has 0 steps"),
    "float": ({"accepted": np.array([1.0])}, "accepted has dtype float64; int64 or int32 is expected"),
    "short": ({"accepted": np.array([1, 1])}, r"accepted has shape \[2\]; \[1\] is expected"),
    "beyond": ({"slots": np.array([4])}, r"slots\[0\] is 4; a slot of the pool, 0 to 3, or pad_slot, -1"),
    "long": ({"x": np.zeros((3, 1, 2, 8), np.float32)}, "x has 3 steps, but a draft of the cache has 2 at most"),
    "state": ({"state": {"h": np.zeros((1, 8), np.float32)}}, "state was given with a cache; sequences start from"),
    "no cache": ({"cache": {}}, r"cache is a dict; what cache\(slots, draft\) of this kernel returns is expected"),
    "no draft": ({"cache": 0}, r"cache is a Cache; what cache\(slots, draft\) of this kernel returns is expected"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_drafts_that_do_not_fit_are_refused_in_a_sentence(wrong: str) -> None:
    kernel, (changes, expected) = kernel_of(SPECS[0]), WRONG[wrong]
    cache = kernel.cache(4, 2)
    kernel.verify_draft(X, cache=cache, slots=SLOT)
    arrays = {"x": X, "cache": cache, "slots": SLOT, **changes}
    if arrays["cache"] == 0:
        arrays["cache"] = kernel.cache(4)
    with pytest.raises(BadInput, match=expected) as refused:
        kernel.verify_draft(**arrays)
    assert "\n" not in str(refused.value)
    kernel.verify_draft(X, cache=cache, slots=SLOT, accepted=np.array([2]))  # the draft is still there


def test_what_has_no_drafts_says_so() -> None:
    kernel = kernel_of(SPECS[0])
    with pytest.raises(BadInput, match="commit ends a draft, but the cache has none"):
        kernel.cache(2).commit(0)
    both = minrnn_gen.compile({"model": "min_gru", "hidden_size": 8, "precision": "fp32", "direction": "bidirectional"})
    with pytest.raises(BadInput, match="a draft needs one direction, but the spec is bidirectional"):
        both.verify_draft(X, cache=kernel.cache(2, 2), slots=SLOT)
    backwards = kernel_of({**SPECS[0], "direction": "reverse"})
    with pytest.raises(BadInput, match="lengths were given for a draft, but the spec is reverse"):
        backwards.verify_draft(X, cache=backwards.cache(2, 2), slots=SLOT, lengths=np.array([1]))
