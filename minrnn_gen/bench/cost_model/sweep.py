"""Every feasible candidate of the tuner's problems measured, over as many occasions as it takes, and how good picks are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from minrnn_gen.assemble import builder_of, target_of
from minrnn_gen.bench.cost_model.regret import Quality, Ranked, quality_of
from minrnn_gen.bench.problems.tuner_problems import PASSES, TunerProblem
from minrnn_gen.build.builder import Builder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.history import append_results, read_results, times_of
from minrnn_gen.tune.lookup import remembered
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.results import CandidateKey, Result, Setting, key_of, median_us, setting_of

# Of each candidate: a median that leaves an outlier out. What is slow is run once.
REPEATS = 3
# Of one kernel, and how many of them are the best predicted: a sweep of all problems is then a quarter of an hour on an H200.
CANDIDATES_MOST, BEST_PREDICTED = 500, 200


@dataclass
class ResultsFile:
    """One file of results, as the memory has them, that grows from occasion to occasion."""

    path: Path
    _results: list[Result] = field(init=False)

    def __post_init__(self) -> None:
        self._results = list(read_results(self.path))

    @property
    def results(self) -> Sequence[Result]:
        """All of them."""
        return self._results

    def known(self, setting: Setting) -> Sequence[Result]:
        """Return the results of exactly this setting."""
        return [one for one in self._results if one.setting == setting]

    def add(self, results: Sequence[Result]) -> None:
        """Write results at the end of the file; raises BadInput where they cannot be."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_results(self.path, results)
        except OSError as error:
            raise BadInput(f"{shown(str(self.path))} cannot be written ({error.strerror}); give a file that can") from None
        self._results += results


@dataclass(frozen=True)
class SweptKernel:
    """One pass of one problem."""

    problem: TunerProblem
    kernel_pass: KernelPass
    gpu: str | None = None

    @property
    def label(self) -> str:
        """The problem and the pass."""
        return f"{self.problem.label} {self.kernel_pass}"

    @cached_property
    def builder(self) -> Builder:
        """What builds its candidates."""
        spec = load_spec(self.problem.spec, gpu=self.gpu)
        return builder_of(spec, target_of(spec), remembered)

    def pool(self, measurer: Measurer, file: ResultsFile) -> CandidatePool:
        """Return its candidates."""
        return CandidatePool(self.builder, self.kernel_pass, self.builder.hinted_specialization, measurer, file)


@dataclass(frozen=True)
class Swept:
    """How far a sweep is: the kernel under way, and how many of its candidates are done, of how many."""

    label: str
    done: int
    wanted: int


def kernels_of(problems: Sequence[TunerProblem], gpu: str | None = None) -> tuple[SweptKernel, ...]:
    """Return the kernels to be swept, in order."""
    return tuple(SweptKernel(problem, kernel_pass, gpu) for problem in problems for kernel_pass in PASSES)


def drawn(candidates: Sequence[CandidateKey]) -> frozenset[CandidateKey]:
    """Return the candidates to measure, of all in the order of the cost model: all, or of too many `CANDIDATES_MOST`.

    Of those the best predicted, and others spread evenly over the rest: the draw is the same on every occasion.
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
    """Measure every candidate that the file does not have yet, until the time is over; say whether that was all of them."""
    end = time.monotonic() + seconds
    for kernel in kernels:
        if time.monotonic() >= end:
            return False
        pool = kernel.pool(measurer, file)
        wanted = drawn(tuple(pool.ranked))
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
    """Yield how good the picks of the cost model, as it is now, are for each kernel that the file has results of."""
    by_kernel: dict[Setting, dict[Setting, list[Result]]] = {}
    for result in file.results:
        its = by_kernel.setdefault(_anywhere(result.setting), {})
        its.setdefault(result.setting, []).append(result)
    for kernel in kernels:
        builder = kernel.builder
        solutions = tuple(builder.solutions(kernel.kernel_pass, builder.hinted_specialization))
        wanted = setting_of(solutions[0].problem, builder.cell_digest, device="", driver="", toolchain="", sources=_ANY_SOURCES)
        groups = by_kernel.get(wanted, {})
        # Times of different drivers or templates are not mixed: the occasion with the most of them counts.
        results = max(groups.values(), key=len, default=[])
        times = {key: median_us(its) for key, its in times_of(results).items()}
        ranked: list[Ranked] = []
        predicted_us: dict[CandidateKey, float] = {}
        for solution in solutions:
            problem, family = solution.problem, solution.family
            declared = sorted(solution.candidates, key=lambda one: tuple(one.values()))
            places = {key_of(family.name, one): place for place, one in enumerate(declared)}
            for candidate in solution.candidates:
                key = key_of(family.name, candidate)
                predicted_us[key] = total_us(family.predicted_us(problem, candidate))
                if key in times:
                    taken = family.resources(problem, candidate)
                    threads = taken.threads * taken.blocks_per_sm
                    ranked.append(Ranked(times[key], predicted_us[key], places[key], threads))
        # As the tuner races them: the solver's pick first.
        ordered = ranked[:1] + sorted(ranked[1:], key=lambda one: one.predicted_us)
        found = quality_of(
            kernel.label,
            ordered,
            is_fitted=kernel.problem.is_fitted,
            feasible_count=len(predicted_us),
            is_complete=min(CANDIDATES_MOST, len(predicted_us)) <= len({one.candidate for one in results}),
        )
        if found is not None:
            yield found


_ANY_SOURCES = "0" * 64


def _anywhere(setting: Setting) -> Setting:
    """Return what is the same on every occasion."""
    return replace(setting, device="", driver="", toolchain="", sources=_ANY_SOURCES)
