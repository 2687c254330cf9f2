"""Layers of torch whose recurrences run beside each other give what layers one after the other give, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.emulated_code import HAS_COMPILER
from support.needed import needed
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.build.recipe import spec_from
from minrnn_gen.interpret.kernel import interpreted
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import precision_of
from minrnn_gen.run.layers.cut_choice import CutChoice
from minrnn_gen.run.layers.stack import Cut, StackRun
from minrnn_gen.run.target import target_of

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
beside = needed("minrnn_gen.torch.layers.beside")
stack_operator = needed("minrnn_gen.torch.operators.stack_operator")

BATCH, TIME, INPUTS, HIDDEN, LAYERS = 2, 6, 5, 8, 2
ROUNDOFF = precision_of("fp32").storage_roundoff
OTHER_WAYS = (("GRU", True, 0.0), ("LSTM", True, 0.0), ("LSTM", True, 1.0), ("GRU", False, 0.6))


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled(emulated_kernels: Path) -> Iterator[None]:
    """With the machine that the other workers have compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(emulated_kernels))
        with nothing_compiled(plans_sizes=True):
            yield


@dataclass
class Emulated:
    """Kernels' text in place of kernels on a GPU; `passes` are those that were run with it."""

    passes: list[str]

    def choose(self, layers: Any, _tensors: Any, kernel_pass: Any) -> Any:
        self.passes.append(kernel_pass)
        spec = spec_from(layers.recipes[-1])
        kernel = interpreted(spec, target_of(spec))
        run = StackRun([kernel_by(recipe).interface for recipe in layers.recipes], kernel.builder, kernel.executor.backend)
        choice = CutChoice(kernel_pass, Cut(2, 3), 2, kernel.builder.hinted_sizes, 1.0, 2.0)
        return beside.Beside(choice, run, kernel)


def outcome(layer: Any, with_states: bool) -> list[Any]:
    torch.manual_seed(1)  # of the masks too
    x = torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
    states = tuple(torch.randn(LAYERS, BATCH, HIDDEN, requires_grad=True) for _ in layer.states) if with_states else ()
    y, last = layer(x, (states if len(states) > 1 else states[0]) if states else None)
    results = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum(result.square().sum() for result in results)
    return [*results, *torch.autograd.grad(loss, [x, *states, *layer.parameters()])]


@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize(
    ("name", "with_states", "dropout"),
    [("GRU", True, 0.3), *(pytest.param(*way, marks=pytest.mark.matrix_full) for way in OTHER_WAYS)],
)
def test_they_give_what_layers_one_by_one_give(
    name: str, with_states: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = getattr(wing, name)(INPUTS, HIDDEN, LAYERS, dropout=dropout, fp32_product="fma")
    expected = outcome(layer, with_states)
    emulated = Emulated([])
    monkeypatch.setattr(stack_operator._Layers, "beside_each_other", lambda *arguments: emulated.choose(*arguments))
    for result, other in zip(outcome(layer, with_states), expected, strict=True):
        # Sums of some hundred terms in another order.
        bound = 256 * ROUNDOFF * max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(result, other, rtol=0, atol=bound)
    assert emulated.passes == ["forward", "backward", "backward"]


def test_layers_say_that_directions_run_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = wing.LSTM(512, 512, bidirectional=True)
    kernel = kernel_by(layer._made.recipes["bf16"][0])

    def explained() -> str:
        return layer.explain(batch=16, time=1024, dtype=torch.bfloat16)

    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")
    choice = kernel.executor.gpu.directions_beside("forward", Sizes(16, 1024))
    assert choice is not None and choice.in_words in explained()
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    assert choice.in_words not in explained()


def test_the_kernel_of_dropout_is_prepared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = interpreted(spec := spec_from(wing.GRU(INPUTS, HIDDEN, LAYERS)._made.recipes["fp32"][-1]), target_of(spec))
    choice = CutChoice("forward", Cut(2, 3), 2, kernel.builder.hinted_sizes, 1.0, 2.0)
    run = StackRun([kernel.interface] * LAYERS, kernel.builder, kernel.executor.backend)
    made, watched = beside.Beside(choice, run, kernel), lambda _done, _of: None
    monkeypatch.setattr(type(kernel), "prepare", lambda *_: None)
    made.prepare(False, watched)
    assert "dropout" not in {key.kernel_pass for key in kernel.plans}
    made.prepare(True, watched)
    assert "dropout" in {key.kernel_pass for key in kernel.plans}


def test_nothing_is_cut_on_a_cpu_nor_with_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")
    layer = wing.LSTM(768, 768, 4)
    layers = stack_operator._Layers(layer._made.recipes["bf16"])
    x = torch.empty(16, 1024, 768, device="meta")
    assert layers.beside_each_other((x, None, None, None), "forward") is None

    class OnGpu:
        is_cuda, shape = True, x.shape

    found = layers.beside_each_other((OnGpu, None, None, None), "forward")
    assert found is not None and found.choice.predicted_us < found.choice.one_by_one_us
    assert found.in_words in layer.explain(batch=16, time=1024, dtype=torch.bfloat16)
    assert layers.beside_each_other((OnGpu, None, torch.ones(16), None), "forward") is None
