"""Layers and functions of minrnn_gen.torch on a GPU: what they compute, and what torch does with them there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.needed import needed
from support.reference_cells import plain_layer

from minrnn_gen.cell.files import library_names
from minrnn_gen.errors import BadInput
from minrnn_gen.run import executor

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 3, 37, 24, 64
PRECISIONS = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# Relative error of a whole array. In 16 bits pre-activations are rounded, and in dense cells the output before each product; in
# tf32 all factors, to as many digits as fp16 has.
TOLERANCE = {"fp64": 2.0**-40, "fp32": 2.0**-15, "fp16": 2.0**-8, "bf16": 2.0**-5, "tf32": 2.0**-8}


def relative(found: Any, expected: Any) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def random(*shape: int, seed: int = 0, **options: Any) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", **options)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("model", library_names())
def test_every_cell_beside_autograd_of_the_plain_equations(model: str, precision: str) -> None:
    if precision == "tf32" and "lif" in model:
        pytest.skip("a product in tf32 moves membranes across the threshold, so that other neurons fire")
    torch.manual_seed(0)
    heads = 2 if model in ("slstm", "gru") else 1
    product = "tf32" if precision == "tf32" else "tf32x3"
    layer = wing.RNN(model, INPUTS, HIDDEN, heads=heads, fp32_product=product)
    layer = layer.to("cuda", getattr(torch, PRECISIONS.get(precision, "float32")))
    x = random(BATCH, TIME, INPUTS, dtype=layer.weight_ih_l0.dtype).requires_grad_()
    named = dict(layer.named_parameters())
    exact = {name.removesuffix("_l0"): one.detach().double().requires_grad_() for name, one in named.items()}
    exact_x = x.detach().double().requires_grad_()
    expected, last = plain_layer(model, exact, exact_x, heads, x.dtype)
    dy = random(*expected.shape, seed=1, dtype=x.dtype)
    of_exact = torch.autograd.grad(expected, [exact_x, *exact.values()], dy.double())
    for _ in range(2):  # prepared, and then done again
        y, final = layer(x)
        found = torch.autograd.grad(y, [x, *named.values()], dy)
        final = final if isinstance(final, tuple) else (final,)
        assert relative(y, expected) <= TOLERANCE[precision]
        for one, other in zip(final, last, strict=True):
            assert relative(one[0], other) <= TOLERANCE[precision]
        for name, one, other in zip(["x", *named], found, of_exact, strict=True):
            assert relative(one, other) <= TOLERANCE[precision], name


LAYERS = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN"}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("model", LAYERS)
def test_layers_of_torch_with_the_same_weights(model: str, layers: int, bidirectional: bool) -> None:
    """Theirs in float64 on the host: of these, cuDNN's own in float32 are up to 1.1e-5 off, and these a hundredth of that."""
    options = {"bidirectional": bidirectional, "batch_first": True}
    theirs = getattr(torch.nn, LAYERS[model])(INPUTS, HIDDEN, layers, **options)
    ours = wing.RNN(model, INPUTS, HIDDEN, layers, device="cuda", fp32_product="tf32x3", **options)
    ours.load_state_dict(theirs.state_dict())
    theirs = theirs.double()
    x, lengths = random(BATCH, TIME, INPUTS).requires_grad_(), [12, TIME, 1]
    its_x = x.detach().cpu().double().requires_grad_()
    for is_packed in (False, True):
        (y, last), (expected, its_last) = (
            layer(
                torch.nn.utils.rnn.pack_padded_sequence(one, lengths, batch_first=True, enforce_sorted=False)
                if is_packed
                else one
            )
            for layer, one in ((ours, x), (theirs, its_x))
        )
        if is_packed:
            y, expected = y.data, expected.data
        pairs = [(last, its_last)] if model != "lstm" else zip(last, its_last, strict=True)
        for one, other in ((y, expected), *pairs):
            torch.testing.assert_close(one.cpu().double(), other, rtol=0, atol=1e-5)
        dy = random(*y.shape, seed=1)
        wanted = [x, *dict(sorted(ours.named_parameters())).values()]
        its_wanted = [its_x, *dict(sorted(theirs.named_parameters())).values()]
        found = torch.autograd.grad(y, wanted, dy, retain_graph=True)
        of_theirs = torch.autograd.grad(expected, its_wanted, dy.cpu().double(), retain_graph=True)
        for one, other in zip(found, of_theirs, strict=True):
            assert relative(one.cpu(), other) <= 1e-5


def trained(layer: Any, x: Any, dy: Any) -> list[Any]:
    y, last = layer(x)
    last = last if isinstance(last, tuple) else (last,)
    return [y.detach(), *(one.detach() for one in last), *torch.autograd.grad(y, [x, *layer.parameters()], dy)]


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("model", "options"), [("min_gru", {}), ("lstm", {"heads": 2}), ("gru", {"bidirectional": True})])
def test_what_was_done_once_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any]
) -> None:
    """Forward and backward are played again, from the arrays alone, with bitwise the same results."""
    layer, x = wing.RNN(model, INPUTS, HIDDEN, device="cuda", **options), random(BATCH, TIME, INPUTS).requires_grad_()
    dy = random(BATCH, TIME, HIDDEN * (2 if options.get("bidirectional") else 1), seed=1)
    expected = trained(layer, x, dy)
    checked: list[str] = []
    check = executor.check_call
    monkeypatch.setattr(executor, "check_call", lambda *given, **named: checked.append("call") or check(*given, **named))
    for _ in range(3):
        assert same(trained(layer, x, dy), expected)
    assert checked == []


