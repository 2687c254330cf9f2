"""The solver lists exactly the candidates that satisfy every constraint, says why the others do not, and ranks by cost."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.patience import within
from support.planning_problems import GENERATED_CELLS, dense_problems, problems, profile, real_solution, solved

from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.families import FAMILIES, families_of
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.occupancy import blocks_per_sm
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import ATTEMPTS_AT_ONCE, ATTEMPTS_OF_A_KIND, Candidate, Constraint, Family, Solution, solve

Point = Mapping[str, int]


def every_point(variables: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*variables.values()):
        yield dict(zip(variables, values, strict=True))


def holds(constraint: Constraint, point: Point) -> bool:
    values = [point[name] for name in constraint.over]
    return constraint.used(*values) <= constraint.limit(*values)


def check_against_brute_force(problem: Problem, family: Family) -> Solution | None:
    """Solve, and compare with walking all points one by one; None where it is infeasible, and the message holds."""
    variables, constraints = family.variables(problem), family.constraints(problem)
    points = list(every_point(variables))

    def satisfy(constraints: tuple[Constraint, ...]) -> list[Point]:
        return [point for point in points if all(holds(constraint, point) for constraint in constraints)]

    feasible = satisfy(constraints)
    needed = tuple(constraint for constraint in constraints if not constraint.drops_dominated)
    if not feasible and (feasible := satisfy(needed)):
        constraints = needed
    first_to_reject = [next((each.name for each in constraints if not holds(each, point)), None) for point in points]
    try:
        solution = solve(problem, family)
    except Infeasible as refused:
        assert feasible == []
        check_message(str(refused), problem, constraints, first_to_reject, points)
        return None
    in_order = operator.itemgetter(*variables)
    assert sorted(map(in_order, solution.candidates)) == sorted(map(in_order, feasible))
    assert dict(solution.rejected) == {each.name: first_to_reject.count(each.name) for each in constraints}
    assert sum(solution.rejected.values()) + len(solution.candidates) == len(points)
    return solution


def misses(constraints: tuple[Constraint, ...], point: Point) -> list[tuple[Constraint, float, float]]:
    """Constraints that `point` violates, with the amount used and the limit."""
    used = ((each, [point[name] for name in each.over]) for each in constraints if not holds(each, point))
    return [(each, each.used(*values), each.limit(*values)) for each, values in used]


def distance(constraints: tuple[Constraint, ...], point: Point) -> tuple[int, bool, float]:
    """The fewest violated constraints are nearest, then those of which one has advice, then those violated by the least."""
    its = misses(constraints, point)
    excess = sum((used - limit) / max(abs(limit), 1.0) for _, used, limit in its)
    return len(its), not any(each.advice for each, _, _ in its), excess


def check_message(
    text: str,
    problem: Problem,
    constraints: tuple[Constraint, ...],
    first_to_reject: list[str | None],
    points: list[dict[str, int]],
) -> None:
    assert text.isprintable() and len(text) < 600 and not text.endswith(".")
    for part in (problem.cell.name, str(problem.hidden_size), problem.precision.name, problem.gpu.name):
        assert part in text
    counts = re.search(r"rejected by (.*?);", text)
    assert counts is not None
    counted = dict(part.rsplit(" ", 1) for part in counts[1].split(", "))
    assert {name: int(count) for name, count in counted.items()} == {
        each.name: first_to_reject.count(each.name) for each in constraints if each.name in first_to_reject
    }
    assert sum(map(int, counted.values())) == len(first_to_reject)
    missed = re.search(r"the nearest candidate needs (\S+).* for (\w+), the limit is ([^\s;]+)", text)
    assert missed is not None
    nearest = misses(constraints, min(points, key=functools.partial(distance, constraints)))
    its, used, limit = min(nearest, key=lambda miss: not miss[0].advice)
    assert (missed[2], missed[1], missed[3]) == (its.name, f"{used:g}", f"{limit:g}")


@pytest.mark.parametrize("gpu", ("l4", "h200"))
def test_what_is_dominated_is_taken_where_nothing_else_fits(gpu: str) -> None:
    """Twelve gates in one stage leave no room for a second, or for blocks as wide as a burst."""
    sum_of_gates = " + ".join(f"W.g{index}" for index in range(12))
    wide = {"name": "wide", "equations": f"f = sigmoid({sum_of_gates})\nh[t] = f * h[t-1] + (1 - f) * W.g0"}
    for precision in ("fp32", "bf16"):
        for kernel_pass in ("forward", "backward"):
            assert real_solution(wide, gpu, 64, precision, kernel_pass=kernel_pass).candidates


@settings(max_examples=examples(24))
@given(problems())
def test_real_problems_against_brute_force(problem: Problem) -> None:
    check_against_brute_force(problem, families_of(problem)[0])


@settings(max_examples=examples(8))
@given(dense_problems())
def test_problems_of_dense_cells_against_brute_force(problem: Problem) -> None:
    """Where nothing persistent fits, or would be slower, what serves says so."""
    first, *_ = families_of(problem)
    solution = check_against_brute_force(problem, first)
    taken = solved(problem)
    if taken.family is not first and solution is not None:
        assert taken.plan().predicted_total_us < solution.plan().predicted_total_us
    assert solution is not None or taken.family is not first
    assert bool(taken.passed_over) == (taken.plan().strategy == "stepwise")


LINEAR = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-40, 40))


@settings(max_examples=examples(24))
@given(
    domains=st.lists(st.sets(st.integers(1, 16), min_size=1, max_size=6), min_size=1, max_size=3),
    inequalities=st.lists(LINEAR, min_size=1, max_size=5),
    data=st.data(),
)
def test_drawn_problems_against_brute_force(
    domains: list[set[int]], inequalities: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """A family of nothing but inequalities, which may leave everything, nothing, or anything between."""
    variables = {name: tuple(sorted(domain)) for name, domain in zip("abc", domains, strict=False)}
    constraints = []
    for number, (*factors, limit) in enumerate(inequalities):
        over = tuple(data.draw(st.permutations(list(variables))))[: data.draw(st.integers(1, len(variables)))]

        def used(*values: int, factors: list[int] = factors) -> int:
            return sum(factor * value for factor, value in zip(factors, values, strict=False))

        gives_way = data.draw(st.booleans())
        drawn = Constraint(
            f"line_{number}", "drawn", over, used, lambda *_, limit=limit: limit, "units", drops_dominated=gives_way
        )
        constraints.append(drawn)
    real = families_of(ANY)[0]
    family = replace(
        real,
        variables=lambda _: variables,
        constraints=lambda _: tuple(constraints),
        predicted_us=lambda _, candidate: {"work": 1.0 + sum(candidate.values()) % 3},
    )
    solution = check_against_brute_force(ANY, family)
    if solution:
        check_ranking(solution)


ANY = real_solution("min_gru", "h200").problem


def check_ranking(solution: Solution) -> None:
    costs = [total_us(solution.family.predicted_us(solution.problem, one)) for one in solution.candidates]
    assert costs == sorted(costs)
    for (cheaper, first), (dearer, second) in itertools.pairwise(zip(costs, solution.candidates, strict=True)):
        assert cheaper < dearer or tuple(first.values()) < tuple(second.values())


@settings(max_examples=examples(16))
@given(problems())
def test_every_problem_has_a_plan(problem: Problem) -> None:
    """Whatever the size, precision, layout, alignment and GPU: no cell is too large."""
    solution = solved(problem)
    check_ranking(solution)
    plan = solution.plan()
    assert plan.variables == solution.candidates[0]
    assert plan.prediction.candidate_count == len(solution.candidates)
    assert [margin.constraint for margin in plan.prediction.margins] == [constraint.name for constraint in solution.constraints]
    assert all(margin.used <= margin.limit for margin in plan.prediction.margins)
    assert [other.variables for other in plan.prediction.runners_up] == list(
        solution.candidates[1 : 1 + len(plan.prediction.runners_up)]
    )
    assert all(us >= 0 and math.isfinite(us) for us in plan.prediction.predicted_us.values())
    assert math.isfinite(plan.predicted_total_us)


@settings(max_examples=examples(16))
@given(problems())
def test_every_candidate_can_keep_its_promises(problem: Problem) -> None:
    """With all the registers it may use, as many blocks fit an SM as promised; and the estimate lies within the promise."""
    solution, gpu = solved(problem), problem.gpu
    for candidate in solution.candidates:
        taken = solution.family.resources(problem, candidate)
        assert taken.threads % gpu.warp_threads == 0
        assert taken.threads <= gpu.max_threads_per_block
        assert taken.shared_bytes == sum(taken.shared_map.values()) <= gpu.shared_bytes_per_block_max
        # Warpgroups may divide the registers of a block anew.
        most = taken.partition.get("consumer_registers") or taken.registers_per_thread
        assert taken.registers_estimated <= most <= gpu.registers_per_thread_max
        resident = blocks_per_sm(gpu, taken.threads, taken.registers_per_thread, taken.shared_bytes)
        assert resident >= taken.blocks_per_sm >= 1


@given(problem=st.one_of(problems(), dense_problems()), most=st.integers(1, 20))
def test_attempts_start_with_the_best_and_do_not_dwell_on_a_kind(problem: Problem, most: int) -> None:
    solution = solved(problem)
    first, *rest = solution.attempts(most)
    ranks = list(itertools.chain(first, *rest))
    assert first == (0,) and all(len(at_once) <= ATTEMPTS_AT_ONCE for at_once in rest) and len(ranks) <= most
    assert ranks == sorted(set(ranks)) and ranks[-1] < len(solution.candidates)

    def kind_of(candidate: Candidate) -> tuple[int, int]:
        resources = solution.family.resources(problem, candidate)
        return resources.registers_estimated, resources.registers_per_thread

    kinds = list(map(kind_of, solution.candidates))
    tried = Counter(kinds[rank] for rank in ranks)
    assert max(tried.values()) <= ATTEMPTS_OF_A_KIND
    # What was left out on the way was tried often enough.
    for rank in set(range(ranks[-1])) - set(ranks):
        assert tried[kinds[rank]] == ATTEMPTS_OF_A_KIND


@given(problem=problems(), rank=st.integers(0, 10))
def test_every_rank_has_a_plan(problem: Problem, rank: int) -> None:
    solution = solved(problem)
    rank = min(rank, len(solution.candidates) - 1)
    plan = solution.plan(rank)
    assert plan.variables == solution.candidates[rank]
    assert plan.variables not in [other.variables for other in plan.prediction.runners_up]


@pytest.mark.parametrize(
    ("field", "value", "constraint"),
    [
        ("shared_bytes_per_block_max", 128, "shared_bytes_per_block"),
        ("registers_per_thread_max", 24, "registers_per_thread"),
        ("registers_per_block_max", 1024, "registers_per_block"),
        ("max_threads_per_block", 16, "threads_per_block"),
    ],
)
def test_a_gpu_that_is_too_small_is_named_with_what_is_missing(field: str, value: int, constraint: str) -> None:
    gpu = profile("h200").model_copy(update={"name": "tiny", field: value})
    for layout in ("BTD", "BDT"):
        problem = replace(ANY, gpu=gpu, layout=layout)
        assert check_against_brute_force(problem, families_of(problem)[0]) is None
        with pytest.raises(Infeasible, match=rf"tiny: rejected by .*{constraint} \d+.*for {constraint}, the limit is {value}"):
            solved(problem)


def test_advice_says_what_to_change() -> None:
    gpu = profile("h200").model_copy(update={"name": "tiny", "shared_bytes_per_block_max": 256})
    with pytest.raises(Infeasible, match="choose a narrower precision or a GPU with more shared memory"):
        solved(replace(ANY, gpu=gpu))
    heavy = replace(ANY, cell=replace(ANY.cell, operation_count=1990))
    with pytest.raises(Infeasible, match="split the cell's equations into fewer operations"):
        solved(heavy)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_families_declare_their_constraints(family: Family) -> None:
    """Names and reasons are shown to people: in errors, in the header of the source and by `explain`."""
    variables, constraints = family.variables(ANY), family.constraints(ANY)
    assert len({constraint.name for constraint in constraints}) == len(constraints)
    for constraint in constraints:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", constraint.name)
        assert constraint.why.isprintable() and not constraint.why.endswith(".")
        assert set(constraint.over) <= set(variables)


@pytest.mark.parametrize("model", GENERATED_CELLS)
def test_solving_is_quick(model: str, record_property: pytest.RecordProperty) -> None:
    problem = real_solution(model, "b200").problem
    started = time.process_time()
    solved(problem)
    seconds = time.process_time() - started
    record_property("solve_ms", round(seconds * 1e3, 1))
    # It takes 30 ms on a 2-core machine; a second would be another complexity, not another machine.
    assert seconds < within(1)
