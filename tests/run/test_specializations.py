"""How many kernels calls of many sizes compile."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import numpy as np
import pytest
from support.built_kernels import build_nothing
from support.everyday import one_in
from support.fake_device import as_if_on_a_device, executor_on
from support.patience import within
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.build import builder
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.errors import BadInput, CompileFailed, ToolchainMissing
from minrnn_gen.plan.dense import persistent
from minrnn_gen.plan.problem import KernelKey, Sizes
from minrnn_gen.plan.size_classes import KERNELS_MOST
from minrnn_gen.run.kernels import CompiledKernels

CALLS = 200


@pytest.mark.parametrize("layout", one_in(2, ["BTD", "BDT"]))
def test_calls_of_any_sizes_compile_few_kernels(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for_host(
        {"model": "min_gru", "hidden_size": 256, "precision": "fp32", "layout": layout}, plans_sizes=True
    )
    compiled = build_nothing(monkeypatch)
    random = np.random.default_rng(0)
    # Nor is the kernel of the hinted specialization, which is for host arrays, ever launched.
    with as_if_on_a_device(kernel, executor=executor_on(kernel, CompiledKernels(kernel.builder, ()))):
        for _ in range(CALLS):
            batch, time = (int(2 ** random.uniform(0, 6)), int(2 ** random.uniform(0, 9)))
            y, _, saved = kernel.forward(np.zeros(kernel.interface.shape(kernel.interface.x_axes, batch, time), np.float32))
            kernel.backward(saved, y)
    counted = Counter((key.kernel_pass, key.specialization.alignment_bytes) for key in compiled)
    assert len(set(compiled)) == len(compiled) and 1 < max(counted.values()) <= KERNELS_MOST
    # Rows of channels are aligned alike whatever the sizes, rows of time by their length.
    assert {alignment for _, alignment in counted} == ({16} if layout == "BTD" else {4, 8, 16})


@pytest.mark.parametrize(
    ("why_not_persistent", "precision", "ways"), one_in(3, [("", "bf16", 4), ("too large", "bf16", 1), ("", "fp32", 4)])
)
def test_a_dense_cell_compiles_what_it_cannot_read_at_run_time(
    why_not_persistent: str, precision: str, ways: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step everything is read at run time; a persistent forward knows whether there are resets, and what is kept."""
    monkeypatch.setattr(persistent, "refusal", lambda _: why_not_persistent)
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")  # there are no streams
    kernel = compiled_for_host(
        {"model": "gru", "hidden_size": 64, "precision": precision, "direction": "bidirectional"}, plans_sizes=True
    )
    compiled = build_nothing(monkeypatch)
    random, R = np.random.default_rng(0), np.zeros((2, 3, 1, 64, 64), numpy_dtype(kernel.interface.precision.storage_dtype))
    with as_if_on_a_device(kernel, executor=executor_on(kernel, CompiledKernels(kernel.builder, ()))):
        for call in range(24):
            batch, time = int(2 ** random.uniform(0, 6)), int(2 ** random.uniform(0, 9))
            x = np.zeros((batch, time, 2, 3, 64), R.dtype)
            kernel(x, R, resets=np.zeros((batch, time), bool) if call % 2 else None, all_states=bool(call % 3))
    # In each direction, and for the sizes.
    forwards = [key for key in compiled if key.kernel_pass == "forward"]
    assert 0 < len(forwards) <= (2 * ways - (ways == 1)) * KERNELS_MOST


@pytest.mark.parametrize("model", ["gru", "layer_norm_lstm"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_training_step_of_a_dense_cell_compiles_a_kernel_for_each_run(
    model: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is called: what is built ahead is what the call runs. What makes means again is one for all runs."""
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")  # there are no streams
    kernel = compiled_for_host(
        {"model": model, "hidden_size": 64, "precision": "fp32", "direction": direction}, plans_sizes=True
    )
    compiled = build_nothing(monkeypatch)
    interface = kernel.interface
    x, R = (np.zeros(shape, np.float32) for shape in (interface.shape(interface.x_axes, 2, 5), interface.R_shape))
    parameters = {name: np.zeros(interface.parameter_shape, np.float32) for name in interface.parameters} or None
    with as_if_on_a_device(kernel, executor=executor_on(kernel, CompiledKernels(kernel.builder, ()))):
        y, _, saved = kernel.forward(x, R, parameters=parameters, resets=np.zeros((2, 5), bool))
        kernel.backward(saved, y)
    runs, made_again = len(interface.runs_reversed), {} if model == "gru" else {"arguments": 1}
    assert Counter(key.kernel_pass for key in set(compiled)) == {"forward": runs, "backward": runs, **made_again}


@pytest.mark.parametrize("fails", [False, True])
def test_the_backward_of_a_dense_cell_is_built_while_its_forward_is(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """By another thread, once; whoever needs a kernel that cannot be built is told, and nobody else is."""
    kernel = compiled_for_host({"model": "gru", "hidden_size": 64, "precision": "fp32"}, plans_sizes=True)
    begun = threading.Event()

    def begin(key: KernelKey) -> None:
        if key.kernel_pass == "backward":
            begun.set()
            if fails:
                raise CompileFailed("no candidate kept what its plan promised")
        assert begun.wait(within(10))  # the forward is not there before the backward was begun

    compiled = build_nothing(monkeypatch, begin)
    kernels, hinted = CompiledKernels(kernel.builder, ()), kernel.builder.hinted_specialization
    with as_if_on_a_device(kernel, executor=executor_on(kernel, kernels)):
        kernel.forward(np.zeros((2, 5, 3, 64), np.float32), np.zeros((3, 1, 64, 64), np.float32))
        with pytest.raises(CompileFailed) if fails else contextlib.nullcontext():
            kernels.build(kernels.choose("backward", hinted, Sizes(2, 5)))
    counted = Counter(key.kernel_pass for key in compiled)
    assert counted["backward"] == 1 + fails and counted["forward"] > 0


def test_the_first_kernel_is_kept_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for_host({"model": "min_gru", "hidden_size": 64, "precision": "fp32"}, plans_sizes=True)
    specialization = kernel.builder.hinted_specialization
    wanted = [Sizes(1, 1), Sizes(1, 4000)]

    def chosen() -> set[KernelKey]:
        first = kernel.builder.build(kernel.builder.choose("forward", specialization, wanted[0]))
        kernels = CompiledKernels(kernel.builder, (first,))
        return {kernels.choose("forward", specialization, sizes) for sizes in wanted}

    monkeypatch.setattr(builder, "compile_source", refuse)
    assert len(chosen()) == 2
    monkeypatch.setenv("MINRNN_SPECIALIZE", "never")
    assert chosen() == {kernel.builder.choose("forward", specialization, wanted[0])}
    monkeypatch.setenv("MINRNN_SPECIALIZE", "maybe")
    with pytest.raises(BadInput, match=r"^MINRNN_SPECIALIZE is 'maybe'; allowed: never"):
        chosen()


def refuse(*_: object) -> None:
    raise ToolchainMissing("planned and rendered only")
