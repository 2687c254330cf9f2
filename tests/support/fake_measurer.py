"""A GPU that is none: candidates have the times that a test gives them, with noise, and go wrong as it says."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.tune.measurer import MeasurementFailed
from minrnn_gen.tune.results import CandidateKey, key_of


def key(trial: Trial) -> CandidateKey:
    return key_of(trial.plan.name, trial.plan.variables)


def spread_us(candidate: CandidateKey) -> float:
    """Return a time between 10 and 20 us that has nothing to do with what is predicted, the same in every process."""
    return 10 + 10 * random.Random(repr(candidate)).random()


@dataclass
class FakeMeasurer:
    """`noise` is the relative standard deviation of a time; `interrupt_at`: Ctrl-C comes instead of that measurement."""

    truth_us: Callable[[CandidateKey], float] = spread_us
    noise: float = 0.01
    wrong: Callable[[CandidateKey], bool] = lambda _: False
    failing: Callable[[CandidateKey], bool] = lambda _: False
    interrupt_at: int | None = None
    seed: int = 0
    gpu: str = "h200"
    device: str = "NVIDIA H200"
    driver: str = "580.1"
    timed: list[CandidateKey] = field(default_factory=list)
    checked: list[CandidateKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def prepare(self, trial: Trial) -> None:
        pass

    def error_share(self, trial: Trial) -> float:
        self.checked.append(key(trial))
        return math.nan if self.wrong(key(trial)) else 0.5

    def times_us(self, trial: Trial, repeats: int) -> Sequence[float]:
        one = key(trial)
        if len(self.timed) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        if self.failing(one):
            raise MeasurementFailed("an illegal memory access")
        self.timed.append(one)
        return [self.truth_us(one) * math.exp(self._random.gauss(0, self.noise)) for _ in range(repeats)]

    def close(self) -> None:
        pass


if __name__ == "__main__":  # what a child process serves
    from minrnn_gen.tune.subprocess import serve

    serve(FakeMeasurer(), sys.stdin, sys.stdout)