@pytest.mark.parametrize("model", ["min_gru", "slstm"])
def test_a_graph_replays_forward_and_backward(model: str) -> None:
    layer, x = wing.RNN(model, INPUTS, HIDDEN, device="cuda"), random(BATCH, TIME, INPUTS).requires_grad_()
    dy = random(BATCH, TIME, HIDDEN, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            trained(layer, x, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = trained(layer, x, dy)
    with torch.no_grad():
        x.copy_(random(BATCH, TIME, INPUTS, seed=5))
    graph.replay()
    torch.cuda.synchronize()
    assert same(found, trained(layer, x, dy))


def test_streams_and_memory_are_torchs() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN, device="cuda"), random(BATCH, TIME, INPUTS).requires_grad_()
    dy = random(BATCH, TIME, HIDDEN, seed=1)
    expected = trained(layer, x, dy)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # some 30 ms of nothing, which a launch elsewhere would overtake
        late = x.detach().clone().zero_().add_(x.detach()).requires_grad_()
        found = trained(layer, late, dy)
    stream.synchronize()
    assert same(found, expected)
    before = torch.cuda.memory_allocated()
    y, final = layer(x)
    assert torch.cuda.memory_allocated() > before
    del y, final, found, late
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("model", ["min_lstm", "lstm"])
def test_autocast_with_scaled_gradients(model: str, dtype: str) -> None:
    torch.manual_seed(0)
    layer, x = wing.RNN(model, INPUTS, HIDDEN, device="cuda"), random(BATCH, TIME, INPUTS)
    expected, _ = layer(x)
    optimiser, scaler = torch.optim.SGD(layer.parameters(), 0.1), torch.amp.GradScaler("cuda")
    before = [one.detach().clone() for one in layer.parameters()]
    with torch.autocast("cuda", dtype=getattr(torch, dtype)):
        y, _ = layer(x)
    assert y.dtype is getattr(torch, dtype)
    assert relative(y, expected.double()) <= TOLERANCE["bf16" if dtype == "bfloat16" else "fp16"]
    scaler.scale(y.float().square().mean()).backward()
    scaler.step(optimiser)
    scaler.update()
    after = list(layer.parameters())
    assert all(torch.isfinite(one).all() for one in after)
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


# What the compiler of torch 2.11 imports is deprecated by itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize(("model", "options"), [("rg_lru", {}), ("lstm", {"num_layers": 2}), ("gru", {"bidirectional": True})])
def test_a_layer_is_compiled_in_one_piece(model: str, options: dict[str, Any]) -> None:
    torch.compiler.reset()
    layer = wing.RNN(model, INPUTS, HIDDEN, device="cuda", **options)
    compiled = torch.compile(layer, fullgraph=True)
    channels = HIDDEN * (2 if options.get("bidirectional") else 1)
    for time in (TIME, TIME + 3):
        x, dy = random(BATCH, time, INPUTS).requires_grad_(), random(BATCH, time, channels, seed=1)
        y, _ = compiled(x)
        expected, _ = layer(x)
        torch.testing.assert_close(y, expected)
        inputs = [x, *layer.parameters()]
        for one, other in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_operators_keep_what_their_schemas_say() -> None:
    layer = wing.LSTM(INPUTS, HIDDEN, device="cuda")
    (recipe,) = layer._made.recipes["fp32"]
    x, parameters = random(BATCH, TIME, INPUTS).requires_grad_(), dict(layer.named_parameters())
    names = ("weight_hh_l0", "weight_ih_l0", "bias_ih_l0", "bias_hh_l0")
    call = (recipe, True, True, x, *(parameters[name] for name in names), None, None, None, [], [], [])
    torch.library.opcheck(torch.ops.minrnn_gen.recurrence.default, call)
    a, b, h0 = (random(*shape, seed=2).requires_grad_() for shape in ((BATCH, TIME, 5), (BATCH, TIME, 5), (BATCH, 5)))
    torch.library.opcheck(torch.ops.minrnn_gen.scan.default, (a.detach().sigmoid().requires_grad_(), b, h0, False, False, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize(("axis", "reverse"), [(1, False), (0, True), (2, False)])
def test_the_raw_scan_beside_that_of_the_host(dtype: str, axis: int, reverse: bool) -> None:
    kind = getattr(torch, dtype)
    a, b = random(4, 33, 6).sigmoid().to(kind).requires_grad_(), random(4, 33, 6, seed=1).to(kind).requires_grad_()
    h0 = random(*a.select(axis, 0).shape, seed=2).to(torch.float32 if dtype == "bfloat16" else kind).requires_grad_()
    host = [one.detach().cpu().requires_grad_() for one in (a, b, h0)]
    tolerance = {"rtol": 0.02, "atol": 0.05} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
    for y, final in (wing.scan(a, b, h0, axis=axis, reverse=reverse),):
        expected, last = wing.scan(*host, axis=axis, reverse=reverse)
        found = torch.autograd.grad((y.abs().float().sum() + final.abs().float().sum()), (a, b, h0))
        of_host = torch.autograd.grad((expected.abs().float().sum() + last.abs().float().sum()), host)
        for one, other in itertools.chain(zip((y, final), (expected, last), strict=True), zip(found, of_host, strict=True)):
            torch.testing.assert_close(one.cpu(), other, **tolerance)


def test_tensors_in_two_places_are_refused() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN, device="cuda"), random(BATCH, TIME, INPUTS)
    with pytest.raises(BadInput, match=r"input is on cpu, but parameter weight_ih_l0 is on cuda:0; move one of them"):
        layer(x.cpu())
    state = torch.zeros(1, BATCH, HIDDEN)
    with pytest.raises(BadInput, match=r"state\['h'\] is in host memory, but x is on CUDA device 0"):
        layer(x, (state, state))
