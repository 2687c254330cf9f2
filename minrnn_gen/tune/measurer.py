"""The interface of measuring on a GPU, and its failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.errors import MinrnnError


class MeasurementFailed(MinrnnError):
    """A candidate, or the process that measured it, failed."""


class MeasurementHung(MeasurementFailed):
    """A candidate did not finish within its time limit."""


class CannotMeasure(MinrnnError):
    """Nothing can be measured here, whatever the candidate: the rest of a call cannot be prepared."""


class Measurer(Protocol):
    """A GPU that runs candidates. `prepare` raises CannotMeasure, and so may the others.

    `error_share` and `times_us` raise MeasurementFailed, or MeasurementHung, for a candidate that does not run to its end; the
    measurer stays usable.
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
        """Prepare everything that running the candidate needs, shared by all candidates of its kernel; does not run it."""

    def error_share(self, trial: Trial) -> float:
        """Run a candidate and return its largest error against the fp64 reference, as a share of the tolerance; 1 is right."""

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        """Run a candidate this many times, each with a cold L2 cache, and return the times by the device's clock.

        A slow candidate runs fewer times, at least once.
        """

    def close(self) -> None:
        """Release all resources of measuring."""
