"""The classes of `minrnn_gen.torch.nn` beside those of torch.nn: arguments, results, gradients, dtypes, state, copies."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import typing
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
rnn_utils = pytest.importorskip("torch.nn.utils.rnn")

NAMES = ("LSTM", "GRU", "RNN")
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}
GRADIENT_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-4}
BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def pair(name: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """Return our layer and torch's, with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        ours = getattr(wing.nn, name)(*sizes, **options)
        torch.manual_seed(3)
        theirs = getattr(torch.nn, name)(*sizes, **options)
    return ours, theirs


def flat(results: Any) -> list[Any]:
    """Return all tensors of nested tuples, of a PackedSequence all of its own."""
    if isinstance(results, tuple):
        return [tensor for result in results for tensor in flat(result)]
    return [results]


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    for ours_result, theirs_result in zip(flat(ours), flat(theirs), strict=True):
        if theirs_result is None:
            assert ours_result is None
        else:
            torch.testing.assert_close(ours_result, theirs_result, rtol=0, atol=tolerance)


def gradients(module: Any, results: Any, inputs: list[Any]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (result.double() * torch.randn(result.shape, generator=generator, dtype=torch.float64)).sum()
        for result in flat(results)
        if result is not None and result.requires_grad
    )
    return tuple(torch.autograd.grad(loss, [*inputs, *module.parameters()]))


# Arguments.


def documented(name: str) -> inspect.Signature:
    """Return the signature that torch documents: of layers the first overload, since all the rest is *args."""
    constructor = getattr(torch.nn, name).__init__
    overloads = typing.get_overloads(constructor)
    return inspect.signature(overloads[0] if overloads else constructor)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_torchs_names_places_and_defaults(name: str) -> None:
    theirs, ours = documented(name).parameters, inspect.signature(getattr(wing.nn, name).__init__).parameters
    assert len(theirs) > 4
    # Further keywords go to torch, which refuses them in its own words.
    named = [one for one in ours.values() if one.kind is not one.VAR_KEYWORD]
    assert [(one.name, one.default, one.kind) for one in named] == [
        (one.name, one.default, one.kind) for one in theirs.values()
    ]
    calls = [inspect.signature(getattr(module, name).forward).parameters for module in (wing.nn, torch.nn)]
    assert [(one.name, one.default, one.kind) for one in calls[0].values()] == [
        (one.name, one.default, one.kind) for one in calls[1].values()
    ]


UNUSUAL = {
    "num_layers": 2,
    "nonlinearity": "relu",
    "bias": False,
    "batch_first": True,
    "dropout": 0.25,
    "bidirectional": True,
    "proj_size": 2,
    "device": "meta",
    "dtype": torch.float64,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_by_its_position_is_what_it_is_for_torch(name: str) -> None:
    arguments = {argument: UNUSUAL[argument] for argument in list(documented(name).parameters)[3:]}
    by_place = list(arguments.values())
    for count in range(len(by_place) + 1):
        ours = getattr(wing.nn, name)(5, 4, *by_place[:count])
        # torch's GRU and RNN have proj_size, undocumented, in front of device.
        places = min(count, len(by_place) - 2)
        theirs = getattr(torch.nn, name)(5, 4, *by_place[:places], **dict(list(arguments.items())[places:count]))
        described = [
            {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float | str)}
            for module in (ours, theirs)
        ]
        assert described[0] == described[1] and repr(ours) == repr(theirs)
        tensors = [
            [(key, tensor.shape, tensor.dtype, tensor.device) for key, tensor in module.state_dict().items()]
            for module in (ours, theirs)
        ]
        assert tensors[0] == tensors[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_classes_are_torchs(name: str) -> None:
    ours, theirs = pair(name, 5, 4)
    assert isinstance(ours, type(theirs)) and type(ours) is not type(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(*tensors) for tensors in zip(ours.parameters(), theirs.parameters(), strict=True))
    with pytest.raises(ValueError, match="hidden_size must be greater than zero"):
        wing.nn.LSTM(5, 0)
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        wing.nn.GRU(5, 4, dropout=0.5)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_are_torchs_own(name: str) -> None:
    assert name in wing.nn.__all__ and getattr(wing.nn, name) is getattr(torch.nn, name)


# Results.


@st.composite
def layers(draw: Any) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(NAMES))
    options = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16])),
    }
    if name == "RNN":
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    return name, options


