"""Rounds of a measurement: contenders prepared once, timed in rotation, and judged against float64."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.problems.scan_problems import Problem
from benchmarks.report.record import PEAK_MIB, Row
from minrnn_gen.precision import PrecisionName, error_allowed, precision_of

Arrays = Mapping[str, Any]
Run = Callable[[], Arrays]

FAILURE_CHARACTERS = 160
_MIB = 1 << 20


class Clock(Protocol):
    """Clock and memory of the device that the contenders run on."""

    def time(self, run: Run, on_host: bool) -> tuple[float, Arrays]:
        """Return (milliseconds, results) of one run with a cold cache, `on_host` by the host's clock."""

    def poison_of(self, results: Arrays, /) -> Callable[[], None]:
        """Return the function that fills with NaN the memory that the next results of these shapes are likely to get."""

    def seconds(self) -> float:
        """Return the host's clock, from any start."""

    def finish(self) -> None:
        """Wait for the device; raises the error of a launch that failed there."""


@dataclass(frozen=True)
class Contender:
    """Implementation that solves a problem: a kernel of ours, a baseline, or a copy.

    `prepare` builds what `run` needs, and `run` returns its results by name. `judge` returns the relative error of each
    result. `on_host`: the run has ended when it returns, and the device's events do not see it. `facts` and `shares` are read
    at the end, as is `peak_bytes`, the memory of a run, where it is measured. `refused`: why it is not to be measured at all.
    `precision`: its own, where it is not the problem's.
    `warms_up`: an untimed run goes before each timed one, so that the processor's caches are those of a program that calls
    again and again.
    """

    name: str
    prepare: Callable[[], Run]
    judge: Callable[[Arrays], Mapping[str, float]] | None = None
    on_host: bool = False
    facts: Callable[[], dict[str, int | float | str]] = dict
    shares: Callable[[Run], dict[str, float]] | None = None
    peak_bytes: Callable[[Run], int] | None = None
    refused: str | None = None
    precision: PrecisionName | None = None
    warms_up: bool = False


@dataclass(frozen=True)
class Limits:
    """Budget of one problem: rounds until `seconds` are spent, between the least and the most."""

    rounds_least: int = 3
    # Eleven, so that the median and the quartiles are runs that took place.
    rounds_most: int = 11
    seconds: float = 1.5

    @property
    def in_words(self) -> str:
        """The number of rounds in words."""
        if self.rounds_least == self.rounds_most:
            return f"{self.rounds_most} rounds"
        return f"{self.rounds_most} rounds, or of as many as fit into {self.seconds:g} s, at least {self.rounds_least}"


@dataclass
class _Prepared:
    """Contender that is ready to run, and the times of its runs."""

    contender: Contender
    run: Run
    poison: Callable[[], None]
    prepare_seconds: float
    times_ms: list[float] = field(default_factory=list)
    errors: dict[str, float | None] = field(default_factory=dict)
    failure: str | None = None


def run_rounds(problem: Problem, contenders: Sequence[Contender], clock: Clock, limits: Limits) -> tuple[Row, ...]:
    """Return the rows of `contenders` at `problem`, in their order.

    Contenders are prepared once and then run in rotation, round after round. The results of the last round are judged, so that
    they are results of a timed run. A contender that raises has a row with its failure, and the others go on.
    """
    rows: dict[str, Row] = {}
    ready: list[_Prepared] = []
    round_seconds = 0.0
    for contender in contenders:
        if contender.refused is not None:
            rows[contender.name] = Row(problem=problem, contender=contender.name, failure=contender.refused)
            continue
        began = clock.seconds()
        try:
            run = contender.prepare()
            # The first run compiles, tunes itself and takes its memory; the second shows what a run costs.
            poison = clock.poison_of(run())
            clock.finish()
            ready_at = clock.seconds()
            _timed(contender, run, poison, clock)
            round_seconds += clock.seconds() - ready_at
        except Exception as error:
            rows[contender.name] = _failed(problem, contender, failure_of(error), clock.seconds() - began)
            continue
        ready.append(_Prepared(contender, run, poison, ready_at - began))
    for left in range(rounds_for(round_seconds, limits), 0, -1):
        for prepared in ready:
            _time_run(prepared, clock, is_last=left == 1)
    rows |= {prepared.contender.name: _row(problem, prepared) for prepared in ready}
    return tuple(rows[contender.name] for contender in contenders)


def rounds_for(round_seconds: float, limits: Limits) -> int:
    """Return the number of rounds that fit into the limits where a round takes `round_seconds`."""
    if round_seconds * limits.rounds_most <= limits.seconds:
        return limits.rounds_most
    return max(limits.rounds_least, int(limits.seconds / round_seconds))


def quartiles(times_ms: Sequence[float]) -> tuple[float, float, float]:
    """Return (lower quartile, median, upper quartile), all equal for a single time."""
    if len(times_ms) == 1:
        return (times_ms[0],) * 3
    lower, middle, upper = statistics.quantiles(times_ms, n=4, method="inclusive")
    return lower, middle, upper


def failure_of(error: Exception) -> str:
    """Return an exception as one line without the folders of this machine."""
    text = " ".join(str(error).split()) or "no message"
    text = re.sub(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\:'\"(),]+)+[/\\]", "", text)
    line = f"{type(error).__name__}: {text}"
    return line if len(line) <= FAILURE_CHARACTERS else line[: FAILURE_CHARACTERS - 3] + "..."


def _timed(contender: Contender, run: Run, poison: Callable[[], None], clock: Clock) -> tuple[float, Arrays]:
    """Return (milliseconds, results) of one run, whose memory is filled with NaN after the untimed one where there is one."""
    if contender.warms_up:
        run()
    poison()
    return clock.time(run, contender.on_host)


def _time_run(prepared: _Prepared, clock: Clock, is_last: bool) -> None:
    if prepared.failure is not None:
        return
    contender = prepared.contender
    try:
        elapsed_ms, results = _timed(contender, prepared.run, prepared.poison, clock)
        prepared.times_ms.append(elapsed_ms)
        if is_last and contender.judge is not None:
            judged = contender.judge(results)
            prepared.errors = {name: value if math.isfinite(value) else None for name, value in judged.items()}
    except Exception as error:
        prepared.failure = failure_of(error)


def _failed(problem: Problem, contender: Contender, failure: str, prepare_seconds: float) -> Row:
    return Row(problem=problem, contender=contender.name, failure=failure, prepare_seconds=round(prepare_seconds, 3))


def _row(problem: Problem, prepared: _Prepared) -> Row:
    contender = prepared.contender
    if prepared.failure is not None:
        return _failed(problem, contender, prepared.failure, prepared.prepare_seconds)
    lower, middle, upper = quartiles(prepared.times_ms)
    facts: dict[str, int | float | str] = {}
    shares: dict[str, float] = {}
    try:
        facts = contender.facts()
        if contender.peak_bytes:
            facts |= {PEAK_MIB: round(contender.peak_bytes(prepared.run) / _MIB, 3)}
        shares = contender.shares(prepared.run) if contender.shares else {}
    except Exception as error:
        facts = {"failure": failure_of(error)}
    return Row(
        problem=problem,
        contender=contender.name,
        ms=middle,
        quartiles_ms=(lower, upper),
        rounds=len(prepared.times_ms),
        clock="host" if contender.on_host else "device events",
        errors=prepared.errors,
        error_allowed=error_allowed(precision_of(contender.precision or problem.precision)) if prepared.errors else None,
        prepare_seconds=round(prepared.prepare_seconds, 3),
        facts=facts,
        shares=shares,
    )
