"""The gradient as it is shown is the gradient; and what a cell takes in a step, by hand."""

from __future__ import annotations

import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
from support.cell_evaluation import EXACT, built_in, cell_of
from support.one_step import lower_step, lower_step_backward

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import find_cell, library_names
from minrnn_gen.cell.gradient_text import gradient_equations
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.lowering import lower_scan, lower_scan_backward
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.cell.operation_counts import backward_work, forward_work

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MORE = {
    "leaky_light_gru": parse_cell(find_cell("leaky_light_gru.yaml", EXAMPLES, "<test>")),
    # Names like those that the gradient's own would have without their dots, values with two names, and constants.
    "clashing names": cell_of(
        "dz = W.h * dh\ndh_t = dz\nin_y = 2\nh[t] = shared_0 * h[t-1] * in_y + dz / (1 + exp(R.h) + exp(y[t-1])) + dh_t\n"
        "y[t] = detach(W.x) - h[t] ** 3 + y[t-1] - y[t-1]",
        output="h",
        parameters=["shared_0", "dh"],
    ),
}
WORD = re.compile(r"(?<!\d)[A-Za-z_][\w.]*(?:\[t(?:-1)?\])?")


def shown_of(label: str) -> str:
    """How an input of the programs is called in equations."""
    kinds = r"(W|R|previous|parameter|gradient_state|gradient_argument|gradient)(_)(\w+)"
    kind, _, name = re.fullmatch(kinds, label).groups()  # type: ignore[union-attr]
    forms = {"W": "W.{0}", "R": "R.{0}", "previous": "{0}[t-1]", "parameter": "{0}", "gradient_state": "in.{0}[t]"}
    forms |= {"gradient_argument": "in.argument.{0}"}
    return forms.get(kind, "in.{0}").format(name)


@pytest.mark.parametrize("name", [*library_names(), *MORE])
def test_the_equations_that_are_shown_compute_the_gradient(name: str) -> None:
    cell: Cell = MORE.get(name) or built_in(name)
    program = lower_step_backward(cell)
    inputs = [label for label in program.inputs if not label.startswith("mean_")]
    values = dict(zip(inputs, np.random.default_rng(0).normal(size=len(inputs)), strict=True))
    held = {shown_of(label): mpmath.mpf(float(value)) for label, value in values.items()}
    # Of one unit, which is its own mean.
    functions = EXACT | {"detach": lambda x: x, "mean": lambda x, _: x, "head": None, "all": None}

    for line in gradient_equations(cell):
        target, _, expression = line.partition(" = ")
        assert target not in held, "no name stands for two values"
        places: list[str] = []

        def placed(found: re.Match[str], places: list[str] = places) -> str:
            if found[0] in functions:
                return {"min": "least", "max": "greatest"}.get(found[0], found[0])
            places.append(found[0])
            return f"at[{len(places) - 1}]"

        python = WORD.sub(placed, expression)
        scope = {**functions, "least": EXACT["min"], "greatest": EXACT["max"], "at": [held[each] for each in places]}
        held[target] = mpmath.mpf(eval(python, {"__builtins__": {}}, scope))

    found = program.evaluate(values)
    shown = {f"gradient_W_{gate}": f"dW.{gate}" for gate in cell.gates}
    shown |= {f"gradient_R_{gate}": f"dR.{gate}" for gate in cell.recurrent_gates}
    shown |= {f"gradient_previous_{state}": f"d.{state}[t-1]" for state in cell.states}
    shown |= {f"gradient_parameter_{parameter}": f"d.{parameter}" for parameter in cell.parameters}
    assert set(shown) == {f"gradient_{each}" for each in lower_step(cell).inputs if not each.startswith("mean_")}
    for label, equation in shown.items():
        np.testing.assert_allclose(found[label], float(held[equation]), rtol=1e-12, atol=1e-14, err_msg=label)


def test_a_round_of_products_takes_the_gradient_of_its_argument() -> None:
    of_reset = cell_of("h[t] = tanh(W.n + R.n(W.r * h[t-1]))")
    assert gradient_equations(of_reset) == (
        "h[t] = tanh(W.n + R.n)",
        "d.h[t] = in.h[t] + in.y",
        "dW.n = d.h[t] * (1 - h[t] * h[t])",
        "dW.r = in.argument.0 * h[t-1]",
        "d.h[t-1] = in.argument.0 * W.r",
        "dR.n = dW.n",
    )


# Values per element and step, read and written: the gates and y; the gates of which gradients depend, the states before the
# step or y, dy, and the gradients. Of the products the backward reads those that it needs apart from their gates.
WORDS = {
    "min_gru": ((2, 1), (4, 2)),
    "min_lstm": ((3, 1), (5, 3)),
    "qrnn": ((3, 1), (5, 3)),
    "elman": ((1, 1), (3, 1)),
    "lstm": ((4, 1), (10, 4)),
    "gru": ((3, 1), (8, 4)),  # the gradient of R.n is not that of W.n
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words_that_cross_the_memory_bus(name: str) -> None:
    cell = built_in(name)
    recurrence = classify(cell)
    is_scan = recurrence.kind == "affine-diagonal"
    forward = forward_work(lower_scan(cell, recurrence) if is_scan else lower_steps(cell))
    backward = backward_work(lower_scan_backward(cell, recurrence) if is_scan else lower_steps_backward(cell))
    assert ((forward.words_read, forward.words_written), (backward.words_read, backward.words_written)) == WORDS[name]
    assert forward.words == sum(WORDS[name][0])