@given(layers(), st.sampled_from(["padded", "packed", "sorted", "unbatched"]), st.booleans(), st.booleans())
def test_layers_compute_what_torchs_do(layer: tuple[str, dict[str, Any]], form: str, has_hx: bool, is_recorded: bool) -> None:
    name, options = layer
    ours, theirs = pair(name, 3, 4, **options)
    generator, dtype, lengths = torch.Generator().manual_seed(1), options["dtype"], [5, 2, 4]
    x = torch.randn(3, 5, 3, generator=generator, dtype=torch.float64).to(dtype)
    state_shape = (options["num_layers"] * (1 + options["bidirectional"]), 3, 4)
    states = [
        torch.randn(state_shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2 if name == "LSTM" else 1)
    ]
    if form == "unbatched":
        x, states = x[0], [state[:, 0] for state in states]
    elif not options["batch_first"]:
        x = x.transpose(0, 1)
    results = []
    for module in (ours, theirs):
        leaves = [tensor.detach().clone().requires_grad_(is_recorded) for tensor in (x, *states)]
        given_x, hx = leaves[0], tuple(leaves[1:]) if name == "LSTM" else leaves[1]
        if form in ("packed", "sorted"):
            counts = sorted(lengths, reverse=True) if form == "sorted" else lengths
            given_x = rnn_utils.pack_padded_sequence(
                given_x, counts, batch_first=options["batch_first"], enforce_sorted=form == "sorted"
            )
        with torch.set_grad_enabled(is_recorded):
            returned = module(given_x, hx) if has_hx else module(given_x)
        taken = leaves if has_hx else leaves[:1]
        results.append((returned, gradients(module, returned, taken) if is_recorded else ()))
    (ours_returned, ours_gradients), (theirs_returned, theirs_gradients) = results
    assert type(ours_returned[0]) is type(theirs_returned[0]) and type(ours_returned[1]) is type(theirs_returned[1])
    assert_same(ours_returned, theirs_returned, TOLERANCES[dtype])
    if dtype is not torch.bfloat16:  # whose gradients torch rounds to eight bits after every product
        assert_same(ours_gradients, theirs_gradients, GRADIENT_TOLERANCES[dtype])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's own, in float32
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_projected_output_is_that_of_torch(dtype: torch.dtype, bidirectional: bool, bias: bool) -> None:
    ours, theirs = pair("LSTM", 3, 4, 2, proj_size=2, bidirectional=bidirectional, bias=bias, dtype=dtype)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    ours.load_state_dict(theirs.state_dict())
    runs = 4 if bidirectional else 2
    x, hx = torch.randn(5, 2, 3, dtype=dtype), (torch.randn(runs, 2, 2, dtype=dtype), torch.randn(runs, 2, 4, dtype=dtype))
    for tensor in (x, *hx):
        tensor.requires_grad_()
    for states in (None, hx):
        returned, expected = ours(x, states), theirs(x, states)
        taken = [x, *(states or ())]
        assert_same(returned, expected, TOLERANCES[dtype])
        assert_same(gradients(ours, returned, taken), gradients(theirs, expected, taken), GRADIENT_TOLERANCES[dtype])
    assert_same(copy.deepcopy(ours)(x), theirs(x), TOLERANCES[dtype])


def test_a_projected_output_of_packed_sequences_and_single_steps_is_that_of_torch() -> None:
    ours, theirs = pair("LSTM", 3, 4, 1, proj_size=2, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(4, 3).double(), torch.randn(2, 3).double()])
    assert_same(ours(packed)[0].data, theirs(packed)[0].data, TOLERANCES[torch.float64])
    x, state = torch.randn(3, 2, 3, dtype=torch.float64), None
    for x_t, expected in zip(x, theirs(x)[0], strict=True):
        y, state = ours.step(x_t, state)
        assert_same(y, expected.detach(), TOLERANCES[torch.float64])


def test_fullgraph_takes_layers_with_a_projected_output() -> None:
    layer = wing.nn.LSTM(3, 4, 2, proj_size=2)
    x = torch.randn(5, 2, 3)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert_same(compiled(x), layer(x), TOLERANCES[torch.float32])


# Dtypes.


def torch_returns(module: Any, *arguments: Any) -> list[Any] | None:
    """Return the dtypes of what torch returns, or None where it refuses, as for what oneDNN has no code for here."""
    try:
        return [tensor.dtype for tensor in flat(module(*arguments)) if tensor is not None]
    except (RuntimeError, ValueError):
        return None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("autocast", [BFLOAT16, FLOAT16])
