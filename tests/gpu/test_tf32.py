"""Layers that multiply in tf32, as torch's do by default: against cuDNN's own, both beside float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from support.needed import needed

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

# Errors of both are draws of one distribution where both round to nearest. The smallest arrays here have 768 elements, so that
# a root mean square is off by 2.6 % (1 / sqrt(2 n)), a ratio of two by 3.6 %, and 1.1 is beyond it by its threefold almost; the
# draws below are added up, which halves that.
MOST = 1.1
DRAWS = 4
# (batch, time, inputs, hidden): a head of a cluster, one that shared memory has a part of, and one that is stepwise.
SIZES = ((16, 64, 128, 256), (64, 48, 256, 512), (64, 16, 512, 2048))


@pytest.fixture(autouse=True)
def in_tf32() -> Iterator[None]:
    """As torch starts, whatever a test before has set."""
    before = torch.backends.cudnn.rnn.fp32_precision
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    yield
    torch.backends.cudnn.rnn.fp32_precision = before


def results_of(layer: Any, x: Any, dy: Any) -> dict[str, Any]:
    """Return the output, the final states and all gradients of a training step."""
    x = x.detach().clone().requires_grad_()
    y, final = layer(x)
    named = dict(layer.named_parameters())
    gradients = torch.autograd.grad(y, [x, *named.values()], dy)
    states = final if isinstance(final, tuple) else (final,)
    return {
        "y": y.detach(),
        **{f"state {number}": state.detach() for number, state in enumerate(states)},
        **{f"gradient of {name}": gradient for name, gradient in zip(("x", *named), gradients, strict=True)},
    }


def squared_errors(results: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    return {name: float((results[name].double() - exact[name]).square().sum()) for name in exact}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_errors_are_no_larger_than_those_of_cudnn(name: str, sizes: tuple[int, int, int, int]) -> None:
    batch, time, inputs, hidden = sizes
    ours_squared, theirs_squared = dict[str, float](), dict[str, float]()
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        theirs = getattr(torch.nn, name)(inputs, hidden, device="cuda")
        ours, exact_layer = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
        assert wing.replace(ours).replaced
        x, dy = torch.randn(time, batch, inputs, device="cuda"), torch.randn(time, batch, hidden, device="cuda")
        exact = results_of(exact_layer, x.double(), dy.double())
        for layer, squared in ((ours, ours_squared), (theirs, theirs_squared)):
            for result, error in squared_errors(results_of(layer, x, dy), exact).items():
                squared[result] = squared.get(result, 0.0) + error
    ratios = {result: (error / theirs_squared[result]) ** 0.5 for result, error in ours_squared.items()}
    assert max(ratios.values()) <= MOST, ratios
    # Both are in tf32: of float32 these would be a hundredth of it.
    norm = float(exact["y"].square().sum()) * DRAWS
    assert (ours_squared["y"] / norm) ** 0.5 > 2.0**-20 and (theirs_squared["y"] / norm) ** 0.5 > 2.0**-20


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_without_tf32_errors_are_those_of_float32(name: str) -> None:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(128, 256, device="cuda")
    ours, exact_layer = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    assert wing.replace(ours).replaced
    x, dy = torch.randn(32, 16, 128, device="cuda"), torch.randn(32, 16, 256, device="cuda")
    exact = results_of(exact_layer, x.double(), dy.double())
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    for result, error in squared_errors(results_of(ours, x, dy), exact).items():
        assert error**0.5 <= 2.0**-17 * float(exact[result].norm()), result


def test_a_projection_of_a_scan_follows_the_setting_of_products() -> None:
    """Beside float64: float32 by default, and as far off as tf32 is where torch's own products are."""
    torch.manual_seed(0)
    layer = wing.MinGRU(256, 128, device="cuda")
    x = torch.randn(8, 64, 256, device="cuda")
    exact = copy.deepcopy(layer).double()(x.double())[0].detach()
    before, errors = torch.backends.cuda.matmul.fp32_precision, []
    try:
        for setting in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = setting
            errors.append(float((layer(x)[0].detach().double() - exact).norm() / exact.norm()))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors[0] <= 2.0**-18 and 2.0**-16 <= errors[1] <= 2.0**-9
