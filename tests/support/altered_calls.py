"""Calls with reset states and holds, as plain loops over steps in torch's float64, whose autograd gives gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support.norm_cells import OF_BOTH

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Y_AXES, Interface

Tensors = Mapping[str, Any]
# Of a call, what has no gradients.
WHOLE = ("resets", "lengths", "cu_seqlens", "holds")
# Of a step: gates of x, products of R with a value, parameters, and the states that it begins from; the states after it.
Step = Callable[[Tensors, Callable[[str, Any], Any], Tensors, Tensors], dict[str, Any]]

TWO_LEAKS: dict[str, Any] = {
    "name": "two_leaks",
    "gates": ["a", "b"],
    "states": ["u", "v"],
    "parameters": ["p"],
    "output": "u[t] * v[t] + v[t-1]",
    "equations": """
        u[t] = sigmoid(W.a) * u[t-1] + W.b
        v[t] = sigmoid(p) * v[t-1] + W.a
    """,
}
ENTANGLED: dict[str, Any] = {
    "name": "entangled",
    "gates": ["i", "n"],
    "states": ["h", "c"],
    "parameters": ["w"],
    "equations": """
        c[t] = sigmoid(W.i + w * h[t-1]) * c[t-1] + tanh(W.n)
        h[t] = tanh(c[t] + w * h[t-1])
    """,
}


def _two_leaks(W: Tensors, _: Any, p: Tensors, s: Tensors) -> dict[str, Any]:
    u, v = torch.sigmoid(W["a"]) * s["u"] + W["b"], torch.sigmoid(p["p"]) * s["v"] + W["a"]
    return {"u": u, "v": v, "y": u * v + s["v"]}


def _min_gru(W: Tensors, _: Any, __: Tensors, s: Tensors) -> dict[str, Any]:
    z = torch.sigmoid(W["z"])
    h = (1 - z) * s["h"] + z * W["h"]
    return {"h": h, "y": h}


def _entangled(W: Tensors, _: Any, p: Tensors, s: Tensors) -> dict[str, Any]:
    c = torch.sigmoid(W["i"] + p["w"] * s["h"]) * s["c"] + torch.tanh(W["n"])
    h = torch.tanh(c + p["w"] * s["h"])
    return {"h": h, "c": c, "y": h}


def _lstm(W: Tensors, R: Any, _: Tensors, s: Tensors) -> dict[str, Any]:
    i, f, o = (torch.sigmoid(W[gate] + R(gate, s["h"])) for gate in "ifo")
    c = f * s["c"] + i * torch.tanh(W["z"] + R("z", s["h"]))
    h = o * torch.tanh(c)
    return {"h": h, "c": c, "y": h}


def _gru(W: Tensors, R: Any, _: Tensors, s: Tensors) -> dict[str, Any]:
    r, z = (torch.sigmoid(W[gate] + R(gate, s["h"])) for gate in "rz")
    h = (1 - z) * torch.tanh(W["n"] + r * R("n", s["h"])) + z * s["h"]
    return {"h": h, "y": h}


def _gru_reset_before(W: Tensors, R: Any, _: Tensors, s: Tensors) -> dict[str, Any]:
    r, z = (torch.sigmoid(W[gate] + R(gate, s["h"])) for gate in "rz")
    h = z * s["h"] + (1 - z) * torch.tanh(W["n"] + R("n", r * s["h"]))
    return {"h": h, "y": h}


def _layer_norm(x: Any, eps: float) -> Any:
    """Layer norm of one head, over all its units."""
    return (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + eps)


def _layer_norm_lstm(W: Tensors, R: Any, p: Tensors, s: Tensors) -> dict[str, Any]:
    i, f, z, o = (W[gate] + p[f"g{gate}"] * _layer_norm(R(gate, s["h"]), 1e-5) for gate in "ifzo")
    c = torch.sigmoid(f) * s["c"] + torch.sigmoid(i) * torch.tanh(z)
    h = torch.sigmoid(o) * torch.tanh(p["gc"] * _layer_norm(c, 1e-5) + p["bc"])
    return {"h": h, "c": c, "y": h}


def _of_both(W: Tensors, R: Any, p: Tensors, s: Tensors) -> dict[str, Any]:
    m = torch.cat([R("a", s["h"]), W["a"] + s["c"]]).mean()
    v = p["p"] * R("b", s["h"]) - m
    v = v / torch.sqrt((v * v).mean() + 0.1)
    g = torch.where(W["h"] > 0, s["h"].abs().mean(), _layer_norm(v * s["h"], 0.1))
    c = 0.5 * s["c"] + torch.sigmoid(W["b"]) * (g * v).mean()
    h = torch.tanh(W["h"] + v + g) + 0.1 * c
    return {"h": h, "c": c, "y": h}


@dataclass(frozen=True)
class Case:
    """A cell with its step, written by hand."""

    name: str
    model: str | dict[str, Any]
    step: Step
    # y of the states after a step and those that it begins from, where a step is held.
    output: Callable[[Tensors, Tensors], Any] = lambda after, _: after["h"]


# Scans, one with an output that is no state; a diagonal cell; dense ones with products of one round and of two, and with norms.
CASES = (
    Case("min_gru", "min_gru", _min_gru),
    Case("two_leaks", TWO_LEAKS, _two_leaks, lambda after, before: after["u"] * after["v"] + before["v"]),
    Case("entangled", ENTANGLED, _entangled),
    Case("lstm", "lstm", _lstm),
    Case("gru", "gru", _gru),
    Case("gru_reset_before", "gru_reset_before", _gru_reset_before),
    Case("layer_norm_lstm", "layer_norm_lstm", _layer_norm_lstm),
    Case("of_both", OF_BOTH, _of_both),
)


@dataclass(frozen=True)
class Drawn:
    """The arrays of a call as a kernel takes them, and what its gradients are weighted by."""

    call: dict[str, Any]
    dy: Any
    dstate: dict[str, Any]
    pieces: list[tuple[int, int, int]]


def drawn(
    interface: Interface, kind: str, of_each: bool, seed: int, holds: bool = False, batch: int = 3, time: int = 6
) -> Drawn:
    """Draw a call: "plain", "ragged" by lengths, or "packed"; reset states `of_each` sequence, or the same for all.

    With `holds` some steps are held, and every second seed has resets to zeros, or none.
    """
    random = np.random.default_rng(seed)
    storage, carried = interface.precision.storage_dtype, interface.precision.arithmetic_dtype

    def normal(shape: tuple[int, ...], dtype: str = storage, scale: float = 1.0) -> Any:
        return (scale * random.standard_normal(shape)).astype(numpy_dtype(dtype))

    rows, steps, sequences = (1, batch * time, batch) if kind == "packed" else (batch, time, batch)
    lengths = random.integers(0, time + 1, batch)
    inner = np.sort(random.integers(0, batch * time + 1, batch - 1))
    ends = np.array([0, *inner, batch * time])
    call: dict[str, Any] = {"x": normal(interface.shape(interface.x_axes, rows, steps))}
    if interface.recurrent_gates:
        call["R"] = normal(interface.R_shape, scale=0.5)
    if interface.takes_recurrent_bias:
        call["recurrent_bias"] = normal(interface.recurrent_bias_shape, scale=0.5)
    if interface.parameters:
        call["parameters"] = {name: normal(interface.parameter_shape, scale=0.5) for name in interface.parameters}
    shape = interface.state_shape(sequences)
    call["state"] = {name: normal(shape, carried) for name in interface.states}
    of_reset = shape if of_each else interface.parameter_shape
    call["reset_states"] = {name: normal(of_reset, carried) for name in interface.states}
    call["resets"] = random.random((rows, steps)) < 0.35
    if holds:
        call["holds"] = random.random((rows, steps)) < 0.3
        if seed % 2:
            del call["reset_states"]
        if seed % 4 == 3:
            del call["resets"]
    call |= {"plain": {}, "ragged": {"lengths": lengths}, "packed": {"cu_seqlens": ends}}[kind]
    if kind == "packed":
        pieces = [(0, int(begin), int(end)) for begin, end in itertools.pairwise(ends)]
    else:
        pieces = [(row, 0, int(lengths[row]) if kind == "ragged" else time) for row in range(batch)]
    dstate = {name: normal(shape, carried) for name in interface.states}
    return Drawn(call, normal(interface.y_shape(rows, steps)), dstate, pieces)


def looped(interface: Interface, case: Case, problem: Drawn) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return y, the final states and the gradients of `problem` by name, from loops in float64."""
    step, output = case.step, case.output
    leaves = {name: _leaf(value) for name, value in problem.call.items() if name not in WHOLE}
    directed = bool(interface.directions)
    x_axes = interface.x_axes
    order = [x_axes.index(axis) for axis in ("btdgh" if directed else "btgh")]
    x = leaves["x"].permute(order)
    x = x if directed else x.unsqueeze(2)
    resets, holds = (problem.call.get(name, np.zeros(x.shape[:2], bool)) for name in ("resets", "holds"))
    y = torch.zeros((*x.shape[:3], x.shape[-1]), dtype=torch.float64)
    final = {name: [] for name in interface.states}
    for run, is_reversed in enumerate(interface.runs_reversed):
        own = {name: _of_run(value, run, directed) for name, value in leaves.items() if name != "x"}
        of_run: dict[str, list[Any]] = {name: [] for name in interface.states}

        def product(gate: str, value: Any, own: Any = own) -> Any:
            place = interface.recurrent_gates.index(gate)
            heads = value.reshape(interface.heads, -1, 1)
            found = (own["R"][place] @ heads).reshape(-1)
            return found + own["recurrent_bias"][place].reshape(-1) if "recurrent_bias" in own else found

        for sequence, (row, begin, end) in enumerate(problem.pieces):
            state = {name: own["state"][name][sequence] for name in interface.states}
            for t in range(begin, end)[:: -1 if is_reversed else 1]:
                if resets[row, t]:
                    state = {name: _begun(own, name, sequence) for name in state}
                gates = dict(zip(interface.gates, x[row, t, run], strict=True))
                after = step(gates, product, own.get("parameters", {}), state)
                last = after.pop("y")
                if holds[row, t]:
                    after, last = state, output(state, state)
                state, y[row, t, run] = after, last
            for name, value in state.items():
                of_run[name].append(value)
        for name, values in of_run.items():
            final[name].append(torch.stack(values))
    finals = {name: torch.stack(runs) if directed else runs[0] for name, runs in final.items()}
    in_layout = y.reshape(*y.shape[:2], -1).permute(["bth".index(axis) for axis in Y_AXES[interface.layout]])
    total = (in_layout * _double(problem.dy)).sum()
    total = total + sum((finals[name] * _double(problem.dstate[name])).sum() for name in finals)
    by_name = flat(leaves)
    found = torch.autograd.grad(total, list(by_name.values()), allow_unused=True)
    gradients = {
        name: np.zeros(leaf.shape) if gradient is None else gradient.numpy()
        for (name, leaf), gradient in zip(by_name.items(), found, strict=True)
    }
    return in_layout.detach().numpy(), {name: value.detach().numpy() for name, value in finals.items()}, gradients


