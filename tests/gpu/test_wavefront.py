"""Layers beside each other on a GPU: the bits of layers one after the other, on streams, in graphs, and again and again."""

from __future__ import annotations

from typing import Any

import pytest
from support.busy_stream import last_beside_a_busy_stream
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

import minrnn_gen  # noqa: E402
from minrnn_gen.call.pieces import Piece  # noqa: E402
from minrnn_gen.gpu import memory  # noqa: E402
from minrnn_gen.run.layers.dropout import Dropout  # noqa: E402
from minrnn_gen.run.layers.stack import Cut, StackResult, StackRun  # noqa: E402
from minrnn_gen.torch.layers import beside  # noqa: E402
from minrnn_gen.torch.layers.dropout import draw_masks, dropped  # noqa: E402

pytestmark = pytest.mark.gpu

BATCH, TIME, LAYERS = 16, 128, 3
LAYER = {"lstm": 256, "gru": 96, "slstm": 64}
PROBABILITY = 0.3
Call = tuple[StackRun, list[Any], list[Any], float]


@pytest.fixture(params=[*((model, 0.0) for model in LAYER), ("lstm", PROBABILITY), ("gru", PROBABILITY)])
def call(request: pytest.FixtureRequest) -> Call:
    model, dropout = request.param
    return call_of(model, LAYER[model], 2, TIME, dropout)


def call_of(model: str, hidden: int, heads: int, time: int, dropout: float) -> Call:
    """Return layers by the kernels for a third of the GPU, the tensors of a call, and the gradients of what it returns."""
    torch.manual_seed(0)
    layer = wing.RNN(model, hidden, hidden, LAYERS, heads=heads, precision="bf16", device="cuda", dtype=torch.bfloat16)
    recipes = layer._made.recipes["bf16"]
    x, dy = (torch.randn(BATCH, time, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    parameters = [tensor.detach() for number in range(LAYERS) for tensor in layer._beside(x, number, False)]
    states, dstates = ([torch.randn(LAYERS, BATCH, hidden, device="cuda") for _ in layer.states] for _ in range(2))
    masks = draw_masks(x, hidden, LAYERS - 1, dropout)
    return beside._run_of(tuple(recipes), LAYERS), [x, None, *parameters, *states, *masks], [dy, *dstates], dropout


def step(run: StackRun, tensors: list[Any], incoming: list[Any], dropout: float, cut: Cut) -> list[Any]:
    with torch.no_grad():
        results = run.forward(tensors, cut, True, dropout)
        saved = results[len(incoming) :]
        gradients = run.backward(tensors, [results[0], *saved], incoming, cut, dropout)
    return [tensor for tensor in (*results, *gradients) if tensor is not None]


def test_lanes_change_no_bit(call: Any) -> None:
    in_turn = step(*call, Cut(1, 4))
    for lanes in (2, 3, 2, 3):  # recorded, and replayed
        for found, expected in zip(step(*call, Cut(lanes, 4)), in_turn, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dropout", [0.0, PROBABILITY])
@pytest.mark.parametrize(("hidden", "heads"), [(512, 1), (768, 12), (768, 1)])
def test_a_cut_changes_no_bit(hidden: int, heads: int, dropout: float) -> None:
    # Of sizes at which cuBLAS adds up in the same order whether a product is of a piece or of all steps.
    call = call_of("lstm", hidden, heads, 1024, dropout)
    uncut = step(*call, Cut(1, 1))
    for found, expected in zip(step(*call, Cut(3, 8)), uncut, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("hidden", [256, 33])
def test_dropout_is_what_torch_makes_of_the_same_mask(dtype: Any, hidden: int) -> None:
    torch.manual_seed(0)
    precision = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}[dtype]
    kernel = minrnn_gen.compile({"model": "gru", "hidden_size": hidden, "precision": precision})
    source = torch.randn(BATCH, TIME, hidden, device="cuda").to(dtype)
    source[0, 0, :2] = torch.tensor([float("nan"), float("inf")])
    (mask,) = draw_masks(source, hidden, 1, PROBABILITY)
    expected = dropped(source, mask, PROBABILITY)
    for piece in (Piece(0, TIME, TIME), Piece(5, 7, TIME)):
        target = torch.zeros_like(source)
        wanted = Dropout(*(memory.inspect(array, "an array") for array in (source, mask, target)), PROBABILITY)
        recorder = kernel.executor.backend.begin(wanted.source, None, ())
        wanted.piece("bth", piece).run(recorder)
        recorder.finish(StackResult(()), None)
        outside = torch.zeros_like(source)
        steps = slice(piece.start, piece.start + piece.steps)
        outside[:, steps] = expected[:, steps]
        torch.testing.assert_close(target, outside, rtol=0, atol=0, equal_nan=True)


def test_it_is_captured(call: Any) -> None:
    expected = step(*call, Cut(3, 4))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(*call, Cut(3, 4))
    for tensor in found:
        tensor.fill_(7)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_nothing_hangs_beside_a_busy_stream(call: Any) -> None:
    expected = step(*call, Cut(3, 4))
    found = last_beside_a_busy_stream(lambda: step(*call, Cut(3, 4)))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dropout", [0.0, PROBABILITY])
def test_layers_run_beside_each_other_where_that_is_expected_to_be_faster(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")
    hidden, batch, time = 768, 16, 512
    layer = wing.LSTM(hidden, hidden, 4, dropout=dropout, precision="bf16", device="cuda", dtype=torch.bfloat16)
    recipes = layer._made.recipes["bf16"]
    chosen = beside.beside_each_other(recipes, "forward", batch, time)
    assert chosen is not None and chosen.in_words in layer.explain(batch=batch, time=time)
    x = torch.randn(batch, time, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def outcome() -> list[Any]:
        torch.manual_seed(3)
        y, states = layer(x)
        random_states.append(torch.cuda.get_rng_state())
        gradients = torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])
        return [tensor.detach().double() for tensor in (y, *states, *gradients)]

    random_states: list[Any] = []
    found = outcome()
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    for one, other in zip(found, outcome(), strict=True):
        # Kernels for a share add up in another order: of numbers in bf16, a few units in the last place of the largest.
        assert (one - other).norm() <= 4 * 2.0**-8 * other.norm()
    assert torch.equal(*random_states)
