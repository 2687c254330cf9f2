"""Calls and drafts of JAX on slots of a pool: as a kernel's, in place where the pool is donated, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.needed import needed
from support.pools import FORMS, on_pool

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import Case, inputs_of

jax = pytest.importorskip("jax")
front = needed("minrnn_gen.jax")

FULL = pytest.mark.matrix_full
SLOTS, READ, INTO = 6, np.array([4, -1, 2], np.int32), np.array([0, 3, -1], np.int32)
SPECS: dict[str, dict[str, Any]] = {
    "scan": {"model": "min_gru", "hidden_size": 4, "precision": "fp32"},
    "dense": {"model": "lstm", "hidden_size": 4, "precision": "fp32"},
}


@pytest.mark.parametrize(
    ("name", "writes"),
    [
        pytest.param(name, writes, marks=() if (name, writes is None) == ("dense", False) else FULL)
        for name in SPECS
        for writes in (None, INTO)
    ],
)
def test_a_step_on_slots_is_that_of_a_kernel(name: str, writes: Any) -> None:
    kernel = minrnn_gen.compile({**SPECS[name], "training": False})
    random = np.random.default_rng(0)
    x = random.standard_normal((3, len(kernel.gates), 4), dtype=np.float32)
    R = random.standard_normal(kernel.interface.R_shape, dtype=np.float32) if kernel.interface.recurrent_gates else None
    pool = {state: random.standard_normal((SLOTS, 4), dtype=np.float32) for state in kernel.states}
    step = jax.jit(
        lambda pool, x, slots: front.step(SPECS[name], x, R, state=pool, slots=slots, into_slots=writes), donate_argnums=0
    )
    donated = {state: jax.numpy.array(values) for state, values in pool.items()}
    y, after = step(donated, x, READ)
    expected, _ = kernel.step(x, R, state=pool, slots=READ, into_slots=writes)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    assert not np.asarray(y[1]).any()
    for state in kernel.states:
        assert donated[state].is_deleted()
        np.testing.assert_allclose(after[state], pool[state], rtol=1e-6, atol=1e-6)


def test_a_pool_that_is_kept_is_copied() -> None:
    pool = {"h": jax.numpy.ones((SLOTS, 4), np.float32)}
    x = jax.numpy.zeros((3, 2, 4), np.float32)
    _, after = front.step(SPECS["scan"], x, state=pool, slots=READ)
    assert (np.asarray(pool["h"]) == 1).all() and (np.asarray(after["h"])[[0, 1, 3, 5]] == 1).all()
    assert (np.asarray(after["h"])[[2, 4]] != 1).all()


OVER_TIME: dict[str, dict[str, Any]] = {
    "scan, TBD": {**SPECS["scan"], "layout": "TBD"},
    "dense": SPECS["dense"],
    "n values": {"model": "gated_linear", "hidden_size": 4, "state_size": 3, "precision": "fp32"},
    "projected units": {"model": "lstm_projected", "hidden_size": 4, "projection_size": 2, "precision": "fp32"},
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) == ("dense", "packed") else FULL)
        for name, spec in OVER_TIME.items()
        for form in FORMS
        if form != "packed" or "layout" not in spec
    ],
)
def test_a_call_on_slots_is_that_of_a_kernel(name: str, form: str) -> None:
    kernel = minrnn_gen.compile({**OVER_TIME[name], "training": False})
    call = on_pool(kernel, "dropped", np.int32, form=form)
    function = functools.partial(front.step if form == "step" else front.recurrence, OVER_TIME[name])
    given = {**call.arrays, "state": {state: values.copy() for state, values in call.arrays["state"].items()}}
    y, after = jax.jit(functools.partial(function, pad_slot=given.pop("pad_slot")))(**given)
    expected, pool = kernel.step(**call.arrays) if form == "step" else kernel(**call.arrays)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    for state, values in pool.items():
        np.testing.assert_allclose(after[state], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name if name == "dense" else pytest.param(name, marks=FULL) for name in OVER_TIME])
def test_drafts_are_those_of_a_kernel(name: str) -> None:
    kernel = minrnn_gen.compile({**OVER_TIME[name], "training": False})
    arrays = {array: value for array, value in inputs_of(kernel.interface, Case(3, 2)).forward.items() if array != "state"}
    slots, lengths = np.array([4, -1, 2], np.int32), np.array([2, 2, 1])
    cache, expected = front.cache(OVER_TIME[name], SLOTS, 2), kernel.cache(SLOTS, 2)
    verify = jax.jit(functools.partial(front.verify_draft, OVER_TIME[name]), donate_argnames="cache")
    for accepted in ([0, 0, 0], [1, 0, 0], [2, 0, 1]):
        rows = {"slots": slots, "accepted": np.array(accepted, np.int32), "lengths": lengths}
        y, cache = verify(**arrays, **rows, cache=cache)
        np.testing.assert_allclose(y, kernel.verify_draft(**arrays, **rows, cache=expected)[0], rtol=1e-5, atol=1e-6)
    cache = front.commit(cache, slots[::2], np.array([1, 1]))
    expected.commit(slots[::2], np.array([1, 1]))
    for state, values in expected.states.items():
        np.testing.assert_allclose(cache["places"][state][:, 0], values, rtol=1e-5, atol=1e-6)


def test_drafts_that_do_not_fit_are_refused() -> None:
    spec, x = SPECS["scan"], np.zeros((3, 2, 2, 4), np.float32)
    cache = front.cache(spec, SLOTS, 1)
    refusals = {
        "x has 2 steps, but a draft of the cache has 1 to 1": lambda: front.verify_draft(spec, x, cache=cache, slots=READ),
        r"cache is a dict; what cache\(spec, slots, draft\)": lambda: front.verify_draft(spec, x, cache={}, slots=READ),
        "draft is 0; a positive integer": lambda: front.cache(spec, SLOTS, 0),
        "a draft needs one direction": lambda: front.cache({**spec, "direction": "bidirectional"}, SLOTS, 1),
        "slots were given with all_states": lambda: front.recurrence(spec, x, state={}, slots=READ, all_states=True),
    }
    for sentence, call in refusals.items():
        with pytest.raises(BadInput, match=sentence):
            call()


def test_what_does_not_fit_is_refused() -> None:
    pool, x = {"h": jax.numpy.zeros((SLOTS, 4), np.float32)}, jax.numpy.zeros((3, 2, 4), np.float32)

    def step(x: Any = x, **changes: Any) -> Any:
        return front.step(SPECS["scan"], x, **{"state": pool, "slots": READ, **changes})

    refusals = {
        "slots has dtype float32; int64 or int32 is expected": lambda: step(slots=jax.numpy.zeros(3, np.float32)),
        r"slots has shape \[2\]; \[3\] is expected": lambda: step(slots=READ[:2]),
        "slots were given, but state lacks 'h'": lambda: step(state=None),
        "asked for under a gradient, which it lacks": lambda: jax.grad(lambda x: step(x)[0].sum())(x),
        "asked for under vmap, which it lacks": lambda: jax.vmap(step)(x[None]),
        "into_slots was given without slots": lambda: step(slots=None, into_slots=READ),
    }
    for sentence, call in refusals.items():
        with pytest.raises(BadInput, match=sentence):
            call()
