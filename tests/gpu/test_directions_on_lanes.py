"""Both directions beside each other on a GPU: the bits of one after the other, on streams, in graphs, and again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.busy_stream import last_beside_a_busy_stream
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

from minrnn_gen.build.builder import builder_of  # noqa: E402
from minrnn_gen.config.spec import load_spec  # noqa: E402
from minrnn_gen.interpret.verify import leaves  # noqa: E402
from minrnn_gen.kernel import Kernel  # noqa: E402
from minrnn_gen.layers.kernels import kernel_by  # noqa: E402
from minrnn_gen.plan.problem import Sizes  # noqa: E402
from minrnn_gen.run.dense import runs as dense  # noqa: E402
from minrnn_gen.run.dense.direction_choice import DirectionsChoice  # noqa: E402
from minrnn_gen.run.target import target_of  # noqa: E402

pytestmark = pytest.mark.gpu

BATCH, TIME = 16, 128
# Hidden size and heads: in clusters, in blocks by themselves, with heads, and of blocks that wait for others anywhere.
SIZES = {"lstm": (512, 1), "gru": (96, 1), "slstm": (128, 2), "elman": (2048, 1)}


@dataclass(frozen=True)
class Call:
    """A kernel whose directions run beside each other, one that has them in turn by the same kernels, and arguments."""

    beside: Kernel
    in_turn: Kernel
    arguments: dict[str, Any]
    dy: Any
    dstate: dict[str, Any]

    def step(self, kernel: Kernel, **others: Any) -> dict[str, Any]:
        """Return all results of a forward and its backward."""
        y, final, saved = kernel.forward(**self.arguments, **others)
        return {"y": y, **final, **dict(leaves(kernel.backward(saved, self.dy, self.dstate), "d"))}

    def expected(self, **others: Any) -> dict[str, Any]:
        """Return what one direction after the other gives."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINRNN_WAVEFRONT", "never")
            return self.step(self.in_turn, **others)


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions run beside each other, whatever is expected to be faster."""
    monkeypatch.setattr(dense, "choose_directions", lambda *_: DirectionsChoice(1, 1.0, 2.0))
    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")


@pytest.fixture(params=SIZES)
def call(request: pytest.FixtureRequest, _beside: None) -> Call:
    hidden, heads = SIZES[request.param]
    asked = {"model": request.param, "hidden_size": hidden, "heads": heads, "precision": "bf16", "input_size": 64}
    spec = load_spec(asked | {"direction": "bidirectional"})
    builder = builder_of(spec, target_of(spec))
    interface = Kernel(builder).interface
    torch.manual_seed(0)

    def drawn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype)

    def states() -> dict[str, Any]:
        return {name: drawn(*interface.state_shape(BATCH), dtype=torch.float32) for name in interface.states}

    arguments = {
        "x": drawn(BATCH, TIME, 64),
        "R": drawn(*interface.R_shape) / interface.head_dim**0.5,
        "weight": drawn(interface.weight_rows, 64) / 8,
        "bias": drawn(interface.weight_rows),
        "state": states(),
    }
    dy = drawn(*interface.y_shape(BATCH, TIME))
    return Call(Kernel(builder), Kernel(builder.half), arguments, dy, states())


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, values in expected.items() if not torch.equal(found[name], values)] == []


def test_lanes_change_no_bit(call: Call) -> None:
    expected = call.expected()
    for _ in range(4):  # recorded, and replayed
        assert_same(call.step(call.beside), expected)
    backend = call.beside.executor.backend
    if all(built.plan.is_persistent for built in backend.half.built.values()):
        assert not backend.built


def test_lanes_change_no_bit_of_sequences_that_end_early(call: Call) -> None:
    others = {
        "lengths": torch.randint(0, TIME + 1, (BATCH,), device="cuda"),
        "resets": torch.rand(BATCH, TIME, device="cuda") < 0.1,
    }
    expected = call.expected(**others)
    for _ in range(2):
        assert_same(call.step(call.beside, **others), expected)


def test_they_are_captured(call: Call) -> None:
    expected = call.step(call.beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call.step(call.beside)
    for values in found.values():
        values.fill_(7)
    graph.replay()
    assert_same(found, expected)


def test_nothing_hangs_beside_a_busy_stream(call: Call) -> None:
    expected = call.expected()
    assert_same(last_beside_a_busy_stream(lambda: call.step(call.beside)), expected)


def test_layers_have_directions_beside_each_other_where_that_is_expected_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, batch, time = 768, 16, 512

    def outcome(value: str) -> list[Any]:
        monkeypatch.setenv("MINRNN_WAVEFRONT", value)
        torch.manual_seed(0)
        layer = wing.LSTM(hidden, hidden, 2, bidirectional=True, precision="bf16", device="cuda", dtype=torch.bfloat16)
        for recipe in layer._made.recipes["bf16"]:
            kernel = kernel_by(recipe)
            # Calls of a key are as the first one was.
            monkeypatch.setattr(
                kernel, "executor", type(kernel.executor)(kernel.interface, kernel.builder, kernel.executor.backend)
            )
            choice = kernel.executor.gpu.directions_beside("forward", Sizes(batch, time))
            assert (choice is not None) == (value == "auto")
            assert choice is None or choice.in_words in layer.explain(batch=batch, time=time)
        x = torch.randn(batch, time, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        y, states = layer(x)
        gradients = torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])
        return [tensor.detach().double() for tensor in (y, *states, *gradients)]

    for one, other in zip(outcome("auto"), outcome("never"), strict=True):
        # Kernels for half of the GPU add up in another order: of numbers in bf16, a few units in the last place of the largest.
        assert (one - other).norm() <= 4 * 2.0**-8 * other.norm()
