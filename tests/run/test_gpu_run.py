"""Launches on a GPU, carried out on the host by the addresses and strides alone, compute what the CPU target does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fake_device import as_if_on_a_device
from support.fake_plan import plan_with
from support.kernel_inputs import LAYOUTS
from support.sequence_cases import HIDDEN, X_ORDERS, X_ORDERS_OF_BOTH, Y_ORDERS, Case, assert_close, cases, kernel_of

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory, stream
from minrnn_gen.plan.problem import KernelKey

INPUTS = 4


def both_directions(arguments: dict[str, Any], dy: Any, dfinal: dict[str, Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """The call with a second, different direction beside the first, and its incoming gradients."""

    def pair(one: Any, axis: int = 0) -> Any:
        return {name: pair(each) for name, each in one.items()} if isinstance(one, dict) else np.stack([one, 2 - one], axis)

    both = arguments | {name: pair(arguments[name]) for name in ("bias", "parameters", "state")}
    return both | {"x": pair(arguments["x"], 2)}, np.concatenate([dy, dy + 1], -1), pair(dfinal)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(10))
@given(
    drawn=cases(("min_gru", "qrnn", "two_states")),
    keeps=st.booleans(),
    projects=st.booleans(),
    narrow=st.booleans(),
    without=st.sets(st.sampled_from(("bias", "state"))),
)
def test_launches_do_what_the_host_does(
    layout: str, direction: str, drawn: tuple[str, Case], keeps: bool, projects: bool, narrow: bool, without: set[str]
) -> None:
    model, case = drawn
    if "cu_seqlens" in case.arguments and layout != "BTD":
        return
    arguments, dy, dfinal = dict(case.arguments), case.dy, case.dfinal
    order = X_ORDERS[layout]
    if direction == "bidirectional":
        arguments, dy, dfinal = both_directions(arguments, dy, dfinal)
        order = X_ORDERS_OF_BOTH[layout]
    for name in without:
        del arguments[name]
    if narrow and "bias" in arguments:
        arguments["bias"] = arguments["bias"].astype(np.float32)
    if projects:
        random = np.random.default_rng(5)
        rows, time, *gates = arguments["x"].shape
        arguments["x"] = np.ascontiguousarray(random.normal(size=(rows, time, INPUTS)).transpose(Y_ORDERS[layout]))
        if "lengths" in arguments:
            beyond = np.arange(time) >= arguments["lengths"][:, None]
            arguments["x"].transpose(np.argsort(Y_ORDERS[layout]))[beyond] = np.nan
        arguments["weight"] = random.normal(size=(int(np.prod(gates)), INPUTS))
        kernel = kernel_of(model, direction, layout, input_size=INPUTS)
    else:
        # With gaps between sequences, steps or gates.
        arguments["x"] = np.ascontiguousarray(arguments["x"].transpose(order)).repeat(2, 1)[:, ::2]
        kernel = kernel_of(model, direction, layout)
    incoming = np.ascontiguousarray(dy.transpose(Y_ORDERS[layout]))

    y, state, saved = kernel.forward(**arguments, all_states=keeps)
    expected = kernel.backward(saved, incoming, dfinal)
    with as_if_on_a_device(kernel) as launched:
        y_found, state_found, saved = kernel.forward(**arguments, all_states=keeps)
        dstate = None if not any(one.any() for one in dfinal.values()) else dfinal
        found = kernel.backward(saved, incoming, dstate)
        from_arrays = kernel.executor.restore(CallArguments(**arguments), y_found, saved.arrays(), keeps)
        assert_close(kernel.backward(from_arrays, incoming, dstate), found)
    assert_close(y_found, y)
    assert_close(state_found, state)
    assert_close(found, expected)

    kept = "storage" if keeps or model != "min_gru" else "none"
    for kernel_pass, specialization in launched:
        assert specialization.resets == ("resets" in arguments)
        assert specialization.states_out == (kept if kernel_pass == "forward" else "none")
    if launched:  # there are sequences
        directions = {"forward": {False}, "reverse": {True}, "bidirectional": {False, True}}[direction]
        assert {specialization.reverse for _, specialization in launched} == directions


def test_states_are_kept_in_storage_for_a_backward_and_in_arithmetic_for_the_caller() -> None:
    kernel, x = kernel_of("qrnn", precision="bf16"), np.zeros((2, 3, 3, HIDDEN), ml_dtypes.bfloat16)
    kept = []

    def load(key: KernelKey) -> Any:
        kernel_pass, specialization, _ = key
        kept.append((kernel_pass, specialization.states_out))
        sizes = {"hidden_size": HIDDEN, "channels_per_block": 32, "threads": 32}
        plan = plan_with(
            entry=f"scan_{kernel_pass}",
            layout="BTD",
            specialization=specialization,
            variables={},
            strategy="channels",
            group_exchange_bytes=0,
            is_cooperative=False,
            **sizes,
        )
        return SimpleNamespace(launch=lambda *_: None), plan

    # Nothing is written, and what is in new memory may be anything.
    with as_if_on_a_device(kernel, load), np.errstate(all="ignore"):
        for keeps, dtype in ((True, "float32"), (False, "bfloat16")):
            y, state, saved = kernel.forward(x, all_states=keeps)
            assert [one.dtype for one in saved.open_for(kernel.executor).outputs.kept] == [dtype]
            assert state["c"].dtype == np.float32 and (state["c"].shape == y.shape) == keeps
            kernel.backward(saved, y)
    assert kept == [("forward", "arithmetic"), ("backward", "none"), ("forward", "storage"), ("backward", "none")]


def test_while_a_graph_is_captured_sequences_are_not_read() -> None:
    """Nothing can be copied to the GPU then, and what is there has no values yet that could be checked."""
    kernel = kernel_of("min_gru")
    x = np.zeros((2, 3, 2, HIDDEN))
    with as_if_on_a_device(kernel), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "is_capturing", lambda _: True)
        with pytest.raises(BadInput, match=r"lengths is in host memory while a CUDA graph is captured; copy it"):
            kernel(x, lengths=np.array([1, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "is_capturing", lambda _: True)
        assert memory.read_back(memory.inspect(np.array([1]), "lengths")) is None
