"""Torch's machinery on a module: it compiles, exports, checkpoints, accumulates; the results stay what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed
from support.newer_torch import needs_torch
from support.patience import within
from support.uncompiled_kernels import host_kernel

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right
kernels = needed("minrnn_gen.layers.kernels")

BATCH, TIME, INPUTS, HIDDEN = 2, 6, 5, 6
OPERATORS = torch.ops.minrnn_gen


def gradients(layer: Any, x: Any, run: Any = None) -> list[Any]:
    """Return outputs and gradients of a run of a layer; None: by itself."""
    x = x.detach().requires_grad_()
    y, last = layer(x) if run is None else run(x)
    last = last[0] if isinstance(last, tuple) else last
    loss = y.square().sum() + last.sum()
    return [y, last, *torch.autograd.grad(loss, [x, *layer.parameters()])]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class OfPacked(torch.nn.Module):
    """A model on padded sequences: a layer that takes them packed, or where `lengths` is set as they are."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.lengths = layer, False

    def forward(self, x: Any, lengths: Any) -> Any:
        if self.lengths:
            return self.layer(x, lengths=lengths)[0]
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@needs_torch("2.7", "it says whether a program is exported")
@pytest.mark.parametrize("make", [wing.LSTM, wing.nn.GRU, wing.MinGRU])
def test_a_packed_sequence_cannot_be_exported_and_lengths_can(make: Any) -> None:
    model = OfPacked(make(INPUTS, HIDDEN, batch_first=True))
    arguments = torch.randn(BATCH, TIME, INPUTS), torch.tensor([TIME - 2, TIME])
    expected = model(*arguments)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}
    for shapes in (None, (sizes, {0: sizes[0]})):
        with pytest.raises(
            BadInput, match=r"a PackedSequence was given to a layer .* give a layer of minrnn_gen\.torch the padded"
        ):
            torch.export.export(model, arguments, dynamic_shapes=shapes)
    if make is not wing.nn.GRU:
        model.lengths = True
        program = torch.export.export(model, arguments, dynamic_shapes=(sizes, {0: sizes[0]}))
        torch.testing.assert_close(program.module()(*arguments), expected, rtol=0, atol=0)


