"""FlashRNN's function beside the plain equations in its own shapes and orders, in float64; what it refuses, it says."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.needed import needed
from support.reference_cells import STATES, step_of

from minrnn_gen.compat.flashrnn_request import BACKENDS, FUNCTIONS
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
flashrnn = needed("minrnn_gen.compat.flashrnn").flashrnn

BATCH, TIME, HEADS, SIZE = 2, 5, 2, 3
# Gates of Wx, of R, of b, as FlashRNN's table of functions has them.
GATES = {"elman": (1, 1, 1), "gru": (3, 3, 4), "lstm": (4, 4, 4), "slstm": (4, 4, 4)}
# Sums of a few dozen products of numbers of size 1, in two orders.
TOLERANCE = 1e-12


def drawn(function: str, dtype: Any = torch.float64) -> list[Any]:
    """Return Wx, R, b, states, all with gradients."""
    torch.manual_seed(0)
    of_W, of_R, of_b = GATES[function]
    shapes = (BATCH, TIME, of_W, HEADS, SIZE), (of_R, HEADS, SIZE, SIZE), (of_b, HEADS, SIZE)
    states = torch.randn(STATES.get(function, 1), BATCH, 1, HEADS, SIZE, dtype=dtype)
    if function == "slstm":
        states[2] += 4  # at its bound of 1 the normaliser has no derivative
    return [one.requires_grad_() for one in (*(torch.randn(shape, dtype=dtype) for shape in shapes), states)]


def plain(function: str, Wx: Any, R: Any, b: Any, states: Any, clip: float | None = None) -> tuple[Any, Any]:
    """Return the states after every step and the last ones.

    With a `clip`, the gradient of an output that comes from later steps is bounded on its way to the step, by whatever path it
    comes; that of the initial output and those of the last states are not.
    """
    step, after = step_of(function), []
    rows = states[:, :, 0].unbind()
    if function == "slstm":
        rows = (*rows[:3], rows[3].detach())
    for t in range(TIME):
        products = torch.einsum("gnoi,bni->gbno", R, rows[0])
        W = Wx[:, t].unbind(1)
        if function == "gru":
            W = W[0] + b[1], W[1] + b[2], W[2] + b[3]
            products = products[1], products[2], products[0] + b[0]
        else:
            W = [one + bias for one, bias in zip(W, b, strict=True)]
        rows = step(W, products, rows, ())
        after.append(torch.stack(rows))
        if clip is not None and t + 1 < TIME:
            output = rows[0].clone()
            output.register_hook(partial(torch.clamp, min=-clip, max=clip))
            rows = (output, *rows[1:])
    return torch.stack(after, 2), torch.stack(rows)[:, :, None]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_states_and_gradients_are_those_of_the_equations(function: str) -> None:
    inputs = drawn(function)
    expected, last = plain(function, *inputs)
    got, got_last = flashrnn(*inputs, function=function, dtype="float64")
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(got_last, last, rtol=0, atol=TOLERANCE)
    dy, dlast = torch.randn(expected[0].shape, dtype=torch.float64), torch.randn(last.shape, dtype=torch.float64)
    pairs = [
        torch.autograd.grad((states[0] * dy).sum() + (final * dlast).sum(), inputs)
        for states, final in ((expected, last), (got, got_last))
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_bias_and_states_they_are_zero(function: str) -> None:
    Wx, R, b, states = drawn(function)
    expected, _ = flashrnn(Wx, R, torch.zeros_like(b), torch.zeros_like(states), function=function, dtype="float64")
    assert torch.equal(flashrnn(Wx, R, function=function, dtype="float64")[0], expected)


def test_every_backend_is_served_alike() -> None:
    inputs = drawn("lstm")
    first, *others = (flashrnn(*inputs, backend=backend, dtype="float64")[0] for backend in BACKENDS)
    assert all(torch.equal(first, one) for one in others)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_16_bits(function: str) -> None:
    inputs = [one.detach().bfloat16() for one in drawn(function)]
    states, last = flashrnn(*inputs, function=function)
    expected, _ = plain(function, *(one.double() for one in inputs))
    assert states.dtype is last.dtype is torch.bfloat16 and torch.equal(states[:, :, -1:], last)
    # Rounded once, on the way out: 2^-8 of what it is.
    torch.testing.assert_close(states.double(), expected, rtol=2**-8, atol=1e-6)


def test_gradients_through_other_states_of_every_step_are_refused() -> None:
    inputs = drawn("lstm")
    states, last = flashrnn(*inputs, dtype="float64")
    (states[0].sum() + last[1].sum()).backward()
    states, _ = flashrnn(*inputs, dtype="float64")
    with pytest.raises(BadInput, match=r"a loss depends on c at every step.* states\[0\]"):
        states[1, :, 1].sum().backward()


def test_the_orders_of_a_config() -> None:
    Wx, R, b, states = drawn("gru")
    config = SimpleNamespace(
        function="gru",
        backend="cuda_fused",
        dtype="float64",
        input_shape="TBGHD",
        recurrent_shape="HPGD",
        bias_shape="HDG",
        output_shape="STBHD",
        initial_val=0.0,
        gradient_recurrent_cut=False,
    )
    expected, expected_last = flashrnn(Wx, R, b, states, function="gru", dtype="float64")
    given = Wx.transpose(0, 1), R.permute(1, 3, 0, 2), b.permute(1, 2, 0), states.transpose(1, 2)
    got, last = flashrnn(*given, config=config)
    assert torch.equal(got.transpose(1, 2), expected) and torch.equal(last.transpose(1, 2), expected_last)


@pytest.mark.parametrize("clip", [1e-3, 0.3])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_arrives_at_a_step_from_later_ones_is_clipped(function: str, clip: float) -> None:
    """Kernels of FlashRNN's cuda and cuda_fused backends clip the gradient of the output by all paths, z of gru included."""
    inputs = drawn(function)
    expected, last = plain(function, *inputs, clip=clip)
    config = SimpleNamespace(function=function, dtype="float64", gradient_recurrent_clipval=clip)
    got, got_last = flashrnn(*inputs, config=config)
    dy, dlast = torch.randn(expected[0].shape, dtype=torch.float64), torch.randn(last.shape, dtype=torch.float64)
    expected_gradients, gradients = (
        torch.autograd.grad((states[0] * dy).sum() + (final * dlast).sum(), inputs)
        for states, final in ((expected, last), (got, got_last))
    )
    # So that gradients were clipped at all, and that of the initial output was not.
    assert expected_gradients[3][0].abs().max() > clip
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=TOLERANCE)


