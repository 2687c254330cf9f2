"""A GPU held against its profile: the driver's facts, rates, each kernel family against the fp64 oracle, and picks."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from minrnn_gen import __version__
from minrnn_gen.build.explain import variables_in_words
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.environment import debug_build_is_asked_for
from minrnn_gen.config.gpu_profile import MEASURED, GpuProfile, load_profile, profile_mismatches
from minrnn_gen.errors import INSTALL_CUDA, BadInput, CompileFailed, Infeasible, PromiseBroken, ToolchainMissing
from minrnn_gen.gpu import device
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.plan.solver import Solution
from minrnn_gen.tune import calibrate
from minrnn_gen.tune.anonymous import anonymous
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.check_problems import CheckedProblem, family_problems, pick_problems
from minrnn_gen.tune.check_results import GpuCheck, KernelCheck, KernelOutcome, PickCheck, RateCheck
from minrnn_gen.tune.device import open_measurer
from minrnn_gen.tune.measurer import CannotMeasure, Measurer
from minrnn_gen.tune.racing import run_race
from minrnn_gen.tune.results import CandidateKey, Result, Setting, key_of

# Candidates of a problem that are measured: the first pick, and the best predicted others.
CANDIDATES = 8
# Times of one measurement of a pick.
REPEATS = 3
# The most seconds of a race; decided races end after a few.
RACE_SECONDS = 30.0
# Candidates of a family that are compiled until one keeps its promise.
ATTEMPTS = 16
CUPY_NAMES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")

# The activity, and the share of all that is done.
Watch = Callable[[str, float], None]
Rates = Callable[[], Mapping[str, float]]


@dataclass
class ResultsInMemory:
    """A log of results in memory alone, empty at first."""

    results: list[Result] = field(default_factory=list)

    def known(self, _setting: Setting) -> Sequence[Result]:
        """Return no history: a check reports only its own measurements."""
        return ()

    def add(self, results: Sequence[Result]) -> None:
        """Keep results."""
        self.results += results


@dataclass(frozen=True)
class DeviceCheck:
    """A check of one device by a profile; `rates` measures the device, `measurer` runs candidates on it."""

    profile: GpuProfile
    live: LiveDevice
    rates: Rates
    measurer: Measurer
    store: Store
    is_quick: bool = False
    watch: Watch = lambda _doing, _share: None
    compilers: int = field(default_factory=lambda: os.cpu_count() or 1)

    def run(self) -> GpuCheck:
        """Return the findings; raises BadInput for cells or settings that cannot be planned, and no error for a faulty GPU."""
        profile, live = self.profile, self.live
        self.watch("rates of the device", 0.0)
        rates, why_no_rates = self._rates()
        families = list(family_problems(profile, self.is_quick))
        picks = list(pick_problems(profile, self.is_quick))
        kernels: list[KernelCheck] = []
        judged: list[PickCheck] = []
        if self.loads_its_kernels:
            for done, problem in enumerate((*families, *picks)):
                self.watch(f"{problem.label} {problem.kernel_pass}", (done + 1) / (len(families) + len(picks) + 1))
                if done < len(families):
                    kernels += self._family_checks(problem)
                else:
                    judged.append(self._pick_check(problem))
        return GpuCheck(
            profile=profile.name,
            profile_arch=profile.arch,
            checked_before=profile.checked or "",
            device=live.name,
            compute_capability=live.compute_capability,
            versions=versions(self.measurer.driver),
            mismatches=tuple(profile_mismatches(profile, live.name, live.compute_capability, live.attributes)),
            copy_assumed=profile.bandwidth_bytes_per_s,
            datasheet_bandwidth=profile.memory_bandwidth_bytes_per_s,
            rates=rates,
            why_no_rates=why_no_rates,
            is_quick=self.is_quick,
            kernels=tuple(kernels),
            picks=tuple(judged),
        )

    @property
    def loads_its_kernels(self) -> bool:
        """Whether the driver loads kernels compiled for the profile: it refuses another architecture's."""
        return self.profile.compute_capability == self.live.compute_capability

    def _rates(self) -> tuple[tuple[RateCheck, ...], str]:
        try:
            here = self.rates()
        except ToolchainMissing as missing:
            return (), anonymous(str(missing))
        return tuple(RateCheck(name, getattr(self.profile, name), here[name]) for name in MEASURED if name in here), ""

    def _pool(self, problem: CheckedProblem, log: ResultsInMemory) -> CandidatePool:
        target = Target(self.profile, self.profile.model_dump_json().encode(), "spec")
        builder = problem.builder(target, self.store)
        return CandidatePool(builder, problem.key(builder), self.measurer, log, self.compilers)

    def _family_checks(self, problem: CheckedProblem) -> Iterator[KernelCheck]:
        """Yield the result of the best predicted candidate of each family that serves the problem."""
        log = ResultsInMemory()
        try:
            pool = self._pool(problem, log)
        except Infeasible as nothing:
            yield KernelCheck("", problem.label, problem.kernel_pass, "none", note=str(nothing))
            return
        for solution in pool.solutions:
            log.results.clear()
            outcome, note = self._tried(pool, solution)
            last = log.results[-1] if log.results else None
            yield KernelCheck(
                solution.family.name,
                problem.label,
                problem.kernel_pass,
                last.outcome if last else outcome,
                last.error_share if last else None,
                min(last.times_us) if last and last.times_us else None,
                anonymous(last.note if last else note),
            )

    def _tried(self, pool: CandidatePool, solution: Solution) -> tuple[KernelOutcome, str]:
        """Check the first candidate that keeps its promise; return the outcome, and a reason that the pool's log lacks."""
        note = ""
        for candidate in solution.candidates[:ATTEMPTS]:
            key = key_of(solution.family.name, candidate)
            try:
                pool.compiled(key)
                pool.measure(key, 1)
                return "measured", ""
            except PromiseBroken as broken:
                note = str(broken)
            except CompileFailed as failed:
                return "refused", str(failed)
            except CannotMeasure as failed:
                return "failed", str(failed)
        return "broken", note

    def _pick_check(self, problem: CheckedProblem) -> PickCheck:
        """Return how long the first pick takes, and the fastest of `CANDIDATES`, raced as tuning does."""
        log = ResultsInMemory()
        end = time.monotonic() + RACE_SECONDS

        try:
            pool = self._pool(problem, log)
            with closing(pool.arriving(CANDIDATES)) as arriving:
                run_race(arriving, lambda key: pool.measure(key, REPEATS), lambda: end - time.monotonic())
            medians_us, pick = pool.medians_us, self._pick_of(pool)
        except (Infeasible, CannotMeasure) as failed:
            return PickCheck(problem.label, problem.kernel_pass, note=anonymous(str(failed)))
        if pick is None:
            note = log.results[-1].note if log.results else "no candidate could be measured"
            return PickCheck(problem.label, problem.kernel_pass, note=anonymous(note))
        best = min(medians_us, key=lambda key: medians_us[key])
        return PickCheck(
            problem.label,
            problem.kernel_pass,
            _in_words(pick),
            pool.predicted_us(pick),
            medians_us[pick],
            _in_words(best),
            medians_us[best],
            len(medians_us),
        )

    @staticmethod
    def _pick_of(pool: CandidatePool) -> CandidateKey | None:
        """Return the candidate that `compile` takes: the first of the preferred family that was not dropped."""
        ordered = (key_of(solution.family.name, candidate) for solution in pool.solutions for candidate in solution.candidates)
        return next((key for key in ordered if key in pool.times_us), None)


