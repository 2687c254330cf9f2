"""Gradients on the GPU against torch's autograd of the plain equations, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
    log_a = -8 * torch.nn.functional.softplus(parameters[0]) * sigmoid(W[0])
    return torch.exp(log_a) * h + torch.sqrt(-torch.expm1(2 * log_a)) * sigmoid(W[1]) * W[2]


CELLS = ("min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "hgrn", "rg_lru")


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
        kernel = compiled(model=cell, hidden_size=hidden, precision=precision, layout=layout)
        gates = len(kernel.gates)
        order = X_ORDER[layout]

        def random(*shape: int, of: Any = dtype) -> Any:
            return torch.randn(*shape, device="cuda").to(of)

        x, dy = random(batch, time, gates, hidden), random(batch, time, hidden)
        bias, initial, dfinal = random(gates, hidden), random(batch, hidden, of=carried), random(batch, hidden, of=carried)
        parameters = [random(hidden) for _ in kernel.parameters]

        exact = [value.double().clone().requires_grad_() for value in (x, bias, initial, *parameters)]
        h, outputs = exact[2], []
        for t in range(time):
            W = [exact[0][:, t, g] + exact[1][g] for g in range(gates)]
            h = plain_step(torch, cell, W, h, exact[3:])
            outputs.append(h)
        loss = (torch.stack(outputs, 1) * dy.double()).sum() + (h * dfinal.double()).sum()
        expected = torch.autograd.grad(loss, exact)

        named = dict(zip(kernel.parameters, parameters, strict=True))
        y, state, saved = kernel.forward(
            x.permute(order).contiguous(), bias=bias, parameters=named or None, state={"h": initial}
        )
        incoming = dy.permute(Y_ORDER[layout]).contiguous()
        gradients = kernel.backward(saved, incoming, {"h": dfinal})
        assert gradients["x"].dtype == dtype and gradients["bias"].dtype == dtype and gradients["state"]["h"].dtype == carried
        assert_near(torch, gradients["x"], expected[0].permute(order), precision)
        assert_near(torch, gradients["bias"], expected[1], precision)
        assert_near(torch, gradients["state"]["h"], expected[2], precision)
        for name, value in zip(kernel.parameters, expected[3:], strict=True):
            assert_near(torch, gradients["parameters"][name], value, precision)
        again = kernel.backward(saved, incoming, {"h": dfinal})
        assert torch.equal(again["x"], gradients["x"]) and torch.equal(again["bias"], gradients["bias"])
        assert y.shape == incoming.shape and state["h"].shape == initial.shape


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
