"""sLSTM beside an independent transcription of its equations, with a recurrent matrix of one head, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.cell_evaluation import built_in
from support.one_step import lower_step, lower_step_backward

torch = pytest.importorskip("torch")

GATES, STATES = "ifzo", "hcnm"
BATCH, UNITS = 3, 5


@dataclass(frozen=True)
class Library:
    """Functions of NumPy or torch that the transcription needs."""

    where: Callable[..., Any]
    exp: Callable[..., Any]
    tanh: Callable[..., Any]
    log1p: Callable[..., Any]
    detach: Callable[[Any], Any]


NUMPY = Library(np.where, np.exp, np.tanh, np.log1p, lambda value: value)
TORCH = Library(torch.where, torch.exp, torch.tanh, torch.log1p, lambda value: value.detach())


def transcribed(of: Library, w: Mapping[str, Any], r: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """One step by arXiv 2405.04517, appendix A, with FlashRNN's first step and lower bound of the normaliser (its slstm)."""

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + of.exp(-x))

    def log_sigmoid(x: Any) -> Any:
        return of.where(x < 0, x, 0 * x) - of.log1p(of.exp(-abs(x)))

    input_, forget = w["i"] + r["i"], log_sigmoid(w["f"] + r["f"]) + before["m"]
    larger = of.where(input_ >= forget, input_, forget)
    m = of.detach(of.where(before["n"] == 0, input_, larger))
    new = of.exp(of.where(input_ - m <= 0, input_ - m, 0 * m))
    kept = of.exp(of.where(forget - m <= 0, forget - m, 0 * m))
    c = kept * before["c"] + new * of.tanh(w["z"] + r["z"])
    sum_ = kept * before["n"] + new
    n = of.where(sum_ >= 1, sum_, 0 * sum_ + 1)
    return {"h": sigmoid(w["o"] + r["o"]) * c / n, "c": c, "n": n, "m": m}


def drawn(seed: int, steps: int, size: float) -> tuple[Any, Any, Any, Any]:
    """Return W [T, 4, B, H], R [4, H, H], and the gradients of every h and of the final states, [T, B, H] and [4, B, H]."""
    random = np.random.default_rng(seed)
    w = random.normal(size=(steps, len(GATES), BATCH, UNITS)) * size
    matrix = random.normal(size=(len(GATES), UNITS, UNITS)) / np.sqrt(UNITS)
    return w, matrix, random.normal(size=(steps, BATCH, UNITS)), random.normal(size=(len(STATES), BATCH, UNITS))


@pytest.mark.parametrize("size", [1.0, 8.0])
@pytest.mark.parametrize("steps", [1, 50])
@pytest.mark.parametrize("is_start", [True, False])
def test_states_and_gradients_are_those_of_the_transcription(steps: int, size: float, is_start: bool) -> None:
    cell = built_in("slstm")
    step, backward = lower_step(cell), lower_step_backward(cell)
    w, matrix, dy, dfinal = drawn(steps, steps, size)
    first = {state: np.zeros((BATCH, UNITS)) for state in STATES}
    if not is_start:  # a state that the cell itself reaches, so with n of at least 1
        for each in drawn(7, 3, size)[0]:
            first = transcribed(NUMPY, dict(zip(GATES, each, strict=True)), dict.fromkeys(GATES, 0.0), first)

    # Forward: the lowered program beside the transcription in NumPy, each from its own states.
    found, expected, inputs = first, first, []
    for t in range(steps):
        values = {f"W_{gate}": w[t, g] for g, gate in enumerate(GATES)}
        values |= {f"R_{gate}": found["h"] @ matrix[g].T for g, gate in enumerate(GATES)}
        values |= {f"previous_{state}": found[state] for state in STATES}
        inputs.append(values)
        after = step.evaluate(values)
        found = {state: after[f"state_{state}"] for state in STATES}
        np.testing.assert_array_equal(after["y"], found["h"])
        products = {gate: expected["h"] @ matrix[g].T for g, gate in enumerate(GATES)}
        expected = transcribed(NUMPY, dict(zip(GATES, w[t], strict=True)), products, expected)
        for state in STATES:
            np.testing.assert_allclose(
                found[state], expected[state], rtol=1e-12, atol=1e-12 * max(1, abs(expected[state]).max())
            )

    # Backward: the lowered gradient of each step, from the last to the first, beside torch's autograd through all of them.
    leaves = {"W": torch.tensor(w, requires_grad=True), "R": torch.tensor(matrix, requires_grad=True)}
    leaves |= {state: torch.tensor(first[state], requires_grad=True) for state in STATES}
    states, loss = {state: leaves[state] for state in STATES}, torch.zeros((), dtype=torch.float64)
    for t in range(steps):
        products = {gate: states["h"] @ leaves["R"][g].T for g, gate in enumerate(GATES)}
        states = transcribed(TORCH, dict(zip(GATES, leaves["W"][t], strict=True)), products, states)
        loss = loss + (states["h"] * torch.tensor(dy[t])).sum()
    loss = loss + sum((states[state] * torch.tensor(dfinal[s])).sum() for s, state in enumerate(STATES) if state != "m")
    loss.backward()

    incoming = {f"gradient_state_{state}": dfinal[s] for s, state in enumerate(STATES)}
    dw, dmatrix = np.zeros_like(w), np.zeros_like(matrix)
    for t in reversed(range(steps)):
        gradients = backward.evaluate(inputs[t] | incoming | {"gradient_y": dy[t]})
        incoming = {f"gradient_state_{state}": gradients[f"gradient_previous_{state}"] for state in STATES}
        for g, gate in enumerate(GATES):
            dw[t, g] = gradients[f"gradient_W_{gate}"]
            dmatrix[g] += gradients[f"gradient_R_{gate}"].T @ inputs[t]["previous_h"]
            incoming["gradient_state_h"] = incoming["gradient_state_h"] + gradients[f"gradient_R_{gate}"] @ matrix[g]
    results = {"W": dw, "R": dmatrix} | {state: incoming[f"gradient_state_{state}"] for state in STATES}
    for name, leaf in leaves.items():
        wanted = np.zeros_like(results[name]) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(results[name], wanted, rtol=1e-9, atol=1e-9 * max(1, abs(wanted).max()), err_msg=name)
    assert all(abs(results[name]).max() > 0 for name in (("W",) if is_start else ("W", "R", *"cnm")))
