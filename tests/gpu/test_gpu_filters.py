"""Filters on a GPU beside the same in host memory: orders, ends of tiles and rows, gradients, graphs, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from support.drawn_filters import SECTIONS, check_against_scipy, check_sections_against_scipy, filters
from support.needed import needed

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.scan.filter import ORDER_MOST

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

pytestmark = pytest.mark.gpu


# After 32,768 steps, of maps that all have the same rounding error; a constant one is computed in float64.
TURN_ALLOWED = {True: 2.0**-23, False: 2.0**-10}


def inputs(order: int, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(order)

    def drawn(*size: int) -> Any:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    poles = 0.98 * torch.rand(shape[-2], order, dtype=torch.float64, generator=generator)
    a = torch.ones(shape[-2], 1, dtype=torch.float64)
    for pole in poles.T:
        padded = torch.nn.functional.pad(a, (0, 1))
        a = padded - pole[:, None] * torch.nn.functional.pad(a, (1, 0))
    return {"x": drawn(*shape).to(dtype), "a": 1.5 * a, "b": drawn(shape[-2], order + 1), "zi": drawn(*shape[:-1], order)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 1, 257), (1, 2, 70_001), (64, 1, 16_384)])
def test_a_gpu_filters_as_the_host_does(shape: tuple[int, ...], order: int, dtype: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        leaves = {name: one.to(device).requires_grad_() for name, one in inputs(order, shape, dtype).items()}
        y, zf = wing.lfilter(**leaves)
        gradients = torch.autograd.grad((y.double() * y.detach().double().cos()).sum() + zf.sin().sum(), list(leaves.values()))
        results.append([one.detach().cpu() for one in (y, zf, *gradients)])
    for host, gpu in zip(*results, strict=True):
        # Each order adds up what the one before rounded, over the some 50 steps that a pole of 0.98 remembers, and gradients of
        # `a` have passed through the filter twice.
        tolerance = 64 * 8**order * torch.finfo(dtype).eps * host.abs().max()
        torch.testing.assert_close(gpu, host, rtol=0, atol=float(tolerance))


def test_it_is_the_same_in_every_run_and_in_a_graph() -> None:
    leaves = {name: one.cuda() for name, one in inputs(2, (8, 1, 100_000), torch.float32).items()}
    y, zf = wing.lfilter(**leaves)
    for _ in range(3):
        again, last = wing.lfilter(**leaves)
        assert torch.equal(y, again) and torch.equal(zf, last)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = wing.lfilter(**leaves)
    graph.replay()
    assert torch.equal(captured, y)


@settings(max_examples=500, deadline=None)
@given(drawn=filters(tuple(range(ORDER_MOST + 1))))
def test_five_hundred_filters_are_scipys(drawn: dict[str, Any]) -> None:
    check_against_scipy(drawn, "cuda")


@settings(max_examples=500, deadline=None)
@given(drawn=SECTIONS)
def test_five_hundred_filters_of_sections_are_scipys(drawn: tuple[int, str, bool, int]) -> None:
    check_sections_against_scipy(*drawn, device="cuda")


# Shapes in which blocks share columns, and in which each has its own.
@pytest.mark.parametrize("sizes", [(1, 100_003, 1), (3, 4_097, 40), (64, 300, 256)])
@pytest.mark.parametrize("model", ["biquad", "complex_lru", "linoss", "conv_min_gru"])
@pytest.mark.parametrize("layout", ["BTD", "BDT"])
def test_coupled_states_are_the_same_in_every_run(model: str, sizes: tuple[int, int, int], layout: str) -> None:
    batch, time, channels = sizes
    kernel = minrnn_gen.compile({"model": model, "hidden_size": channels, "layout": layout, "precision": "fp32"})
    generator = torch.Generator().manual_seed(0)
    shape = (time, len(kernel.gates), channels) if layout == "BTD" else (len(kernel.gates), channels, time)
    x = torch.randn(batch, *shape, generator=generator).cuda()
    parameters = {name: (0.4 * torch.rand(channels, generator=generator)).cuda() for name in kernel.parameters}
    y, final = kernel(x, parameters=parameters)
    for _ in range(5):
        again, last = kernel(x, parameters=parameters)
        assert torch.equal(y, again) and all(torch.equal(final[name], last[name]) for name in final)


def test_high_orders_are_sections() -> None:
    x = torch.randn(2, 1000, device="cuda")
    with pytest.raises(BadInput, match="split them into second-order sections"):
        wing.lfilter(x, torch.ones(6, device="cuda"), torch.ones(6, device="cuda"))


@pytest.mark.parametrize("form", ["rotation", "dual"])
def test_pairs_are_scanned_on_a_gpu(form: str) -> None:
    a, b = torch.rand(3, 2) * 0.6, torch.randn(2, 500, 3, 2)
    y, final = wing.scan(a.cuda(), b.cuda(), form=form)
    expected, last = wing.scan(a.double(), b.double(), form=form)
    torch.testing.assert_close(y.cpu().double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    torch.testing.assert_close(final.cpu().double(), last, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(("form", "map_"), [("rotation", (0.3, 1.0)), ("dual", (1 - 1e-4, 1.0))])
def test_long_pairs_keep_their_digits(form: str, map_: tuple[float, float], is_constant: bool) -> None:
    time = 1 << 15
    a = torch.tensor([[math.cos(map_[0]), math.sin(map_[0])]]) if form == "rotation" else torch.tensor([map_])
    b = torch.randn(1, time, 1, 2, generator=torch.Generator().manual_seed(0))
    expected, _ = wing.scan(a.double(), b.double(), form=form)
    given = a.cuda() if is_constant else a.cuda().expand(1, time, 1, 2).contiguous()
    y, _ = wing.scan(given, b.cuda(), form=form)
    assert float((y.cpu().double() - expected).abs().max()) <= TURN_ALLOWED[is_constant] * float(expected.abs().max())


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("channels", [1, 40])
def test_full_maps_are_scanned_on_a_gpu(channels: int, size: int, is_constant: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    shape = (2, 3000, channels, size)
    maps = torch.randn(*(shape[2:] if is_constant else shape), size, generator=generator)
    arrays = [0.98 * torch.linalg.qr(maps.double())[0], torch.randn(shape, generator=generator).double()]
    arrays.append(torch.randn(2, channels, size, generator=generator).double())
    results = []
    for device in ("cpu", "cuda"):
        leaves = [one.to(device).requires_grad_() for one in arrays]
        y, final = wing.scan(*leaves, form="full", reverse=size == 3)
        gradients = torch.autograd.grad(y.sin().sum() + final.sum(), leaves)
        results.append([one.detach().cpu() for one in (y, final, *gradients)])
    for host, gpu in zip(*results, strict=True):
        # Each of some 50 steps that a map remembers is rounded; gradients of maps add up so many steps.
        tolerance = 64 * 50 * torch.finfo(torch.float64).eps * host.abs().max()
        torch.testing.assert_close(gpu, host, rtol=0, atol=float(tolerance))
