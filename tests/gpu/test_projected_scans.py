"""Scans with their projection in one kernel, on a GPU: layers beside the same ones by two kernels, and beside float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.interpret.cases import SLOW
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.plan.scan import projected
from minrnn_gen.plan.scan.projected import TILE_STEPS

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

# Relative error of a whole array: what rounding y, and pre-activations for the gradients, to 8 or 11 digits leaves.
TOLERANCE = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
LAUNCHES = 200


@pytest.fixture(autouse=True)
def _on_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("only sm_90 has products of warpgroups")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Project in the kernel of the scan wherever there is one, whatever is faster; nowhere while the list has False."""
    does = [True]
    monkeypatch.setattr(ProjectionChoice, "serves", lambda _, problem: projected.is_feasible(problem) if does[0] else 0)
    yield does


def layer_of(model: str, inputs: int, hidden: int, dtype: str, hint: int) -> Any:
    """Return a layer; of another `hint` it has kernels, and records, of its own."""
    torch.manual_seed(0)
    layer = wing.RNN(model, inputs, hidden, batch=hint)
    with torch.no_grad():  # some channels keep their states over tiles
        layer.bias_ih_l0[:hidden] += torch.linspace(-SLOW, 0, hidden)
    return layer.to("cuda", getattr(torch, dtype))


def entries(layer: Any, precision: str = "bf16") -> set[str]:
    kernel = kernel_by(layer._recipes(precision)[0])
    return {built.plan.entry for built in kernel.executor.backend.built.values()}


def step(layer: Any, x: Any, hx: Any, dy: Any) -> list[Any]:
    y, final = layer(x, hx)
    return [y, final, *torch.autograd.grad(y, [x, hx, *layer.parameters()], dy)]


def relative(found: Any, expected: Any) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def exact(layer: Any, x: Any, hx: Any) -> Any:
    """Return y in float64, step after step."""
    weight, bias = layer.weight_ih_l0.detach().double(), layer.bias_ih_l0.detach().double()
    gates = torch.nn.functional.linear(x.detach().double(), weight, bias)
    z, new = gates.chunk(2, -1)
    z, state, states = torch.sigmoid(z), hx.detach()[0].double(), []
    for t in range(x.shape[1]):
        state = (1 - z[:, t]) * state + z[:, t] * new[:, t]
        states.append(state)
    return torch.stack(states, 1)


# Fewer tiles than blocks, more, one chunk, and more chunks than stages; a sequence of many tiles.
SIZES = ((3, 2, 192, 128), (16, 4, 128, 768), (2, 1, 64, 256), (5, 9, 1024, 256), (1, 64, 256, 128))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("batch", "tiles", "inputs", "hidden"), SIZES)
def test_one_kernel_beside_two_and_beside_float64(
    always: list[bool], batch: int, tiles: int, inputs: int, hidden: int, dtype: str
) -> None:
    x = torch.randn(batch, tiles * TILE_STEPS, inputs, device="cuda", dtype=getattr(torch, dtype)).requires_grad_()
    hx = torch.randn(1, batch, hidden, device="cuda").requires_grad_()
    dy = torch.randn(batch, tiles * TILE_STEPS, hidden, device="cuda", dtype=x.dtype)
    one, two = layer_of("min_gru", inputs, hidden, dtype, 3), layer_of("min_gru", inputs, hidden, dtype, 4)
    found = step(one, x, hx, dy)
    again, replayed = step(one, x, hx, dy), step(one, x, hx, dy)
    with torch.no_grad():
        y, final = one(x, hx)
    always[0] = False
    expected = step(two, x, hx, dy)
    precision = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    assert "projected_forward" in entries(one, precision) and "projected_forward" not in entries(two, precision)
    for first, second, third in zip(found, again, replayed, strict=True):
        assert torch.equal(first, second) and torch.equal(first, third)
    assert torch.equal(y, found[0]) and torch.equal(final, found[1])
    expected_y = exact(one, x, hx)
    assert relative(found[0], expected_y) <= TOLERANCE[dtype]
    # Slow channels, whose states go from lane to lane and from tile to tile, are small beside others.
    error, size = ((values.detach().double()).norm(dim=(0, 1)) for values in (found[0].double() - expected_y, expected_y))
    assert bool((error <= TOLERANCE[dtype] * size).all())
    for one_kernel, two_kernels in zip(found, expected, strict=True):
        assert relative(one_kernel, two_kernels) <= 2 * TOLERANCE[dtype]  # each has its own


def test_sizes_of_a_large_layer_take_it_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_PROJECTED_SCAN", "auto")
    layer = layer_of("min_gru", 768, 768, "bfloat16", 16)
    x = torch.randn(16, 1024, 768, device="cuda", dtype=torch.bfloat16)
    hx = torch.zeros(1, 16, 768, device="cuda")
    with torch.no_grad():
        y, _ = layer(x)
    assert "projected_forward" in entries(layer)
    assert relative(y, exact(layer, x, hx)) <= TOLERANCE["bfloat16"]


@pytest.mark.usefixtures("always")
def test_it_is_captured_in_a_graph() -> None:
    layer, x = layer_of("min_gru", 128, 128, "bfloat16", 5), torch.randn(4, 256, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected, _ = layer(x)
        graph, kept = torch.cuda.CUDAGraph(), torch.zeros_like(x)
        with torch.cuda.graph(graph):
            y, _ = layer(kept)
        kept.copy_(x)
        graph.replay()
    assert torch.equal(y, expected)


@pytest.mark.usefixtures("always")
def test_many_launches_beside_a_busy_stream_end_alike() -> None:
    """Blocks wait for others: all of them are resident, whatever else runs."""
    layer, x = layer_of("min_gru", 256, 256, "bfloat16", 6), torch.randn(9, 512, 256, device="cuda", dtype=torch.bfloat16)
    busy, matrix = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected, _ = layer(x)
        torch.cuda.synchronize()
        for _ in range(LAUNCHES):
            with torch.cuda.stream(busy):
                matrix @ matrix
            y, _ = layer(x)
            assert torch.equal(y, expected)
    torch.cuda.synchronize()
