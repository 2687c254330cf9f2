"""Arguments of every kind: tensors of other layouts, devices and dtypes, arrays, lists and nothing; and keywords of any type.

A call gives what it gives for dense tensors of the same values, or one sentence.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.needed import needed
from support.uncompiled_kernels import host_kernel

import minrnn_gen
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
flashrnn = needed("minrnn_gen.compat.flashrnn").flashrnn
chunk_hgrn = needed("minrnn_gen.compat.fla").chunk_hgrn
channel_scan = needed("minrnn_gen.compat.accelerated_scan").scan

# What torch itself says of kinds of tensors that it is about to change.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning"),
]

BATCH, TIME, INPUTS, HIDDEN = 2, 5, 3, 4


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert text and text.isprintable() and len(text) < 400 and not text.endswith("."), text
    return text


@cache
def layer_of(name: str) -> Any:
    torch.manual_seed(0)
    return getattr(wing, name)(INPUTS, HIDDEN)


@cache
def shapes_of(function: str) -> dict[str, tuple[int, ...]]:
    state, rows = (1, BATCH, HIDDEN), (BATCH, TIME, HIDDEN)
    call = {"x": (BATCH, TIME, 3, HIDDEN), "R": (3, 1, HIDDEN, HIDDEN), "bias": (3, HIDDEN), "h": (BATCH, HIDDEN)}
    return {
        "lstm": {"input": (BATCH, TIME, INPUTS), "h": state, "c": state},
        "rg_lru": {"input": (BATCH, TIME, INPUTS), "h": state},
        "recurrence": call,
        "kernel": call,
        "scan": {"a": rows, "b": rows, "h0": (BATCH, HIDDEN)},
        "arrays": {"a": rows, "b": rows, "h0": (BATCH, HIDDEN)},
        "accelerated_scan": {"gates": rows, "tokens": rows},
        "fla": {"x": rows, "g": rows, "initial_state": (BATCH, HIDDEN)},
        "flashrnn": {"Wx": (BATCH, TIME, 4, 1, HIDDEN), "R": (4, 1, HIDDEN, HIDDEN), "b": (4, 1, HIDDEN)},
    }[function]


def call(function: str, named: dict[str, Any]) -> Any:
    """Return the first result."""
    if function in ("recurrence", "kernel"):
        kernel, (x, R, bias, h) = host_kernel("gru", HIDDEN, "fp32"), named.values()
        run = partial(wing.recurrence, kernel) if function == "recurrence" else kernel
        return run(x, R, bias=bias, state={"h": h})[0]
    if function in ("lstm", "rg_lru"):
        input, *states = named.values()
        return layer_of({"lstm": "LSTM", "rg_lru": "RGLRU"}[function])(input, tuple(states))[0]
    if function == "flashrnn":
        return flashrnn(*named.values(), dtype="float32")[0]
    functions = {"scan": wing.scan, "arrays": minrnn_gen.scan, "accelerated_scan": channel_scan, "fla": chunk_hgrn}
    result = functions[function](*named.values())
    return result if function == "accelerated_scan" else result[0]


FUNCTIONS = ("lstm", "rg_lru", "recurrence", "kernel", "scan", "arrays", "accelerated_scan", "fla", "flashrnn")
# Those that take arrays of other libraries, and tensors of few strides.
OF_ARRAYS = ("kernel", "arrays")


class Subclass(torch.Tensor):
    """A tensor of another type, with memory."""


WRONG: dict[str, Callable[[Any], Any]] = {
    "an array": lambda tensor: tensor.numpy(),
    "a list": lambda tensor: tensor.tolist(),
    "a number": lambda _: 1.0,
    "text": lambda _: "x",
    "a type": lambda _: torch.Tensor,
    "sparse": lambda tensor: tensor.to_sparse(),
    "sparse rows": lambda tensor: tensor.flatten(1).to_sparse_csr(),
    "nested": lambda tensor: torch.nested.nested_tensor(list(tensor.unbind())),
    "jagged": lambda tensor: torch.nested.nested_tensor([row.flatten() for row in tensor.unbind()], layout=torch.jagged),
    "mkldnn": lambda tensor: tensor.to_mkldnn(),
    "meta": lambda tensor: tensor.to("meta"),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "integers": lambda tensor: tensor.to(torch.int64),
    "flags": lambda tensor: tensor > 0,
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
    "another axis": lambda tensor: tensor[None],
    "a number of one axis less": lambda tensor: tensor[0],
    "another size": lambda tensor: torch.cat((tensor, tensor), -1),
}
RIGHT: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda tensor: tensor,
    "a parameter": torch.nn.Parameter,
    "a subclass": lambda tensor: tensor.as_subclass(Subclass),
    "turned": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "every other": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda tensor: tensor[:1].expand_as(tensor),
    "negated": lambda tensor: torch.complex(tensor, tensor).conj().imag,
}


def drawn(function: str, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes_of(function).items()}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_no_dense_tensor_is_said(function: str, kind: str) -> None:
    for name in shapes_of(function):
        if (function in OF_ARRAYS and kind == "an array") or (function == "fla" and kind == "another axis"):
            continue
        arguments = drawn(function, 0)
        arguments[name] = WRONG[kind](arguments[name])
        with pytest.raises(BadInput) as caught:
            call(function, arguments)
        one_sentence(caught.value)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_tensors_of_any_strides_and_types_are_taken(data: st.DataObject) -> None:
    function = data.draw(st.sampled_from([name for name in FUNCTIONS if name not in OF_ARRAYS]))
    arguments = drawn(function, data.draw(st.integers(0, 9)))
    kinds = {name: data.draw(st.sampled_from(list(RIGHT)), label=name) for name in arguments}
    values = {name: RIGHT[kinds[name]](tensor) for name, tensor in arguments.items()}
    dense = {name: torch.empty(value.shape).copy_(value.detach()) for name, value in values.items()}
    found, expected = (call(function, tensors).detach() for tensors in (values, dense))
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in OF_ARRAYS])
def test_nothing_in_place_of_the_input_is_said(function: str) -> None:
    arguments = drawn(function, 0)
    arguments[next(iter(arguments))] = None
    with pytest.raises(BadInput) as caught:
        call(function, arguments)
    assert "NoneType" in one_sentence(caught.value)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("function", ["lstm", "rg_lru", "recurrence", "scan", "accelerated_scan", "fla"])
def test_shapes_of_tensors_without_values(function: str, records: bool) -> None:
    arguments = {name: tensor.requires_grad_(records) for name, tensor in drawn(function, 0).items()}
    expected = call(function, arguments)
    without = {name: tensor.detach().to("meta").requires_grad_(records) for name, tensor in arguments.items()}
    if function in ("lstm", "rg_lru"):
        name = {"lstm": "LSTM", "rg_lru": "RGLRU"}[function]
        layer, (input, *states) = getattr(wing, name)(INPUTS, HIDDEN, device="meta"), without.values()
        found = layer(input, tuple(states), lengths=[TIME, 2])[0]
    else:
        found = call(function, without)
    assert found.is_meta and found.shape == expected.shape and found.dtype is expected.dtype
    if records:
        found.sum().backward()
        assert all(tensor.grad.is_meta and tensor.grad.shape == tensor.shape for tensor in without.values())


def test_layers_without_values_give_torchs_shapes() -> None:
    for options in ({}, {"bidirectional": True, "num_layers": 2}, {"batch_first": False}):
        ours = wing.LSTM(INPUTS, HIDDEN, device="meta", **options)
        theirs = torch.nn.LSTM(INPUTS, HIDDEN, device="meta", **{"batch_first": True} | options)
        input = torch.empty(BATCH, TIME, INPUTS, device="meta")
        for one, other in zip((ours(input)[0], *ours(input)[1]), (theirs(input)[0], *theirs(input)[1]), strict=True):
            assert one.is_meta and one.shape == other.shape


LENGTHS: tuple[tuple[Any, bool], ...] = (
    ([5, 2], True),
    ((5, 0), True),
    ([np.int32(5), torch.tensor(2)], True),
    (torch.tensor([5, 2]), True),
    ([6, 2], False),
    ([5], False),
    ([5, -1], False),
    ([5.0, 2], False),
    ([5, True], False),
    ([5, None], False),
    ([[5], [2]], False),
    ([5, 2**64], False),
    ("52", False),
    (5, False),
    (np.array([5, 2]), False),
    (torch.tensor([5.0, 2.0]), False),
    (torch.tensor([5, 2]).to_sparse(), False),
)


@pytest.mark.parametrize(("lengths", "is_right"), LENGTHS, ids=str)
def test_lengths_of_any_kind(lengths: Any, is_right: bool) -> None:
    input, layer = torch.rand(BATCH, TIME, INPUTS), layer_of("LSTM")
    kernel, x = host_kernel("min_gru", HIDDEN, "fp32"), torch.rand(BATCH, TIME, 2, HIDDEN)
    for run in (partial(layer, input), partial(wing.recurrence, kernel, x)):
        if is_right:
            values = torch.tensor([int(length) for length in lengths])
            assert torch.equal(run(lengths=lengths)[0], run(lengths=values)[0])
            continue
        with pytest.raises(BadInput) as caught:
            run(lengths=lengths)
        assert "lengths" in one_sentence(caught.value)


def test_boundaries_in_a_list() -> None:
    input, layer, states = torch.rand(1, TIME, INPUTS), layer_of("LSTM"), (torch.rand(1, 2, HIDDEN), torch.rand(1, 2, HIDDEN))
    expected, (h, _) = layer(input, states, cu_seqlens=torch.tensor([0, 2, 5]))
    found, (found_h, _) = layer(input, states, cu_seqlens=[0, 2, 5])
    assert torch.equal(found, expected) and torch.equal(found_h, h)
    x = torch.rand(1, TIME, HIDDEN)
    assert torch.equal(chunk_hgrn(x, -x, cu_seqlens=[0, 2, 5])[0], chunk_hgrn(x, -x, cu_seqlens=torch.tensor([0, 2, 5]))[0])
    for ends in ([], [0, 4], [0, 2.5, 5], torch.tensor(5), torch.tensor([])):
        with pytest.raises(BadInput) as caught:
            layer(input, states, cu_seqlens=ends)
        one_sentence(caught.value)


def test_states_that_are_none() -> None:
    input, h = torch.rand(BATCH, TIME, INPUTS), torch.rand(1, BATCH, HIDDEN)
    layer, packed = layer_of("LSTM"), torch.nn.utils.rnn.pack_padded_sequence(input, [5, 2], batch_first=True)
    assert torch.equal(layer(input, (None, None))[0], layer(input)[0])
    assert torch.equal(layer(packed, [None, None])[0].data, layer(packed)[0].data)
    assert torch.equal(layer_of("RGLRU")(input, (None,))[0], layer_of("RGLRU")(input)[0])
    for states in ((None, h), (h, None), (None,), (None, None, None), ()):
        with pytest.raises(BadInput, match="hx"):
            layer(input, states)
    kernel, x = host_kernel("lstm", HIDDEN, "fp32"), torch.rand(BATCH, TIME, 4, HIDDEN)
    R = torch.rand(4, 1, HIDDEN, HIDDEN)
    assert torch.equal(wing.recurrence(kernel, x, R, state={"h": None, "c": None})[0], wing.recurrence(kernel, x, R)[0])
    with pytest.raises(BadInput, match=r"state\['c'\] is None; give all of h, c"):
        wing.recurrence(kernel, x, R, state={"h": h[0], "c": None})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_states_have_the_dtype_of_states_or_of_the_input(dtype: Any) -> None:
    layer = wing.GRU(INPUTS, HIDDEN, dtype=dtype)
    for other in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool):
        h, run = torch.ones(1, BATCH, HIDDEN, dtype=other), partial(layer, torch.ones(BATCH, TIME, INPUTS, dtype=dtype))
        if other in (dtype, torch.float64 if dtype is torch.float64 else torch.float32):
            assert run(h)[0].dtype is dtype
            continue
        with pytest.raises(BadInput, match=rf"hx of state h has dtype {other}; torch\.float(32|64)"):
            run(h)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, for derivatives in forward mode
def test_gradients_as_a_batch_are_refused() -> None:
    kernel, layer = host_kernel("min_gru", HIDDEN, "fp32"), layer_of("LSTM")
    cases: tuple[tuple[Callable[[Any], Any], tuple[int, ...]], ...] = (
        (lambda x: layer(x)[0], (BATCH, TIME, INPUTS)),
        (lambda x: wing.recurrence(kernel, x)[0], (BATCH, TIME, 2, HIDDEN)),
        (lambda x: wing.scan(x, x)[0], (BATCH, TIME, HIDDEN)),
    )
    for function, shape in cases:
        x = torch.rand(shape, requires_grad=True)
        y = function(x)
        with pytest.raises(BadInput, match="as a batch") as caught:
            torch.autograd.grad(y, x, torch.rand(3, *y.shape), is_grads_batched=True, retain_graph=True)
        one_sentence(caught.value)
        with pytest.raises(BadInput, match="as a batch"):
            torch.autograd.functional.jacobian(function, x.detach(), vectorize=True)
        with pytest.raises(BadInput, match="as a batch") as caught:
            torch.autograd.functional.jacobian(function, x.detach(), vectorize=True, strategy="forward-mode")
        one_sentence(caught.value)
        rows = torch.autograd.functional.jacobian(function, x.detach())
        (last,) = torch.autograd.grad(y[-1, -1, -1], x)
        torch.testing.assert_close(rows[-1, -1, -1], last)


@pytest.mark.parametrize("name", ["layer", "scan"])
def test_gradients_that_arrive_in_other_layouts(name: str) -> None:
    run = (lambda x: layer_of("LSTM")(x)[0]) if name == "layer" else (lambda x: wing.scan(x, x)[0])
    x = torch.rand(BATCH, TIME, INPUTS, requires_grad=True)
    y = run(x)
    ones = torch.ones_like(y)
    (expected,) = torch.autograd.grad(y, x, ones, retain_graph=True)
    for arriving in (ones.to_sparse(), ones[:1, :1, :1].expand_as(y), ones.double(), torch.complex(ones, -ones).conj().imag):
        assert torch.equal(torch.autograd.grad(y, x, arriving, retain_graph=True)[0], expected)
    with pytest.raises(BadInput, match="without memory of its own"):
        torch.autograd.grad(y, x, torch._efficientzerotensor(y.shape))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_traces_of_torchscript_are_refused() -> None:
    x = torch.rand(BATCH, TIME, HIDDEN)
    kernel, layer = host_kernel("elman", HIDDEN, "fp32"), wing.Elman(HIDDEN, HIDDEN)
    R = torch.rand(1, 1, HIDDEN, HIDDEN)
    functions = (layer, lambda x: wing.scan(x, x)[0], lambda x: wing.recurrence(kernel, x[:, :, None], R)[0])
    for function in functions:
        with pytest.raises(BadInput, match=r"torch\.jit\.trace .* torch\.export") as caught:
            torch.jit.trace(function, x)
        one_sentence(caught.value)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("layer", [wing.Elman(HIDDEN, HIDDEN), wing.nn.LSTM(HIDDEN, HIDDEN)], ids=["of a cell", "of torch.nn"])
def test_torchscript_and_onnx_are_refused(layer: torch.nn.Module, tmp_path: Path) -> None:
    """Alone and within a model."""
    for model in (layer, torch.nn.Sequential(layer)):
        with pytest.raises(BadInput, match=r"torch\.jit\.script .* torch\.export") as caught:
            torch.jit.script(model)
        one_sentence(caught.value)
        with pytest.raises(BadInput, match=r"ONNX has no operator; .* torch\.nn") as caught:
            torch.onnx.export(model, (torch.rand(BATCH, TIME, HIDDEN),), str(tmp_path / "model.onnx"), dynamo=False)
        one_sentence(caught.value)


# By keyword, what is allowed of the values below; nothing else is.
POSITIVE: Callable[[Any], bool] = lambda value: type(value) is int and 0 < value < 99  # noqa: E731
FLAG: Callable[[Any], bool] = lambda value: type(value) is bool  # noqa: E731
SPEC_KEYS: dict[str, Callable[[Any], bool]] = {
    "functions": lambda value: value is None,
    "fp32_product": lambda value: value is None,
    "scan_arithmetic": lambda _: False,
    "recurrent_gradient_clip": lambda value: value is None or (type(value) in (int, float) and 0 < value < 1e308),
    "gpu": lambda value: value is None or (type(value) is str and len(value) > 0),  # which the first call looks for
    "batch": lambda value: value is None or POSITIVE(value),
    "time": lambda value: value is None or POSITIVE(value),
    # Of cells with n values per channel, which an LSTM is not.
    **dict.fromkeys(("state_size", "groups", "projection_size"), lambda value: value is None),
}
KEYWORDS: dict[str, Callable[[Any], bool]] = {
    "model": lambda _: False,
    "input_size": POSITIVE,
    "hidden_size": POSITIVE,
    "num_layers": POSITIVE,
    "heads": lambda value: POSITIVE(value) and HIDDEN % value == 0,
    "bias": FLAG,
    "batch_first": FLAG,
    "dropout": lambda value: type(value) in (int, float) and 0 <= value <= 1,
    "bidirectional": FLAG,
    "proj_size": lambda value: type(value) is int and value == 0,
    "precision": lambda value: value is None or value is torch.bfloat16,
    "recurrent_bias": lambda value: value is None or FLAG(value),
    "forget_bias": lambda value: value is None or (type(value) in (int, float) and abs(value) < 1e38),
    "device": lambda value: value is None or type(value) is int,  # of which torch says whether it is there
    "dtype": lambda value: value is None or value is torch.bfloat16,
}
HOSTILE = (
    *(None, True, False, 0, 1, 3, -1, 2.5, 0.5, math.nan, math.inf, -math.inf, 1e300, 10**400, 1j, "", "no", "1", b"1", (), []),
    *({}, {"a": 1}, object(), len, Ellipsis, np.float64("nan"), np.array([1, 2]), torch.bfloat16),
    *(torch.complex64, torch.int64, torch.qint8, torch.float8_e5m2, torch.ones(2)),
)


def test_every_keyword_of_a_layer_is_in_the_table() -> None:
    parameters = inspect.signature(wing.RNN.__init__).parameters
    assert set(KEYWORDS | SPEC_KEYS) == {name for name in parameters if name != "self"}


@pytest.mark.parametrize("keyword", [*KEYWORDS, *SPEC_KEYS])
def test_keywords_of_any_type(keyword: str) -> None:
    is_allowed = (KEYWORDS | SPEC_KEYS)[keyword]
    for value in HOSTILE:
        options = {"model": "lstm", "input_size": INPUTS, "hidden_size": HIDDEN} | {keyword: value}
        if is_allowed(value):
            if keyword != "device" or value is None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # dropout of one layer
                    wing.RNN(**options)
            continue
        with pytest.raises(BadInput) as caught:
            wing.RNN(**options)
        assert keyword in one_sentence(caught.value) or keyword == "model", value


def is_nothing(value: Any) -> bool:
    return value is None or (type(value) is dict and not value)


@pytest.mark.parametrize("keyword", ["all_states", "kernel", "parameters", "state"])
def test_keywords_of_a_recurrence(keyword: str) -> None:
    options = {"kernel": host_kernel("min_gru", HIDDEN, "fp32"), "x": torch.rand(BATCH, TIME, 2, HIDDEN)}
    for value in HOSTILE:
        if (keyword == "all_states" and FLAG(value)) or (keyword in ("parameters", "state") and is_nothing(value)):
            continue
        with pytest.raises(BadInput) as caught:
            wing.recurrence(**options | {keyword: value})
        assert keyword in one_sentence(caught.value)


@pytest.mark.parametrize("keyword", ["log_a", "reverse", "axis"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_keywords_of_a_scan(keyword: str, device: str) -> None:
    a = torch.rand(BATCH, TIME, HIDDEN, device=device)
    for value in HOSTILE:
        if (type(value) is int and -3 <= value < 3) or FLAG(value):
            continue
        with pytest.raises(BadInput) as caught:
            wing.scan(a, a, **{keyword: value})
        assert keyword in one_sentence(caught.value)
