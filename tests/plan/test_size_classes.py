"""Kernels for every size: few, good enough everywhere, and chosen by the sizes alone."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.everyday import one_in
from support.examples import examples
from support.planning_problems import SCAN_CELLS, dense_problems, problems, profile

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.families import families_of
from minrnn_gen.plan.kernel_plan import Specialization, total_us
from minrnn_gen.plan.problem import KernelPass, Problem, Sizes
from minrnn_gen.plan.size_classes import KERNELS_MOST, LOSS_MOST, SizeClasses, SizedKernel, grid_of, predicted_us, size_classes
from minrnn_gen.plan.solver import solve

# Sums in another order, of numbers up to the products of all sizes.
ROUNDING = 1e-9
sizes_drawn = st.builds(
    Sizes,
    st.one_of(st.integers(1, 5000), st.integers(0, 12).map(lambda exponent: 2**exponent)),
    st.one_of(st.integers(1, 70000), st.integers(0, 18).map(lambda exponent: 2**exponent)),
)
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 256, "precision": "bf16"},
    {"model": "hgrn", "hidden_size": 96, "precision": "fp32", "layout": "BDT"},
    {"model": "lstm", "hidden_size": 256, "precision": "fp16"},
    {"model": "gru", "hidden_size": 768, "precision": "fp32"},
    {"model": "ind_rnn", "hidden_size": 128, "precision": "fp32"},
)


def builder_of(folder: Path, **spec: Any) -> Builder:
    return Builder(load_spec(spec), Target(profile("h200"), profile_bytes("h200"), "spec"), Store(folder))


@settings(max_examples=examples(24), deadline=None)
@given(st.one_of(problems(), dense_problems()), st.lists(sizes_drawn, min_size=2, max_size=5), st.data())
def test_a_cost_model_says_of_many_sizes_what_it_says_of_each(
    problem: Problem, sizes: list[Sizes], data: st.DataObject
) -> None:
    batch, time = np.array(sizes, dtype=np.float64).T
    for family in families_of(problem):
        try:
            solution = solve(problem, family)
        except Infeasible:
            continue
        candidate = data.draw(st.sampled_from(solution.candidates))
        together = np.broadcast_to(total_us(family.predicted_us(problem.at(batch, time), candidate)), batch.shape)
        for size, us in zip(sizes, together, strict=True):
            alone = total_us(family.predicted_us(problem.at(*size), candidate))
            assert us == pytest.approx(alone, rel=ROUNDING), (family.name, size)


# Every day three of the specs, each in one pass.
@pytest.mark.parametrize(
    ("spec", "kernel_pass"),
    [
        pytest.param(
            spec,
            kernel_pass,
            id=f"{spec['model']}-{spec['precision']}-{kernel_pass}",
            marks=() if number == 2 * turn else pytest.mark.matrix_full,
        )
        for number, spec in enumerate(SPECS)
        for turn, kernel_pass in enumerate(("step", "forward", "backward"))
    ],
)
def test_few_kernels_serve_all_sizes(tmp_path: Path, spec: dict[str, Any], kernel_pass: KernelPass) -> None:
    builder = builder_of(tmp_path, **spec)
    classes = builder.classes(kernel_pass, builder.hinted_specialization)
    assert 1 <= len(classes.sizes.kernels) <= KERNELS_MOST
    problem = builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization))
    grid = grid_of(problem)
    losses = []
    for place, best_us in zip(grid.places, grid.times_us.min(axis=0), strict=True):
        at = problem.at(*place)
        losses.append(predicted_us(at, classes.sizes.choose(at)) / best_us - 1)
    assert max(losses) == pytest.approx(classes.sizes.predicted_loss, abs=ROUNDING)
    # There may be more winners than kernels.
    assert np.mean(losses) <= 0.002 and np.mean(np.array(losses) > LOSS_MOST) <= 0.03 and max(losses) <= 0.1


@pytest.mark.parametrize("every", one_in(2, [4, 1]))
def test_a_kernel_for_every_size_is_the_solvers_first_pick_for_its_own(tmp_path: Path, every: int) -> None:
    for spec in SPECS:
        builder = builder_of(tmp_path, **spec)
        for kernel in builder.classes("forward", builder.hinted_specialization).sizes.kernels[::every]:
            solution = builder.solve(builder.key_of("forward", builder.hinted_specialization, kernel.sizes))
            first_us = total_us(solution.family.predicted_us(solution.problem, solution.candidates[0]))
            assert predicted_us(solution.problem, kernel) == pytest.approx(first_us, rel=ROUNDING)


def test_sizes_alone_choose(tmp_path: Path) -> None:
    """Whatever the spec's hints, whatever was asked before, and in a process that finds the kernels in the cache."""
    asked = [Sizes(batch, time) for batch in (1, 3, 37, 1000) for time in (1, 50, 4000)]
    spec = SPECS[0]
    expected = [builder_of(tmp_path, **spec).choose("forward", Specialization(16), sizes) for sizes in asked]
    for hints in ({}, {"batch": 1000, "time": 3}):
        for folder in (tmp_path, tmp_path / "new"):
            builder = builder_of(folder, **spec, **hints)
            backwards = [builder.choose("forward", Specialization(16), sizes) for sizes in reversed(asked)]
            assert backwards[::-1] == expected
    assert len(set(expected)) > 1