def test_recurrent_gradients_are_clipped_as_the_config_says() -> None:
    Wx, R, b, _ = drawn("elman")
    config = SimpleNamespace(function="elman", dtype="float64", gradient_recurrent_clipval=1e-15)
    states, _ = flashrnn(Wx, R, b, config=config)
    (dWx,) = torch.autograd.grad(states[0].sum(), Wx)
    # Nothing comes from later steps: the derivative of tanh is left.
    torch.testing.assert_close(dWx[:, :, 0], 1 - states[0] ** 2, rtol=0, atol=1e-13)


# torch looks so itself at tensors that come out of what it leaves uncompiled.
@pytest.mark.matrix_full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_within_torch_compile() -> None:
    Wx, R, b, states = drawn("slstm")

    def loss(Wx: Any) -> Any:
        return flashrnn(2 * Wx, R, b, states, function="slstm", dtype="float64")[0][0].sum()

    (expected,) = torch.autograd.grad(loss(Wx), Wx)
    (found,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(Wx), Wx)
    assert torch.equal(found, expected)


def test_what_does_not_fit_is_said() -> None:
    Wx, R, b, states = drawn("lstm")
    for arguments, options, message in (
        ((Wx, R, b), {"function": "lstn"}, r"function is 'lstn' \(did you mean 'lstm'\?\)"),
        ((Wx, R, b), {"backend": "triton"}, "backend is 'triton'.*triton_fused"),
        ((Wx, R, b), {"dtype": "int8"}, "dtype is 'int8'.*bfloat16"),
        ((Wx, R, b), {"function": "gru"}, r"Wx has shape \[2, 5, 4, 2, 3\]; \[2, 5, 3, 2, 3\] is expected"),
        ((Wx[0], R, b), {}, r"Wx has shape \[5, 4, 2, 3\]; 5 axes BTGHD are expected"),
        ((Wx, R[:, :1], b), {}, r"R has shape \[4, 1, 3, 3\]; \[4, 2, 3, 3\] is expected"),
        ((Wx, R, b[:3]), {}, r"b has shape \[3, 2, 3\]; \[4, 2, 3\] is expected"),
        ((Wx, R, b, states[:1]), {}, r"states has shape \[1, 2, 1, 2, 3\]; \[2, 2, 1, 2, 3\] is expected"),
        ((Wx, R, b), {"config": SimpleNamespace(gradient_recurrent_cut=True)}, "config.gradient_recurrent_cut is true"),
        ((Wx, R, b), {"config": SimpleNamespace(initial_val=[0.0, 1.0])}, "config.initial_val .* pass states"),
        ((Wx, R, b), {"config": SimpleNamespace(input_shape="BTG")}, "config.input_shape is 'BTG'; the letters BTGHD"),
    ):
        with pytest.raises(BadInput, match=message):
            flashrnn(*arguments, **options)
