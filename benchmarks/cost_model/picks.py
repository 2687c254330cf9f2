"""Picks of today against the plans of measured rows, so that no change of a cost model moves a pick unseen."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from benchmarks.contenders.dense import OURS
from benchmarks.pages import DENSE_AGAIN, PUBLISHED_RECORDS
from benchmarks.problems.scan_problems import Problem as Measured
from benchmarks.report.plan_facts import plans_of
from benchmarks.report.record import Record, read_record
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder, builder_of
from minrnn_gen.config.gpu_profile import load_profile, profile_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.families import families_of
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.problem import KernelPass, Problem, Sizes
from minrnn_gen.plan.size_classes import SizedKernel, predicted_us
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.history import SHIPPED, read_results
from minrnn_gen.tune.results import Result

FOLDER = Path(__file__).resolve().parents[1]
CANDIDATES = ("candidates_h200", "dense_candidates_h200", "vector_candidates_h200")
KNOWN_DIFFERENCES = FOLDER / "pick_differences.json"
# 33 kernels of records are within 1.5 % of their times as candidates, so that kernels as fast differ by up to 3 %.
SLOWER_MOST = 0.03
# Variables that records may lack, and their values in kernels from before them.
BEFORE = {"products_per_tile": 1, "streams_matrix": 0}
_SIZES_OF_CALLS = ("batch", "time", "training")

Plan = Mapping[str, int]


@dataclass(frozen=True)
class PlannedKernel:
    """Kernel of a pass of a measured problem; `gpu` names the profile of the GPU that it was measured on."""

    problem: Measured
    layout: str
    kernel_pass: KernelPass
    gpu: str

    @property
    def label(self) -> str:
        """The problem, the layout and the pass; the GPU unless it is the one of most records."""
        alone = self.problem.model_copy(update={"task": "forward"})
        where = "" if self.gpu == "h200" else f" on {self.gpu}"
        return f"{alone.label} {self.layout} {self.kernel_pass}{where}"

    @property
    def sizes(self) -> Sizes:
        """The sizes of its calls."""
        return Sizes(self.problem.batch, self.problem.time)

    @property
    def group(self) -> tuple[str, KernelPass]:
        """The spec and the pass, which kernels of other sizes share: they are planned together."""
        spec = {name: value for name, value in self.problem.spec.items() if name not in _SIZES_OF_CALLS}
        return json.dumps({**spec, "layout": self.layout, "gpu": self.gpu}, sort_keys=True), self.kernel_pass


@dataclass(frozen=True)
class RecordedPlan:
    """Plan of a measured row; `ms` is the row's time where its run is this kernel alone."""

    kernel: PlannedKernel
    plan: Plan
    ms: float | None


class Difference(pydantic.BaseModel):
    """Plan of a record that is not today's pick; with the times of both kernels where they were measured."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    kernel: str
    recorded: dict[str, int]
    picked: dict[str, int]
    recorded_ms: float | None = None
    picked_ms: float | None = None

    @property
    def slower(self) -> float | None:
        """The measured time of the pick over that of the recorded plan, less 1; None unless both were measured."""
        return self.picked_ms / self.recorded_ms - 1 if self.picked_ms and self.recorded_ms else None

    def is_same(self, other: Difference) -> bool:
        """Say whether both are of the same kernel and plans, whatever was measured."""
        return (self.kernel, self.recorded, self.picked) == (other.kernel, other.recorded, other.picked)


class KnownDifferences(pydantic.BaseModel):
    """Differences on record that have the same reason."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    reason: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Judged:
    """Difference with the times that today's cost model predicts, in microseconds, and its reason, where it is on record.

    `recorded_us` is None for a plan that today's kernels do not have; `misses` names the constraints that it violates today.
    """

    of: RecordedPlan
    difference: Difference
    recorded_us: float | None
    picked_us: float
    misses: tuple[str, ...]
    reason: str | None

    @property
    def is_settled(self) -> bool:
        """Whether the pick is measured as nearly as fast or, where it is not measured, the difference is on record."""
        slower = self.difference.slower
        return self.reason is not None if slower is None else slower <= SLOWER_MOST

    @property
    def sentence(self) -> str:
        """The difference in words, with the command that measures both kernels."""
        recorded, picked = plans_in_words(self.difference)
        before = "" if self.recorded_us is None else f" ({self.recorded_us:.0f} us as predicted today)"
        slower = self.difference.slower
        measured = "not measured as fast" if slower is None else f"measured {slower:.0%} slower"
        return (
            f"{self.difference.kernel}: the record has {recorded}{before}, today's pick is {picked} ({self.picked_us:.0f} us), "
            f"{measured}: mend the cost model, or measure both by '{tune_command(self.of.kernel)}' and add them "
            f"to {KNOWN_DIFFERENCES.name} ('python -m benchmarks picks --json' prints entries)"
        )


