"""Calls with sequences, drawn: what they are as arguments and as a problem for plain loops, and how results are compared."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.oracle import CELLS
from support.reference_loops import DIAGONAL_CELLS, TWO_STATES, Problem, cell_named
from support.uncompiled_kernels import compiled_for_host

# Cells that are not built in, by name.
INLINE = {one["name"]: one for one in (TWO_STATES, *DIAGONAL_CELLS)}
MODELS = (*(name for name in CELLS if name != "raw"), "two_states")
DENSE_MODELS = ("elman", "lstm", "gru", "slstm")
# Those that are no scan.
STEP_MODELS = (*DENSE_MODELS, "ind_rnn", *(one["name"] for one in DIAGONAL_CELLS))
HIDDEN = 3
HEADS = {"elman": 3}  # else 1
# From BTD to each layout: x with and without the axis of directions, and y.
X_ORDERS = {"BTD": (0, 1, 2, 3), "TBD": (1, 0, 2, 3), "BDT": (0, 2, 3, 1)}
X_ORDERS_OF_BOTH = {"BTD": (0, 1, 2, 3, 4), "TBD": (1, 0, 2, 3, 4), "BDT": (0, 2, 3, 4, 1)}
Y_ORDERS = {"BTD": (0, 1, 2), "TBD": (1, 0, 2), "BDT": (0, 2, 1)}
# What sequences a call has.
KINDS = ("none", "resets", "lengths", "lengths and resets", "packed", "packed and resets")

seeds = st.integers(0, 2**32 - 1)
Arguments = dict[str, Any]


@functools.cache
def kernel_of(model: str, direction: str = "forward", layout: str = "BTD", precision: str = "fp64", **more: Any) -> Any:
    """Return the kernel of a model of `MODELS` or `STEP_MODELS`, for host arrays; the same for the same."""
    spec = {"hidden_size": HIDDEN, "precision": precision, "direction": direction, "layout": layout, **more}
    if model in DENSE_MODELS:
        spec |= {"recurrent_bias": True, "heads": HEADS.get(model, 1)}
    return compiled_for_host({"model": INLINE.get(model, model), **spec})


@dataclass(frozen=True)
class Case:
    """A call of one direction as a problem and as arguments, and the gradients that its backward starts from."""

    problem: Problem
    arguments: Arguments
    dy: Any
    dfinal: dict[str, Any]


@st.composite
def cases(
    draw: st.DrawFn,
    models: tuple[str, ...] = MODELS,
    kinds: tuple[str, ...] = KINDS,
    times: tuple[int, ...] = (0, 1, 2, 7),
    hidden: int = HIDDEN,
) -> tuple[str, Case]:
    model, kind, seed = draw(st.sampled_from(models)), draw(st.sampled_from(kinds)), draw(seeds)
    time = draw(st.sampled_from(times))
    random, cell = np.random.default_rng(seed), cell_named(INLINE.get(model, model))
    rows = 1 if "packed" in kind else draw(st.integers(0, 3))
    arguments: Arguments = {"x": random.normal(size=(rows, time, len(cell.gates), hidden))}
    sequences = [(row, 0, time) for row in range(rows)]
    if "packed" in kind:
        # Some of them empty.
        ends = sorted(draw(st.lists(st.integers(0, time), max_size=4)))
        arguments["cu_seqlens"] = np.array([0, *ends, time], draw(st.sampled_from(("int32", "int64"))))
        sequences = [(0, begin, end) for begin, end in pairwise([0, *ends, time])]
    if "lengths" in kind:
        lengths = draw(st.lists(st.sampled_from((0, min(1, time), time // 2, time)), min_size=rows, max_size=rows))
        arguments["lengths"] = np.array(lengths, draw(st.sampled_from(("int32", "int64"))))
        sequences = [(row, 0, length) for row, length in enumerate(lengths)]
    resets = np.zeros((rows, time), bool)
    if "resets" in kind:
        share = draw(st.sampled_from((0.0, 0.3, 1.0)))
        resets = random.random((rows, time)) < share
        resets[:, :1] |= draw(st.booleans())
        resets[:, -1:] |= draw(st.booleans())
        arguments["resets"] = resets
    arguments["bias"] = random.normal(size=(len(cell.gates), hidden))
    arguments["parameters"] = {name: random.normal(size=hidden) for name in cell.parameters}
    arguments["state"] = {name: random.normal(size=(len(sequences), hidden)) for name in cell.states}
    if model in DENSE_MODELS:
        shape = (len(cell.recurrent_gates), HEADS.get(model, 1), hidden // HEADS.get(model, 1))
        arguments["R"], arguments["recurrent_bias"] = random.normal(size=(*shape, shape[2])), random.normal(size=shape)
    problem = Problem(
        cell,
        *(arguments[name] for name in ("x", "bias", "parameters", "state")),
        resets,
        sequences,
        reverse=False,
        R=arguments.get("R"),
        recurrent_bias=arguments.get("recurrent_bias"),
    )
    dfinal = {name: random.normal(size=(len(sequences), hidden)) for name in cell.states}
    return model, Case(problem, arguments, random.normal(size=(rows, time, hidden)), dfinal)


def assert_close(found: Any, expected: Any, what: str = "") -> None:
    """In float64, for sums and products of a few numbers of size 1; dicts name by name."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), what
        for name, one in expected.items():
            assert_close(found[name], one, f"{what} {name}")
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11, err_msg=what)


def assert_same(found: Any, expected: Any, what: str = "") -> None:
    """Bit by bit."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), what
        for name, one in expected.items():
            assert_same(found[name], one, f"{what} {name}")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)
