"""Needs of measuring on a GPU, and its failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.errors import MinrnnError


class MeasurementFailed(MinrnnError):
    """A candidate, or the process that measured it, came to an error."""


class MeasurementHung(MeasurementFailed):
    """A candidate had not ended after the time it was given."""


class CannotMeasure(MinrnnError):
    """Nothing can be measured here, whatever the candidate: what a call needs besides cannot be made."""


class Measurer(Protocol):
    """A GPU that runs candidates. `prepare` raises CannotMeasure, and so may the others.

    `error_share` and `times_us` raise MeasurementFailed, or MeasurementHung, for a candidate that cannot be run to its end,
    after which the measurer is as good as before.
    """

    @property
    def gpu(self) -> str:
        """The name of the GPU's profile."""

    @property
    def device(self) -> str:
        """The driver's name of the GPU."""

    @property
    def driver(self) -> str:
        """The driver's release."""

    def prepare(self, trial: Trial) -> None:
        """Make what running the candidate needs, which is the same for all candidates of its kernel; runs nothing of it."""

    def error_share(self, trial: Trial) -> float:
        """Run a candidate and return its largest error against the fp64 reference, as a share of the tolerance; 1 is right."""

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        """Run a candidate so often, each time with a cold L2 cache, and return how long it took by the device's clock.

        Of a slow one fewer times, one at least.
        """

    def close(self) -> None:
        """Give back what was taken for measuring."""
