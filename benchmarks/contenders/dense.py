"""Dense cells: minrnn-gen as planned and by the stepwise path, against other libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.contenders import flash, torch_cells
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import Inputs
from benchmarks.report.plan_facts import facts_of
from benchmarks.report.tables import FIRST_CALL, PATH
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.hinted import HintedBuilder
from minrnn_gen.build.store import Store, digest
from minrnn_gen.config.spec import load_spec
from minrnn_gen.kernel import Kernel, kernel_from
from minrnn_gen.plan.families import families_of
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.plan.solver import Solution, solve
from minrnn_gen.run.target import target_of


@dataclass(frozen=True)
class StepwiseBuilder(HintedBuilder):
    """Builder of stepwise kernels, which run at any size, even where all steps would fit one launch."""

    def solutions(self, key: KernelKey) -> Iterator[Solution]:
        """Yield the solution of the last family alone."""
        problem = self.problem(key)
        *_, stepwise = families_of(problem)
        yield replace(solve(problem, stepwise), passed_over="the benchmark asks for the other path")

    def request_key(self, key: KernelKey) -> str:
        return digest(super().request_key(key), "stepwise")


# The stepwise path has the name under which the committed records have it.
OURS: Mapping[str, type[Builder]] = {"minrnn-gen": Builder, "minrnn-gen alternating": StepwiseBuilder}


def contenders(problem: Problem, gpu: Gpu, baselines: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    """Return ours by every path and the baselines that have the cell.

    `refused` maps a baseline, or a baseline at a shape, to the reason that its row shows.
    """
    inputs = Inputs(problem, gpu)
    builders = OURS if problem.table == "cells" else {"minrnn-gen": Builder}
    entries = [_ours(name, builder, problem, inputs, gpu) for name, builder in builders.items()]
    if problem.table != "large":  # FlashRNN would compile for a minute for each shape
        entries += flash.contenders(problem, gpu, inputs, baselines, refused)
    if torch_cells.NAME in baselines:
        entries += torch_cells.contenders(problem, gpu, inputs, refused.get(torch_cells.NAME))
    return entries


def path_of(plan: KernelPlan) -> str:
    """Return the path of a plan, by its name in the records: all steps in one launch, or launches for every step."""
    return "persistent" if plan.is_persistent else "alternating"


def _ours(name: str, builder: type[Builder], problem: Problem, inputs: Inputs, gpu: Gpu) -> Contender:
    kernels: list[Kernel] = []
    first_seconds: list[float] = []

    def prepare() -> Run:
        x, R, dy = (inputs.array(name) for name in ("x", "R", "dy"))
        gpu.finish()
        with tempfile.TemporaryDirectory() as folder:
            began = gpu.seconds()
            spec = load_spec(problem.spec)
            kernel = kernel_from(builder(spec, target_of(spec), Store(Path(folder))))

            def forward() -> Arrays:
                y, states = kernel(x, R)
                return {"y": y} | {name: states[name] for name in inputs.states_out}

            def both() -> Arrays:
                y, _, saved = kernel.forward(x, R)
                gradients = kernel.backward(saved, dy)
                return {"y": y, "dx": gradients["x"], "dR": gradients["R"]}

            run = forward if problem.task == "forward" else both
            run()
            gpu.finish()
            first_seconds.append(gpu.seconds() - began)
        kernels.append(kernel)
        return run

    def facts() -> dict[str, int | float | str]:
        # A call of other strides may have compiled once more: the last plan of a pass is the one that was timed.
        plans = {key.kernel_pass: plan for key, plan in kernels[-1].plans.items()}
        values: dict[str, int | float | str] = {
            PATH: ", then ".join(dict.fromkeys(path_of(plan) for plan in plans.values())),
            FIRST_CALL: round(first_seconds[-1], 3),
        }
        for kernel_pass, plan in plans.items():
            values |= facts_of(plan, kernel_pass)
        return values

    return Contender(name, prepare, inputs.judged, facts=facts)