def check(kernel: Any, case: Case, problem: Drawn, of_results: dict[str, float], of_gradients: dict[str, float]) -> Any:
    """Hold a kernel's forward and gradients against the loops', within tolerances of `assert_allclose`; return y of these."""
    y, final, gradients = looped(kernel.interface, case, problem)
    got_y, got_final, saved = kernel.forward(**problem.call)
    np.testing.assert_allclose(got_y, y, **of_results)
    for name, last in final.items():
        np.testing.assert_allclose(got_final[name], last, **of_results)
    got = flat(kernel.backward(saved, problem.dy, problem.dstate))
    assert {*got} == {*gradients}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(got[name], gradient, err_msg=name, **of_gradients)
    return y


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a mapping with mappings in it, by "outer inner"."""
    return {
        f"{outer} {inner}".strip(): array
        for outer, value in nested.items()
        for inner, array in (value.items() if isinstance(value, dict) else [("", value)])
    }


def _begun(own: Mapping[str, Any], name: str, sequence: int) -> Any:
    if "reset_states" not in own:
        return torch.zeros_like(own["state"][name][sequence])
    state = own["reset_states"][name]
    return state[sequence] if state.dim() == 2 else state


def _double(array: Any) -> Any:
    return torch.from_numpy(np.asarray(array).astype(np.float64))


def _leaf(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _leaf(array) for name, array in value.items()}
    return _double(value).requires_grad_()


def _of_run(value: Any, run: int, directed: bool) -> Any:
    if isinstance(value, dict):
        return {name: _of_run(array, run, directed) for name, array in value.items()}
    return value[run] if directed else value