def plans_in_words(difference: Difference) -> tuple[str, str]:
    """Return the recorded plan and the picked one, of the same family by the variables in which they differ."""
    recorded, picked = difference.recorded, difference.picked
    names = [name for name in {**recorded, **picked} if recorded.get(name) != picked.get(name)]
    if recorded.keys() - BEFORE.keys() != picked.keys() - BEFORE.keys():
        names = [*recorded]
        return _in_words(recorded, names), _in_words(picked, [*picked])
    return _in_words({**BEFORE, **recorded}, names), _in_words({**BEFORE, **picked}, names)


def _in_words(plan: Plan, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {plan[name]}" for name in names)


def table_of(moved: Sequence[Judged]) -> str:
    """Return differences as Markdown: both plans, their times as predicted today and as measured, and reasons by number."""
    reasons = [*dict.fromkeys(judged.reason for judged in moved if judged.reason)]
    lines = [
        "| kernel | recorded | picked | recorded, us as predicted | picked | recorded, ms as measured | picked | why |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for judged in moved:
        of = judged.difference
        why = "measured" if judged.is_settled else "**unsettled**"
        if judged.reason is not None:
            number = reasons.index(judged.reason) + 1
            why = f"{number}" if judged.is_settled else f"**slower**, {number}"
        why += f", misses {' and '.join(judged.misses)}" if judged.misses else ""
        predicted = ["" if us is None else f"{us:.1f}" for us in (judged.recorded_us, judged.picked_us)]
        measured = ["" if ms is None else f"{ms:.4g}" for ms in (of.recorded_ms, of.picked_ms)]
        lines.append(f"| {' | '.join((of.kernel, *plans_in_words(of), *predicted, *measured, why))} |")
    return "\n".join([*lines, "", *(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))]) + "\n"


def tune_command(kernel: PlannedKernel) -> str:
    """Return the command that measures every candidate of a kernel on the GPU at hand."""
    problem = kernel.problem
    spec = {**problem.spec, "layout": kernel.layout, "training": kernel.kernel_pass == "backward"}
    settings = " ".join(f"--set {name}={json.dumps(value).strip(chr(34))}" for name, value in spec.items() if value is not None)
    return f"minrnn-gen tune examples/lstm.yaml {settings} --all --html times.html"


def published_plans() -> list[RecordedPlan]:
    """Return the plans of all committed records but that of dense cells measured again, whose kernels another one has."""
    paths = [path for name, path in PUBLISHED_RECORDS.items() if name != DENSE_AGAIN]
    return [plan for path in paths for plan in recorded_plans(read_record(FOLDER.parent / path))]


def recorded_plans(record: Record) -> Iterator[RecordedPlan]:
    """Yield the plans that the cost model picked in a record, one for each kernel and plan, but none of shipped results."""
    gpu = next((name for name in profile_names() if record.gpu in load_profile(name).device_names), None)
    plans: dict[tuple[str, str], RecordedPlan] = {}
    for row in record.rows:
        # Rows by another path have a family that the benchmark asked for.
        if gpu is None or OURS.get(row.contender, Builder) is not Builder:
            continue
        layout = row.contender if row.contender in ("BTD", "BDT") else "BTD"
        for kernel_pass, plan in plans_of(row):
            kernel = PlannedKernel(row.problem, layout, kernel_pass, gpu)
            if _is_tuned(kernel, plan):
                continue
            ms = row.ms if row.problem.task == kernel_pass else None
            recorded = RecordedPlan(kernel, as_recorded(plan), ms)
            key = kernel.label, json.dumps(recorded.plan)
            if key not in plans or (plans[key].ms is None and ms is not None):
                plans[key] = recorded
    yield from plans.values()


def _is_tuned(kernel: PlannedKernel, plan: Plan) -> bool:
    """Say whether a shipped result picks this plan for the kernels of this spec and pass."""
    problem = kernel.problem
    spec = problem.model, problem.precision, problem.channels, kernel.layout, kernel.kernel_pass
    for result in _shipped_results(kernel.gpu):
        of = result.setting
        if (of.cell, of.precision, of.hidden_size, of.layout, of.kernel_pass) == spec and result.variables == plan:
            return True
    return False


@functools.cache
def _shipped_results(gpu: str) -> tuple[Result, ...]:
    return tuple(read_results(FOLDER.parent / SHIPPED / f"{gpu}.jsonl"))


def as_recorded(plan: Plan) -> dict[str, int]:
    """Return a plan without the variables that have their value from before them, so that old and new records compare."""
    return {name: value for name, value in plan.items() if BEFORE.get(name) != value}


def differences(plans: Iterable[RecordedPlan], known: Sequence[KnownDifferences] = ()) -> Iterator[Judged]:
    """Yield every recorded plan that is not today's pick, by the cost model alone, without any tuned result."""
    for recorded in plans:
        if judged := _judged(recorded, known):
            yield judged


def _judged(recorded: RecordedPlan, known: Sequence[KnownDifferences]) -> Judged | None:
    kernel = recorded.kernel
    problem, pick = picked_for(kernel)
    picked = as_recorded(pick.variables)
    if picked == recorded.plan:
        return None
    times = _measured_ms().get(_call_of(kernel), {})
    difference = Difference(
        kernel=kernel.label,
        recorded=dict(recorded.plan),
        picked=picked,
        recorded_ms=times.get(_frozen(recorded.plan), recorded.ms),
        picked_ms=times.get(_frozen(picked)),
    )
    reasons = [(group.reason, entry) for group in known for entry in group.differences if entry.is_same(difference)]
    reason, listed = reasons[0] if reasons else (None, difference)
    us, misses = _as_of_today(problem, recorded.plan)
    return Judged(recorded, difference if listed.picked_ms is None else listed, us, predicted_us(problem, pick), misses, reason)


def picked_for(kernel: PlannedKernel) -> tuple[Problem, SizedKernel]:
    """Return the problem of a kernel and the pick of today for its sizes, before any compiler has judged it."""
    builder, sizes = _builder(kernel.group[0]), kernel.sizes
    specialization = builder.specialization_at(sizes)
    classes = builder.classes(kernel.kernel_pass, specialization)
    problem = builder.problem_of(classes.cell, builder.key_of(kernel.kernel_pass, specialization, sizes))
    return problem, classes.sizes.choose(problem)


def compiled_for(kernel: PlannedKernel) -> BuiltKernel:
    """Compile the kernel that a call runs: the pick, or another where the compiler spills too much of it."""
    builder, sizes = _builder(kernel.group[0]), kernel.sizes
    return builder.build(builder.choose(kernel.kernel_pass, builder.specialization_at(sizes), sizes))


@functools.cache
def _builder(spec: str) -> Builder:
    values: dict[str, Any] = json.loads(spec)
    loaded = load_spec({name: value for name, value in values.items() if name != "gpu"}, gpu=values["gpu"])
    return builder_of(loaded, target_of(loaded))


def _as_of_today(problem: Problem, plan: Plan) -> tuple[float | None, tuple[str, ...]]:
    """Return a plan's predicted time and the constraints that it violates; None where no family has its variables."""
    for family in families_of(problem):
        names = family.variables(problem)
        if names.keys() - BEFORE == plan.keys() - BEFORE:
            whole = {name: {**BEFORE, **plan}[name] for name in names}
            missed = [rule.name for rule in family.constraints(problem) if not rule.holds(*(whole[name] for name in rule.over))]
            return float(total_us(family.predicted_us(problem, whole))), tuple(missed)
    return None, ()


def _frozen(plan: Plan) -> frozenset[tuple[str, int]]:
    return frozenset(plan.items())


def _call_of(kernel: PlannedKernel) -> tuple[Any, ...]:
    problem = kernel.problem
    sizes = problem.channels, problem.heads or 1, problem.state_size or 0, problem.batch, problem.time
    return problem.model or "scan", problem.precision, kernel.layout, kernel.kernel_pass, kernel.gpu, *sizes


@functools.cache
def _measured_ms() -> Mapping[tuple[Any, ...], Mapping[frozenset[tuple[str, int]], float]]:
    """Return the measured times of candidates, by call and plan; calls with `groups` are in no record."""
    times: dict[tuple[Any, ...], dict[frozenset[tuple[str, int]], float]] = {}
    for name in CANDIDATES:
        for call in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")):
            if not isinstance(call["model"], str) or "groups" in call:
                continue
            sizes = call["hidden_size"], call.get("heads", 1), call.get("state_size", 0), call["batch"], call["time"]
            key = call["model"], call["precision"], call["layout"], call["pass"], "h200", *sizes
            of_call = times.setdefault(key, {})
            for candidate in call["candidates"]:
                if candidate.get("ms"):
                    of_call[_frozen(as_recorded(candidate["variables"]))] = candidate["ms"]
    return times


def known_differences(path: Path = KNOWN_DIFFERENCES) -> tuple[KnownDifferences, ...]:
    """Return the differences on record."""
    return pydantic.TypeAdapter(tuple[KnownDifferences, ...]).validate_json(path.read_bytes())
