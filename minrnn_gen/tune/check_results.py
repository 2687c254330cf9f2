"""Findings of a GPU check, and the faults among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.tune.results import Outcome

# A copy reaches the profile's bandwidth within this share: runs differ by 2 %, clocks and drivers by some more.
COPY_TOLERANCE = 0.15
# Shares of the datasheet's bandwidth that a copy reaches: 0.88 to 0.94 were seen.
SHARE_LEAST, SHARE_MOST = 0.75, 1.0
# Other rates may differ by this factor before the report remarks on it: the cost model scales by them.
RATE_FACTOR = 1.5
# The report remarks on a pick that takes this much longer than the best of its race.
REGRET_REMARKED = 1.1
COPY = "copy_bandwidth_bytes_per_s"

# none: the family, or every family, does not serve the problem on this GPU.
KernelOutcome = Outcome | Literal["none"]
# Outcomes that are no fault: promises of candidates are broken before anything runs, and a GPU lacks what a family needs.
SOUND = ("measured", "none")


@dataclass(frozen=True)
class RateCheck:
    """A rate of the profile, perhaps None, and the rate measured here."""

    name: str
    of_profile: float | None
    here: float

    @property
    def ratio(self) -> float | None:
        """The measured rate as a multiple of the profile's."""
        return self.here / self.of_profile if self.of_profile else None


@dataclass(frozen=True)
class KernelCheck:
    """A kernel of one family, run once: `error_share` is the largest error as a share of its tolerance; up to 1 is right."""

    family: str
    problem: str
    kernel_pass: KernelPass
    outcome: KernelOutcome
    error_share: float | None = None
    time_us: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PickCheck:
    """The cost model's pick of a problem and the fastest of the candidates raced with it; without times `note` says why."""

    problem: str
    kernel_pass: KernelPass
    pick: str = ""
    predicted_us: float | None = None
    pick_us: float | None = None
    best: str = ""
    best_us: float | None = None
    measured: int = 0
    note: str = ""

    @property
    def regret(self) -> float | None:
        """The time of the pick over that of the fastest."""
        return self.pick_us / self.best_us if self.pick_us and self.best_us else None


@dataclass(frozen=True)
class GpuCheck:
    """Findings about a device that a profile describes. `copy_assumed`: the copy bandwidth that plans assume."""

    profile: str
    profile_arch: str
    checked_before: str
    device: str
    compute_capability: str
    versions: Mapping[str, str]
    mismatches: tuple[str, ...]
    copy_assumed: float
    datasheet_bandwidth: float
    rates: tuple[RateCheck, ...]
    why_no_rates: str
    is_quick: bool
    kernels: tuple[KernelCheck, ...]
    picks: tuple[PickCheck, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Each fault as a sentence: of the profile, then of kernels."""
        return (*self.mismatches, *self._faults_of_bandwidth(), *self._faults_of_kernels())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Findings that can only cost speed, each as a sentence."""
        return (*self._remarks_on_rates(), *self._remarks_on_picks())

    def summary(self) -> dict[str, Any]:
        """Return all findings as plain data, with faults, remarks, and the numbers derived from times."""
        data = asdict(self) | {"faults": list(self.faults), "remarks": list(self.remarks)}
        data["rates"] = [asdict(rate) | {"ratio": rate.ratio} for rate in self.rates]
        data["picks"] = [asdict(pick) | {"regret": pick.regret} for pick in self.picks]
        return data

    def _faults_of_bandwidth(self) -> Iterator[str]:
        if self.why_no_rates:
            yield f"rates: {self.why_no_rates}"
        here = next((rate.here for rate in self.rates if rate.name == COPY), None)
        if here is None:
            return
        if abs(here / self.copy_assumed - 1) > COPY_TOLERANCE:
            yield f"{COPY}: plans reckon with {self.copy_assumed:.4g} by the profile, a copy here reaches {here:.4g}"
        share = here / self.datasheet_bandwidth
        if not SHARE_LEAST <= share <= SHARE_MOST:
            yield (
                f"memory_bandwidth_bytes_per_s: the profile has {self.datasheet_bandwidth:.4g}, and a copy here reaches "
                f"{share:.0%} of it; {SHARE_LEAST:.0%} to {SHARE_MOST:.0%} are usual"
            )

    def _faults_of_kernels(self) -> Iterator[str]:
        if not self.kernels:
            capability = self.compute_capability
            yield f"kernels: none were run, since those for {self.profile_arch} are not for compute capability {capability}"
        for kernel in self.kernels:
            if kernel.outcome not in SOUND:
                note = kernel.note or "no reason is known"
                yield f"{kernel.family}: {kernel.outcome} for {kernel.problem}, {kernel.kernel_pass}: {note}"
        for pick in self.picks:
            if pick.regret is None:
                yield f"pick of {pick.problem}, {pick.kernel_pass}: {pick.note}"

    def _remarks_on_rates(self) -> Iterator[str]:
        for rate in self.rates:
            if rate.name != COPY and rate.ratio and abs(math.log(rate.ratio)) > math.log(RATE_FACTOR):
                yield f"{rate.name}: the profile has {rate.of_profile:.4g}, measured here were {rate.here:.4g}"

    def _remarks_on_picks(self) -> Iterator[str]:
        for pick in self.picks:
            if pick.regret is not None and pick.regret > REGRET_REMARKED:
                yield (
                    f"pick of {pick.problem}, {pick.kernel_pass}: takes {pick.regret:.2f} times as long as the best of "
                    f"{pick.measured}, {pick.best}"
                )
