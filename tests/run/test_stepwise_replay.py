"""Few steps of a dense cell that are taken one by one: recorded once, and the same bits from every replay."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_code import HAS_COMPILER
from support.everyday import in_turn
from support.fake_device import EDGE_BYTES, GivenKernels, as_if_on_a_device, executor_on
from support.fake_torch import as_arrays, as_tensors, torch_on_host
from support.native_part import DriverOnHost, KernelOnHost, library, using
from support.sequence_cases import assert_close
from support.stepwise_on_cpu import HEAD_DIM, host_kernels
from support.uncompiled_kernels import host_kernel

from minrnn_gen.codegen.signature import names_of, signature
from minrnn_gen.gpu import cublas
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run import executor
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.dense import launch as dense_launch
from minrnn_gen.run.dense import stepwise

pytestmark = [
    pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"),
    pytest.mark.usefixtures("cache_of_emulated_kernels"),
]

BATCH = 2


def loading(on: DriverOnHost, model: str, heads: int) -> Callable[..., Any]:
    """Return what gives the stepwise kernels of a cell on host memory."""
    kernels = host_kernels(model, heads, "fp64")

    @functools.cache
    def load(key: KernelKey, part: str = "") -> Any:
        code = kernels.code[key.kernel_pass]
        count = len(signature(code.plan, names_of(kernels.lowered[key.kernel_pass]), part)) if part else 0

        def run(blocks: int, _threads: int, arguments: list[int]) -> None:
            code.run(blocks, arguments, part=part)

        return KernelOnHost(on, run, count), code.plan

    return load


def drawn_call(kernel: Kernel, time: int, with_state: bool, seed: int) -> tuple[dict[str, Any], Any]:
    """Return the arguments of a call and dy, with other numbers for every seed."""
    random, interface = np.random.default_rng(seed), kernel.interface
    arguments = {
        "x": random.normal(size=(BATCH, time, 3)),
        "weight": random.normal(size=(len(interface.runs_reversed) * len(interface.gates) * interface.hidden_size, 3)),
        "R": random.normal(size=interface.R_shape) / 4,
        "bias": random.normal(size=(*interface.R_shape[:-4], len(interface.gates), interface.hidden_size)),
    }
    if with_state:
        shape = interface.state_shape(BATCH)
        arguments["state"] = {name: random.normal(size=shape) for name in interface.states}
    return arguments, random.normal(size=interface.y_shape(BATCH, time))


def results_of(kernel: Kernel, arguments: dict[str, Any], dy: Any) -> dict[str, Any]:
    """Return all results of a forward and its backward."""
    y, state, saved = kernel.forward(**as_tensors(arguments))
    gradients = kernel.backward(saved, as_tensors(dy))
    return {"y": y, **{f"final {name}": each for name, each in state.items()}, **flattened(gradients)}


def flattened(gradients: dict[str, Any]) -> dict[str, Any]:
    return {
        f"d{name} {inner}": value
        for name, each in gradients.items()
        for inner, value in (each if isinstance(each, dict) else {"": each}).items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("in_c", "cell"), in_turn([True, False], [("gru", 3, "forward"), ("lstm", 1, "bidirectional"), ("lstm", 1, "forward")])
)
@settings(max_examples=3)
@given(time=st.sampled_from((1, 1, 2, 4)), with_state=st.booleans())
def test_a_replay_has_the_bits_of_a_first_call(in_c: bool, cell: tuple[str, int, str], time: int, with_state: bool) -> None:
    """Whatever the arrays; and it is neither checked nor prepared, and in C all of it is one trip."""
    model, heads, direction = cell
    kernel = host_kernel(model, heads * HEAD_DIM, "fp64", heads=heads, direction=direction, input_size=3)
    on_host, checks = DriverOnHost(), Counter[str]()
    load = loading(on_host, model, heads)
    runs = 2 if direction == "bidirectional" else 1
    recorded = executor_on(kernel, GivenKernels(load))
    with torch_on_host(), using(library() if in_c else None), on_host.in_place(), pytest.MonkeyPatch.context() as patch:
        for module in (cublas, dense_launch):  # for which less is enough here
            patch.setattr(module, "WORKSPACE_BYTES", 2 * EDGE_BYTES)
        patch.setenv("MINRNN_WAVEFRONT", "never")  # what is expected of given kernels nobody knows
        for name in ("check_call", "check_gradient"):
            check = getattr(executor, name)

            def counted(*given_: Any, name: str = name, check: Any = check, **named: Any) -> Any:
                checks[name] += 1
                return check(*given_, **named)

            patch.setattr(executor, name, counted)
        for seed in range(3):
            arguments, dy = drawn_call(kernel, time, with_state, seed)
            with as_if_on_a_device(kernel, load, executor=executor_on(kernel, GivenKernels(load))):
                first = results_of(kernel, arguments, dy)
            checks.clear()
            on_host.asked.clear()
            with as_if_on_a_device(kernel, load, executor=recorded):
                found = results_of(kernel, arguments, dy)
            assert first.keys() == found.keys()
            for name, value in found.items():
                np.testing.assert_array_equal(as_arrays(value), as_arrays(first[name]), err_msg=name)
            assert not checks or seed == 0
            kinds = Counter(asked[0] for asked in on_host.asked)
            # A launch that begins, and one for each step and for the one behind them, in both passes.
            assert kinds["launch"] == (2 * runs * (1 + time + 1) if in_c else 0)
            # In each pass a product for every step; in the backward also those of the initial outputs, of which there may be
            # none, of the outputs of all steps but the last, and the projection's, one in the forward and two in the backward.
            per_run = 2 * time + (2 if with_state else 0) + (2 if time > 1 else 0)
            assert kinds["multiply"] == (runs * per_run + 3 if in_c else 0)
            # R with its heads in front, a gate at a time.
            assert kinds["copy"] == (len(kernel.interface.recurrent_gates) if in_c and heads > 1 else 0)
        plain, _, saved = kernel.forward(**arguments)
        assert_close(as_arrays(found["y"]), plain)
        expected = flattened(kernel.backward(saved, dy))
        for name, value in expected.items():
            assert_close(as_arrays(found[name]), value)


def test_many_steps_that_are_no_graph_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a stream is captured: each call is checked, and what it enqueues is not replayed."""
    monkeypatch.setattr(stepwise, "GRAPH_STEPS", 4)
    monkeypatch.setattr(CudaBackend, "graph", lambda *_: None)
    kernel, on_host = host_kernel("lstm", HEAD_DIM, "fp64", heads=1, direction="forward", input_size=3), DriverOnHost()
    load = loading(on_host, "lstm", 1)
    recorded = executor_on(kernel, GivenKernels(load))
    with torch_on_host(), using(None):
        for time in (2, 3):
            for seed in range(2):
                arguments, dy = drawn_call(kernel, time, True, seed)
                with as_if_on_a_device(kernel, load, executor=recorded):
                    found = results_of(kernel, arguments, dy)
                y, _, saved = kernel.forward(**arguments)
                assert_close(as_arrays(found["y"]), y)
                assert_close(as_arrays(found["dR "]), kernel.backward(saved, dy)["R"])
    assert (len(recorded.gpu.forwards), len(recorded.gpu.backwards)) == (1, 1)
