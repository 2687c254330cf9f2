"""From a spec to its fastest kernels: candidates compiled, checked, raced, and the winner kept."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property

from minrnn_gen.build import Builder
from minrnn_gen.built import BuiltKernel
from minrnn_gen.compiler import toolchain_version
from minrnn_gen.contract import RUNS_REVERSED
from minrnn_gen.debug_build import debug_build_is_asked_for
from minrnn_gen.errors import BadInput, CompileFailed, PromiseBroken, ToolchainMissing
from minrnn_gen.plan.kernel_plan import KeptStates, Regime, total_us
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution
from minrnn_gen.precision import precision_of
from minrnn_gen.preferred import Trial, as_measured
from minrnn_gen.store import templates_digest
from minrnn_gen.tune.measurer import MeasurementFailed, MeasurementHung, Measurer
from minrnn_gen.tune.memory import Memory, times_of
from minrnn_gen.tune.race import Ended, Race, run_race
from minrnn_gen.tune.results import CandidateKey, Outcome, Result, Setting, key_of, median_us, setting_of

DEFAULT_BUDGET_S = 30.0
DEFAULT_TOP = 16
# Times of one visit: the least of which a median leaves an outlier out.
REPEATS = 3


@dataclass(frozen=True)
class Limits:
    """How much is measured: `top` candidates of each kernel, best predicted first (None: all), in a time for all kernels."""

    budget_s: float = DEFAULT_BUDGET_S
    top: int | None = DEFAULT_TOP


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Progress:
    """How far the race for one kernel is: contenders that have times, of how many at most, and the best time so far."""

    kernel_pass: KernelPass
    measured: int
    at_most: int
    best_us: float | None
    spent: float


@dataclass(frozen=True)
class TunedKernel:
    """What came of one kernel. `kept` is what calls will take from now on, None where no candidate could be measured.

    `first_us` is the time of the candidate that the solver would pick, where it has one; `outcomes` counts the candidates.
    """

    setting: Setting
    ended: Ended
    feasible_count: int
    outcomes: Mapping[Outcome, int]
    first_us: float | None
    best_us: float | None
    kept: BuiltKernel | None


def kernels_of(builder: Builder) -> tuple[tuple[KernelPass, Regime], ...]:
    """Return the kernels that calls with contiguous arrays of the hinted sizes run, gradients included."""
    spec, regime = builder.spec, builder.hinted_regime
    is_dense = builder.kind == "dense"
    # What is kept for a backward is another kernel of a forward.
    keeps = spec.training and bool(builder.lowered_backward.needs_saved_states)
    precision = precision_of(spec.precision)
    # A recurrent product takes outputs as they were before they were rounded; where nothing is rounded the two are one.
    kept: KeptStates = "arithmetic" if is_dense and precision.storage_dtype != precision.arithmetic_dtype else "storage"
    regimes = [regime, *([replace(regime, kept_states=kept)] if keeps else [])]
    found: list[tuple[KernelPass, Regime]] = []
    for reverse in RUNS_REVERSED[spec.direction]:
        found += [("forward", replace(one, reverse=reverse)) for one in regimes]
        found += [("backward", replace(regime, reverse=reverse))] if spec.training else []
    if not is_dense and len(RUNS_REVERSED[spec.direction]) == 1:
        found.append(("step", regime))
    return tuple(found)


def tune(
    builder: Builder,
    measurer: Measurer,
    memory: Memory,
    limits: Limits = DEFAULT_LIMITS,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Iterator[TunedKernel]:
    """Yield what came of each kernel of the builder's spec, which then is what compile() finds.

    An interruption ends the last of them that is yielded. What was measured before, in any process, is not measured again.
    Raises ToolchainMissing without NVRTC, BadInput in debug builds, Infeasible where nothing fits.
    """
    if toolchain_version() is None:
        raise ToolchainMissing("tuning needs NVRTC to compile candidates: pip install 'minrnn-gen[cuda13]' (or [cuda12])")
    if builder.waits_are_bounded or debug_build_is_asked_for():
        raise BadInput("MINRNN_DEBUG is set, and times of debug builds say nothing of others; unset it to tune")
    wanted = kernels_of(builder)
    end = time.monotonic() + limits.budget_s
    for done, (kernel_pass, regime) in enumerate(wanted):
        # What one kernel did not need is there for the next ones.
        share = max(0.0, end - time.monotonic()) / (len(wanted) - done)
        tuned = KernelRace(builder, kernel_pass, regime, measurer, memory, limits.top, share, watch).run()
        yield tuned
        if tuned.ended == "interrupted":
            return


@dataclass
class KernelRace:
    """The race of the candidates of one kernel."""

    builder: Builder
    kernel_pass: KernelPass
    regime: Regime
    measurer: Measurer
    memory: Memory
    top: int | None
    seconds: float
    watch: Callable[[Progress], None]
    _built: dict[CandidateKey, BuiltKernel] = field(default_factory=dict)
    _checked: dict[CandidateKey, float] = field(default_factory=dict)
    _times_us: dict[CandidateKey, tuple[float, ...]] = field(default_factory=dict)
    _out: dict[CandidateKey, Outcome] = field(default_factory=dict)
    _end: float = 0.0

    @cached_property
    def solutions(self) -> tuple[Solution, ...]:
        """Those of every family that serves."""
        return tuple(as_measured(self.builder.solutions(self.kernel_pass, self.regime)))

    @cached_property
    def setting(self) -> Setting:
        """What the times will be times of."""
        return setting_of(
            self.solutions[0].problem,
            self.builder.cell_digest,
            device=self.measurer.device,
            driver=self.measurer.driver,
            toolchain=toolchain_version() or "",
            sources=templates_digest(),
        )

    @cached_property
    def places(self) -> Mapping[CandidateKey, tuple[Solution, int]]:
        """Every feasible candidate: the solver's pick first, then by predicted time."""
        found = {}
        for solution in self.solutions:
            for rank, candidate in enumerate(solution.candidates):
                found[key_of(solution.family.name, candidate)] = solution, rank
        first, *rest = found.items()
        return dict([first, *sorted(rest, key=lambda item: _predicted_us(*item[1]))])

    def run(self) -> TunedKernel:
        """Race, keep the winner, and say what came of it."""
        self._end = time.monotonic() + self.seconds
        known = [one for one in self.memory.known(self.setting) if one.candidate in self.places]
        before = times_of(known)
        self._out |= {one.candidate: one.outcome for one in known if one.candidate not in before}
        self._times_us |= before
        with closing(self._arriving()) as arriving:
            race = run_race(arriving, self._visit, lambda: self._end - time.monotonic(), before)
        return self._came_of(race)

    def _came_of(self, race: Race[CandidateKey]) -> TunedKernel:
        first = next(iter(self.places))
        medians = {key: median_us(tuple(its)) for key, its in race.times_us.items()}
        outcomes = Counter[Outcome](self._out.values()) + Counter[Outcome]({"measured": len(medians)})
        best_us = None if race.leader is None else medians[race.leader]
        kept = None if race.leader is None or best_us is None else self._kept(race.leader, best_us)
        return TunedKernel(self.setting, race.ended, len(self.places), outcomes, medians.get(first), best_us, kept)

    def _kept(self, winner: CandidateKey, best_us: float) -> BuiltKernel:
        chosen = f"measured, {best_us:.4g} us on {self.setting.device}"
        return self.builder.keep(self.kernel_pass, replace(self._compiled(winner), chosen=chosen))

    def _arriving(self) -> Generator[CandidateKey, None, None]:
        """Yield candidates as they are compiled, as many as were asked for; who cannot be compiled makes room for the next."""
        left = len(self.places) if self.top is None else self.top
        ahead: dict[CandidateKey, Future[BuiltKernel]] = {}
        workers = os.cpu_count() or 1
        waiting = iter([key for key in self.places if key not in self._out])
        with ThreadPoolExecutor(workers) as pool:
            try:
                while left:
                    # One more than there are workers, so that none of them waits for this thread.
                    for key in itertools.islice(waiting, max(0, min(workers + 1, left) - len(ahead))):
                        ahead[key] = Future() if key in self._times_us else pool.submit(self._compiled, key)
                    if not ahead:
                        return
                    key = next(iter(ahead))
                    compiled = ahead.pop(key)
                    if key in self._times_us or self._is_compiled(key, compiled):
                        left -= 1
                        yield key
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _is_compiled(self, key: CandidateKey, compiled: Future[BuiltKernel]) -> bool:
        try:
            compiled.result()
        except CompileFailed as failed:
            self._drop(key, "broken" if isinstance(failed, PromiseBroken) else "refused", str(failed))
            return False
        return True

    def _compiled(self, key: CandidateKey) -> BuiltKernel:
        if key not in self._built:
            self._built[key] = self.builder.build_candidate(*self.places[key])
        return self._built[key]

    def _visit(self, key: CandidateKey) -> Sequence[float] | None:
        """Measure a candidate a few times; the first time here, and never measured before, after its results were checked."""
        built = self._compiled(key)
        trial = Trial(self.builder.recipe, built.plan, built.cubin or b"")
        try:
            if key not in self._times_us:
                share = self.measurer.error_share(trial)
                self._checked[key] = share
                # Not a number is not within anything.
                if not share <= 1:
                    self._drop(key, "wrong", f"{share:.3g} of the tolerance" if math.isfinite(share) else "not a number")
                    return None
            times_us = tuple(self.measurer.times_us(trial, REPEATS))
        except MeasurementFailed as failed:
            self._drop(key, "hung" if isinstance(failed, MeasurementHung) else "failed", str(failed))
            return None
        self._times_us[key] = (*self._times_us.get(key, ()), *times_us)
        self._remember(key, "measured", times_us=times_us)
        return times_us

    def _drop(self, key: CandidateKey, outcome: Outcome, why: str) -> None:
        self._out[key] = outcome
        self._times_us.pop(key, None)
        self._remember(key, outcome, note=" ".join(why.split())[:500])

    def _remember(self, key: CandidateKey, outcome: Outcome, *, times_us: tuple[float, ...] = (), note: str = "") -> None:
        family, variables = key
        built, share = self._built.get(key), self._checked.get(key)
        result = Result(
            setting=self.setting,
            family=family,
            variables=dict(variables),
            outcome=outcome,
            times_us=times_us,
            predicted_us=_predicted_us(*self.places[key]),
            error_share=share if share is not None and math.isfinite(share) else None,
            compile_seconds=round(built.seconds, 3) if built else None,
            note=note,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.memory.add([result])
        best = min(map(median_us, self._times_us.values()), default=None)
        at_most = len(self.places) if self.top is None else min(self.top, len(self.places))
        spent = 1 - max(0.0, self._end - time.monotonic()) / self.seconds if self.seconds else 1.0
        self.watch(Progress(self.kernel_pass, len(self._times_us), at_most, best, spent))


def _predicted_us(solution: Solution, rank: int) -> float:
    return total_us(solution.family.predicted_us(solution.problem, solution.candidates[rank]))
