"""The choice of candidates by earlier measurements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.store import Store, cache_folder, templates_digest
from minrnn_gen.build.tuned_choice import Choice, Trial
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu.driver import driver_release
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, Problem, Sizes
from minrnn_gen.tune.device import open_measurer
from minrnn_gen.tune.history import History, open_history
from minrnn_gen.tune.measurer import CannotMeasure, MeasurementFailed, Measurer
from minrnn_gen.tune.results import Outcome, Result, Setting, setting_of

LOG = logging.getLogger("minrnn_gen")


class _Evidence(NamedTuple):
    """Setting that a choice was made for, where known, and whether the choice shipped with the package."""

    setting: Setting | None
    is_shipped: bool


@dataclass(frozen=True)
class TunedLookup:
    """The fastest candidates of a history; may be used from several threads.

    `device` and `driver` are those of the GPU `gpu` where it is at hand, else empty. `open_measurer` opens the measurer that
    checks a choice on it, or returns None without one; the promises of its plan are checked in any case.
    """

    history: History
    gpu: str = ""
    device: str = ""
    driver: str = ""
    open_measurer: Callable[[], Measurer | None] = lambda: None

    def choice(self, problem: Problem, cell_digest: str) -> Choice | None:
        """Return the best known candidate for the problem, or for the nearest sizes on the same GPU."""
        bests = ((setting, self.history.best(setting)) for setting in self._settings(problem, cell_digest))
        setting, best = next(((setting, best) for setting, best in bests if best), (None, None))
        if best is None:
            return None
        where = best.setting.device
        if not best.is_exact:
            # Named with its origin, because it may not be as fast here.
            sizes = best.setting
            where += f" with hidden_size {sizes.hidden_size}, batch {sizes.batch}, time {sizes.time}, driver {sizes.driver}"
        evidence = _Evidence(setting, best.is_shipped)
        return Choice(best.family, best.variables, f"measured, {best.median_us:.4g} us on {where}", evidence)

    def measured(self, problem: Problem, cell_digest: str) -> Sequence[tuple[Sizes, Choice]]:
        """Return the sizes at which candidates were measured on this GPU, with the best of each; the last measured first."""
        bests: dict[Sizes, Choice] = {}
        for setting in self._settings(problem, cell_digest):
            for batch, time in self.history.sizes_measured(setting):
                best = self.history.best(replace(setting, batch=batch, time=time))
                if best and best.is_exact:
                    why = f"measured, {best.median_us:.4g} us on {best.setting.device}"
                    bests.setdefault(Sizes(batch, time), Choice(best.family, best.variables, why))
        return [*bests.items()]

    def _settings(self, problem: Problem, cell_digest: str) -> Iterator[Setting]:
        """Yield the settings whose measurements count, the problem's own first."""
        here = problem.gpu.name == self.gpu
        setting = setting_of(
            problem,
            cell_digest,
            device=self.device if here else "",
            driver=self.driver if here else "",
            toolchain=toolchain_version() or "",
            sources=templates_digest(),
        )
        return (replace(setting, specialization=counting) for counting in _counting_for(problem.specialization))

    def accepts(self, choice: Choice, trial: Trial) -> bool:
        """Run the choice on the GPU, where there is one to run it on; a wrong choice is remembered as wrong.

        A shipped choice was run as this very kernel before.
        """
        asked, is_shipped = choice.evidence or _Evidence(None, is_shipped=False)
        if is_shipped:
            return True
        measurer = self.open_measurer() if trial.plan.problem.gpu == self.gpu else None
        if measurer is None:
            return True
        try:
            share = measurer.error_share(trial)
        except MeasurementFailed as failed:
            self._spoil(asked, trial, "failed", str(failed))
            return False
        except CannotMeasure as reason:
            LOG.warning("%s", reason)
            return False
        finally:
            measurer.close()
        if not share <= 1:
            self._spoil(asked, trial, "wrong", f"{share:.3g} of the tolerance, on first use")
            return False
        return True

    def _spoil(self, asked: Setting | None, trial: Trial, outcome: Outcome, note: str) -> None:
        if asked is None:
            return
        family, when = trial.plan.name, datetime.now(UTC).isoformat(timespec="seconds")
        note = " ".join(note.split())[:500]
        self.history.add([Result(asked, family, dict(trial.plan.variables), outcome, note=note, when=when)])


@dataclass(frozen=True)
class JustTuned:
    """The winners of a tuning that has just ended, before the history: they count even where the disk keeps nothing."""

    winners: tuple[BuiltKernel, ...]
    lookup: TunedLookup

    def choice(self, problem: Problem, cell_digest: str) -> Choice | None:
        """Return the candidate that won for this kernel."""
        won = dict(self._won(problem))
        return won.get(problem.sizes) or self.lookup.choice(problem, cell_digest)

    def measured(self, problem: Problem, cell_digest: str) -> Sequence[tuple[Sizes, Choice]]:
        """Return the tuned sizes, and the history's."""
        won = self._won(problem)
        tuned_sizes = {sizes for sizes, _ in won}
        before = self.lookup.measured(problem, cell_digest)
        return [*won, *((sizes, choice) for sizes, choice in before if sizes not in tuned_sizes)]

    def _won(self, problem: Problem) -> list[tuple[Sizes, Choice]]:
        """The winners of the problem's pass and specialization, with the sizes at which they won."""
        keys, won = [(KernelKey.of(built.plan), built) for built in self.winners], dict[Sizes, Choice]()
        for specialization in _counting_for(problem.specialization):
            for key, built in keys:
                if (key.kernel_pass, key.specialization) == (problem.kernel_pass, specialization):
                    won.setdefault(key.sizes, Choice(built.plan.name, built.plan.variables, built.chosen))
        return [*won.items()]

    def accepts(self, choice: Choice, trial: Trial) -> bool:
        """Say whether a choice is right; those that won were checked."""
        return any(built.plan == trial.plan for built in self.winners) or self.lookup.accepts(choice, trial)


def _counting_for(specialization: Specialization) -> tuple[Specialization, ...]:
    """Return the specializations whose measurements count: what is best of products apart is a good guess of added ones."""
    return tuple(dict.fromkeys((specialization, replace(specialization, products_added=False))))


@dataclass(frozen=True)
class Winners:
    """Opens the winners of a tuning that has just ended; after pickling, it opens the history, which holds them too."""

    built: tuple[BuiltKernel, ...]

    def __call__(self) -> JustTuned:
        return JustTuned(self.built, remembered())

    def __reduce__(self) -> tuple[Any, ...]:
        return _opens_history, ()


def _opens_history() -> Callable[[], TunedLookup]:
    return remembered


def remembered() -> TunedLookup:
    """Return the history here, for the GPU at hand."""
    history, live = open_history(Store(cache_folder())), gpu_device.live_device()
    if live is None:
        return TunedLookup(history)
    return TunedLookup(history, live.profile.name, live.name, driver_release() or "", _opened)


def _opened() -> Measurer | None:
    try:
        return open_measurer()
    except ToolchainMissing:
        return None
