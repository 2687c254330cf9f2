"""The candidates of one kernel: compiled ahead, checked before any time counts, timed, and logged."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.store import templates_digest
from minrnn_gen.build.tuned_choice import Trial, as_measured
from minrnn_gen.errors import CompileFailed, PromiseBroken
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.plan.solver import Solution
from minrnn_gen.tune.history import times_of
from minrnn_gen.tune.measurer import MeasurementFailed, MeasurementHung, Measurer
from minrnn_gen.tune.results import CandidateKey, Outcome, Result, Setting, key_of, median_us, setting_of


class ResultLog(Protocol):
    """A log of results, read and appended to."""

    def known(self, setting: Setting) -> Sequence[Result]:
        """Return the results of exactly this setting."""

    def add(self, results: Sequence[Result]) -> None:
        """Append results."""


@dataclass
class CandidatePool:
    """The candidates of one kernel, each with its times or the reason why it was eliminated.

    `times_us` and `eliminated` start with the results in `log`. `compilers` threads compile ahead.
    """

    builder: Builder
    key: KernelKey
    measurer: Measurer
    log: ResultLog
    compilers: int = field(default_factory=lambda: os.cpu_count() or 1)
    times_us: dict[CandidateKey, tuple[float, ...]] = field(default_factory=dict, init=False)
    eliminated: dict[CandidateKey, Outcome] = field(default_factory=dict, init=False)
    _built: dict[CandidateKey, BuiltKernel] = field(default_factory=dict, init=False)
    _checked: dict[CandidateKey, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        known = [result for result in self.log.known(self.setting) if result.candidate in self.ranked]
        self.times_us |= times_of(known)
        self.eliminated |= {result.candidate: result.outcome for result in known if result.candidate not in self.times_us}

    @cached_property
    def solutions(self) -> tuple[Solution, ...]:
        """The candidates of every kernel family that can run this problem."""
        return tuple(as_measured(self.builder.solutions(self.key)))

    @cached_property
    def setting(self) -> Setting:
        """The setting in which candidates are timed."""
        return setting_of(
            self.solutions[0].problem,
            self.builder.cell_digest,
            device=self.measurer.device,
            driver=self.measurer.driver,
            toolchain=toolchain_version() or "",
            sources=templates_digest(),
        )

    @cached_property
    def ranked(self) -> Mapping[CandidateKey, tuple[Solution, int]]:
        """The feasible candidates: the solver's first pick of each strategy, then the others by predicted time."""
        firsts, others = [], []
        for solution in self.solutions:
            ranked = [
                (key_of(solution.family.name, candidate), (solution, rank))
                for rank, candidate in enumerate(solution.candidates)
            ]
            firsts.append(ranked[0])
            others += ranked[1:]
        return dict([*firsts, *sorted(others, key=lambda item: item[1][0].predicted_us(item[1][1]))])

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """The number of candidates by outcome."""
        return Counter(self.eliminated.values()) + Counter[Outcome]({"measured": len(self.times_us)})

    @property
    def medians_us(self) -> dict[CandidateKey, float]:
        """The median time of each measured candidate."""
        return {key: median_us(times_us) for key, times_us in self.times_us.items()}

    def arriving(self, most: int | None, among: Collection[CandidateKey] | None = None) -> Generator[CandidateKey, None, None]:
        """Yield candidates (all, or those `among`) once they are compiled, in the order of `ranked`.

        A candidate that does not compile makes room for the next; at most `most` are yielded.
        """
        left = len(self.ranked) if most is None else most
        compiling: dict[CandidateKey, Future[BuiltKernel]] = {}
        waiting = iter([key for key in self.ranked if key not in self.eliminated and (among is None or key in among)])
        with ThreadPoolExecutor(self.compilers) as pool:
            try:
                while left:
                    # One more than there are threads, so that none of them waits for this one.
                    for key in itertools.islice(waiting, max(0, min(self.compilers + 1, left) - len(compiling))):
                        compiling[key] = Future() if key in self.times_us else pool.submit(self.compiled, key)
                    if not compiling:
                        return
                    key = next(iter(compiling))
                    compiled = compiling.pop(key)
                    if key in self.times_us or self._is_compiled(key, compiled):
                        left -= 1
                        yield key
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def compiled(self, key: CandidateKey) -> BuiltKernel:
        """Return a candidate, compiled now if it was not before."""
        if key not in self._built:
            self._built[key] = self.builder.build_candidate(*self.ranked[key], may_spill=True)
        return self._built[key]

    def measure(self, key: CandidateKey, repeats: int) -> Sequence[float] | None:
        """Time a candidate `repeats` times, after a check of its results the first time; None where it is eliminated."""
        built = self.compiled(key)
        trial = Trial(self.builder.recipe, built.cell, built.plan, built.cubin or b"")
        try:
            if key not in self.times_us:
                share = self.measurer.error_share(trial)
                self._checked[key] = share
                # NaN is within no tolerance.
                if not share <= 1:
                    self._drop(key, "wrong", f"{share:.3g} of the tolerance" if math.isfinite(share) else "not a number")
                    return None
            times_us = tuple(self.measurer.times_us(trial, repeats))
        except MeasurementFailed as failed:
            self._drop(key, "hung" if isinstance(failed, MeasurementHung) else "failed", str(failed))
            return None
        self.times_us[key] = (*self.times_us.get(key, ()), *times_us)
        self._note(key, "measured", times_us=times_us)
        return times_us

    def predicted_us(self, key: CandidateKey) -> float:
        """Return the predicted time of a candidate."""
        solution, rank = self.ranked[key]
        return solution.predicted_us(rank)

    def forget(self, key: CandidateKey) -> None:
        """Release a compiled candidate."""
        self._built.pop(key, None)

    def _is_compiled(self, key: CandidateKey, compiled: Future[BuiltKernel]) -> bool:
        try:
            compiled.result()
        except CompileFailed as failed:
            self._drop(key, "broken" if isinstance(failed, PromiseBroken) else "refused", str(failed))
            return False
        return True

    def _drop(self, key: CandidateKey, outcome: Outcome, why: str) -> None:
        self.eliminated[key] = outcome
        self.times_us.pop(key, None)
        self._note(key, outcome, note=" ".join(why.split())[:500])

    def _note(self, key: CandidateKey, outcome: Outcome, *, times_us: tuple[float, ...] = (), note: str = "") -> None:
        family, variables = key
        built, share = self._built.get(key), self._checked.get(key)
        result = Result(
            setting=self.setting,
            family=family,
            variables=dict(variables),
            outcome=outcome,
            times_us=times_us,
            predicted_us=self.predicted_us(key),
            error_share=share if share is not None and math.isfinite(share) else None,
            compile_seconds=round(built.seconds, 3) if built else None,
            note=note,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.log.add([result])
