"""Layers multiply in tf32 where torch's own would by its settings, unless they are made with a product of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed
from support.newer_torch import needs_torch

from minrnn_gen.build.recipe import spec_from

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
stack = needed("minrnn_gen.torch.layers.stack")
fp32_precision = needed("minrnn_gen.torch.layers.fp32_precision")

# The oldest that has torch.backends.cudnn.rnn.
pytestmark = needs_torch("2.9", "each backend has a precision of fp32 products")

PRECISIONS = ("tf32", "ieee", "none")


def read() -> tuple[str, str]:
    return torch.backends.cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision


def write(rnn: str, matmul: str) -> None:
    torch.backends.cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision = rnn, matmul


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before, allowed = read(), torch.backends.cudnn.allow_tf32
    yield
    # Of convolutions too; alone it brings back what torch counts beside the settings of operators.
    torch.backends.cudnn.allow_tf32 = allowed
    write(*before)
    assert torch.backends.cudnn.allow_tf32 is allowed  # torch refuses to read it where the settings contradict each other


def products(layer: Any, *inputs: Any) -> set[str]:
    """Return the products of all kernels that a call takes."""
    recipes: list[str] = []
    run, run_layers = stack.run, stack.run_layers

    def spy(recipe: str, *arguments: Any) -> Any:
        recipes.append(recipe)
        return run(recipe, *arguments)

    def spy_on_layers(of_layers: Sequence[str], *arguments: Any) -> Any:
        recipes.extend(of_layers)
        return run_layers(of_layers, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "run", spy)
        patch.setattr(stack, "run_layers", spy_on_layers)
        layer(*inputs)
    assert recipes
    return {spec_from(recipe).fp32_product for recipe in recipes}


X = torch.ones(2, 3, 4)
# A layer, and whether it is cuDNN's setting that it follows.
FOLLOWING = (
    (wing.LSTM(4, 8, num_layers=2), True),
    (wing.GRU(4, 8, bidirectional=True, precision="fp32"), True),
    (wing.nn.LSTM(4, 8), True),
    (wing.MinGRU(4, 8), False),
    (wing.IndRNN(4, 8), False),
)


@pytest.mark.parametrize(("layer", "is_cudnn"), FOLLOWING, ids=lambda value: type(value).__name__)
@given(settings=st.lists(st.tuples(st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS)), min_size=1, max_size=4))
def test_every_call_follows_what_is_set_then(layer: Any, is_cudnn: bool, settings: list[tuple[str, str]]) -> None:
    before = read()
    try:
        for setting in settings:
            write(*setting)
            followed = read()[0 if is_cudnn else 1]
            assert products(layer, X) == {"tf32" if followed == "tf32" else "tf32x3"}
    finally:
        write(*before)


def test_torchs_defaults_and_its_older_switches() -> None:
    lstm, scan = wing.LSTM(4, 8), wing.MinGRU(4, 8)
    # Torch's defaults, of which an earlier test of the process may have left others.
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    assert products(lstm, X) == {"tf32"} and products(scan, X) == {"tf32x3"}
    torch.backends.cudnn.allow_tf32 = False
    assert products(lstm, X) == {"tf32x3"}
    torch.backends.cudnn.allow_tf32 = True
    assert products(lstm, X) == {"tf32"}
    torch.backends.cuda.matmul.allow_tf32 = True
    assert products(scan, X) == {"tf32"}
    torch.backends.cuda.matmul.allow_tf32 = False
    assert products(scan, X) == {"tf32x3"}


@pytest.mark.parametrize("product", ["tf32x3", "tf32", "fma"])
@pytest.mark.parametrize("setting", PRECISIONS)
def test_a_layer_with_a_product_of_its_own_keeps_it(product: str, setting: str) -> None:
    write(setting, setting)
    for make in (wing.LSTM, wing.MinGRU):
        assert products(make(4, 8, fp32_product=product), X) == {product}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_have_one_kernel_each(dtype: Any) -> None:
    layer = wing.LSTM(4, 8).to(dtype)
    write("tf32", "tf32")
    assert products(layer, X.to(dtype)) == {"tf32x3"}


def test_a_compiled_layer_keeps_what_was_set_when_it_was_traced() -> None:
    layer, traced = wing.LSTM(4, 8), []

    def keep(graph: Any, _inputs: Any) -> Any:
        recipes = [node.args[0] for node in graph.graph.nodes if "recurrence" in str(node.target)]
        traced.append({spec_from(recipe).fp32_product for recipe in recipes})
        return graph

    for setting, other in (("tf32", "ieee"), ("ieee", "tf32")):
        torch.compiler.reset()
        write(setting, "ieee")
        compiled = torch.compile(layer, fullgraph=True, backend=keep)
        torch.testing.assert_close(compiled(X)[0], layer(X)[0])
        write(other, "ieee")
        compiled(X)
    assert traced == [{"tf32"}, {"tf32x3"}]


def test_the_same_results_in_host_memory_whatever_is_set() -> None:
    layer = wing.GRU(4, 8)
    write("tf32", "tf32")
    in_tf32 = layer(X)
    write("ieee", "ieee")
    for result, other in zip(in_tf32, layer(X), strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_torch_without_precisions_is_asked_what_it_allows(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(fp32_precision, "_precision_of", fp32_precision._by_allow_tf32)
    monkeypatch.setattr(torch.backends, "cudnn", type("", (), {"allow_tf32": allowed}))
    monkeypatch.setattr(torch.backends.cuda, "matmul", type("", (), {"allow_tf32": not allowed}))
    assert fp32_precision.multiplies_in_tf32("rnn") is allowed
    assert fp32_precision.multiplies_in_tf32("matmul") is not allowed
