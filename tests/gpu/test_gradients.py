"""Gradients on the GPU against torch's autograd of the plain equations in fp64, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.reference_loops import DIAGONAL_CELLS

from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

# (batch, time, hidden): single elements, odd sizes, and sizes around tiles.
SHAPES = ((1, 1, 1), (2, 3, 5), (3, 31, 40), (2, 64, 96), (1, 129, 33), (2, 257, 130))
PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
# Relative error of a whole gradient. In 16 bits y stands for the state before each step, rounded, and dx is rounded once more.
TOLERANCE = {"fp64": 2.0**-44, "fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}
# The axes of each layout out of those of BTD.
X_ORDER = {"BTD": (0, 1, 2, 3), "TBD": (1, 0, 2, 3), "BDT": (0, 2, 3, 1)}
Y_ORDER = {"BTD": (0, 1, 2), "TBD": (1, 0, 2), "BDT": (0, 2, 1)}
DTYPES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def plain_step(torch: Any, cell: str, W: list[Any], h: Any, parameters: list[Any]) -> Any:
    """One step of each cell, from its publication, gates in the order of x."""
    sigmoid = torch.sigmoid
    if cell == "min_gru":
        z = sigmoid(W[0])
        return (1 - z) * h + z * W[1]
    if cell == "min_gru_log":
        z = sigmoid(W[0])
        return (1 - z) * h + z * torch.where(W[1] >= 0, W[1] + 0.5, sigmoid(W[1]))
    if cell == "min_gru_tanh":
        z = sigmoid(W[0])
        return (1 - z) * h + z * torch.tanh(W[1])
    if cell == "min_lstm":
        f, i = sigmoid(W[0]), sigmoid(W[1])
        return (f * h + i * W[2]) / (f + i)
    if cell == "min_lstm_log":
        f, i = sigmoid(W[0]), sigmoid(W[1])
        return (f * h + i * torch.where(W[2] >= 0, W[2] + 0.5, sigmoid(W[2]))) / (f + i)
    if cell == "hgrn":
        f = sigmoid(W[0])
        return f * h + (1 - f) * W[1] * sigmoid(W[1])
    if cell == "qrnn":
        f = sigmoid(W[1])
        return f * h + (1 - f) * torch.tanh(W[0])
    if cell == "ind_rnn":
        return torch.relu(W[0] + parameters[0] * h)
    if cell == "veiled":
        return torch.tanh(W[0] * h + W[1])
    log_a = -8 * torch.nn.functional.softplus(parameters[0]) * sigmoid(W[0])
    return torch.exp(log_a) * h + torch.sqrt(-torch.expm1(2 * log_a)) * sigmoid(W[1]) * W[2]


CELLS = ("min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "hgrn", "qrnn", "rg_lru", "ind_rnn", "veiled")
# Cells that are not built in, by name.
INLINE = {cell["name"]: cell for cell in DIAGONAL_CELLS}


def plain_output(torch: Any, cell: str, W: list[Any], before: Any, h: Any) -> Any:
    """y of a step, from the state before it and the one after."""
    if cell == "qrnn":
        return torch.sigmoid(W[2]) * h
    return torch.sigmoid(W[2]) * h + before if cell == "veiled" else h


def away_from_the_kink(torch: Any, x: Any, bias: Any, h: Any, u: Any) -> Any:
    """Return gates [B, T, 1, H] of ind_rnn that leave no doubt, though y is rounded, on which side of 0 a step is."""
    x, h, margin = x.clone(), h.double(), 1 / 16
    for t in range(x.shape[1]):
        rest = bias[0].double() + u.double() * h
        total = x[:, t, 0].double() + rest
        is_near = total.abs() < margin * (1 + h.abs())
        beyond = torch.where(total < 0, -2 * margin, 2 * margin) * (1 + h.abs())
        x[:, t, 0] = torch.where(is_near, beyond - rest, x[:, t, 0].double()).to(x.dtype)
        h = torch.relu(x[:, t, 0].double() + rest)
    return x


def plain_run(torch: Any, cell: str, gates: Any, h: Any, parameters: list[Any]) -> tuple[Any, Any]:
    """Return y [B, T, H] and the final state of gates [B, T, G, H], step by step."""
    outputs = []
    for t in range(gates.shape[1]):
        W = list(gates[:, t].unbind(1))
        before, h = h, plain_step(torch, cell, W, h, parameters)
        outputs.append(plain_output(torch, cell, W, before, h))
    return torch.stack(outputs, 1), h


def assert_near(torch: Any, got: Any, expected: Any, precision: str) -> None:
    error = torch.linalg.vector_norm(got.double() - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-30)
    assert float(error) <= TOLERANCE[precision], float(error)


@pytest.mark.parametrize("layout", tuple(X_ORDER))
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_against_autograd(compiled: Callable[..., Kernel], cell: str, precision: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    dtype = getattr(torch, DTYPES[precision])
    carried = torch.float64 if precision == "fp64" else torch.float32
    for batch, time, hidden in SHAPES:
        kernel = compiled(model=INLINE.get(cell, cell), hidden_size=hidden, precision=precision, layout=layout)
        gates = len(kernel.gates)
        order = X_ORDER[layout]

        def random(*shape: int, of: Any = dtype) -> Any:
            return torch.randn(*shape, device="cuda").to(of)

        x, dy = random(batch, time, gates, hidden), random(batch, time, hidden)
        bias, initial, dfinal = random(gates, hidden), random(batch, hidden, of=carried), random(batch, hidden, of=carried)
        # Below 1, so that no state of ind_rnn grows without bound.
        parameters = [random(hidden).tanh() for _ in kernel.parameters]
        if cell == "ind_rnn":
            x = away_from_the_kink(torch, x, bias, initial, parameters[0])

        exact = [value.double().clone().requires_grad_() for value in (x, bias, initial, *parameters)]
        outputs, h = plain_run(torch, cell, exact[0] + exact[1], exact[2], exact[3:])
        loss = (outputs * dy.double()).sum() + (h * dfinal.double()).sum()
        expected = torch.autograd.grad(loss, exact)

        named = dict(zip(kernel.parameters, parameters, strict=True))
        (name_of_state,) = kernel.states
        y, state, saved = kernel.forward(
            x.permute(order).contiguous(), bias=bias, parameters=named or None, state={name_of_state: initial}
        )
        incoming = dy.permute(Y_ORDER[layout]).contiguous()
        gradients = kernel.backward(saved, incoming, {name_of_state: dfinal})
        of_state = gradients["state"][name_of_state]
        assert gradients["x"].dtype == dtype and gradients["bias"].dtype == dtype and of_state.dtype == carried
        assert_near(torch, gradients["x"], expected[0].permute(order), precision)
        assert_near(torch, gradients["bias"], expected[1], precision)
        assert_near(torch, of_state, expected[2], precision)
        for name, value in zip(kernel.parameters, expected[3:], strict=True):
            assert_near(torch, gradients["parameters"][name], value, precision)
        again = kernel.backward(saved, incoming, {name_of_state: dfinal})
        assert torch.equal(again["x"], gradients["x"]) and torch.equal(again["bias"], gradients["bias"])
        assert y.shape == incoming.shape and state[name_of_state].shape == initial.shape


@pytest.mark.parametrize("cell", CELLS)
def test_against_finite_differences(compiled: Callable[..., Kernel], cell: str) -> None:
    """Central differences of the kernel's own forward in fp64; those by x and by the state beside each other in one batch."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    time, hidden = 4, 3
    kernel = compiled(model=INLINE.get(cell, cell), hidden_size=hidden, precision="fp64")
    gates, (name_of_state,) = len(kernel.gates), kernel.states

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.float64)

    x, initial, bias = random(1, time, gates, hidden), random(1, hidden), random(gates, hidden)
    parameters = {name: random(hidden) for name in kernel.parameters}
    dy, dfinal = random(1, time, hidden), random(1, hidden)

    def loss(x: Any, initial: Any, bias: Any, parameters: dict[str, Any]) -> Any:
        """Loss of each sequence."""
        y, state = kernel(x, bias=bias, parameters=parameters or None, state={name_of_state: initial})
        return (y * dy).sum((1, 2)) + (state[name_of_state] * dfinal).sum(1)

    _, _, saved = kernel.forward(x, bias=bias, parameters=parameters or None, state={name_of_state: initial})
    gradients = kernel.backward(saved, dy, {name_of_state: dfinal})
    # Where truncation, of the square, and rounding, of its inverse, are both near 2^-34.
    step = 2.0**-17

    def assert_slope(found: Any, above: Any, below: Any) -> None:
        assert torch.allclose(found.flatten(), (above - below) / (2 * step), rtol=2.0**-24, atol=2.0**-24)

    inputs = torch.cat([x.flatten(), initial.flatten()])
    moved = [inputs + sign * step * torch.eye(len(inputs), device="cuda", dtype=torch.float64) for sign in (1, -1)]
    losses = [
        loss(each[:, : x.numel()].reshape(-1, *x.shape[1:]).contiguous(), each[:, x.numel() :].contiguous(), bias, parameters)
        for each in moved
    ]
    assert_slope(torch.cat([gradients["x"].flatten(), gradients["state"][name_of_state].flatten()]), *losses)
    for found, vector in (
        (gradients["bias"], bias),
        *((gradients["parameters"][name], parameters[name]) for name in parameters),
    ):
        slopes = []
        for sign in (1, -1):
            each = []
            for index in range(vector.numel()):
                kept = vector.clone()
                vector.view(-1)[index] += sign * step
                each.append(loss(x, initial, bias, parameters))
                vector.copy_(kept)
            slopes.append(torch.cat(each))
        assert_slope(found, *slopes)