def test_calls_without_sequences_or_steps_have_a_kernel_too(tmp_path: Path) -> None:
    builder = builder_of(tmp_path, **SPECS[0])
    expected = builder.choose("forward", Specialization(16), Sizes(1, 1))
    assert builder.choose("forward", Specialization(16), Sizes(0, 0)) == expected


@pytest.mark.parametrize("model", SCAN_CELLS[:2])
def test_packed_sequences_are_never_split_over_any_blocks(tmp_path: Path, model: str) -> None:
    builder = builder_of(tmp_path, model=model, hidden_size=64, precision="bf16")
    lookbacks = [
        {dict(kernel.variables).get("lookback", 0) for kernel in builder.classes("forward", specialization).sizes.kernels}
        for specialization in (Specialization(16), Specialization(16, packed=True))
    ]
    assert lookbacks[1] == {0}


def test_what_was_measured_serves_the_sizes_near_it() -> None:
    problem = example_problem()
    predicted = size_classes(problem)
    # Of far sizes predictions decide, which must be for another kernel.
    other = next(kernel for kernel in predicted.kernels if kernel != predicted.choose(problem.at(64, 1024)))
    measured = SizedKernel(other.family, other.variables, Sizes(16, 1024), is_measured=True)
    classes = size_classes(problem, [measured])
    assert classes.kernels[0] == measured and len(classes.kernels) <= KERNELS_MOST
    for sizes, is_near in ((Sizes(16, 1024), True), (Sizes(12, 1100), True), (Sizes(32, 1024), True), (Sizes(64, 1024), False)):
        assert (classes.choose(problem.at(*sizes)) == measured) == is_near, sizes
    assert SizeClasses.from_json(classes.to_json()) == classes


def example_problem() -> Problem:
    builder = builder_of(Path("nowhere"), **SPECS[0])
    return builder.problem(builder.key_of("forward", Specialization(16)))


def test_planning_keeps_nothing_of_its_callers(tmp_path: Path) -> None:
    """A call's arrays are let go when it ends, not when garbage is collected: autograd tells one iteration from the next."""

    class Held:
        """Stands for an array of the caller."""

    gc.disable()
    try:
        for spec in SPECS:
            held = Held()
            alive, builder = weakref.ref(held), builder_of(tmp_path / spec["model"], **spec)

            def call(builder: Builder = builder, held: Held = held) -> None:
                builder.choose("forward", builder.hinted_specialization, Sizes(8, 100))
                builder.choose("backward", builder.hinted_specialization, Sizes(8, 100))
                del held

            call()
            del call, held
            assert alive() is None, spec["model"]
    finally:
        gc.enable()


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
def test_candidates_over_a_grid_have_their_own_times_to_the_bit(kernel_pass: KernelPass, tmp_path: Path) -> None:
    builder = builder_of(tmp_path, **SPECS[0])
    problem = builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization))
    grid = grid_of(problem)
    batch, time = np.array(grid.places, dtype=np.float64).T
    everywhere = problem.at(batch, time)
    assert any(family.predicted_us_of_all for family, _ in grid.candidates)
    for (family, candidate), times_us in zip(grid.candidates, grid.times_us, strict=True):
        alone = np.broadcast_to(total_us(family.predicted_us(everywhere, candidate)), batch.shape)
        np.testing.assert_array_equal(times_us, alone)
