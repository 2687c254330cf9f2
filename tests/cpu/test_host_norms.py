"""Means and norms over units within a step, in NumPy and native code: against published numbers, torch, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.host_kernels import compiled, fill, in_published_precisions
from support.norm_cells import EVERY_CELL, GATES_TOGETHER, OF_BOTH, OF_ROUNDS

from minrnn_gen.call.array import numpy_dtype


@in_published_precisions
def test_an_lstm_with_layer_norms_gives_the_published_numbers(code: str, precision: str, rtol: float) -> None:
    """A loop in float64, written by hand, gave these outputs and sums of squares of each gradient."""
    kernel = compiled(code, model="layer_norm_lstm", hidden_size=4, precision=precision)
    interface = kernel.interface
    dtype = numpy_dtype(interface.precision.storage_dtype)

    def given(shape: tuple[int, ...], phase: float, scale: float = 1.0) -> Any:
        return (scale * fill(shape, phase)).astype(dtype)

    R = np.stack([given((1, 4, 4), 2 + gate, 0.5) for gate in range(4)])
    parameters = {name: given((4,), 40 + place, 0.5) for place, name in enumerate(interface.parameters)}
    state = {name: given((2, 4), 60 + place, 0.5) for place, name in enumerate(interface.states)}
    y, final, saved = kernel.forward(given((2, 5, 4, 4), 1), R, parameters=parameters, state=state)
    np.testing.assert_allclose(y.sum(dtype=np.float64), 5.385315771804529, rtol=rtol)
    expected = [0.22764943924438402, 0.07256388885328353, 0.08466057586103083, -0.1615633742537015]
    np.testing.assert_allclose(y[1, 4], expected, rtol=rtol, atol=rtol)
    expected = [0.8306650271871885, 0.1524422595335516, 0.3831614511780961, 0.05493554424068414]
    np.testing.assert_allclose(final["c"][1], expected, rtol=rtol, atol=rtol)
    dstate = {name: given((2, 4), 100 + place) for place, name in enumerate(interface.states)}
    gradients = kernel.backward(saved, given((2, 5, 4), 80), dstate)
    squares = {
        "x": (gradients["x"], 1.8315006233146753),
        "R.i": (gradients["R"][0], 0.041897190393144275),
        "R.f": (gradients["R"][1], 0.10821233248857368),
        "R.z": (gradients["R"][2], 0.1533389640159666),
        "R.o": (gradients["R"][3], 0.025145153716253917),
        "gi": (gradients["parameters"]["gi"], 0.08704284319501557),
        "gf": (gradients["parameters"]["gf"], 0.007232965336632326),
        "gz": (gradients["parameters"]["gz"], 1.5155220113309147),
        "go": (gradients["parameters"]["go"], 0.06917977420849962),
        "gc": (gradients["parameters"]["gc"], 0.16645289820590484),
        "bc": (gradients["parameters"]["bc"], 0.49215696937838055),
        "h": (gradients["state"]["h"], 0.0026980990999614218),
        "c": (gradients["state"]["c"], 0.06837078292778608),
    }
    for name, (gradient, square) in squares.items():
        np.testing.assert_allclose((gradient.astype(np.float64) ** 2).sum(), square, rtol=2 * rtol, err_msg=name)


def in_torch(document: dict[str, Any], torch: Any) -> Any:
    """A step of a cell of `support.norm_cells` in torch: W and R by gate order, states, parameters, heads, R itself."""
    sigmoid, tanh = torch.sigmoid, torch.tanh

    def over(values: list[Any], heads: int, what: str) -> tuple[Any, Any]:
        """The mean and the biased variance of several values together, for each unit of its head."""
        groups = heads if what == "head" else 1
        together = torch.stack([value.unflatten(-1, (groups, -1)) for value in values])
        variance, mean = torch.var_mean(together, dim=(0, -1), correction=0, keepdim=True)
        spread = torch.ones_like(values[0]).unflatten(-1, (groups, -1))
        return (mean[0] * spread).flatten(-2), (variance[0] * spread).flatten(-2)

    def layer_norm(x: Any, values: list[Any], heads: int, what: str, eps: float) -> Any:
        mean, variance = over(values, heads, what)
        return (x - mean) / torch.sqrt(variance + eps)

    def rms_norm(x: Any, heads: int, what: str, eps: float) -> Any:
        return x / torch.sqrt(over([x * x], heads, what)[0] + eps)

    def gates_together(W: Any, R: Any, s: Any, v: Any, heads: int) -> Any:
        gates = [W[place] + R(place) for place in range(4)]
        i, f, z, o = (v[place] * layer_norm(gates[place], gates, heads, "head", 1e-5) for place in range(4))
        c = sigmoid(f) * s[1] + sigmoid(i) * tanh(z)
        return sigmoid(o) * tanh(c), c

    def of_both(W: Any, R: Any, s: Any, v: Any, heads: int) -> Any:
        h, c = s
        m = over([R(0), W[0] + c], heads, "head")[0]
        n = rms_norm(v[0] * R(1) - m, heads, "all", 0.1)
        of_all = over([h.abs()], heads, "all")[0]
        g = torch.where(W[2] > 0, of_all, layer_norm(n * h, [n * h], heads, "head", 0.1))
        c = 0.5 * c + sigmoid(W[1]) * over([g * n], heads, "head")[0]
        return tanh(W[2] + n + g) + 0.1 * c, c

    def of_rounds(W: Any, R: Any, s: Any, v: Any, heads: int) -> Any:
        (h,) = s
        r = sigmoid(W[0] + v[0] * rms_norm(R(0), heads, "all", 1e-4))
        product = R(1, r * rms_norm(h, heads, "head", 1e-2))
        n = tanh(W[1] + layer_norm(product, [product], heads, "head", 1e-3))
        return (r * h + (1 - r) * n,)

    return {"gates_together": gates_together, "of_both": of_both, "of_rounds": of_rounds}[document["name"]]


@pytest.mark.parametrize(("hidden", "heads"), [(12, 1), (15, 3)])
@pytest.mark.parametrize("document", one_in(3, EVERY_CELL), ids=lambda document: document["name"])
def test_gradients_are_those_of_torch(code: str, document: dict[str, Any], hidden: int, heads: int) -> None:
    """In float64, of every array, with resets and lengths; R and parameters drawn."""
    torch = pytest.importorskip("torch")
    kernel = compiled(code, model=document, hidden_size=hidden, heads=heads, precision="fp64")
    interface, random = kernel.interface, np.random.default_rng(0)
    batch, time, size = 3, 5, hidden // heads
    x = random.standard_normal((batch, time, len(interface.gates), hidden))
    R = random.standard_normal((len(interface.recurrent_gates), heads, size, size)) / np.sqrt(size)
    bias = 0.1 * random.standard_normal(R.shape[:-1])
    parameters = {name: random.standard_normal(hidden) for name in interface.parameters}
    state = {name: random.standard_normal((batch, hidden)) for name in interface.states}
    resets, lengths = random.random((batch, time)) < 0.2, np.array([time, 3, 0])
    takes_bias = {"recurrent_bias": bias} if document.get("recurrent_bias") else {}
    call = {"parameters": parameters, "state": state, "resets": resets, "lengths": lengths, **takes_bias}
    y, final, saved = kernel.forward(x, R, **call)
    dy = random.standard_normal(y.shape)
    dstate = {name: random.standard_normal(value.shape) for name, value in final.items()}
    found = kernel.backward(saved, dy, dstate)

    leaves = {"x": x, "R": R, "recurrent_bias": bias, **{f"parameter {name}": value for name, value in parameters.items()}}
    leaves |= {f"state {name}": value for name, value in state.items()}
    at = {name: torch.tensor(value, requires_grad=True) for name, value in leaves.items()}
    step, loss = in_torch(document, torch), torch.zeros((), dtype=torch.float64)
    for row in range(batch):
        states = [at[f"state {name}"][row] for name in interface.states]
        for t in range(int(lengths[row])):
            states = [state * 0 if resets[row, t] else state for state in states]
            before = states

            def product(place: int, value: Any = None, before: Any = before) -> Any:
                multiplied = (before[0] if value is None else value).reshape(heads, size)
                products = torch.einsum("noi,ni->no", at["R"][place], multiplied)
                return (products + (at["recurrent_bias"][place] if takes_bias else 0)).reshape(hidden)

            of_parameters = [at[f"parameter {name}"] for name in interface.parameters]
            states = list(step(at["x"][row, t], product, states, of_parameters, heads))
            np.testing.assert_allclose(y[row, t], states[0].detach().numpy(), rtol=1e-11, atol=1e-12)
            loss = loss + (torch.tensor(dy[row, t]) * states[0]).sum()
        for name, value in zip(interface.states, states, strict=True):
            loss = loss + (torch.tensor(dstate[name][row]) * value).sum()
    loss.backward()
    shown = {"x": found["x"], "R": found["R"]}
    shown |= {"recurrent_bias": found["recurrent_bias"]} if takes_bias else {}
    shown |= {f"parameter {name}": value for name, value in found["parameters"].items()}
    shown |= {f"state {name}": value for name, value in found["state"].items()}
    for name, value in shown.items():
        np.testing.assert_allclose(value, at[name].grad.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("code", ["native"], indirect=True)
@pytest.mark.parametrize("document", one_in(3, [GATES_TOGETHER, OF_BOTH, OF_ROUNDS]), ids=lambda document: document["name"])
def test_threads_that_share_units_give_the_bits_of_one(
    code: str, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    kernel, random = compiled(code, model=document, hidden_size=192, heads=2, precision="fp32"), np.random.default_rng(1)
    interface = kernel.interface
    x = random.standard_normal((2, 12, len(interface.gates), 192)).astype(np.float32)
    R = (random.standard_normal((len(interface.recurrent_gates), 2, 96, 96)) / 10).astype(np.float32)
    call: dict[str, Any] = {"parameters": {name: np.ones(192, np.float32) for name in interface.parameters}}
    if document.get("recurrent_bias"):
        call["recurrent_bias"] = np.zeros(R.shape[:-1], np.float32)
    by_threads = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        y, final, saved = kernel.forward(x, R, **call)
        gradients = kernel.backward(saved, np.ones_like(y))
        by_threads.append([y, *final.values(), gradients["x"]])
    for others in by_threads[1:]:
        for one, other in zip(by_threads[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_variance_keeps_its_digits_beside_a_large_mean(code: str, offset: float) -> None:
    """The mean is subtracted before squares are added: the difference of two large means would have no digit left."""
    cell = {"name": "normed", "equations": "h[t] = layer_norm(W.x + 0 * R.x, head, 1e-5)"}
    kernel = compiled(code, model=cell, hidden_size=64, precision="fp32")
    x = (np.random.default_rng(0).standard_normal((1, 1, 1, 64)) + offset).astype(np.float32)
    y, _ = kernel(x, np.zeros((1, 1, 64, 64), np.float32))
    wide = x[0, 0, 0].astype(np.float64)
    expected = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    np.testing.assert_allclose(y[0, 0], expected, atol=2e-6 * max(1.0, offset / 8))


@pytest.mark.parametrize("code", ["numpy"], indirect=True)
def test_haste_and_torchaudio_normalise_all_gates_together(code: str) -> None:
    """As their LSTM cells do: the norm of [i, f, z, o] has one mean and one variance of 4 H numbers, and 4 H weights."""
    torch = pytest.importorskip("torch")
    kernel, random = compiled(code, model=GATES_TOGETHER, hidden_size=10, precision="fp64"), np.random.default_rng(2)
    x, R = random.standard_normal((2, 4, 4, 10)), random.standard_normal((4, 1, 10, 10)) / 3
    weights = {name: random.standard_normal(10) for name in kernel.interface.parameters}
    y, final = kernel(x, R, recurrent_bias=np.zeros((4, 1, 10)), parameters=weights)
    norm = torch.nn.LayerNorm(40, bias=False, dtype=torch.float64)
    norm.weight.data = torch.tensor(np.concatenate(list(weights.values())))
    h = c = torch.zeros(2, 10, dtype=torch.float64)
    for t in range(4):
        products = h @ torch.tensor(R.reshape(40, 10)).T
        i, f, z, o = norm(torch.tensor(x[:, t].reshape(2, 40)) + products).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * z.tanh()
        h = o.sigmoid() * c.tanh()
        np.testing.assert_allclose(y[:, t], h.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(final["c"], c.detach().numpy(), rtol=1e-11)