@pytest.mark.parametrize("layout", tuple(X_ORDER))
@pytest.mark.parametrize("precision", ("fp64", "fp32", "bf16"))
def test_gradients_of_a_layer(compiled: Callable[..., Kernel], precision: str, layout: str) -> None:
    """A cell with its input projection against the same layer in torch."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(8)
    batch, time, inputs, hidden = 3, 129, 40, 48
    kernel = compiled(model="min_lstm", hidden_size=hidden, input_size=inputs, precision=precision, layout=layout)
    gates = len(kernel.gates)
    dtype = getattr(torch, DTYPES[precision])

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    x, weight, bias = random(batch, time, inputs), random(gates * hidden, inputs) / inputs**0.5, random(gates, hidden)
    dy = random(batch, time, hidden)
    exact = [value.double().clone().requires_grad_() for value in (x, weight, bias)]
    product = (exact[0] @ exact[1].T).reshape(batch, time, gates, hidden)
    initial = torch.zeros(batch, hidden, device="cuda", dtype=torch.float64)
    outputs, _ = plain_run(torch, "min_lstm", product + exact[2], initial, [])
    expected = torch.autograd.grad((outputs * dy.double()).sum(), exact)

    order = Y_ORDER[layout]
    y, _, saved = kernel.forward(x.permute(order).contiguous(), weight=weight, bias=bias)
    gradients = kernel.backward(saved, dy.permute(order).contiguous())
    assert y.shape == dy.permute(order).shape
    assert_near(torch, gradients["x"], expected[0].permute(order), precision)
    assert_near(torch, gradients["weight"], expected[1], precision)
    assert_near(torch, gradients["bias"], expected[2], precision)


def test_gradients_of_slow_gates(compiled: Callable[..., Kernel]) -> None:
    """A carry between tiles that is broken shows where gates forget slowly."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(6)
    batch, time, hidden = 2, 3000, 64
    kernel = compiled(model="min_gru", hidden_size=hidden, precision="fp32")
    x = torch.randn(batch, time, 2, hidden, device="cuda")
    x[:, :, 0] -= 7.0
    dy = torch.randn(batch, time, hidden, device="cuda")
    exact = x.double()
    z, v = torch.sigmoid(exact[:, :, 0]), exact[:, :, 1]
    h, history = torch.zeros(batch, hidden, device="cuda", dtype=torch.float64), []
    for t in range(time):
        history.append(h)
        h = (1 - z[:, t]) * h + z[:, t] * v[:, t]
    delta, expected = torch.zeros_like(h), torch.empty_like(exact)
    for t in reversed(range(time)):
        delta = delta + dy[:, t].double()
        expected[:, t, 0] = delta * (v[:, t] - history[t]) * z[:, t] * (1 - z[:, t])
        expected[:, t, 1] = delta * z[:, t]
        delta = (1 - z[:, t]) * delta
    _, _, saved = kernel.forward(x)
    gradients = kernel.backward(saved, dy)
    assert_near(torch, gradients["x"], expected, "fp32")
    assert_near(torch, gradients["state"]["h"], delta, "fp32")


def test_saved_of_another_kernel_or_released_is_refused(compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    first = compiled(model="min_gru", hidden_size=8, precision="fp32")
    other = compiled(model="min_gru", hidden_size=8, precision="fp32", batch=3)
    y, _, saved = first.forward(torch.randn(2, 4, 2, 8, device="cuda"))
    with pytest.raises(BadInput, match="another kernel"):
        other.backward(saved, torch.randn_like(y))
    saved.release()
    with pytest.raises(BadInput, match="released"):
        first.backward(saved, torch.randn_like(y))
