"""A call as plain loops: one sequence after another and one step after another, in float64, and back the same way.

Nothing here knows of masks, of scans or of arrays in other layouts; the step and its vector-Jacobian product are all it takes
from the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from support.one_step import lower_step, lower_step_backward

from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import Cell, parse_cell

Array = Any
HERE = Path(__file__).parent

# Two states, neither of which is the output, and an output that looks back: all that a backward may have to know.
# Its names are those of C++, of CUDA and of the templates, of which a kernel must not take one for another.
TWO_STATES = {
    "name": "two_states",
    "equations": "state[t] = sigmoid(W.of) * state[t-1] + W.new * sum\nstream[t] = tanh(W.new) * stream[t-1] + W.of",
    "output": "stream[t] * state[t-1] + tanh(W.of)",
    "parameters": ["sum"],
}
# Neither a scan nor dense: two states with a parameter that are not affine in each other, an output that is no state, and two
# that are affine, but meet.
DIAGONAL_CELLS: tuple[dict[str, Any], ...] = (
    {
        "name": "entangled",
        "equations": "long[t] = tanh(W.float4 + NULL * h[t-1])\nh[t] = sigmoid(W.dy) * h[t-1] + 0.5 * long[t] * long[t-1]",
        "parameters": ["NULL"],
    },
    {"name": "veiled", "equations": "m[t] = tanh(W.x * m[t-1] + W.y)", "output": "sigmoid(W.o) * m[t] + m[t-1]"},
    {
        "name": "rotating",
        "equations": "a = 0.7 * tanh(W.a)\nb = 0.7 * tanh(W.b)\n"
        "c[t] = a * c[t-1] - b * s[t-1] + W.x\ns[t] = b * c[t-1] + a * s[t-1]",
    },
)


def cell_named(model: str | Mapping[str, Any]) -> Cell:
    return parse_cell(find_cell(model if isinstance(model, str) else dict(model), HERE, "<test>"))


@dataclass(frozen=True)
class Problem:
    """A call of one direction in layout BTD: x [rows, T, G, H] and what goes with it; `sequences` are (row, begin, end)."""

    cell: Cell
    x: Array
    bias: Array
    parameters: Mapping[str, Array]
    initial: Mapping[str, Array]
    resets: Array
    sequences: list[tuple[int, int, int]]
    reverse: bool
    R: Array = None  # [Gr, N, D, D] of a dense cell
    recurrent_bias: Array = None  # [Gr, N, D]

    def steps(self, sequence: int) -> list[tuple[int, int]]:
        """The (row, t) of a sequence in the order in which time runs."""
        row, begin, end = self.sequences[sequence]
        steps = [(row, t) for t in range(begin, end)]
        return steps[::-1] if self.reverse else steps


@dataclass
class Results:
    """Results of a forward: y and the states after every step, 0 where no sequence is, and the final states."""

    y: Array
    states: dict[str, Array]
    final: dict[str, Array]
    entering: dict[tuple[int, int], dict[str, Array]] = field(default_factory=dict)


def forward(problem: Problem) -> Results:
    cell, step = problem.cell, lower_step(problem.cell)
    rows, time, _, hidden = problem.x.shape
    results = Results(
        y=np.zeros((rows, time, hidden)),
        states={name: np.zeros((rows, time, hidden)) for name in cell.states},
        final={name: np.array(problem.initial[name]) for name in cell.states},
    )
    for sequence in range(len(problem.sequences)):
        state = {name: problem.initial[name][sequence] for name in cell.states}
        for row, t in problem.steps(sequence):
            if problem.resets[row, t]:
                state = {name: np.zeros(hidden) for name in cell.states}
            results.entering[row, t] = state
            after = step.evaluate(_inputs(problem, row, t, state))
            state = {name: after[f"state_{name}"] for name in cell.states}
            results.y[row, t] = after["y"]
            for name, one in state.items():
                results.states[name][row, t] = one
        for name, one in state.items():
            results.final[name][sequence] = one
    return results


def backward(problem: Problem, results: Results, dy: Array, dfinal: Mapping[str, Array]) -> dict[str, Any]:
    """Return the gradients as a kernel does: "x", "bias", "parameters" and "state", of dense cells "R", "recurrent_bias"."""
    cell, step = problem.cell, lower_step_backward(problem.cell)
    dx, dbias = np.zeros(problem.x.shape), np.zeros(problem.bias.shape)
    dparameters = {name: np.zeros(one.shape) for name, one in problem.parameters.items()}
    dinitial = {name: np.array(dfinal[name]) for name in cell.states}
    recurrent = {} if problem.R is None else {"R": np.zeros(problem.R.shape), "recurrent_bias": np.zeros(problem.R.shape[:3])}
    for sequence in range(len(problem.sequences)):
        arriving = {name: dfinal[name][sequence] for name in cell.states}
        for row, t in reversed(problem.steps(sequence)):
            entering = results.entering[row, t]
            inputs = _inputs(problem, row, t, entering) | {f"gradient_state_{name}": one for name, one in arriving.items()}
            inputs["gradient_y"] = dy[row, t]
            found = step.evaluate(inputs)
            for index, gate in enumerate(cell.gates):
                dx[row, t, index] = found[f"gradient_W_{gate}"]
            for name in cell.parameters:
                dparameters[name] += found[f"gradient_parameter_{name}"]
            arriving = {name: found[f"gradient_previous_{name}"] for name in cell.states}
            if problem.R is not None:
                products = np.stack([found[f"gradient_R_{gate}"] for gate in cell.recurrent_gates]).reshape(problem.R.shape[:3])
                output = entering[cell.states[0]].reshape(problem.R.shape[1:3])
                recurrent["R"] += np.einsum("gno,ni->gnoi", products, output)
                recurrent["recurrent_bias"] += products
                through = np.einsum("gno,gnoi->ni", products, problem.R)
                arriving[cell.states[0]] = arriving[cell.states[0]] + through.reshape(-1)
            if problem.resets[row, t]:
                arriving = {name: np.zeros_like(one) for name, one in arriving.items()}
        for name, one in arriving.items():
            dinitial[name][sequence] = one
    dbias += dx.sum(axis=(0, 1))
    return {"x": dx, "bias": dbias, "parameters": dparameters, "state": dinitial, **recurrent}


def _inputs(problem: Problem, row: int, t: int, entering: Mapping[str, Array]) -> dict[str, Array]:
    cell, gates = problem.cell, problem.x[row, t] + problem.bias
    inputs = {f"parameter_{name}": one for name, one in problem.parameters.items()}
    inputs |= {f"previous_{name}": one for name, one in entering.items()}
    if problem.R is not None:
        # The output of every dense cell here is its first state.
        output = entering[cell.states[0]].reshape(problem.R.shape[1:3])
        products = np.einsum("gnoi,ni->gno", problem.R, output) + problem.recurrent_bias
        inputs |= {f"R_{gate}": one.reshape(-1) for gate, one in zip(cell.recurrent_gates, products, strict=True)}
    return inputs | {f"W_{gate}": gates[index] for index, gate in enumerate(cell.gates)}


def segments(problem: Problem) -> Iterator[list[tuple[int, int]]]:
    """Yield the steps between one cut and the next: no value passes from one of these to another."""
    for sequence in range(len(problem.sequences)):
        segment: list[tuple[int, int]] = []
        for row, t in problem.steps(sequence):
            if problem.resets[row, t] and segment:
                yield segment
                segment = []
            segment.append((row, t))
        if segment:
            yield segment
