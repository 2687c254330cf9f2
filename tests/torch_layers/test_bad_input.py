"""Bad input is refused in one sentence that names the argument and both shapes."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed
from support.uncompiled_kernels import host_kernel

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 2, 6, 5, 6
X = torch.zeros(BATCH, TIME, INPUTS)
H = torch.zeros(1, BATCH, HIDDEN)


def layer(**options: Any) -> Any:
    return wing.LSTM(INPUTS, HIDDEN, **options)


def with_weight(*shape: int, dtype: Any = torch.float32, device: str = "cpu") -> Any:
    one = layer()
    one.weight_hh_l0 = torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
    return one


CALLS = {
    "input: features": (
        lambda: layer()(X[..., :4]),
        r"input has shape \[2, 6, 4\], but input_size is 5; \[2, 6, 5\] is expected",
    ),
    "input: axes": (lambda: layer()(X[None]), r"input has shape \[1, 2, 6, 5\]; 3 axes are expected, or 2"),
    "input: dtype": (lambda: layer()(X.long()), r"input has dtype torch\.int64; one of torch\.float64, torch\.float32, "),
    "input: dtype beside parameters": (
        lambda: layer()(X.double()),
        r"input has dtype torch\.float64, but parameter weight_ih_l0 has torch\.float32",
    ),
    "input: float64 for bf16": (
        lambda: layer(precision="bf16")(X.double()),
        r"input has dtype torch\.float64, but the layer has precision bf16; torch\.bfloat16 is expected",
    ),
    "input: another device": (
        lambda: layer().to("meta")(X),
        "input is on cpu, but parameter weight_ih_l0 is on meta; move one",
    ),
    "hx: shape": (
        lambda: layer()(X, (H[:, :1], H)),
        r"hx of state h has shape \[1, 1, 6\]; \[1, 2, 6\] is expected, \[num_layers \* directions, batch, hidden_size\]",
    ),
    "hx: layers": (lambda: layer(num_layers=2)(X, (H, H)), r"hx of state h has shape \[1, 2, 6\]; \[2, 2, 6\] is expected"),
    "hx: number": (lambda: layer()(X, H), "hx has 1 state; a tuple of 2, h, c, is expected"),
    "hx: a tuple for one": (lambda: wing.GRU(INPUTS, HIDDEN)(X, (H, H)), "hx has 2 states; a tensor is expected"),
    "weight_hh: sizes that disagree": (
        lambda: with_weight(24, 5)(X),
        r"R has shape \[24, 5\]; \[4, 1, 6, 6\] is expected",
    ),
    "weight_hh: dtype": (lambda: with_weight(24, 6, dtype=torch.float64)(X), "R has dtype float64; float32 is expected"),
    "packed: lengths": (
        lambda: layer()(torch.nn.utils.rnn.pack_padded_sequence(X, [6, 6], batch_first=True), lengths=torch.tensor([6, 6])),
        "a PackedSequence has lengths of its own",
    ),
    "packed: features": (
        lambda: layer()(torch.nn.utils.rnn.pack_padded_sequence(X[..., :4], [6, 6], batch_first=True)),
        r"input.data has shape \[12, 4\]; \[steps, 5\] is expected",
    ),
    "proj_size": (lambda: layer(proj_size=3), "proj_size is 3; only 0 is supported"),
    "num_layers": (lambda: layer(num_layers=0), "num_layers is 0; an integer from 1 on"),
    "dropout": (lambda: layer(dropout=2), "dropout is 2; a probability"),
    "precision": (lambda: layer(precision="fp8"), "precision"),
    "hidden_size": (lambda: wing.LSTM(INPUTS, 0), "hidden_size"),
    "heads": (lambda: layer(heads=4), "4 does not divide hidden_size 6"),
    "model": (lambda: wing.RNN("lstn", INPUTS, HIDDEN), r"no built-in cell 'lstn' \(did you mean 'lstm'\?\)"),
    "an unknown argument": (
        lambda: layer(function="fast"),
        r"function is no argument of a layer \(did you mean 'functions'\?\)",
    ),
    "an argument that may be a position": (lambda: layer(num_layer=2), r"num_layer is no .* \(did you mean 'num_layers'\?\)"),
    "a size": (lambda: layer(hiden_size=2), r"hiden_size is no argument of a layer \(did you mean 'hidden_size'\?\)"),
    "functions in float64": (
        lambda: layer(functions="fast", dtype=torch.float64)(X.double()),
        r"input has dtype torch\.float64; one of torch\.float32, torch\.float16, torch\.bfloat16 is expected",
    ),
    "recurrent_bias": (lambda: wing.MinGRU(INPUTS, HIDDEN, recurrent_bias=True), "min_gru has no recurrent product"),
    "forget_bias": (lambda: wing.GRU(INPUTS, HIDDEN, forget_bias=1.0), "gru has gates r, z, n and no f"),
    "forget_bias without": (lambda: layer(forget_bias=1.0, bias=False), "bias is False"),
    "nonlinearity": (lambda: wing.Elman(INPUTS, HIDDEN, nonlinearity="selu"), "nonlinearity is 'selu'; tanh or relu"),
    "a vector's name": (
        lambda: wing.RNN(
            {"name": "own", "equations": "h[t] = bias_ih * h[t-1] + W.h", "parameters": ["bias_ih"]}, INPUTS, HIDDEN
        ),
        "own has a vector bias_ih, a name that layers have",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), CALLS.values(), ids=CALLS)
def test_of_a_layer(call: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        call()


def test_a_state_dict_of_another_cell() -> None:
    with pytest.raises(
        RuntimeError, match=r"size mismatch for weight_ih_l0.*torch\.Size\(\[18, 5\]\).*torch\.Size\(\[24, 5\]\)"
    ):
        layer().load_state_dict(torch.nn.GRU(INPUTS, HIDDEN).state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*weight_hh_l0"):
        wing.MinGRU(INPUTS, HIDDEN).load_state_dict(layer().state_dict())


GATES = torch.zeros(BATCH, TIME, 4, HIDDEN, requires_grad=True)
R = torch.zeros(4, 1, HIDDEN, HIDDEN)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"x": GATES}, "R is missing"),
        ({"x": GATES[:, :, :3], "R": R}, "its gates axis is 3"),
        ({"x": GATES.double(), "R": R}, "x has dtype float64; float32 is expected"),
        ({"x": GATES, "R": R[:, :, :5]}, r"R has shape \[4, 1, 5, 6\]; \[4, 1, 6, 6\] is expected"),
        ({"x": GATES, "R": R, "state": {"h": H[0]}}, "state lacks 'c'; give all of h, c"),
        ({"x": GATES, "R": R, "state": {"h": H[0], "c": H[0], "m": H[0]}}, "state has an unknown name 'm'; allowed are h, c"),
        ({"x": GATES, "R": R, "parameters": {"u": H[0, 0]}}, "parameters has an unknown name 'u'; this cell has no parameters"),
        ({"x": GATES, "R": R, "state": {"h": H, "c": H}}, r"state\['h'\] has shape \[1, 2, 6\]; \[2, 6\] is expected"),
        ({"x": GATES, "R": R, "lengths": torch.tensor([7, 1])}, r"lengths\[0\] is 7; 0 to 6"),
    ],
)
def test_of_a_recurrence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        wing.recurrence(host_kernel("lstm", HIDDEN, "fp32"), **given)


def test_of_a_kernel_without_gradients() -> None:
    kernel = host_kernel("lstm", HIDDEN, "fp32", training=False)
    with pytest.raises(BadInput, match="the spec says training: false"):
        wing.recurrence(kernel, GATES, R)
    with torch.no_grad():
        assert not wing.recurrence(kernel, GATES, R)[0].requires_grad


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((X, X[:, :5]), r"b has shape \[2, 5, 5\]; that of a, \[2, 6, 5\], is expected"),
        ((X.requires_grad_(), X.double()), "b has dtype float64; that of a, float32, is expected"),
        ((X, X, H), r"h0 has shape \[1, 2, 6\]; \[2, 5\]"),
    ],
)
def test_of_a_scan(given: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        wing.scan(*given)
