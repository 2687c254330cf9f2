"""Dense cells on the GPU against torch's autograd of the plain equations in fp64, and against the CPU target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_gradients import DTYPES, X_ORDER, Y_ORDER
from test_gradients import TOLERANCE as PLAIN_TOLERANCE

from minrnn_gen.kernel import Kernel
from minrnn_gen.run import executor
from minrnn_gen.run.dense.stepwise import GRAPH_STEPS
from minrnn_gen.run.recording.operations import Program
from minrnn_gen.run.recording.replay import ByKey

pytestmark = pytest.mark.gpu

CELLS = ("elman", "lstm", "gru", "slstm")
# (batch, time, heads, head_dim): single elements, odd sizes, steps enqueued one by one, and in one graph or several.
SHAPES = ((1, 1, 1, 1), (2, 5, 1, 7), (3, GRAPH_STEPS + 3, 3, 16), (4, 2 * GRAPH_STEPS + 6, 1, 40))
# Relative error of y, which is rounded to storage.
Y_TOLERANCE = {"fp64": 2.0**-44, "fp32": 2.0**-18, "fp16": 2.0**-9, "bf16": 2.0**-6, "tf32": 2.0**-9}
# Of all else in tf32, whose factors are off by 2^-11 at most: emulated in float64, y and the states were off by up to 2^-12 and
# gradients by up to 2^-10, over six draws of the shapes here and every cell.
TOLERANCE = {**PLAIN_TOLERANCE, "tf32": 2.0**-8}


def plain_step(torch: Any, cell: str, W: Any, P: Any, state: list[Any]) -> list[Any]:
    """The next states of one step, from its publication; W [B, G, H], the products P [B, Gr, H] with their bias."""
    sigmoid, tanh = torch.sigmoid, torch.tanh
    if cell == "elman":
        return [tanh(W[:, 0] + P[:, 0])]
    if cell == "gru":
        r, z = sigmoid(W[:, 0] + P[:, 0]), sigmoid(W[:, 1] + P[:, 1])
        return [(1 - z) * tanh(W[:, 2] + r * P[:, 2]) + z * state[0]]
    i, f, z, o = (W + P).unbind(1)
    if cell == "lstm":
        c = sigmoid(f) * state[1] + sigmoid(i) * tanh(z)
        return [sigmoid(o) * tanh(c), c]
    _, c, n, m = state
    kept = torch.nn.functional.logsigmoid(f) + m
    m = torch.where(n == 0, i, torch.maximum(i, kept)).detach()
    new, kept = torch.exp(torch.clamp_max(i - m, 0)), torch.exp(torch.clamp_max(kept - m, 0))
    c, n = kept * c + new * tanh(z), torch.clamp_min(kept * n + new, 1)
    return [sigmoid(o) * c / n, c, n, m]


def plain_run(
    torch: Any, cell: str, gates: Any, R: Any, recurrent_bias: Any, state: list[Any], storage: Any
) -> tuple[Any, list[Any]]:
    """Return y [B, T, H] and the final states of gates [B, T, G, H] and R [Gr, N, D, D].

    As on a GPU a product takes the output rounded to `storage`, through which gradients pass as if it were not.
    """
    outputs = []
    for t in range(gates.shape[1]):
        rounded = state[0] + (state[0].to(storage).double() - state[0]).detach()
        heads = rounded.unflatten(1, R.shape[1:3])
        products = torch.einsum("gnoi,bni->bgno", R, heads).flatten(2) + recurrent_bias.flatten(1)
        state = plain_step(torch, cell, gates[:, t], products, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), state


def product_precision(kernel: Kernel) -> str:
    """The precision whose tolerances hold: that of the products."""
    return "tf32" if kernel.interface.precision.multiplies_in_tf32 else str(kernel.spec.precision)


def assert_near(torch: Any, got: Any, expected: Any, precision: str) -> None:
    error = torch.linalg.vector_norm(got.double() - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-30)
    assert float(error) <= TOLERANCE[precision], float(error)


def check_call(torch: Any, kernel: Kernel, batch: int, time: int) -> tuple[dict[str, Any], Any]:
    """Call both passes with all that they may be given, on numbers drawn now; return the arguments of the forward and its y."""
    cell, layout, precision = kernel.plan.problem.model, kernel.spec.layout, product_precision(kernel)
    interface = kernel.interface
    heads, size, hidden = interface.heads, interface.head_dim, interface.hidden_size
    gates, products = len(kernel.gates), len(interface.recurrent_gates)
    dtype = getattr(torch, DTYPES[kernel.spec.precision])
    carried = torch.float64 if precision == "fp64" else torch.float32

    def random(*shape: int, of: Any = dtype, scale: float = 1.0) -> Any:
        return (scale * torch.randn(*shape, device="cuda")).to(of)

    x, dy = random(batch, time, gates, hidden), random(batch, time, hidden)
    bias, recurrent_bias = random(gates, hidden), random(products, heads, size)
    R = random(products, heads, size, size, scale=size**-0.5)
    # Reachable ones: an n of slstm is 1 at least.
    initial = [random(batch, hidden, of=carried, scale=0.5) for _ in kernel.states]
    if cell == "slstm":
        initial[2] = 1 + initial[2].abs()
    dfinal = [random(batch, hidden, of=carried) for _ in kernel.states]

    exact = [value.double().clone().requires_grad_() for value in (x, bias, R, recurrent_bias, *initial)]
    outputs, final = plain_run(torch, cell, exact[0] + exact[1], exact[2], exact[3], exact[4:], dtype)
    loss = (outputs * dy.double()).sum()
    loss = loss + sum((last * one.double()).sum() for last, one in zip(final, dfinal, strict=True) if last.requires_grad)
    expected = torch.autograd.grad(loss, exact, allow_unused=True)

    named = dict(zip(kernel.states, initial, strict=True))
    given = {"bias": bias, "recurrent_bias": recurrent_bias, "state": named}
    given |= {"x": x.permute(X_ORDER[layout]).contiguous(), "R": R}
    y, state, saved = kernel.forward(**given)
    outputs = outputs.detach()
    error = torch.linalg.vector_norm(y.double() - outputs.permute(Y_ORDER[layout])) / torch.linalg.vector_norm(outputs)
    assert float(error) <= Y_TOLERANCE[precision]
    for name, last in zip(kernel.states, final, strict=True):
        assert_near(torch, state[name], last.detach(), precision)
    incoming = dy.permute(Y_ORDER[layout]).contiguous()
    dstate = dict(zip(kernel.states, dfinal, strict=True))
    gradients = kernel.backward(saved, incoming, dstate)
    assert gradients["R"].dtype == dtype and gradients["R"].shape == R.shape
    assert_near(torch, gradients["x"], expected[0].permute(X_ORDER[layout]), precision)
    for name, value in zip(("bias", "R", "recurrent_bias"), expected[1:4], strict=True):
        assert_near(torch, gradients[name], value, precision)
    for name, value in zip(kernel.states, expected[4:], strict=True):
        assert_near(torch, gradients["state"][name], torch.zeros_like(x[:, 0, 0]) if value is None else value, precision)
    again = kernel.backward(saved, incoming, dstate)
    assert all(torch.equal(again[name], gradients[name]) for name in ("x", "R", "bias", "recurrent_bias"))
    return given, y


@pytest.mark.parametrize("layout", tuple(X_ORDER))
@pytest.mark.parametrize("precision", tuple(DTYPES))
@pytest.mark.parametrize("cell", CELLS)
def test_against_autograd(compiled: Callable[..., Kernel], cell: str, precision: str, layout: str) -> None:
    check_against_autograd(compiled, cell, precision, layout, SHAPES)


# Heads of a block, of a cluster of two kinds of R (split once, or in every step), and of rows at multiples of one value.
WIDE_SHAPES = ((5, 40, 2, 32), (9, 33, 1, 128), (4, 20, 1, 192), (3, 17, 3, 33))
WIDE_SPECS = (
    {"precision": "fp32"},
    {"precision": "fp32", "fp32_product": "tf32"},
    {"precision": "fp32", "fp32_product": "fma"},
    {"precision": "fp64"},
)
TF32 = {"precision": "fp32", "fp32_product": "tf32"}
# In a grid, and in clusters of which shared memory has a part of R; rows at multiples of two values and of one.
TF32_SHAPES = ((3, 7, 1, 512), (9, 5, 1, 602), (3, 5, 1, 333))


@pytest.mark.parametrize("spec", WIDE_SPECS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_persistent_kernels_of_more_than_16_bits(compiled: Callable[..., Kernel], cell: str, spec: dict[str, str]) -> None:
    check_against_autograd(compiled, cell, layout="BTD", shapes=WIDE_SHAPES, **spec)


@pytest.mark.parametrize("cell", CELLS)
def test_large_heads_in_tf32(compiled: Callable[..., Kernel], cell: str) -> None:
    check_against_autograd(compiled, cell, layout="BTD", shapes=TF32_SHAPES, **TF32)


@pytest.mark.parametrize("cell", CELLS)
def test_stepwise_kernels_in_tf32(compiled: Callable[..., Kernel], cell: str) -> None:
    check_against_autograd(compiled, cell, layout="BDT", shapes=SHAPES[1:], **TF32)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_multiplies_in_float32_whatever_the_product_is(compiled: Callable[..., Kernel], cell: str) -> None:
    """The same bits as with three products; beyond what it serves, a forward of one step in tf32."""
    import torch

    for batch, heads, size in ((1, 1, 512), (16, 3, 33), (1000, 1, 512)):
        sizes = {"hidden_size": heads * size, "heads": heads}
        in_tf32, in_three = (compiled(model=cell, **sizes, **spec) for spec in (TF32, {"precision": "fp32"}))
        x, R = arguments(torch, in_tf32, batch, 1, seed=9)
        (y, _), (expected, _) = in_tf32.step(x[:, 0], R), in_three.step(x[:, 0], R)
        if batch < 1000:
            assert torch.equal(y, expected)
        else:
            assert_near(torch, y, expected.double(), "tf32")


# Of which shared memory has a part, where a cluster has one, and rows at multiples of two values.
LARGE_SHAPES = ((5, 9, 1, 512), (3, 7, 1, 768), (3, 5, 1, 602))


@pytest.mark.parametrize("cell", CELLS)
def test_large_heads(compiled: Callable[..., Kernel], cell: str) -> None:
    check_against_autograd(compiled, cell, "bf16", "BTD", LARGE_SHAPES)


# R on the chip and streamed, with less than a tile of sequences and with several.
LARGE_SHAPES_IN_FP32 = ((5, 9, 1, 512), (70, 5, 1, 768))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_large_heads_in_fp32(compiled: Callable[..., Kernel], cell: str) -> None:
    check_against_autograd(compiled, cell, "fp32", "BTD", LARGE_SHAPES_IN_FP32)


def check_against_autograd(
    compiled: Callable[..., Kernel],
    cell: str,
    precision: str,
    layout: str,
    shapes: tuple[tuple[int, int, int, int], ...],
    **spec: str,
) -> None:
    import torch

    torch.manual_seed(5)
    for batch, time, heads, size in shapes:
        sizes = {"hidden_size": heads * size, "heads": heads}
        kernel = compiled(model=cell, precision=precision, layout=layout, recurrent_bias=True, **sizes, **spec)
        given, y = check_call(torch, kernel, batch, time)
        repeated, _ = kernel(**given)
        assert torch.equal(repeated, y)


def arguments(torch: Any, kernel: Kernel, batch: int, time: int, seed: int) -> tuple[Any, Any]:
    """Return x and R of a call in layout BTD."""
    generator = torch.Generator("cuda").manual_seed(seed)
    interface, dtype = kernel.interface, getattr(torch, kernel.interface.precision.storage_dtype)
    x = torch.randn(interface.shape(interface.x_axes, batch, time), device="cuda", generator=generator)
    R = torch.randn(interface.R_shape, device="cuda", generator=generator) * interface.head_dim**-0.5
    return x.to(dtype), R.to(dtype)


# A persistent kernel in a block, in a cluster and in a grid, and the alternating path by its size.
WAYS = (
    ("bf16", 2, 32),
    ("bf16", 1, 192),
    ("fp32", 1, 48),
    ("fp32", 1, 192),
    ("fp64", 2, 32),
    ("fp32", 1, 640),
    ("bf16", 1, 1280),
    ("bf16", 1, 2560),
)


@pytest.mark.parametrize(("precision", "heads", "size"), WAYS)
def test_a_cuda_graph_replays_a_call_and_a_step(compiled: Callable[..., Kernel], precision: str, heads: int, size: int) -> None:
    import torch

    kernel = compiled(model="lstm", hidden_size=heads * size, heads=heads, precision=precision)
    x, R = arguments(torch, kernel, 3, 2 * GRAPH_STEPS + 5, seed=1)
    _, state = kernel(x, R)  # loads everything outside the capture
    kernel.step(x[:, 0], R, state=state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, state = kernel(x, R)
        y_step, _ = kernel.step(x[:, 0], R, state=state)
    x.copy_(arguments(torch, kernel, 3, 2 * GRAPH_STEPS + 5, seed=2)[0])
    for one in (y, y_step):
        one.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    expected, final = kernel(x, R)
    assert torch.equal(y, expected)
    assert torch.equal(y_step, kernel.step(x[:, 0], R, state=final)[0])


# Products of tensor cores stream R where it does not fit.
STEPWISE = (("fp32", 1, 640), ("fp32", 3, 512), ("fp64", 1, 512))


@pytest.mark.parametrize("time", [1, 2, GRAPH_STEPS - 2])
@pytest.mark.parametrize(("precision", "heads", "size"), STEPWISE)
def test_few_steps_one_by_one_are_replayed_bit_by_bit(
    compiled: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch, precision: str, heads: int, size: int, time: int
) -> None:
    """A call whose key was met before is neither checked nor prepared, and has the bits of one that nothing is recorded of."""
    import torch

    kernel = compiled(model="lstm", hidden_size=heads * size, heads=heads, precision=precision, fp32_product="fma")
    carried = torch.float64 if precision == "fp64" else torch.float32

    def run(seed: int) -> list[Any]:
        x, R = arguments(torch, kernel, 3, time, seed)
        torch.manual_seed(seed)
        state = {name: torch.randn(3, heads * size, device="cuda", dtype=carried) for name in kernel.states}
        y, final, saved = kernel.forward(x, R, state=state)
        gradients = kernel.backward(saved, y, state)
        return [y, *final.values(), gradients["x"], gradients["R"], *gradients["state"].values()]

    first = [run(seed) for seed in (1, 1, 2)]  # recorded, and replayed
    assert {key.kernel_pass for key, built in kernel.executor.backend.built.items() if built.plan.strategy == "stepwise"}
    gpu, checked = kernel.executor.gpu, []
    assert len(gpu.forwards) and len(gpu.backwards)
    monkeypatch.setattr(executor, "check_call", lambda *_, **__: checked.append("call"))
    monkeypatch.setattr(executor, "check_gradient", lambda *_, **__: checked.append("gradient"))
    again = [run(seed) for seed in (1, 1, 2)]
    assert checked == []
    monkeypatch.undo()
    # As they are where Python enqueues one operation after the other.
    monkeypatch.setattr(Program, "_compiled", lambda _: None)
    for cache in (gpu.forwards, gpu.backwards):
        monkeypatch.setattr(cache, "_traces", ByKey())
    by_python = [run(seed) for seed in (1, 1, 2)]
    for calls in (again, by_python):
        for found, expected in zip(calls, first, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("precision", "heads", "size"), WAYS)
def test_streams_and_batches_do_not_disturb_each_other(
    compiled: Callable[..., Kernel], precision: str, heads: int, size: int
) -> None:
    """One kernel, two streams, batches and times in turn: the memory of a graph is shared by all runs of a batch size."""
    import torch

    kernel = compiled(model="gru", hidden_size=heads * size, heads=heads, precision=precision)
    calls = [arguments(torch, kernel, batch, time, seed) for seed, (batch, time) in enumerate([(3, 70), (3, 100), (5, 70)])]
    expected = [kernel(*call)[0] for call in calls]
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 2]):
            found.append((turn % 3, kernel(*calls[turn % 3])[0]))
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected[which]) for which, y in found)


@pytest.mark.parametrize(("precision", "heads", "size"), WAYS)
@pytest.mark.parametrize(("batch", "time"), ((0, 5), (2, 0)))
def test_nothing_gives_nothing(
    compiled: Callable[..., Kernel], precision: str, heads: int, size: int, batch: int, time: int
) -> None:
    import torch

    kernel = compiled(model="lstm", hidden_size=heads * size, heads=heads, precision=precision)
    x, R = arguments(torch, kernel, batch, time, seed=3)
    carried = torch.float64 if precision == "fp64" else torch.float32
    initial = {name: torch.randn(batch, heads * size, device="cuda", dtype=carried) for name in kernel.states}
    y, state, saved = kernel.forward(x, R, state=initial)
    gradients = kernel.backward(saved, y)
    assert y.shape == (batch, time, heads * size) and all(torch.equal(state[name], initial[name]) for name in initial)
    assert not gradients["R"].any() and gradients["x"].shape == x.shape


@pytest.mark.parametrize(("precision", "heads", "size"), WAYS)
def test_nan_stays_in_its_sequence(compiled: Callable[..., Kernel], precision: str, heads: int, size: int) -> None:
    import torch

    kernel = compiled(model="slstm", hidden_size=heads * size, heads=heads, precision=precision)
    x, R = arguments(torch, kernel, 9, 40, seed=4)
    expected, _ = kernel(x, R)
    x[4, 7] = float("nan")
    y, _ = kernel(x, R)
    others = [sequence for sequence in range(9) if sequence != 4]
    assert torch.equal(y[others], expected[others]) and torch.equal(y[4, :7], expected[4, :7])


# Of every way of the step: one unit of a warp and several, rounds of pieces, pieces of one value, and a forward of one.
STEP_LAYERS = ((1, 512), (12, 64), (1, 1024), (3, 33), (2, 1))
STEP_BATCHES = (1, 3, 16, 65, 1000)


@pytest.mark.parametrize("precision", tuple(DTYPES))
@pytest.mark.parametrize("cell", CELLS)
def test_a_step_is_a_forward_of_one(compiled: Callable[..., Kernel], cell: str, precision: str) -> None:
    """Against the equations in fp64 and a forward of one step; again on the same arrays, from a tape, the same bits."""
    import torch

    torch.manual_seed(6)
    dtype = getattr(torch, DTYPES[precision])
    carried = torch.float64 if precision == "fp64" else torch.float32

    def random(*shape: int, of: Any = dtype, scale: float = 1.0) -> Any:
        return (scale * torch.randn(*shape, device="cuda")).to(of)

    for heads, size in STEP_LAYERS:
        hidden = heads * size
        kernel = compiled(model=cell, hidden_size=hidden, heads=heads, precision=precision, recurrent_bias=True)
        interface = kernel.interface
        products = len(interface.recurrent_gates)
        R, bias = random(*interface.R_shape, scale=size**-0.5), random(len(kernel.gates), hidden)
        recurrent_bias = random(products, heads, size)
        for batch in STEP_BATCHES:
            x = random(batch, hidden, len(kernel.gates)).transpose(1, 2)  # any strides
            initial = [random(batch, hidden, of=carried, scale=0.5) for _ in kernel.states]
            if cell == "slstm":
                initial[2] = 1 + initial[2].abs()
            gates = x.double() + bias.double()
            exact, states = plain_run(
                torch, cell, gates[:, None], R.double(), recurrent_bias.double(), [one.double() for one in initial], dtype
            )
            given = {
                "R": R,
                "bias": bias,
                "recurrent_bias": recurrent_bias,
                "state": dict(zip(kernel.states, initial, strict=True)),
            }
            y, state = kernel.step(x, **given)
            error = torch.linalg.vector_norm(y.double() - exact[:, 0]) / torch.linalg.vector_norm(exact)
            assert float(error) <= Y_TOLERANCE[precision], (heads, size, batch, float(error))
            for name, expected in zip(kernel.states, states, strict=True):
                assert_near(torch, state[name], expected, precision)
            y_forward, _ = kernel(x[:, None].contiguous(), **given)
            difference = torch.linalg.vector_norm(y_forward[:, 0].double() - y.double()) / torch.linalg.vector_norm(exact)
            assert float(difference) <= 2 * Y_TOLERANCE[precision]
            again, its_state = kernel.step(x, **given)
            assert torch.equal(again, y) and all(torch.equal(state[name], its_state[name]) for name in state)
        entries = {plan.entry for key, plan in kernel.plans.items() if key.kernel_pass == "step"}
        assert entries == {"decode_step"}


@pytest.mark.parametrize("batch", (1, 5))
@pytest.mark.parametrize(("precision", "heads", "size"), WAYS)
def test_decoding_in_a_cuda_graph(compiled: Callable[..., Kernel], precision: str, heads: int, size: int, batch: int) -> None:
    """Steps one after the other, recorded once: other inputs, the same bits as outside of the graph."""
    import torch

    kernel = compiled(model="lstm", hidden_size=heads * size, heads=heads, precision=precision)
    x, R = arguments(torch, kernel, batch, 9, seed=7)

    def decode() -> list[Any]:
        state, found = None, []
        for t in range(x.shape[1]):
            y, state = kernel.step(x[:, t], R, state=state)
            found.append(y)
        return found

    decode()  # loads everything outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = decode()
    x.copy_(arguments(torch, kernel, batch, 9, seed=8)[0])
    for y in outputs:
        y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected) for y, expected in zip(outputs, decode(), strict=True))
