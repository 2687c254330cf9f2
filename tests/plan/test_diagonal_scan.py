"""The time of a diagonal cell's backward is divided where its channels do not fill the GPU, and a sentence says why not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.kernel_kinds import Kind, made, results_of
from support.rendered_kernels import builder_of

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.explain import strategy_in_words
from minrnn_gen.build.tangent_cells import tangent_recipe
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.diagonal_scan import STATES_MOST
from minrnn_gen.plan.kernel_plan import KernelPlan, total_us
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import size_classes

GATED = "h[t] = sigmoid(W.a) * tanh(h[t-1]) + W.b"


def builder(states: int = 1) -> Builder:
    lines = [f"s{n}[t] = tanh(W.x{n} + s{n}[t-1] + s{(n + 1) % states}[t-1])" for n in range(states)]
    model = {"name": "cell", "equations": GATED if states == 1 else "\n".join(lines)}
    return builder_of(model, "h200", precision="fp32", layout="BTD", hidden_size=64)


def plan(of: Builder, sizes: Sizes) -> KernelPlan:
    return of.solve(of.key_of("backward", of.hinted_specialization, sizes)).plan()


@pytest.mark.parametrize("states", range(1, STATES_MOST + 1))
def test_few_channels_have_their_time_divided(states: int) -> None:
    chosen = plan(builder(states), Sizes(1, 65536))
    assert chosen.strategy == "cooperative" and "scan in time" in strategy_in_words(chosen)
    numbers, number_bytes = states * states + states, 8 if states > 1 else 4
    assert chosen.packet_bytes == numbers * number_bytes


def test_many_channels_and_many_states_go_step_by_step() -> None:
    many, wide = plan(builder(), Sizes(512, 2048)), plan(builder(STATES_MOST + 1), Sizes(1, 65536))
    assert many.strategy == wide.strategy == "serial"
    assert "time divided among blocks would take" in strategy_in_words(many)
    assert "a step of 5 states takes maps of 5 x 5" in strategy_in_words(wide)


def test_second_derivatives_have_their_time_divided_too() -> None:
    """The tangent of a cell has twice its states."""
    for states in (1, 2, 3):
        tangent = load_spec(json.loads(tangent_recipe(builder(states).recipe, False).recipe), gpu="h200")
        chosen = plan(replace(builder(states), spec=tangent), Sizes(1, 65536))
        assert chosen.problem.state_count == 2 * states
        assert chosen.strategy == ("cooperative" if 2 * states <= STATES_MOST else "serial")


@pytest.mark.parametrize(
    ("equations", "of_step", "of_steps"),
    [
        ("a[t] = tanh(a[t-1] + W.x)\nb[t] = tanh(b[t-1] + a[t])", 0b1011, 0b1011),
        ("a[t] = tanh(W.x)\nb[t] = tanh(a[t-1])\nc[t] = tanh(b[t-1])", 0b000_100_010, 0b100_110_111),
    ],
)
def test_gradients_take_no_part_of_those_that_they_do_not_depend_on(equations: str, of_step: int, of_steps: int) -> None:
    model = {"name": "cell", "equations": equations, "output": equations.splitlines()[-1][:4]}
    lowered = builder_of(model, "h200", precision="fp32", layout="BTD", hidden_size=4).lowered_for("backward")
    assert lowered.gradient_paths == (of_step, of_steps)


def test_no_size_is_served_slower_than_step_by_step() -> None:
    """As predicted, over the whole grid of sizes: kernels of both kinds are among those that are kept."""
    of = builder()
    problem = of.problem(of.key_of("backward", of.hinted_specialization))
    classes = size_classes(problem)
    assert {kernel.family for kernel in classes.kernels} == {"diagonal_backward", "diagonal_backward_scan"}
    for sizes in (Sizes(1, 64), Sizes(8, 8192), Sizes(64, 1024), Sizes(1024, 1024)):
        chosen, at_sizes = classes.choose(problem.at(*sizes)), problem.at(*sizes)
        solved = {one.family: one.candidates[0] for one in of.solutions(of.key_of("backward", of.hinted_specialization, sizes))}
        best_us = min(float(total_us(family.predicted_us(at_sizes, first))) for family, first in solved.items())
        family = next(family for family in solved if family.name == chosen.family)
        assert float(total_us(family.predicted_us(at_sizes, chosen.variables))) <= 1.02 * best_us


@pytest.mark.matrix_full
@pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")
def test_equal_eigenvalues_stay_equal() -> None:
    """A double pole of 1 - 2^-10: maps composed in fp32 would grow, and these are as exact as the steps."""
    model = {
        "name": "double_pole",
        "equations": "u[t] = 1.998046875 * u[t-1] - 0.99804782867431640625 * v[t-1] + W.x\nv[t] = 1 * u[t-1]",
    }
    errors = {}
    for name, wanted in (("serial", {"threads": 32}), ("divided", {"threads": 64, "stages": 2, "segments": 8})):
        subject = made(Kind(name, {"model": model, "hidden_size": 4}, wanted))
        inputs = inputs_of(subject.kernel.interface, Case(1, 4096))
        (_, found), (_, exact) = results_of(subject.kernel, inputs), subject.expected(inputs)
        errors[name] = float(abs(found["x"] - exact["x"]).max() / abs(exact["x"]).max())
    assert errors["divided"] <= 2 * errors["serial"] < 1e-2, errors
