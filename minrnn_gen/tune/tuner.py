"""Tuning: the candidates of a spec's kernels compiled, checked and raced, and each winner kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.config.environment import debug_build_is_asked_for
from minrnn_gen.errors import INSTALL_CUDA, BadInput, ToolchainMissing
from minrnn_gen.plan.problem import KernelKey, KernelPass
from minrnn_gen.run.ahead import passes_of
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.history import History
from minrnn_gen.tune.measurer import Measurer
from minrnn_gen.tune.racing import Ended, Race, run_race
from minrnn_gen.tune.results import CandidateKey, Outcome, Setting

DEFAULT_BUDGET_S = 30.0
DEFAULT_TOP = 16
# Times of one measurement: the fewest whose median leaves an outlier out.
REPEATS = 3


@dataclass(frozen=True)
class Limits:
    """Limits of measuring: `top` candidates of each kernel (None: all), in a time for all kernels.

    The best predicted candidate of each strategy comes first, then the best predicted of the others. `compilers` threads
    compile ahead.
    """

    budget_s: float = DEFAULT_BUDGET_S
    top: int | None = DEFAULT_TOP
    compilers: int = field(default_factory=lambda: os.cpu_count() or 1)


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Progress:
    """Progress of one kernel's race: contenders with times, their most, and the best time so far."""

    kernel_pass: KernelPass
    measured: int
    at_most: int
    best_us: float | None
    spent: float


@dataclass(frozen=True)
class RacedCandidate:
    """A candidate that was tried: its predicted time, and its median time, None where it was eliminated."""

    family: str
    variables: Mapping[str, int]
    predicted_us: float
    median_us: float | None
    outcome: Outcome


@dataclass(frozen=True)
class TunedKernel:
    """Result for one kernel. `winner` serves calls from now on, None where no candidate could be measured.

    `first_us` is the time of the candidate that the solver would pick, where it has one; `outcomes` counts the candidates;
    `raced` are the tried ones, best predicted first.
    """

    setting: Setting
    ended: Ended
    feasible_count: int
    outcomes: Mapping[Outcome, int]
    first_us: float | None
    best_us: float | None
    winner: BuiltKernel | None
    raced: tuple[RacedCandidate, ...]


def kernels_of(builder: Builder) -> tuple[KernelKey, ...]:
    """Return the kernels that calls with contiguous arrays of the hinted sizes run, gradients included.

    The one that joins rows is left out: memory bounds it, and only the threads of a block could be chosen.
    """
    passes = passes_of(builder, builder.hinted_sizes)
    return tuple(builder.key_of(*of_pass) for of_pass in passes if of_pass[0] != "joined")


def tune(
    builder: Builder,
    measurer: Measurer,
    history: History,
    limits: Limits = DEFAULT_LIMITS,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Iterator[TunedKernel]:
    """Yield the result for each kernel of the builder's spec; compile() finds the winners from then on.

    After an interruption, one last result is yielded. Candidates measured before, in any process, are not measured again.
    Raises ToolchainMissing without NVRTC, BadInput in debug builds, Infeasible where nothing fits.
    """
    if toolchain_version() is None:
        raise ToolchainMissing(f"tuning needs NVRTC to compile candidates: {INSTALL_CUDA}")
    if builder.waits_are_bounded or debug_build_is_asked_for():
        raise BadInput("MINRNN_DEBUG is set, and debug builds are slower than others; unset it to tune")
    wanted = kernels_of(builder)
    end = time.monotonic() + limits.budget_s
    for done, key in enumerate(wanted):
        # Time that one kernel did not need goes to the next ones.
        share = max(0.0, end - time.monotonic()) / (len(wanted) - done)
        pool = CandidatePool(builder, key, measurer, history, limits.compilers)
        tuned = KernelTuning(pool, limits.top, share, watch).run()
        yield tuned
        if tuned.ended == "interrupted":
            return


@dataclass
class KernelTuning:
    """The race of the candidates of one kernel, `top` of them, best predicted first, or all."""

    pool: CandidatePool
    top: int | None
    seconds: float
    watch: Callable[[Progress], None]

    def run(self) -> TunedKernel:
        """Race, keep the winner, and return the result."""
        pool, end = self.pool, time.monotonic() + self.seconds
        at_most = min(self.top or len(pool.ranked), len(pool.ranked))

        def seconds_left() -> float:
            return end - time.monotonic()

        def measure(key: CandidateKey) -> Sequence[float] | None:
            times_us = pool.measure(key, REPEATS)
            spent = 1 - max(0.0, seconds_left()) / self.seconds if self.seconds else 1.0
            best_us = min(pool.medians_us.values(), default=None)
            self.watch(Progress(pool.key.kernel_pass, len(pool.times_us), at_most, best_us, spent))
            return times_us

        with closing(pool.arriving(self.top)) as arriving:
            race = run_race(arriving, measure, seconds_left, pool.times_us)
        return self._result(race)

    def _result(self, race: Race[CandidateKey]) -> TunedKernel:
        pool = self.pool
        medians_us, first = pool.medians_us, next(iter(pool.ranked))
        best_us = None if race.leader is None else medians_us[race.leader]
        winner = None if race.leader is None or best_us is None else self._keep(race.leader, best_us)
        return TunedKernel(
            pool.setting, race.ended, len(pool.ranked), pool.outcomes, medians_us.get(first), best_us, winner, self._raced()
        )

    def _raced(self) -> tuple[RacedCandidate, ...]:
        pool, medians_us = self.pool, self.pool.medians_us
        return tuple(
            RacedCandidate(
                family, dict(variables), pool.predicted_us(key), medians_us.get(key), pool.eliminated.get(key, "measured")
            )
            for key in pool.ranked
            for family, variables in [key]
            if key in medians_us or key in pool.eliminated
        )

    def _keep(self, winner: CandidateKey, best_us: float) -> BuiltKernel:
        pool = self.pool
        chosen = f"measured, {best_us:.4g} us on {pool.setting.device}"
        return pool.builder.keep(replace(pool.compiled(winner), chosen=chosen))
