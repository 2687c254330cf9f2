"""Fronts of other libraries on a GPU: the same as in host memory, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed

from minrnn_gen.compat import numpy_cells
from minrnn_gen.compat.flashrnn_request import FUNCTIONS
from minrnn_gen.errors import BadInput

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
flashrnn = needed("minrnn_gen.compat.flashrnn").flashrnn
accelerated = needed("minrnn_gen.compat.accelerated_scan")
fla = needed("minrnn_gen.compat.fla")

BATCH, TIME, HEADS, SIZE = 2, 19, 2, 32
GATES = {"elman": (1, 1, 1), "gru": (3, 3, 4), "lstm": (4, 4, 4), "slstm": (4, 4, 4)}
# Of a whole array, relative: products of 32 numbers in another order, step after step.
TOLERANCE = 2.0**-40


def relative(found: Any, expected: Any) -> float:
    found, expected = found.detach().cpu(), expected.detach()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def assert_as_on_the_host(function: Any, *inputs: Any) -> None:
    """Hold results and gradients of `inputs`, by random weights of the results, against those in host memory."""
    found, weights = {}, None
    for place in ("cpu", "cuda"):
        here = [one.detach().to(place).requires_grad_() for one in inputs]
        results = function(*here)
        weights = weights or [torch.randn(one.shape, dtype=one.dtype) for one in results]
        loss = sum((one * weight.to(place)).sum() for one, weight in zip(results, weights, strict=True))
        found[place] = [*results, *torch.autograd.grad(loss, here)]
    for one, other in zip(found["cuda"], found["cpu"], strict=True):
        assert relative(one, other) <= TOLERANCE


@pytest.mark.parametrize("function", FUNCTIONS)
def test_flashrnn(function: str) -> None:
    torch.manual_seed(0)
    of_W, of_R, of_b = GATES[function]
    shapes = (BATCH, TIME, of_W, HEADS, SIZE), (of_R, HEADS, SIZE, SIZE), (of_b, HEADS, SIZE)
    Wx, R, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes)

    def run(*tensors: Any) -> tuple[Any, Any]:
        states, last = flashrnn(*tensors, function=function, backend="cuda_fused", dtype="float64")
        return states[0], last

    assert_as_on_the_host(run, Wx, R / SIZE, b)


def test_flashrnn_refuses_gradients_through_other_states() -> None:
    Wx = torch.randn(BATCH, TIME, 4, HEADS, SIZE, device="cuda", requires_grad=True)
    states, _ = flashrnn(Wx, torch.randn(4, HEADS, SIZE, SIZE, device="cuda"), dtype="float32")
    with pytest.raises(BadInput, match="a loss depends on c at every step, and only h"):
        states[1].sum().backward()


def test_scans() -> None:
    torch.manual_seed(0)
    x, g, h0 = (torch.randn(shape, dtype=torch.float64) for shape in ((BATCH, TIME, SIZE), (BATCH, TIME, SIZE), (BATCH, SIZE)))
    assert_as_on_the_host(lambda gates, tokens: [accelerated.scan(gates, tokens)], g.sigmoid(), x)
    assert_as_on_the_host(lambda *given: fla.chunk_hgrn(*given, output_final_state=True), x, -g.abs(), h0)
    ends = torch.tensor([0, 7, TIME])

    def joined(x: Any, g: Any, h0: Any) -> tuple[Any, Any]:
        return fla.fused_recurrent_hgrn(x, g, h0, True, ends.to(x.device))

    assert_as_on_the_host(joined, x[:1], -g[:1].abs(), h0)


@pytest.mark.parametrize("name", ["MinGRUCell", "MinLSTMCell"])
def test_numpy_cells(name: str) -> None:
    pytest.importorskip("cupy")
    cell, on_gpu = (getattr(numpy_cells, each)(5, SIZE) for each in (name, f"{name}CUDA"))
    vars(on_gpu).update({layer: one for layer, one in vars(cell).items() if layer.startswith("linear_")})
    random = np.random.default_rng(0)
    x, h0 = random.standard_normal((TIME, 5)), random.standard_normal(SIZE)
    for call in (
        lambda one: one.forward(x[0], h0),
        lambda one: one.process_sequence_parallel(x, h0),
        lambda one: one.extract_scan_params(x)[0],
        lambda one: one.extract_scan_params(x)[1],
    ):
        got, expected = call(on_gpu), call(cell)
        assert isinstance(got, np.ndarray) and got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
