"""Sweep of the feasible candidates of the tuner's problems, over several sessions, and the regrets of the picks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from benchmarks.cost_model.regret import Quality, Ranked, quality_of
from benchmarks.problems.tuner_problems import TunerProblem
from minrnn_gen.build.builder import Builder, builder_of
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.problem import KernelKey, KernelPass
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.history import append_results, read_results, times_of
from minrnn_gen.tune.lookup import remembered
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.results import CandidateKey, Result, Setting, key_of, median_us, setting_of

# Runs of a candidate: a median that leaves an outlier out. A slow candidate runs once.
REPEATS = 3
# Candidates of a kernel at most, and how many of them are the best predicted. A sweep of all problems then takes a quarter of
# an hour on an H200.
CANDIDATES_MOST, BEST_PREDICTED = 500, 200
# Best predicted candidates of a drawn problem, and as many of the others: many problems say more than many candidates.
FEW_BEST = 16


@dataclass
class ResultsFile:
    """File of results, in the format of the tuner's history, which grows from session to session."""

    path: Path
    _results: list[Result] = field(init=False)

    def __post_init__(self) -> None:
        self._results = list(read_results(self.path))

    @property
    def results(self) -> Sequence[Result]:
        """All results."""
        return self._results

    def known(self, setting: Setting) -> Sequence[Result]:
        """Return the results of exactly this setting."""
        return [result for result in self._results if result.setting == setting]

    def add(self, results: Sequence[Result]) -> None:
        """Append results to the file; raises BadInput where it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_results(self.path, results)
        except OSError as error:
            raise BadInput(f"{shown(str(self.path))} cannot be written ({error.strerror}); give a file that can") from None
        self._results += results


@dataclass(frozen=True)
class SweptKernel:
    """Pass of a problem, whose candidates are swept."""

    problem: TunerProblem
    kernel_pass: KernelPass
    gpu: str | None = None
    seed: int | None = None

    def wanted(self, candidates: Sequence[CandidateKey]) -> frozenset[CandidateKey]:
        """Return the candidates to measure, of all in the order of the cost model; few where `seed` drew the problem."""
        return drawn(candidates) if self.seed is None else few_of(candidates, f"{self.seed} {self.label}")

    @property
    def label(self) -> str:
        """The problem and the pass."""
        return f"{self.problem.label} {self.kernel_pass}"

    @cached_property
    def builder(self) -> Builder:
        """The builder of its candidates."""
        spec = load_spec(self.problem.spec, gpu=self.gpu)
        return builder_of(spec, target_of(spec), remembered)

    @property
    def key(self) -> KernelKey:
        """The kernel of contiguous arrays of the problem's sizes."""
        return self.builder.key_of(self.kernel_pass, self.builder.hinted_specialization)

    def pool(self, measurer: Measurer, file: ResultsFile) -> CandidatePool:
        """Return the pool of its candidates."""
        from benchmarks.cost_model.filter_measurer import FilterMeasurer  # with CuPy, which judging results does without

        return CandidatePool(self.builder, self.key, FilterMeasurer(measurer) if self.problem.is_filter else measurer, file)


@dataclass(frozen=True)
class Swept:
    """Progress of a sweep: the current kernel, and how many of its wanted candidates are done."""

    label: str
    done: int
    wanted: int


def kernels_of(problems: Sequence[TunerProblem], gpu: str | None = None, seed: int | None = None) -> tuple[SweptKernel, ...]:
    """Return the kernels to be swept, in their order."""
    return tuple(SweptKernel(problem, kernel_pass, gpu, seed) for problem in problems for kernel_pass in problem.passes)


def few_of(candidates: Sequence[CandidateKey], seed: str) -> frozenset[CandidateKey]:
    """Return the first `FEW_BEST` of candidates in the order of the cost model, and as many drawn from the others."""
    best, rest = candidates[:FEW_BEST], candidates[FEW_BEST:]
    return frozenset((*best, *random.Random(seed).sample(rest, min(FEW_BEST, len(rest)))))