def check_here(gpu: str | None = None, is_quick: bool = False, watch: Watch = lambda _doing, _share: None) -> GpuCheck:
    """Check the GPU at hand by a profile, by name or path; by default by its own, ignoring calibrations made here.

    Raises ToolchainMissing where there is no GPU or no NVRTC, BadInput for an unknown profile, and in debug builds.
    """
    profile = load_profile(gpu) if gpu is not None else None
    live = device.live_device()
    if live is None:
        raise ToolchainMissing(
            f"check-gpu runs kernels on a GPU, but {device.why_no_gpu()}; run 'minrnn-gen doctor' to check the installation"
        )
    if toolchain_version() is None:
        raise ToolchainMissing(f"check-gpu needs NVRTC to compile kernels: {INSTALL_CUDA}")
    if debug_build_is_asked_for():
        raise BadInput("MINRNN_DEBUG is set, and debug builds are slower than others; unset it to check a GPU")
    if profile is None:
        profile = load_profile(live.profile.name) if live.profile_is_shipped else live.profile
    with closing(open_measurer()) as measurer, tempfile.TemporaryDirectory() as folder:
        return DeviceCheck(profile, live, _rates_here, measurer, Store(Path(folder)), is_quick, watch).run()


def _rates_here() -> Mapping[str, float]:
    rates, _ = calibrate.measured_rates()
    return rates


def versions(driver: str) -> dict[str, str]:
    """Return the facts that a result may depend on, by name; nothing that names a machine, a path or a person."""
    releases = {
        "minrnn-gen": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "driver": driver or "unknown",
        "NVRTC": toolchain_version() or "none",
        "CuPy": "none",
        "date": datetime.now(UTC).date().isoformat(),
    }
    for name in CUPY_NAMES:
        try:
            return releases | {"CuPy": f"{metadata.version(name)} ({name})"}
        except metadata.PackageNotFoundError:
            continue
    return releases


def _in_words(key: CandidateKey) -> str:
    family, variables = key
    return f"{family} ({variables_in_words(dict(variables))})"
