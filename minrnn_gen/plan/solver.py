"""Every candidate that satisfies the constraints, ranked; and the reasons why the others do not."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from minrnn_gen.errors import Infeasible, ToolchainMissing, needing
from minrnn_gen.plan.classes import Strategy
from minrnn_gen.plan.kernel_plan import (
    Alternative,
    Budget,
    KernelPlan,
    LaunchShape,
    Margin,
    Prediction,
    template_of,
    total_us,
)
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import Problem

Candidate = Mapping[str, int]
RUNNERS_UP = 5
_REINSTALL = "--force-reinstall python-constraint2"
# Candidates that are estimated alike, and have as many registers, break their promise together, but for luck with the compiler:
# a second of them is tried, at once with the best of the others, so that they are not waited for one after another.
ATTEMPTS_OF_A_KIND, ATTEMPTS_AT_ONCE = 2, 2


@dataclass(frozen=True)
class Constraint:
    """`used(...)` must not exceed `limit(...)`; both are functions of the variables named in `over`.

    `advice` says what a user can change where this constraint leaves no candidate. `drops_dominated`: the candidates that it
    rejects would run too, only slower, so it gives way where nothing else fits.
    """

    name: str
    why: str
    over: tuple[str, ...]
    used: Callable[..., float]
    limit: Callable[..., float]
    unit: str = ""
    advice: str = ""
    drops_dominated: bool = False

    def holds(self, *values: int) -> bool:
        return self.used(*values) <= self.limit(*values)

    def margin(self, candidate: Candidate) -> Margin:
        return self.margin_of(*(candidate[name] for name in self.over))

    def margin_of(self, *values: int) -> Margin:
        return Margin(self.name, self.used(*values), self.limit(*values), self.unit)


Miss = tuple[Constraint, Margin]


@dataclass(frozen=True)
class Resources:
    """Resources of the GPU that a candidate takes.

    `registers_estimated` is what the kernel should need; `registers_per_thread` is the most it may use with `blocks_per_sm`
    blocks resident, the promise made to the compiler. `shared_map` names the parts of a block's shared memory, in bytes.
    `tile_steps` is the time steps that a block processes at once, `group_tiles` the tiles for which blocks pass on one state, 0
    where no block does. `partition` says how warps and lanes divide R and the cells, where R is on the chip.
    """

    threads: int
    channels_per_block: int
    registers_estimated: int
    registers_per_thread: int
    shared_map: Mapping[str, int]
    blocks_per_sm: int
    tile_steps: int = 1
    group_tiles: int = 0
    partition: Mapping[str, int] = field(default_factory=dict)

    @property
    def shared_bytes(self) -> int:
        return sum(self.shared_map.values())


def _arch_of_gpu(problem: Problem) -> str:
    return problem.gpu.arch


PredictedOfAll = Callable[[Problem, Sequence[Candidate]], Iterable[tuple[list[int], Mapping[str, Amount]]]]


@dataclass(frozen=True)
class Family:
    """One kernel template with its search space, its resources and its cost, as functions of the problem and the candidate.

    `name` is the name of the template, `entry` the name of its kernel, `strategy` how it takes the steps. `copies`: it copies
    what it reads next into shared memory, rather than loading it into registers. `arch`: what it is compiled for, other than
    the GPU's own architecture for instructions that no later one has. `predicted_us_of_all`, where a family has it, is
    `predicted_us` of many candidates over a grid of sizes: the numbers of some of them, and terms that are arrays with a row
    for each.
    """

    name: str
    entry: str
    strategy: Strategy
    copies: bool
    variables: Callable[[Problem], Mapping[str, tuple[int, ...]]]
    constraints: Callable[[Problem], tuple[Constraint, ...]]
    resources: Callable[[Problem, Candidate], Resources]
    predicted_us: Callable[[Problem, Candidate], Mapping[str, Amount]]
    arch: Callable[[Problem], str] = _arch_of_gpu
    predicted_us_of_all: PredictedOfAll | None = None

    @property
    def template(self) -> str:
        return template_of(self.name)


@dataclass(frozen=True)
class Solution:
    """All feasible candidates of a problem, best predicted first; `census` counts how many each constraint rejected.

    `passed_over` is why a family that is preferred to this one does not serve, one sentence; empty where there is none.
    """

    problem: Problem
    family: Family
    constraints: tuple[Constraint, ...]
    candidates: tuple[Candidate, ...]
    census: Callable[[], Mapping[str, int]] = field(repr=False, compare=False)
    passed_over: str = ""

    @functools.cached_property
    def rejected(self) -> Mapping[str, int]:
        """How many candidates each constraint was the first to reject, counted when it is first asked: a fifth of solving."""
        return MappingProxyType(dict(self.census()))

    def attempts(self, most: int) -> Iterator[tuple[int, ...]]:
        """Yield ranks to compile, `most` at most, until one keeps its promise: the first alone, then several at once."""
        yield (0,)
        kinds: Counter[tuple[int, int]] = Counter()
        ranks: list[int] = []
        for rank, candidate in enumerate(self.candidates):
            if len(ranks) == most:
                break
            # An error of an estimate holds for all candidates that are as tight.
            resources = self.family.resources(self.problem, candidate)
            kind = (resources.registers_estimated, resources.registers_per_thread)
            kinds[kind] += 1
            if kinds[kind] <= ATTEMPTS_OF_A_KIND:
                ranks.append(rank)
        rest = ranks[1:]
        for first in range(0, len(rest), ATTEMPTS_AT_ONCE):
            yield tuple(rest[first : first + ATTEMPTS_AT_ONCE])

    def predicted_us(self, rank: int) -> float:
        """Return the predicted time of the candidate at `rank`, in microseconds."""
        return float(total_us(self.family.predicted_us(self.problem, self.candidates[rank])))

    def plan(self, rank: int = 0) -> KernelPlan:
        """Return the plan of the candidate at `rank`, 0 for the best predicted."""
        problem, family, candidate = self.problem, self.family, self.candidates[rank]
        resources = family.resources(problem, candidate)
        cluster_blocks = candidate.get("cluster_blocks", 1)
        others = [other for other in self.candidates[: RUNNERS_UP + rank + 1] if other is not candidate]
        return KernelPlan(
            name=family.name,
            entry=family.entry,
            family=problem.family,
            strategy=family.strategy,
            problem=problem.in_plan(family.arch(problem)),
            variables=candidate,
            launch=LaunchShape(
                threads=resources.threads,
                channels_per_block=resources.channels_per_block,
                tile_steps=resources.tile_steps,
                group_tiles=resources.group_tiles,
                copy_bytes=problem.specialization.alignment_bytes,
                copies_are_asynchronous=family.copies and can_copy_asynchronously(problem),
                resident_blocks=cluster_blocks * clusters_at_once(problem.gpu, cluster_blocks, resources.blocks_per_sm),
                partition=resources.partition,
            ),
            budget=Budget(
                registers_per_thread=resources.registers_per_thread,
                registers_estimated=resources.registers_estimated,
                shared_bytes=resources.shared_bytes,
                shared_map=resources.shared_map,
                blocks_per_sm=resources.blocks_per_sm,
            ),
            prediction=Prediction(
                predicted_us=family.predicted_us(problem, candidate),
                margins=tuple(constraint.margin(candidate) for constraint in self.constraints),
                candidate_count=len(self.candidates),
                rejected=self.rejected,
                passed_over=self.passed_over,
                runners_up=tuple(
                    Alternative(other, total_us(family.predicted_us(problem, other))) for other in others[:RUNNERS_UP]
                ),
                assumed_rates=problem.gpu.assumed,
            ),
        )


def can_copy_asynchronously(problem: Problem) -> bool:
    """cp.async exists from sm_80 on and moves 4, 8 or 16 bytes (PTX ISA, cp.async)."""
    return problem.gpu.has_async_copy and problem.specialization.alignment_bytes >= 4


def solve(problem: Problem, family: Family) -> Solution:
    """List every feasible candidate, best predicted first; raises `Infeasible` with the nearest miss where there is none.

    Where only candidates fit that a constraint drops as dominated, those are listed.
    """
    variables = family.variables(problem)
    constraints = family.constraints(problem)
    # Each constraint depends on few of the variables, so that it has few distinct values.
    holds = {constraint.name: functools.cache(constraint.holds) for constraint in constraints}
    feasible = _feasible(variables, constraints, holds)
    if not feasible:
        needed = tuple(constraint for constraint in constraints if not constraint.drops_dominated)
        if feasible := _feasible(variables, needed, holds):
            constraints = needed
    names = tuple(variables)
    census = functools.partial(_census, variables, constraints, holds)
    if not feasible:
        raise Infeasible(_nearest_miss(problem, variables, constraints, census()))

    def rank(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
        return total_us(family.predicted_us(problem, candidate)), tuple(candidate[name] for name in names)

    return Solution(problem, family, constraints, tuple(sorted(feasible, key=rank)), census)


def search_library() -> Any:
    """Import python-constraint2, only to list candidates, since choosing among known candidates needs no search.

    Raises ToolchainMissing if the import fails, or if python-constraint, another package with a module of the same name, has
    overwritten its files.
    """
    with needing("constraint", "planning", f"pip install {_REINSTALL}"):
        import constraint as python_constraint
    if not hasattr(python_constraint, "OptimizedBacktrackingSolver"):
        raise ToolchainMissing(
            "planning needs python-constraint2, whose module constraint has been overwritten by another package's, "
            f"python-constraint: pip uninstall python-constraint, then pip install {_REINSTALL}"
        )
    return python_constraint


def _feasible(
    variables: Mapping[str, tuple[int, ...]], constraints: tuple[Constraint, ...], holds: Mapping[str, Callable[..., bool]]
) -> list[Candidate]:
    python_constraint = search_library()
    search = python_constraint.Problem(python_constraint.OptimizedBacktrackingSolver())
    for name, domain in variables.items():
        search.addVariable(name, list(domain))
    for constraint in constraints:
        search.addConstraint(python_constraint.FunctionConstraint(holds[constraint.name]), list(constraint.over))
    solutions: Iterable[dict[str, Any]] = search.getSolutions()
    return [MappingProxyType({name: solution[name] for name in variables}) for solution in solutions]


def _census(
    variables: Mapping[str, tuple[int, ...]], constraints: tuple[Constraint, ...], holds: Mapping[str, Callable[..., bool]]
) -> dict[str, int]:
    """Count, for each constraint, the points that it is the first to reject."""
    import numpy  # as in `_feasible`

    names, domains = tuple(variables), tuple(variables.values())
    rejected: dict[str, int] = {}
    # The points that no constraint has rejected so far. Each is asked once for all points with the same values of its
    # variables, which are far fewer than points.
    left = numpy.ones(tuple(map(len, domains)), dtype=bool)
    for constraint in constraints:
        axes = sorted({names.index(name) for name in constraint.over})
        others = tuple(axis for axis in range(len(names)) if axis not in axes)
        asked = left.any(axis=others)
        kept = numpy.zeros_like(asked)
        for point in map(tuple, numpy.argwhere(asked).tolist()):
            value_of = {names[axis]: domains[axis][place] for axis, place in zip(axes, point, strict=True)}
            kept[point] = holds[constraint.name](*(value_of[name] for name in constraint.over))
        still_left = left & numpy.expand_dims(kept, others)
        rejected[constraint.name] = int(numpy.count_nonzero(left) - numpy.count_nonzero(still_left))
        left = still_left
    return rejected


def _fewest_misses(variables: Mapping[str, tuple[int, ...]], constraints: tuple[Constraint, ...]) -> list[Miss]:
    """Return the violations of the nearest point: of the fewest constraints, then with advice, then by the least.

    The first of equally near points wins. Values are chosen variable by variable, and dropped as soon as they violate more than
    the nearest point so far, since later choices undo no violation.
    """
    names, domains = tuple(variables), tuple(variables.values())
    places = [[names.index(name) for name in constraint.over] for constraint in constraints]
    decided_at = [[n for n, of in enumerate(places) if max(of, default=0) == depth] for depth in range(len(names))]
    # As in `solve`.
    margin_of = [functools.cache(constraint.margin_of) for constraint in constraints]
    nearest: list[Miss] = []
    least = (len(constraints) + 1, True, 0.0)

    def distance(misses: Mapping[int, Miss]) -> tuple[int, bool, float]:
        in_order = [misses[n] for n in sorted(misses)]
        excess = sum((margin.used - margin.limit) / max(abs(margin.limit), 1.0) for _, margin in in_order)
        return len(in_order), not any(constraint.advice for constraint, _ in in_order), excess

    def choose(values: tuple[int, ...], misses: Mapping[int, Miss]) -> None:
        nonlocal nearest, least
        depth = len(values)
        if depth == len(names):
            nearest, least = [misses[n] for n in sorted(misses)], distance(misses)
            return
        for value in domains[depth]:
            chosen, chosen_misses = (*values, value), dict(misses)
            for n in decided_at[depth]:
                margin = margin_of[n](*[chosen[place] for place in places[n]])
                if margin.used > margin.limit:
                    chosen_misses[n] = (constraints[n], margin)
            if distance(chosen_misses) < least:
                choose(chosen, chosen_misses)

    choose((), {})
    return nearest


def _nearest_miss(
    problem: Problem,
    variables: Mapping[str, tuple[int, ...]],
    constraints: tuple[Constraint, ...],
    rejected: Mapping[str, int],
) -> str:
    """One sentence: the count per constraint, the point that violates the fewest, and what to change.

    Of points that are equally near, one that the user can do something about: not the one that is merely dominated.
    """

    def has_no_advice(miss: Miss) -> bool:
        return not miss[0].advice

    counts = ", ".join(f"{name} {count}" for name, count in rejected.items() if count)
    constraint, margin = min(_fewest_misses(variables, constraints), key=has_no_advice)
    amount = f"{margin.used:g} {margin.unit}".strip()
    advice = f"; {constraint.advice}" if constraint.advice else ""
    return (
        f"{problem.cell.name} with hidden_size {problem.hidden_size} in {problem.precision.name} does not fit "
        f"{problem.gpu.name}: rejected by {counts}; the nearest candidate needs {amount} for {constraint.name}, "
        f"the limit is {margin.limit:g}{advice}"
    )