def drawn(candidates: Sequence[CandidateKey]) -> frozenset[CandidateKey]:
    """Return the candidates to measure, of all in the order of the cost model: all, or `CANDIDATES_MOST` where they are more.

    These are the best predicted, and others spread evenly over the rest: the draw is the same in every session.
    """
    if len(candidates) <= CANDIDATES_MOST:
        return frozenset(candidates)
    best, rest = candidates[:BEST_PREDICTED], candidates[BEST_PREDICTED:]
    count = CANDIDATES_MOST - len(best)
    return frozenset((*best, *(rest[number * len(rest) // count] for number in range(count))))


def sweep(
    kernels: Sequence[SweptKernel],
    measurer: Measurer,
    file: ResultsFile,
    seconds: float,
    watch: Callable[[Swept], None] = lambda _: None,
) -> bool:
    """Measure the candidates that the file does not have yet, for `seconds`; return whether all are measured."""
    end = time.monotonic() + seconds
    for kernel in kernels:
        if time.monotonic() >= end:
            return False
        pool = kernel.pool(measurer, file)
        wanted = kernel.wanted(tuple(pool.ranked))
        with closing(pool.arriving(None, wanted)) as arriving:
            for key in arriving:
                if key in pool.times_us:
                    continue
                pool.measure(key, REPEATS)
                pool.forget(key)
                watch(Swept(kernel.label, len(wanted & (pool.times_us.keys() | pool.eliminated.keys())), len(wanted)))
                if time.monotonic() >= end:
                    return False
    return True


def qualities(kernels: Sequence[SweptKernel], file: ResultsFile) -> Iterator[Quality]:
    """Yield the regrets of the current cost model for every kernel that the file has results of."""
    by_kernel: dict[Setting, dict[Setting, list[Result]]] = {}
    for result in file.results:
        by_setting = by_kernel.setdefault(_anywhere(result.setting), {})
        by_setting.setdefault(result.setting, []).append(result)
    for kernel in kernels:
        builder = kernel.builder
        solutions = tuple(builder.solutions(kernel.key))
        wanted = setting_of(solutions[0].problem, builder.cell_digest, device="", driver="", toolchain="", sources=_ANY_SOURCES)
        groups = by_kernel.get(wanted, {})
        # Times of different drivers or templates are not mixed: the setting with the most results counts.
        results = max(groups.values(), key=len, default=[])
        times = {key: median_us(runs_us) for key, runs_us in times_of(results).items()}
        ranked: list[Ranked] = []
        predicted_us: dict[CandidateKey, float] = {}
        for solution in solutions:
            problem, family = solution.problem, solution.family
            declared = sorted(solution.candidates, key=lambda candidate: tuple(candidate.values()))
            places = {key_of(family.name, candidate): place for place, candidate in enumerate(declared)}
            for candidate in solution.candidates:
                key = key_of(family.name, candidate)
                predicted_us[key] = total_us(family.predicted_us(problem, candidate))
                if key in times:
                    resources = family.resources(problem, candidate)
                    threads = resources.threads * resources.blocks_per_sm
                    ranked.append(Ranked(times[key], predicted_us[key], places[key], threads))
        # As the tuner races them: the solver's pick first.
        ordered = ranked[:1] + sorted(ranked[1:], key=lambda candidate: candidate.predicted_us)
        quality = quality_of(
            kernel.label,
            ordered,
            is_fitted=kernel.problem.is_fitted,
            feasible_count=len(predicted_us),
            is_complete=len(kernel.wanted(tuple(predicted_us))) <= len({candidate.candidate for candidate in results}),
        )
        if quality is not None:
            yield quality


_ANY_SOURCES = "0" * 64


def _anywhere(setting: Setting) -> Setting:
    """Return the part of a setting that is the same in every session."""
    return replace(setting, device="", driver="", toolchain="", sources=_ANY_SOURCES)
