"""The candidates of one kernel: compiled ahead, checked before any time counts, timed, and written down."""

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
from minrnn_gen.plan.kernel_plan import Regime, total_us
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution
from minrnn_gen.tune.history import times_of
from minrnn_gen.tune.measurer import MeasurementFailed, MeasurementHung, Measurer
from minrnn_gen.tune.results import CandidateKey, Outcome, Result, Setting, key_of, median_us, setting_of


class Notebook(Protocol):
    """Where results are written down and looked up."""

    def known(self, setting: Setting) -> Sequence[Result]:
        """Return the results of exactly this setting."""

    def add(self, results: Sequence[Result]) -> None:
        """Write results down."""


@dataclass
class Lineup:
    """Every candidate of one kernel, and what is known of each.

    `times_us` and `out` begin with what the notebook knows: who has times, and who is out of it, and why. `compilers` threads
    compile ahead.
    """

    builder: Builder
    kernel_pass: KernelPass
    regime: Regime
    measurer: Measurer
    notebook: Notebook
    compilers: int = field(default_factory=lambda: os.cpu_count() or 1)
    times_us: dict[CandidateKey, tuple[float, ...]] = field(default_factory=dict, init=False)
    out: dict[CandidateKey, Outcome] = field(default_factory=dict, init=False)
    _built: dict[CandidateKey, BuiltKernel] = field(default_factory=dict, init=False)
    _checked: dict[CandidateKey, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        known = [one for one in self.notebook.known(self.setting) if one.candidate in self.places]
        self.times_us |= times_of(known)
        self.out |= {one.candidate: one.outcome for one in known if one.candidate not in self.times_us}

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

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """How many candidates came to what."""
        return Counter(self.out.values()) + Counter[Outcome]({"measured": len(self.times_us)})

    @property
    def medians_us(self) -> dict[CandidateKey, float]:
        """The time that stands for each candidate that has one."""
        return {key: median_us(its) for key, its in self.times_us.items()}

    def arriving(self, most: int | None, among: Collection[CandidateKey] | None = None) -> Generator[CandidateKey, None, None]:
        """Yield candidates, all or those `among`, as they are compiled; who cannot be compiled makes room for the next.

        At most so many, the best predicted first.
        """
        left = len(self.places) if most is None else most
        ahead: dict[CandidateKey, Future[BuiltKernel]] = {}
        waiting = iter([key for key in self.places if key not in self.out and (among is None or key in among)])
        with ThreadPoolExecutor(self.compilers) as pool:
            try:
                while left:
                    # One more than there are threads, so that none of them waits for this one.
                    for key in itertools.islice(waiting, max(0, min(self.compilers + 1, left) - len(ahead))):
                        ahead[key] = Future() if key in self.times_us else pool.submit(self.compiled, key)
                    if not ahead:
                        return
                    key = next(iter(ahead))
                    compiled = ahead.pop(key)
                    if key in self.times_us or self._is_compiled(key, compiled):
                        left -= 1
                        yield key
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def compiled(self, key: CandidateKey) -> BuiltKernel:
        """Return a candidate, compiled now if it was not before."""
        if key not in self._built:
            self._built[key] = self.builder.build_candidate(*self.places[key])
        return self._built[key]

    def visit(self, key: CandidateKey, repeats: int) -> Sequence[float] | None:
        """Measure a candidate so often, the first time ever after its results were checked; None where it is out now."""
        built = self.compiled(key)
        trial = Trial(self.builder.recipe, built.cell, built.plan, built.cubin or b"")
        try:
            if key not in self.times_us:
                share = self.measurer.error_share(trial)
                self._checked[key] = share
                # Not a number is not within anything.
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

    def forget(self, key: CandidateKey) -> None:
        """Let go of a compiled candidate."""
        self._built.pop(key, None)

    def _is_compiled(self, key: CandidateKey, compiled: Future[BuiltKernel]) -> bool:
        try:
            compiled.result()
        except CompileFailed as failed:
            self._drop(key, "broken" if isinstance(failed, PromiseBroken) else "refused", str(failed))
            return False
        return True

    def _drop(self, key: CandidateKey, outcome: Outcome, why: str) -> None:
        self.out[key] = outcome
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
            predicted_us=_predicted_us(*self.places[key]),
            error_share=share if share is not None and math.isfinite(share) else None,
            compile_seconds=round(built.seconds, 3) if built else None,
            note=note,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.notebook.add([result])


def _predicted_us(solution: Solution, rank: int) -> float:
    return total_us(solution.family.predicted_us(solution.problem, solution.candidates[rank]))
