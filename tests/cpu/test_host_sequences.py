"""Sequences and directions on the host: against plain loops, against each other, and with NaN where it must not matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernel_inputs import LAYOUTS
from support.reference_loops import backward, forward, segments
from support.sequence_cases import (
    HIDDEN,
    MODELS,
    STEP_MODELS,
    X_ORDERS,
    X_ORDERS_OF_BOTH,
    Y_ORDERS,
    Arguments,
    Case,
    assert_close,
    assert_same,
    cases,
    kernel_of,
)

from minrnn_gen.cpu import call as host_call
from minrnn_gen.precision import PRECISION_NAMES, precision_of

ALL_MODELS = (*MODELS, *STEP_MODELS)
# Arrays of dense cells.
RECURRENT = ("R", "recurrent_bias")


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@settings(max_examples=examples(100))
@given(drawn=cases(ALL_MODELS), block=st.sampled_from((1, 10, 1 << 20)))
def test_agrees_with_plain_loops(direction: str, drawn: tuple[str, Case], block: int) -> None:
    model, case = drawn
    kernel, problem = kernel_of(model, direction), replace(case.problem, reverse=direction == "reverse")
    expected = forward(problem)
    gradients = backward(problem, expected, case.dy, case.dfinal)
    if not problem.cell.parameters:
        del gradients["parameters"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_call, "BLOCK_ELEMENTS", block)
        y, final, saved = kernel.forward(**case.arguments)
        assert_close(y, expected.y, "y")
        assert_close(final, expected.final, "state")
        assert_close(kernel.backward(saved, case.dy, case.dfinal), gradients)
        y_again, states, saved = kernel.forward(**case.arguments, all_states=True)
        assert_same(y_again, y)
        assert_close(states, expected.states, "all states")
        assert_close(kernel.backward(saved, case.dy, case.dfinal), gradients)
        assert_same(kernel(**case.arguments), (y, final))
        assert_same(kernel(**case.arguments, all_states=True)[1], states)
        for given_states, reference in ((final, False), (states, True)):
            y_reference, state_reference = kernel.reference(**case.arguments, all_states=reference)
            assert_close(y_reference, expected.y)
            assert_close(state_reference, given_states)


@settings(max_examples=examples(100))
@given(drawn=cases(ALL_MODELS), at=st.floats(0, 1, exclude_max=True), direction=st.sampled_from(("forward", "reverse")))
def test_nan_stays_between_cuts(drawn: tuple[str, Case], at: float, direction: str) -> None:
    """A NaN touches nothing before the reset that it follows, behind the next one, or in another sequence."""
    model, case = drawn
    kernel, problem = kernel_of(model, direction), replace(case.problem, reverse=direction == "reverse")
    between = list(segments(problem))
    if not between:
        return
    chosen = int(at * len(between))
    row, t = between[chosen][len(between[chosen]) // 2]
    poisoned = case.arguments | {"x": case.arguments["x"].copy()}
    poisoned["x"][row, t] = np.nan
    y, final, saved = kernel.forward(**case.arguments)
    y_poisoned, final_poisoned, saved_poisoned = kernel.forward(**poisoned)
    gradients = kernel.backward(saved, case.dy, case.dfinal)
    gradients_poisoned = kernel.backward(saved_poisoned, case.dy, case.dfinal)
    elsewhere = np.zeros(y.shape[:2], bool)
    for other, segment in enumerate(between):
        for place in segment:
            elsewhere[place] = other != chosen
    assert np.isnan(y_poisoned[row, t]).any()
    assert_same(y_poisoned[elsewhere], y[elsewhere])
    assert_same(gradients_poisoned["x"][elsewhere], gradients["x"][elsewhere])
    sequence = next(index for index in range(len(problem.sequences)) if (row, t) in problem.steps(index))
    whole = [problem.steps(index) for index in range(len(problem.sequences))]
    for index, steps in enumerate(whole):
        is_touched = [index == sequence and place in between[chosen] for place in steps]
        for name in problem.cell.states:
            if not (is_touched and is_touched[-1]):
                assert_same(final_poisoned[name][index], final[name][index])
            if not (is_touched and is_touched[0]):
                assert_same(gradients_poisoned["state"][name][index], gradients["state"][name][index])


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@settings(max_examples=examples(20))
@given(drawn=cases(ALL_MODELS, kinds=("lengths", "lengths and resets")))
def test_what_lies_beyond_a_length_does_not_matter(direction: str, drawn: tuple[str, Case]) -> None:
    model, case = drawn
    kernel, lengths = kernel_of(model, direction), case.arguments["lengths"]
    beyond = np.arange(case.dy.shape[1]) >= lengths[:, None]
    poisoned, dy = case.arguments | {"x": case.arguments["x"].copy()}, case.dy.copy()
    poisoned["x"][beyond], dy[beyond] = np.nan, np.nan
    y, final, saved = kernel.forward(**case.arguments)
    y_poisoned, final_poisoned, saved_poisoned = kernel.forward(**poisoned)
    assert_same((y_poisoned, final_poisoned), (y, final))
    gradients = kernel.backward(saved, case.dy, case.dfinal)
    assert_same(kernel.backward(saved_poisoned, dy, case.dfinal), gradients)
    assert not y[beyond].any() and not gradients["x"][beyond].any()
    for name, one in final.items():
        assert_same(one[lengths == 0], case.arguments["state"][name][lengths == 0])
        assert_same(gradients["state"][name][lengths == 0], case.dfinal[name][lengths == 0])


@settings(max_examples=examples(20))
@given(drawn=cases(ALL_MODELS, kinds=("none", "resets")))
def test_reverse_is_the_forward_of_what_is_turned(drawn: tuple[str, Case]) -> None:
    model, case = drawn
    turned = case.arguments | {name: case.arguments[name][:, ::-1] for name in ("x", "resets") if name in case.arguments}
    y, final, saved = kernel_of(model, "reverse").forward(**case.arguments)
    y_turned, final_turned, saved_turned = kernel_of(model).forward(**turned)
    assert_same((y, final), (y_turned[:, ::-1], final_turned))
    gradients = kernel_of(model, "reverse").backward(saved, case.dy, case.dfinal)
    dy = np.ascontiguousarray(case.dy[:, ::-1])
    expected = kernel_of(model).backward(saved_turned, dy, case.dfinal)
    assert_same(gradients, expected | {"x": expected["x"][:, ::-1]})


@settings(max_examples=examples(20))
@given(drawn=cases(("min_gru", "rg_lru", "two_states", "lstm", "elman")), flat_bias=st.booleans(), keeps=st.booleans())
def test_bidirectional_is_two_runs(drawn: tuple[str, Case], flat_bias: bool, keeps: bool) -> None:
    model, case = drawn
    runs = [kernel_of(model, direction) for direction in ("forward", "reverse")]
    # The second run has arrays of its own.
    both = [case.arguments, case.arguments | {"x": -case.arguments["x"], "bias": 2 * case.arguments["bias"]}]
    for name in ("parameters", "state"):
        both[1] = both[1] | {name: {key: one - 1 for key, one in case.arguments[name].items()}}
    both[1] = both[1] | {name: 1 - both[0][name] for name in RECURRENT if name in both[0]}
    incoming = [(case.dy, case.dfinal), (case.dy + 1, {name: 3 * one for name, one in case.dfinal.items()})]
    found = [kernel.forward(**given, all_states=keeps) for kernel, given in zip(runs, both, strict=True)]
    expected = [kernel.backward(saved, *gradient) for kernel, (*_, saved), gradient in zip(runs, found, incoming, strict=True)]

    def stacked(*named: dict[str, Any]) -> dict[str, Any]:
        return {name: np.stack([one[name] for one in named]) for name in named[0]}

    joined = dict(both[0])
    joined["x"] = np.stack([one["x"] for one in both], 2)
    vectors = [name for name in ("bias", *RECURRENT) if name in joined]
    joined |= {name: np.stack([one[name] for one in both]) for name in vectors}
    joined["parameters"], joined["state"] = (stacked(*(one[name] for one in both)) for name in ("parameters", "state"))
    if flat_bias:
        joined["bias"] = joined["bias"].reshape(-1)
    kernel = kernel_of(model, "bidirectional")
    y, state, saved = kernel.forward(**joined, all_states=keeps)
    assert_same(y, np.concatenate([found[0][0], found[1][0]], -1))
    if keeps:
        assert_same(state, {name: np.concatenate([found[0][1][name], found[1][1][name]], -1) for name in state})
    else:
        assert_same(state, stacked(found[0][1], found[1][1]))
    dy = np.concatenate([incoming[0][0], incoming[1][0]], -1)
    gradients = kernel.backward(saved, dy, stacked(incoming[0][1], incoming[1][1]))
    assert_same(gradients["x"], np.stack([one["x"] for one in expected], 2))
    for name in vectors:
        assert_same(gradients[name], np.stack([one[name] for one in expected]).reshape(joined[name].shape))
    assert_same(gradients["state"], stacked(*(one["state"] for one in expected)))
    assert ("parameters" in gradients) == bool(kernel.parameters)
    if kernel.parameters:
        assert_same(gradients["parameters"], stacked(*(one["parameters"] for one in expected)))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "BTD"])
@settings(max_examples=examples(15))
@given(drawn=cases(("min_gru", "gru"), ("none", "lengths and resets")))
def test_layouts_are_the_same_numbers(layout: str, direction: str, drawn: tuple[str, Case]) -> None:
    model, case = drawn
    arguments, dy, dfinal = case.arguments, case.dy, case.dfinal
    order = X_ORDERS[layout]
    if direction == "bidirectional":
        order = X_ORDERS_OF_BOTH[layout]
        arguments = arguments | {"x": np.stack([arguments["x"], -arguments["x"]], 2), "bias": None}
        arguments["state"] = {name: np.stack([one, -one]) for name, one in arguments["state"].items()}
        arguments |= {name: np.stack([arguments[name], -arguments[name]]) for name in RECURRENT if name in arguments}
        dy, dfinal = np.concatenate([dy, -dy], -1), {name: np.stack([one, one]) for name, one in dfinal.items()}
    plain, other = kernel_of(model, direction), kernel_of(model, direction, layout)
    y, states, saved = plain.forward(**arguments, all_states=True)
    gradients = plain.backward(saved, dy, dfinal)
    arranged = arguments | {"x": np.ascontiguousarray(arguments["x"].transpose(order))}
    y_other, states_other, saved_other = other.forward(**arranged, all_states=True)
    assert_same(y_other, y.transpose(Y_ORDERS[layout]))
    assert_same(states_other, {name: one.transpose(Y_ORDERS[layout]) for name, one in states.items()})
    gradients_other = other.backward(saved_other, np.ascontiguousarray(dy.transpose(Y_ORDERS[layout])), dfinal)
    assert_same(gradients_other, gradients | {"x": gradients["x"].transpose(order)})


@settings(max_examples=examples(20))
@given(drawn=cases(ALL_MODELS, kinds=("none", "resets")), at=st.floats(0, 1))
def test_a_cut_with_resets_changes_nothing(drawn: tuple[str, Case], at: float) -> None:
    model, case = drawn
    kernel, cut = kernel_of(model), int(at * case.dy.shape[1])
    shared = {name: case.arguments[name] for name in ("bias", "parameters", *RECURRENT) if name in case.arguments}

    def part(steps: slice) -> Arguments:
        return shared | {name: case.arguments[name][:, steps] for name in ("x", "resets") if name in case.arguments}

    y, final = kernel(**case.arguments)
    first, state = kernel(**part(slice(None, cut)), state=case.arguments["state"])
    second, last = kernel(**part(slice(cut, None)), state=state)
    assert_same((np.concatenate([first, second], 1), last), (y, final))


@pytest.mark.parametrize("method_steps", [300, 1000])
def test_resets_in_the_parallel_scan(method_steps: int) -> None:
    """So many steps of so few channels are scanned in parallel, each sequence between resets as if it were alone."""
    kernel, random = kernel_of("min_lstm"), np.random.default_rng(1)
    x = random.normal(size=(2, method_steps, 3, HIDDEN))
    x[:, :, 0] += 9  # a state that is kept for long
    x[0, 120] = np.nan
    starts = [0, 97, 150, 256, 257, method_steps]
    resets = np.zeros((2, method_steps), bool)
    resets[:, starts[1:-1]] = True
    y, _ = kernel(x, resets=resets)
    assert np.isnan(y[0, 120:150]).all() and not np.isnan(y[1]).any()
    for begin, end in pairwise(starts):
        alone, _ = kernel(x[:, begin:end])
        assert_close(y[:, begin:end], alone)


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_dtypes_of_results(precision: str, direction: str) -> None:
    """y and x's gradient in storage, every state and its gradient in the arithmetic dtype."""
    from minrnn_gen.call.array import numpy_dtype

    named = precision_of(precision)
    storage, carried = numpy_dtype(named.storage_dtype), numpy_dtype(named.arithmetic_dtype)
    kernel = kernel_of("qrnn", direction, precision=precision)
    axes = (2, 5, 2) if direction == "bidirectional" else (2, 5)
    x = np.random.default_rng(0).normal(size=(*axes, 3, HIDDEN)).astype(storage)
    y, states, saved = kernel.forward(x, all_states=True, lengths=np.array([3, 5]))
    gradients = kernel.backward(saved, y)
    assert y.dtype == storage and states["c"].dtype == carried and states["c"].shape == y.shape
    assert gradients["x"].dtype == storage and gradients["state"]["c"].dtype == carried
