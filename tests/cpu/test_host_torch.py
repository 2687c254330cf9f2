"""Dense cells in float64 against torch: its own layers, and equations written down a second time that it differentiates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.uncompiled_kernels import host_kernel

torch = pytest.importorskip("torch")

BATCH, TIME, INPUTS, HIDDEN = 3, 12, 4, 6
# Sums of a few dozen products of numbers of size 1, in two orders.
LAYER_TOLERANCE = 1e-10
LAYERS = {"elman": "RNN", "lstm": "LSTM", "gru": "GRU"}


def tensor(*shape: int, seed: int = 0) -> Any:
    drawn = np.random.default_rng([seed, *shape]).normal(size=shape)
    return torch.from_numpy(drawn).requires_grad_()


def as_array(value: Any) -> Any:
    return np.ascontiguousarray(value.detach().numpy())


def close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    np.testing.assert_allclose(found, as_array(expected).reshape(found.shape), rtol=0, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("model", LAYERS)
def test_a_layer_of_torch(model: str, direction: str) -> None:
    """Outputs, final states and every gradient of torch.nn.RNN, LSTM and GRU: gates and biases in the same order."""
    torch.manual_seed(0)
    both = direction == "bidirectional"
    layer = getattr(torch.nn, LAYERS[model])(INPUTS, HIDDEN, batch_first=True, bidirectional=both, dtype=torch.float64)
    kernel = host_kernel(model, HIDDEN, "fp64", input_size=INPUTS, direction=direction, recurrent_bias=True)
    x, runs = tensor(BATCH, TIME, INPUTS), 2 if both else 1
    initial = {name: tensor(runs, BATCH, HIDDEN, seed=index) for index, name in enumerate(kernel.states)}
    first = tuple(initial.values())
    expected, last = layer(x, first if len(first) > 1 else first[0])
    last = last if isinstance(last, tuple) else (last,)
    dy = tensor(*expected.shape, seed=7).detach()
    dlast = [tensor(*one.shape, seed=8 + index).detach() for index, one in enumerate(last)]
    torch.autograd.backward([expected, *last], [dy, *dlast])

    def weights(name: str, of_gradients: bool = False) -> Any:
        found = [getattr(layer, f"{name}_l0{suffix}") for suffix in ("", "_reverse")[:runs]]
        return torch.stack([one.grad if of_gradients else one for one in found])

    gates, axes = len(kernel.gates), (2,) if both else ()
    shapes = {
        "weight_ih": (runs * gates * HIDDEN, INPUTS),
        "bias_ih": (*axes, gates, HIDDEN),
        "weight_hh": (*axes, gates, 1, HIDDEN, HIDDEN),
        "bias_hh": (*axes, gates, 1, HIDDEN),
    }
    names = {"weight": "weight_ih", "bias": "bias_ih", "R": "weight_hh", "recurrent_bias": "bias_hh"}
    arguments = {name: as_array(weights(theirs)).reshape(shapes[theirs]) for name, theirs in names.items()}
    states = {name: as_array(one).reshape(*axes, BATCH, HIDDEN) for name, one in initial.items()}
    y, final, saved = kernel.forward(as_array(x), **arguments, state=states)
    close(y, expected, LAYER_TOLERANCE, "y")
    for name, one in zip(kernel.states, last, strict=True):
        close(final[name], one, LAYER_TOLERANCE, name)
    dstate = {name: as_array(one).reshape(final[name].shape) for name, one in zip(kernel.states, dlast, strict=True)}
    gradients = kernel.backward(saved, as_array(dy), dstate)
    close(gradients["x"], x.grad, LAYER_TOLERANCE, "x")
    for name, theirs in names.items():
        close(gradients[name], weights(theirs, of_gradients=True), LAYER_TOLERANCE, name)
    for name, one in initial.items():
        close(gradients["state"][name], one.grad, LAYER_TOLERANCE, f"initial {name}")


def first_of_ties(is_first: Any, first: Any, second: Any) -> Any:
    """min and max give the whole gradient to their first argument at a tie, which torch.minimum divides."""
    return torch.where(is_first, first, torch.as_tensor(second, dtype=first.dtype))


def slstm_step(i: Any, f: Any, z: Any, o: Any, states: Any) -> Any:
    """arXiv 2405.04517 with the stabiliser of FlashRNN, as the documentation of the cell says it."""
    _, c, n, m = states
    forget = torch.nn.functional.logsigmoid(f) + m
    top = torch.where(n == 0, i, torch.maximum(i, forget)).detach()
    new = torch.exp(first_of_ties(i - top <= 0, i - top, 0.0))
    kept = torch.exp(first_of_ties(forget - top <= 0, forget - top, 0.0))
    c = kept * c + new * torch.tanh(z)
    n = kept * n + new
    n = first_of_ties(n >= 1, n, 1.0)
    return torch.sigmoid(o) * c / n, c, n, top


def elman_step(h: Any, _: Any) -> Any:
    return (torch.tanh(h),)


STEPS = {"slstm": slstm_step, "elman": elman_step}


def unrolled(step: Any, x: Any, R: Any, states: Any, clip: float | None = None) -> Any:
    """Run a step over x [B, T, G, H] with one dense matrix a gate; what arrives at a step is clipped as FlashRNN does it."""
    outputs = []
    for t in range(x.shape[1]):
        before = states[0].clone()
        if clip is not None and t:
            before.register_hook(lambda gradient: gradient.clamp(-clip, clip))
        products = torch.einsum("goi,bi->bgo", R, before)
        states = step(*(x[:, t] + products).unbind(1), (before, *states[1:]))
        outputs.append(states[0])
    return torch.stack(outputs, 1), states


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("model", STEPS)
def test_equations_that_torch_differentiates(model: str, clip: float | None) -> None:
    kernel = host_kernel(model, HIDDEN, "fp64", recurrent_gradient_clip=clip)
    gates = len(kernel.gates)
    x, R = tensor(BATCH, TIME, gates, HIDDEN), tensor(gates, HIDDEN, HIDDEN, seed=1)
    # The stabiliser n is 0 in some elements, as at the start, and at least 1 elsewhere.
    initial = [tensor(BATCH, HIDDEN, seed=2 + index) for index in range(len(kernel.states))]
    if model == "slstm":
        initial[2] = (initial[2].detach() + 1).clamp(min=0).requires_grad_()
    expected, last = unrolled(STEPS[model], x, R, tuple(initial), clip)
    dy, dlast = tensor(*expected.shape, seed=7).detach(), [tensor(BATCH, HIDDEN, seed=8).detach() for _ in last]
    # The stabiliser m, the last state, is detached.
    pairs = [(one, gradient) for one, gradient in zip(last, dlast, strict=True) if one.requires_grad]
    torch.autograd.backward([expected, *(one for one, _ in pairs)], [dy, *(gradient for _, gradient in pairs)])

    states = dict(zip(kernel.states, map(as_array, initial), strict=True))
    y, final, saved = kernel.forward(as_array(x), as_array(R)[:, None], state=states)
    close(y, expected, 1e-12, "y")
    for name, one in zip(kernel.states, last, strict=True):
        close(final[name], one, 1e-12, name)
    dstate = dict(zip(kernel.states, map(as_array, dlast), strict=True))
    gradients = kernel.backward(saved, as_array(dy), dstate)
    close(gradients["x"], x.grad, 1e-9, "x")
    close(gradients["R"], R.grad, 1e-9, "R")
    for name, one in zip(kernel.states, initial, strict=True):
        grad = torch.zeros_like(one) if one.grad is None else one.grad
        close(gradients["state"][name], grad, 1e-9, f"initial {name}")


@pytest.mark.parametrize("model", ["elman", "lstm", "gru", "slstm"])
def test_heads_are_the_blocks_of_a_matrix(model: str) -> None:
    """A kernel of several heads is that of one whose matrix has them along its diagonal, and zeros elsewhere."""
    heads, head_dim, random = 3, HIDDEN // 3, np.random.default_rng(3)
    one, several = (host_kernel(model, HIDDEN, "fp64", heads=count, recurrent_bias=True) for count in (1, heads))
    gates = len(one.gates)
    R = random.normal(size=(gates, heads, head_dim, head_dim))
    bias = random.normal(size=(gates, heads, head_dim))
    whole = np.zeros((gates, 1, HIDDEN, HIDDEN))
    blocks = [slice(start, start + head_dim) for start in range(0, HIDDEN, head_dim)]
    for head, block in enumerate(blocks):
        whole[:, 0, block, block] = R[:, head]
    x, dy = random.normal(size=(BATCH, TIME, gates, HIDDEN)), random.normal(size=(BATCH, TIME, HIDDEN))
    found_y, found_states, found_saved = several.forward(x, R, recurrent_bias=bias)
    y, states, saved = one.forward(x, whole, recurrent_bias=bias.reshape(gates, 1, HIDDEN))
    found, expected = several.backward(found_saved, dy), one.backward(saved, dy)
    expected["R"] = np.stack([expected["R"][:, 0, block, block] for block in blocks], 1)
    for name in one.states:
        np.testing.assert_allclose(found_states[name], states[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["state"][name], expected["state"][name], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found_y, y, rtol=0, atol=1e-12)
    for name in ("x", "R", "recurrent_bias"):
        np.testing.assert_allclose(found[name], expected[name].reshape(found[name].shape), rtol=0, atol=1e-12)