def test_results_under_autocast_have_the_dtypes_of_torchs(name: str, autocast: Any) -> None:
    if name == "LSTM" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no 16-bit LSTM on this processor, where torch's returns other dtypes or fails")
    compared = 0
    for parameters in (FLOAT32, autocast):
        ours, theirs = pair(name, 3, 4, dtype=parameters)
        for dtype in (FLOAT32, BFLOAT16, FLOAT16):
            x = torch.randn(5, 2, 3, dtype=dtype)
            initial = [None, *(torch.zeros(1, 2, 4, dtype=other) for other in (FLOAT32, BFLOAT16))]
            for state in initial:
                hx = (state, state) if state is not None and name == "LSTM" else state
                if name == "LSTM" and dtype is FLOAT16 and autocast is BFLOAT16:
                    continue  # oneDNN takes it or not, as the CPU is
                with torch.autocast("cpu", dtype=autocast):
                    expected = torch_returns(theirs, x, hx)
                    returned = [tensor.dtype for tensor in flat(ours(x, hx))]
                assert expected is None or returned == expected, (dtype, hx)
                compared += expected is not None
    assert compared >= 6


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_under_autocast_have_the_dtypes_of_torchs(name: str) -> None:
    ours, theirs = pair(name, 3, 4, 2)
    for dtype in (FLOAT32, BFLOAT16):
        packed = rnn_utils.pack_sequence([torch.randn(count, 3, dtype=dtype) for count in (4, 3)])
        with torch.autocast("cpu", dtype=BFLOAT16):
            returned, expected = ours(packed), theirs(packed)
        assert_same(returned, expected, 0.05)


# State.


@pytest.mark.parametrize("name", NAMES)
def test_weights_go_both_ways_and_copies_are_independent(name: str) -> None:
    ours, theirs = (getattr(module, name)(3, 4, dtype=torch.float64) for module in (wing.nn, torch.nn))
    x = torch.randn(5, 2, 3).double()
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(x)
    assert_same(ours(x), expected, 1e-12)
    fresh = getattr(torch.nn, name)(3, 4, dtype=torch.float64)
    fresh.load_state_dict(ours.state_dict())
    assert_same(fresh(x), expected, 0)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    assert b"cell_source" not in pickle.dumps(ours) and "_made" not in ours.__getstate__()
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(file, weights_only=False)):
        assert type(other) is type(ours) and repr(other) == repr(ours)
        assert_same(other(x), ours(x), 0)
        with torch.no_grad():
            next(other.parameters()).zero_()
        assert next(ours.parameters()).any()


def test_all_weights_are_torchs_and_are_the_parameters_as_they_are_now() -> None:
    ours, theirs = pair("LSTM", 3, 4, 2, bidirectional=True)
    assert [[one.shape for one in run] for run in ours.all_weights] == [
        [one.shape for one in run] for run in theirs.all_weights
    ]
    assert all(run[0] is parameter for run, parameter in zip(ours.all_weights, list(ours.parameters())[::4], strict=True))
    assert ours.flatten_parameters() is None
    before = weakref.ref(ours.weight_hh_l0)
    ours._parameters["weight_hh_l0"] = torch.nn.Parameter(torch.zeros(16, 4))  # as sharded training does
    ours(torch.randn(5, 2, 3))
    gc.collect()
    assert before() is None
    assert ours.all_weights[0][1] is ours.weight_hh_l0 is ours._flat_weights[1]


def test_attributes_may_be_set_later_as_on_torchs() -> None:
    ours, theirs = pair("GRU", 3, 4, 2, dtype=torch.float64)
    x = torch.randn(2, 5, 3).double()
    for batch_first in (True, False):
        for module in (ours, theirs):
            module.batch_first = batch_first
        assert_same(ours(x), theirs(x), 1e-12)
    for module in (ours, theirs):
        module.dropout = 1.0
    assert_same(ours(x), theirs(x), 1e-12)
    assert_same(ours.eval()(x), theirs.eval()(x), 1e-12)


def test_graphs_have_the_layers_as_operators() -> None:
    """torch.compile stops at torch's layers unless told otherwise, and at their subclasses too."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.second = wing.nn.LSTM(3, 4), wing.nn.GRU(4, 4)

        def forward(self, x: Any) -> Any:
            y, (h, _) = self.layer(x)
            return self.second(y, h)[0]

    model, x = Model(), torch.randn(5, 2, 3)
    expected = model(x)
    with torch.no_grad():
        assert_same(torch.compile(model, backend="eager")(x), expected.detach(), 1e-6)
    torch._dynamo.reset()  # which keeps what it stopped at
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert_same(compiled(x), expected, 1e-6)
    exported = torch.export.export(model, (x,))
    assert sum("recurrence" in str(node.target) for node in exported.graph.nodes) == 2
    assert_same(exported.module()(x), expected, 1e-6)


def test_symbolic_traces_take_them_as_leaves() -> None:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module: Any, name: str) -> bool:
            return isinstance(module, torch.nn.RNNBase) or super().is_leaf_module(module, name)

    model = torch.nn.Sequential(wing.nn.GRU(3, 4))
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    x = torch.randn(5, 2, 3)
    assert_same(traced(x), model(x), 0)
    with pytest.raises(BadInput, match="input is a Proxy; a torch tensor is expected"):
        torch.fx.symbolic_trace(model)