LAYERS = {
    "lstm of two layers": lambda: wing.LSTM(INPUTS, HIDDEN, 2),
    "slstm of heads": lambda: wing.SLSTM(INPUTS, HIDDEN, heads=2),
    "gru in both directions": lambda: wing.GRU(INPUTS, HIDDEN, bidirectional=True, batch_first=False),
    "rg_lru": lambda: wing.RGLRU(INPUTS, HIDDEN),
    "qrnn": lambda: wing.QRNN(INPUTS, HIDDEN),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return LAYERS[request.param]()


@pytest.mark.parametrize(
    ("model", "projects"),
    [
        ("lstm", True),
        *(pytest.param(model, True, marks=pytest.mark.matrix_full) for model in ("rg_lru", "qrnn", "slstm", "ind_rnn")),
        *(pytest.param(model, False, marks=pytest.mark.matrix_full) for model in ("lstm", "qrnn")),
        ("rg_lru", False),
    ],
)
def test_the_operators_keep_what_their_schemas_say(model: str, projects: bool) -> None:
    kernel = host_kernel(model, HIDDEN, "fp32", **({"input_size": INPUTS} if projects else {}))
    interface = kernel.interface
    shape = (INPUTS,) if projects else (len(kernel.gates), HIDDEN)
    x = torch.randn(BATCH, TIME, *shape, requires_grad=True)
    R = torch.randn(interface.R_shape, requires_grad=True) if interface.recurrent_gates else None
    weight = torch.randn(interface.weight_rows, INPUTS, requires_grad=True) if projects else None
    bias = torch.randn(interface.weight_rows, requires_grad=True)
    parameters = [torch.randn(HIDDEN, requires_grad=True) for _ in kernel.parameters]
    state = [torch.randn(BATCH, HIDDEN, requires_grad=True) for _ in kernel.states]
    for initial, lengths in ((state, None), ([], torch.tensor([3, 6]))):
        call = (x, R, weight, bias, None, None, lengths, None, [], parameters, initial)
        keeps = lengths is not None  # the states after every step, too
        torch.library.opcheck(OPERATORS.recurrence.default, (kernels.known(kernel), True, keeps, *call))
        with torch.no_grad():
            y, *rest = OPERATORS.recurrence(kernel.recipe, True, keeps, *call)
        final, extra = rest[: len(state)], rest[len(state) :]
        backward = (kernel.recipe, keeps, *(one.detach() if torch.is_tensor(one) else one for one in call[:8]))
        backward = (*backward, [], [one.detach() for one in parameters], [one.detach() for one in initial], y, extra, y, final)
        torch.library.opcheck(OPERATORS.recurrence_backward.default, backward)
    with torch.no_grad():
        torch.library.opcheck(OPERATORS.recurrence.default, (kernel.recipe, False, False, *call))


@pytest.mark.parametrize("with_h0", [False, True])
def test_those_of_the_raw_scan_too(with_h0: bool) -> None:
    a, b = (torch.rand(BATCH, TIME, 3, requires_grad=True) for _ in range(2))
    h0 = torch.randn(BATCH, 3, requires_grad=True) if with_h0 else None
    torch.library.opcheck(OPERATORS.scan.default, (a, b, h0, False, True, 1))
    y, final = OPERATORS.scan(a.detach(), b.detach(), h0 if h0 is None else h0.detach(), False, True, 1)
    given = (a.detach(), y, y, h0 if h0 is None else h0.detach(), final, False, True, 1)
    torch.library.opcheck(OPERATORS.scan_backward.default, given)


# Every day a recurrent layer and a scan.
@pytest.mark.parametrize("layer", one_in(3, LAYERS), indirect=True)
def test_a_layer_is_compiled_in_one_piece(layer: Any) -> None:
    """Once for any batch and time."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(layer, fullgraph=True, backend=counting, dynamic=True)
    made = []
    for batch, time in ((BATCH, TIME), (3, 7), (5, 4)):
        x = torch.randn(batch, time, INPUTS)
        assert_equal(gradients(layer, x, compiled), gradients(layer, x))
        made.append(len(graphs))
    assert made == made[:1] * 3
    with torch.no_grad():
        assert_equal(list(compiled(x))[:1], list(layer(x))[:1])


def test_functions_are_compiled_in_one_piece() -> None:
    kernel = host_kernel("min_gru", HIDDEN, "fp32")

    def run(x: Any, h: Any, a: Any) -> Any:
        y, state = wing.recurrence(kernel, x, state={"h": h})
        z, _ = wing.scan(a, y)
        return (z * z).sum() + state["h"].sum()

    given = [torch.randn(BATCH, TIME, 2, HIDDEN), torch.randn(BATCH, HIDDEN), torch.rand(BATCH, TIME, HIDDEN)]
    given = [one.requires_grad_() for one in given]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*given), run(*given)
    assert_equal([found, *torch.autograd.grad(found, given)], [expected, *torch.autograd.grad(expected, given)])


def test_autocast_is_compiled_too() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)

    def run(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_equal(gradients(layer, x, compiled), gradients(layer, x, run))


_READER = """
import sys, torch
import minrnn_gen.torch
from support.uncompiled_kernels import nothing_compiled
x, expected = torch.load(sys.argv[2])
with nothing_compiled():
    found = torch.export.load(sys.argv[1]).module()(x)
assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
"""


@pytest.mark.matrix_full
def test_what_is_exported_runs_in_another_process(tmp_path: Path) -> None:
    """The graph names the kernel by its recipe: the cell goes along, its file does not."""
    file = tmp_path / "cell.yaml"
    file.write_text("name: leaky\nequations: 'h[t] = sigmoid(W.k) * h[t-1] + tanh(W.h + R.h)'\n")
    layer, x = wing.RNN(file, INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)
    time = torch.export.Dim("time", min=1)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: time}, None, None, None, None)[:1])
    assert "minrnn_gen.recurrence" in str(exported.graph)
    longer = torch.randn(BATCH, 2 * TIME, INPUTS)
    torch.export.save(exported, tmp_path / "layer.pt2")
    torch.save((longer, layer(longer)), tmp_path / "expected.pt")
    file.unlink()
    paths = [str(tmp_path / name) for name in ("layer.pt2", "expected.pt")]
    subprocess.run([sys.executable, "-c", _READER, *paths], check=True, cwd=Path(__file__).parents[1], timeout=within(60))


def test_a_checkpointed_layer_is_recomputed_to_the_last_bit(layer: Any) -> None:
    x = torch.randn(BATCH, TIME, INPUTS)
    for early in (True, False):
        with torch.utils.checkpoint.set_checkpoint_early_stop(early):
            found = gradients(layer, x, lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False))
        assert_equal(found, gradients(layer, x))


def test_gradients_accumulate_and_graphs_are_kept(layer: Any) -> None:
    x = torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
    loss = layer(x)[0].square().sum()
    loss.backward(retain_graph=True)
    once = {name: one.grad.clone() for name, one in layer.named_parameters()}
    loss.backward()
    for name, one in layer.named_parameters():
        torch.testing.assert_close(one.grad, 2 * once[name], rtol=0, atol=0)
    layer(x)[0].square().sum().backward()
    for name, one in layer.named_parameters():
        torch.testing.assert_close(one.grad, 3 * once[name])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_one_tensor_may_be_given_twice() -> None:
    kernel = host_kernel("min_gru", HIDDEN, "fp64")
    gates = torch.randn(BATCH, TIME, 2, HIDDEN, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2 * HIDDEN, dtype=torch.float64, requires_grad=True)
    both = wing.recurrence(kernel, gates, bias=bias)[0] * wing.recurrence(kernel, gates.flip(1), bias=bias)[0]
    twice = torch.autograd.grad(both.sum(), (gates, bias))
    split = [one.detach().clone().requires_grad_() for one in (gates, bias, gates, bias)]
    first, second = wing.recurrence(kernel, split[0], bias=split[1]), wing.recurrence(kernel, split[2].flip(1), bias=split[3])
    of_each = torch.autograd.grad((first[0] * second[0]).sum(), split)
    torch.testing.assert_close(twice, (of_each[0] + of_each[2], of_each[1] + of_each[3]))
    a = torch.rand(BATCH, TIME, 3, dtype=torch.float64, requires_grad=True)
    assert gradients_are_right(lambda a: wing.scan(a, a), (a,))


def test_tensors_with_gaps(layer: Any) -> None:
    x = torch.randn(BATCH, TIME, INPUTS)
    expected = gradients(layer, x)
    for gappy in (x.transpose(0, 2).contiguous().transpose(0, 2), x.repeat_interleave(2, 1)[:, ::2]):
        assert not gappy.is_contiguous()
        found = gradients(layer, gappy)
        assert_equal(found, expected)
    with torch.no_grad():
        assert_equal([layer(gappy)[0]], expected[:1])
    y, _ = layer(x)
    expanded = torch.ones(()).expand_as(y)
    assert_equal(
        list(torch.autograd.grad(y, list(layer.parameters()), expanded, retain_graph=True)),
        list(torch.autograd.grad(y, list(layer.parameters()), expanded.contiguous())),
    )


def test_results_that_are_not_used_have_no_part() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
    y, (h, c) = layer(x)
    (of_c,) = torch.autograd.grad(c.sum(), x, retain_graph=True)
    (of_h,) = torch.autograd.grad(h.sum(), x, retain_graph=True)
    (of_y,) = torch.autograd.grad(y[:, -1].sum(), x)
    torch.testing.assert_close(of_h, of_y)
    assert not torch.equal(of_c, of_h)
    with torch.inference_mode():
        assert not layer(x)[0].requires_grad


def test_transforms_of_operators_are_refused() -> None:
    x = torch.randn(3, BATCH, TIME, 2, HIDDEN)
    with pytest.raises(BadInput, match=r"torch\.func\.vmap or another transform"):
        torch.func.vmap(lambda x: OPERATORS.scan(x, x, None, False, False, 1))(x)


def test_modes_see_the_operators() -> None:
    """Flop counters, fake tensors and selective checkpointing look at a call through the dispatcher."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(operator.name())
            return operator(*args, **(kwargs or {}))

    class Wrapped(torch.Tensor):
        """A tensor without memory of its own, as sharded ones are."""

        @staticmethod
        def __new__(cls, of: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype)

        @classmethod
        def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operator.name() == "aten::detach":
                return Wrapped(args[0])
            raise RuntimeError(f"no way to run {operator.name()}")

    layer, x = wing.SLSTM(INPUTS, HIDDEN), torch.randn(BATCH, TIME, INPUTS)
    expected = gradients(layer, x)
    with Seeing():
        found = gradients(layer, x)
    assert {"minrnn_gen::recurrence", "minrnn_gen::recurrence_backward"} <= {*seen}
    assert_equal(found, expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for fake in (mode.from_tensor(x), x):
            y, last = layer(fake)
            assert y.shape == expected[0].shape and last[3].dtype is torch.float32
    layer.weight_hh_l0 = torch.nn.Parameter(Wrapped(layer.weight_hh_l0.detach()))
    with pytest.raises(RuntimeError, match="no way to run minrnn_gen::recurrence"):
        layer(x)
