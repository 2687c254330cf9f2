"""Dense cells on the GPU against torch's autograd of the plain equations in fp64, and against the CPU target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_gradients import DTYPES, X_ORDER, Y_ORDER, assert_near

from minrnn_gen.alternating_walk import GRAPH_STEPS
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

CELLS = ("elman", "lstm", "gru", "slstm")
# (batch, time, heads, head_dim): single elements, odd sizes, steps enqueued one by one, and in one graph or several.
SHAPES = ((1, 1, 1, 1), (2, 5, 1, 7), (3, GRAPH_STEPS + 3, 3, 16), (4, 2 * GRAPH_STEPS + 6, 1, 40))
# Relative error of y, which is rounded to storage.
Y_TOLERANCE = {"fp64": 2.0**-44, "fp32": 2.0**-18, "fp16": 2.0**-9, "bf16": 2.0**-6}


def plain_step(torch: Any, cell: str, W: Any, P: Any, state: list[Any]) -> list[Any]:
    """The next states of one step, from its publication; W [B, G, H], the products P [B, Gr, H] with their bias."""
    sigmoid, tanh = torch.sigmoid, torch.tanh
    if cell == "elman":
        return [tanh(W[:, 0] + P[:, 0])]
    if cell == "gru":
        r, z = sigmoid(W[:, 0] + P[:, 0]), sigmoid(W[:, 1] + P[:, 1])
        return [(1 - z) * tanh(W[:, 2] + r * P[:, 2]) + z * state[0]]
    i, f, z, o = (W + P).unbind(1)
    if cell == "lstm":
        c = sigmoid(f) * state[1] + sigmoid(i) * tanh(z)
        return [sigmoid(o) * tanh(c), c]
    _, c, n, m = state
    kept = torch.nn.functional.logsigmoid(f) + m
    m = torch.where(n == 0, i, torch.maximum(i, kept)).detach()
    new, kept = torch.exp(torch.clamp_max(i - m, 0)), torch.exp(torch.clamp_max(kept - m, 0))
    c, n = kept * c + new * tanh(z), torch.clamp_min(kept * n + new, 1)
    return [sigmoid(o) * c / n, c, n, m]


def plain_run(
    torch: Any, cell: str, gates: Any, R: Any, recurrent_bias: Any, state: list[Any], storage: Any
) -> tuple[Any, list[Any]]:
    """Return y [B, T, H] and the final states of gates [B, T, G, H] and R [Gr, N, D, D].

    As on a GPU a product takes the output rounded to `storage`, through which gradients pass as if it were not.
    """
    outputs = []
    for t in range(gates.shape[1]):
        rounded = state[0] + (state[0].to(storage).double() - state[0]).detach()
        heads = rounded.unflatten(1, R.shape[1:3])
        products = torch.einsum("gnoi,bni->bgno", R, heads).flatten(2) + recurrent_bias.flatten(1)
        state = plain_step(torch, cell, gates[:, t], products, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("layout", tuple(X_ORDER))
@pytest.mark.parametrize("precision", tuple(DTYPES))
@pytest.mark.parametrize("cell", CELLS)
def test_against_autograd(compiled: Callable[..., Kernel], cell: str, precision: str, layout: str) -> None:
    import torch

    torch.manual_seed(5)
    dtype = getattr(torch, DTYPES[precision])
    carried = torch.float64 if precision == "fp64" else torch.float32
    for batch, time, heads, size in SHAPES:
        hidden = heads * size
        kernel = compiled(model=cell, hidden_size=hidden, heads=heads, precision=precision, layout=layout, recurrent_bias=True)
        gates, products = len(kernel.gates), len(kernel.contract.recurrent_gates)

        def random(*shape: int, of: Any = dtype, scale: float = 1.0) -> Any:
            return (scale * torch.randn(*shape, device="cuda")).to(of)

        x, dy = random(batch, time, gates, hidden), random(batch, time, hidden)
        bias, recurrent_bias = random(gates, hidden), random(products, heads, size)
        R = random(products, heads, size, size, scale=size**-0.5)
        # Reachable ones: an n of slstm is 1 at least.
        initial = [random(batch, hidden, of=carried, scale=0.5) for _ in kernel.states]
        if cell == "slstm":
            initial[2] = 1 + initial[2].abs()
        dfinal = [random(batch, hidden, of=carried) for _ in kernel.states]

        exact = [value.double().clone().requires_grad_() for value in (x, bias, R, recurrent_bias, *initial)]
        outputs, final = plain_run(torch, cell, exact[0] + exact[1], exact[2], exact[3], exact[4:], dtype)
        loss = (outputs * dy.double()).sum()
        loss = loss + sum((last * one.double()).sum() for last, one in zip(final, dfinal, strict=True) if last.requires_grad)
        expected = torch.autograd.grad(loss, exact, allow_unused=True)

        named = dict(zip(kernel.states, initial, strict=True))
        given = {"bias": bias, "recurrent_bias": recurrent_bias, "state": named}
        y, state, saved = kernel.forward(x.permute(X_ORDER[layout]).contiguous(), R, **given)
        outputs = outputs.detach()
        error = torch.linalg.vector_norm(y.double() - outputs.permute(Y_ORDER[layout])) / torch.linalg.vector_norm(outputs)
        assert float(error) <= Y_TOLERANCE[precision]
        for name, last in zip(kernel.states, final, strict=True):
            assert_near(torch, state[name], last.detach(), precision)
        incoming = dy.permute(Y_ORDER[layout]).contiguous()
        dstate = dict(zip(kernel.states, dfinal, strict=True))
        gradients = kernel.backward(saved, incoming, dstate)
        assert gradients["R"].dtype == dtype and gradients["R"].shape == R.shape
        assert_near(torch, gradients["x"], expected[0].permute(X_ORDER[layout]), precision)
        for name, value in zip(("bias", "R", "recurrent_bias"), expected[1:4], strict=True):
            assert_near(torch, gradients[name], value, precision)
        for name, value in zip(kernel.states, expected[4:], strict=True):
            assert_near(torch, gradients["state"][name], torch.zeros_like(x[:, 0, 0]) if value is None else value, precision)
        again = kernel.backward(saved, incoming, dstate)
        assert all(torch.equal(again[name], gradients[name]) for name in ("x", "R", "bias", "recurrent_bias"))
        repeated, _ = kernel(x.permute(X_ORDER[layout]).contiguous(), R, **given)
        assert torch.equal(repeated, y)
