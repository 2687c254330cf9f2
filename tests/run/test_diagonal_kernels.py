"""The text of the diagonal kernels, compiled for the host and launched as on a GPU, does what plain loops in float64 do."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.emulated_code import HAS_COMPILER, loading
from support.everyday import one_in
from support.examples import examples
from support.fake_device import as_if_on_a_device
from support.kernel_inputs import LAYOUTS
from support.oracle import STEP_CELLS, assert_within, oracle
from support.reference_loops import backward, forward
from support.sequence_cases import KINDS, X_ORDERS, Y_ORDERS, Case, assert_close, assert_same, cases, kernel_of

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES, Precision, precision_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

MODELS = ("ind_rnn", "entangled", "veiled", "rotating")


def arranged(values: Any, order: tuple[int, ...], gap: int) -> Any:
    """Return `values` with its axes in `order`, and `gap` elements of NaN behind each of the outermost."""
    values = values.transpose(order)
    outer, row = values.shape[0], int(np.prod(values.shape[1:]))
    room = np.full((outer, row + gap), np.nan, values.dtype)
    view = room[:, :row].reshape(values.shape)
    view[...] = values
    return view


def as_stored(case: Case, precision: Precision, poisoned: Any) -> Case:
    """Return the case with its numbers as they are stored, and NaN where `poisoned`, [rows, T]."""
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    given = dict(case.arguments)
    for name, dtype in (("x", storage), ("bias", storage), ("parameters", storage), ("state", carried)):
        given[name] = each(given[name], lambda one, dtype=dtype: one.astype(dtype))
    dy, dfinal = case.dy.astype(storage), each(case.dfinal, lambda one: one.astype(carried))
    exact = {name: each(given[name], lambda one: one.astype(float)) for name in ("x", "bias", "parameters", "state")}
    problem = replace(case.problem, x=exact["x"], bias=exact["bias"], parameters=exact["parameters"], initial=exact["state"])
    given["x"] = np.where(poisoned[..., None, None], storage.type(np.nan), given["x"])
    return Case(problem, given, np.where(poisoned[..., None], storage.type(np.nan), dy), dfinal)


def each(tree: Any, change: Callable[[Any], Any]) -> Any:
    return {name: change(one) for name, one in tree.items()} if isinstance(tree, dict) else change(tree)


def check(kernel: Kernel, load: Any, case: Case, without: set[str], gap: int, keeps: bool, hold: Callable[..., None]) -> None:
    """Run forward and backward as on a GPU, and `hold(found, expected, what)` each result against plain loops."""
    layout, problem, arguments = kernel.spec.layout, case.problem, dict(case.arguments)
    problem = replace(problem, reverse=kernel.spec.direction == "reverse")
    if "state" in without:
        problem = replace(problem, initial=each(problem.initial, np.zeros_like))
    if "bias" in without:
        problem = replace(problem, bias=np.zeros_like(problem.bias))
    for name in without:
        del arguments[name]
    outside = np.ones(problem.resets.shape, bool)
    for row, begin, end in problem.sequences:
        outside[row, begin:end] = False
    dy, exact_dy = case.dy, np.where(outside[..., None], 0, case.dy.astype(float))
    expected = forward(problem)
    gradients = backward(problem, expected, exact_dy, each(case.dfinal, lambda one: one.astype(float)))
    arguments["x"] = arranged(arguments["x"], X_ORDERS[layout], gap)
    with as_if_on_a_device(kernel, load):
        y, state, saved = kernel.forward(**arguments, all_states=keeps)
        found = kernel.backward(saved, arranged(dy, Y_ORDERS[layout], 0), case.dfinal)
    hold(y, expected.y.transpose(Y_ORDERS[layout]), "y")
    hold(state, each(expected.states, lambda one: one.transpose(Y_ORDERS[layout])) if keeps else expected.final, "state")
    hold(found["x"], gradients["x"].transpose(X_ORDERS[layout]), "dx")
    for name in ("bias", "state", "parameters"):
        if name in arguments and len(arguments[name]):
            hold(found[name], gradients[name], name)


# A thread that takes all of time, and time divided among blocks.
SERIAL = {"threads": 32, "stages": 2}
DIVIDED = SERIAL | {"threads": 64, "segments": 4}
# (layout, direction, hidden size, variables of the kernels, lengths around their tiles); in fp64 16 bytes are two values.
WAYS: tuple[tuple[str, str, int, dict[str, int], tuple[int, ...]], ...] = (
    ("BTD", "forward", 3, {"threads": 32, "channels_per_lane": 1, "stages": 4}, (0, 1, 2, 3, 4, 5, 8, 9)),
    ("BTD", "reverse", 70, {"threads": 32, "channels_per_lane": 2, "stages": 2}, (0, 1, 2, 3, 5)),
    ("TBD", "reverse", 4, {"threads": 64, "channels_per_lane": 2, "stages": 1}, (0, 1, 2, 3)),
    ("TBD", "forward", 3, {}, (1, 63, 64, 65, 129)),
    ("BDT", "forward", 3, {"threads": 32, "stages": 4}, (0, 1, 2, 4, 6, 7, 8, 9)),
    ("BDT", "reverse", 40, {"threads": 32, "stages": 4}, (0, 1, 3, 4, 5, 6, 10)),
    # Time divided among blocks and their segments, of fewer tiles than there are segments, and of more.
    ("BTD", "forward", 5, {"threads": 64, "stages": 2, "segments": 8}, (0, 1, 7, 95, 97, 193)),
    ("TBD", "reverse", 40, {"threads": 64, "channels_per_lane": 2, "stages": 2, "segments": 4}, (0, 2, 31, 49, 130)),
    ("BDT", "reverse", 3, {"threads": 64, "stages": 4, "segments": 32}, (0, 1, 100, 800)),
)


# Every day one direction of each layout.
@pytest.mark.parametrize(
    ("layout", "direction", "hidden", "variables", "times"),
    [pytest.param(*way, marks=() if number in (0, 2, 5) else pytest.mark.matrix_full) for number, way in enumerate(WAYS)],
)
@settings(max_examples=examples(6))  # most bring kernels of their own, which take longer to compile than to run
@given(data=st.data(), without=st.sets(st.sampled_from(("bias", "state"))), gap=st.integers(0, 1), keeps=st.booleans())
def test_kernels_do_what_plain_loops_do(
    layout: str,
    direction: str,
    hidden: int,
    variables: dict[str, int],
    times: tuple[int, ...],
    folder: Path,
    data: st.DataObject,
    without: set[str],
    gap: int,
    keeps: bool,
) -> None:
    """With NaN in all that no sequence reaches."""
    kinds = tuple(kind for kind in KINDS if layout == "BTD" or "packed" not in kind)
    model, drawn = data.draw(cases(MODELS, kinds, times, hidden))
    rows, time = drawn.problem.resets.shape
    lengths = drawn.arguments.get("lengths", np.full(rows, time))
    case = as_stored(drawn, precision_of("fp64"), np.arange(time) >= lengths[:, None])
    kernel = kernel_of(model, direction, layout, hidden_size=hidden)
    check(kernel, loaded(kernel, folder, *variables.items()), case, without, gap, keeps, assert_close)


@functools.cache
def loaded(kernel: Kernel, folder: Path, *variables: tuple[str, int]) -> Any:
    return loading(kernel.builder, folder, **dict(variables))


# Relative error of a whole array. In 16 bits the states before each step are read back rounded, and dx is rounded once more.
TOLERANCE = {"fp64": 2.0**-44, "fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}


def holding(precision: str) -> Callable[..., None]:
    def hold(found: Any, expected: Any, what: str) -> None:
        if isinstance(expected, dict):
            assert set(found) == set(expected), what
            for name, one in expected.items():
                hold(found[name], one, f"{what} {name}")
            return
        error = np.linalg.norm(found.astype(float) - expected) / max(float(np.linalg.norm(expected)), 1e-30)
        assert error <= TOLERANCE[precision], (what, error)

    return hold


def drawn_once(model: str, kind: str, time: int, hidden: int, precision: str) -> Case:
    """Return a case that is the same in every run."""
    found: list[Case] = []

    @settings(max_examples=1, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(cases((model,), (kind,), (time,), hidden).filter(lambda drawn: len(drawn[1].arguments["x"]) == 3))
    def draw(drawn: tuple[str, Case]) -> None:
        found.append(drawn[1])

    draw()
    lengths = found[0].arguments.get("lengths", np.full(3, time))
    return as_stored(found[0], precision_of(precision), np.arange(time) >= lengths[:, None])


# In turn: aligned rows of several vectors and rows that start anywhere; every cell in every precision, and each day two of
# the cells in each layout, in every second precision.
@pytest.mark.parametrize(
    ("precision", "layout", "direction", "hidden", "time", "turn"),
    [
        pytest.param(precision, *shape, turn, marks=() if everyday and (p + number) % 4 == 0 else pytest.mark.matrix_full)
        for p, precision in enumerate(PRECISION_NAMES)
        for number, shape in enumerate((("BTD", "reverse", 40, 67), ("TBD", "forward", 33, 70), ("BDT", "reverse", 5, 72)))
        for turn, everyday in ((number % 2, True), (1 - number % 2, False))
    ],
)
def test_every_precision(precision: str, layout: str, direction: str, hidden: int, time: int, turn: int, folder: Path) -> None:
    for model, keeps in ((MODELS[2 * turn], False), (MODELS[2 * turn + 1], True)):
        case = drawn_once(model, "lengths and resets", time, hidden, precision)
        kernel = kernel_of(model, direction, layout, precision, hidden_size=hidden)
        check(kernel, loaded(kernel, folder), case, set(), 0, keeps, holding(precision))


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        pytest.param(model, precision, marks=() if (m + p) % 2 == 0 else pytest.mark.matrix_full)
        for (m, model), (p, precision) in itertools.product(enumerate(STEP_CELLS), enumerate(PRECISION_NAMES))
    ],
)
def test_within_the_bound_of_the_oracle(model: str, precision: str, folder: Path) -> None:
    """Element by element; the oracle has equations of its own."""
    kernel = kernel_of(model, precision=precision, hidden_size=40)
    arguments = dict(drawn_once(model, "none", 130, 40, precision).arguments)
    del arguments["bias"]
    # Below 1, so that no state of ind_rnn grows without bound.
    arguments["parameters"] = {name: np.tanh(one) for name, one in arguments["parameters"].items()}
    gates = arguments["x"].astype(float).transpose(2, 1, 0, 3)
    expected = oracle(
        np,
        model,
        dict(zip(kernel.gates, gates, strict=True)),
        arguments["state"],
        arguments["parameters"],
        precision_of(precision),
    )
    with as_if_on_a_device(kernel, loaded(kernel, folder)):
        y, state = kernel(**arguments)
    assert_within(expected.y, expected.y_bound, y.transpose(1, 0, 2))
    for name in kernel.states:
        assert_within(expected.states[name], expected.state_bounds[name], state[name])


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        pytest.param(model, precision, marks=() if (m + p) % 4 == 0 else pytest.mark.matrix_full)
        for (m, model), (p, precision) in itertools.product(enumerate(MODELS), enumerate(PRECISION_NAMES))
    ],
)
def test_a_step_is_a_sequence_of_one(model: str, precision: str, folder: Path) -> None:
    kernel = kernel_of(model, precision=precision)
    load = loaded(kernel, folder)
    arguments = dict(drawn_once(model, "none", 1, 3, precision).arguments)
    with as_if_on_a_device(kernel, load):
        y, state = kernel(**arguments)
        x = arguments.pop("x")
        y_of_step, state_of_step = kernel.step(x[:, 0], **arguments)
    assert_same(y_of_step, y[:, 0])
    assert_same(state_of_step, state)


@pytest.mark.parametrize(
    ("direction", "layout"), one_in(2, [(direction, layout) for direction in ("reverse", "forward") for layout in LAYOUTS])
)
def test_nan_does_not_pass_a_reset_or_a_neighbour(layout: str, direction: str, folder: Path) -> None:
    """A tile is one channel of one sequence where no reset separates it."""
    kernel = kernel_of("veiled", direction, layout, hidden_size=6)
    load = loaded(kernel, folder, *(SERIAL if direction == "forward" else DIVIDED).items())
    case = drawn_once("veiled", "lengths and resets", 12, 6, "fp64")
    resets, lengths = np.zeros((3, 12), bool), np.full(3, 12)
    resets[:, [4, 7]] = True
    touched = np.zeros((3, 12, 6), bool)
    touched[1, slice(4, 7) if direction == "forward" else slice(5, 8), 2] = True
    results = []
    for poison in (0.5, np.nan):
        x = case.arguments["x"].copy()
        x[:] = np.nan_to_num(x)
        x[1, 5 if direction == "forward" else 6, :, 2] = poison
        arguments = case.arguments | {"x": x.transpose(X_ORDERS[layout]).copy(), "resets": resets, "lengths": lengths}
        with as_if_on_a_device(kernel, load):
            y, state, saved = kernel.forward(**arguments)
            found = kernel.backward(saved, np.ones_like(y), case.dfinal)
        y, dx = (one.transpose(np.argsort(orders[layout])) for one, orders in ((y, Y_ORDERS), (found["x"], X_ORDERS)))
        results.append((y[~touched], dx.transpose(0, 1, 3, 2)[~touched], state["m"], found["state"]["m"]))
    for one, other in zip(*results, strict=True):
        assert np.isfinite(one).all() and np.array_equal(one, other)
