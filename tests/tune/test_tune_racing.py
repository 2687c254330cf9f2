"""The race: who wins is nearly the fastest, whatever the noise, and no time is spent on what is decided."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.tune.racing import ALIKE, ROUNDS_MOST, noise_of, run_race

TRUTHS = st.lists(st.floats(1, 1000), min_size=1, max_size=24)
FOREVER = 1e9


class Field:
    """Contenders by number, with true times, and noise that now and then is an outlier."""

    def __init__(self, truths: Sequence[float], noise: float, seed: int = 0) -> None:
        self.truths, self.noise = truths, noise
        self.random = random.Random(seed)
        self.visits: list[int] = []

    def visit(self, one: int) -> list[float]:
        self.visits.append(one)
        return [self._time(one) for _ in range(3)]

    def _time(self, one: int) -> float:
        outlier = 1.5 if self.random.random() < 0.02 else 1.0
        return outlier * self.truths[one] * math.exp(self.random.gauss(0, self.noise))

    def regret(self, leader: int | None) -> float:
        assert leader is not None
        return self.truths[leader] / min(self.truths)


@given(TRUTHS, st.sampled_from([0.0, 0.002, 0.01, 0.05]), st.integers(0, 2**32))
def test_the_winner_is_nearly_the_fastest(truths: list[float], noise: float, seed: int) -> None:
    field = Field(truths, noise, seed)
    race = run_race(range(len(truths)), field.visit, lambda: FOREVER)
    # A decision is within what counts as alike, and beside it what noise does to medians of at least three times.
    assert field.regret(race.leader) <= 1 + ALIKE + 5 * noise
    assert race.ended in ("decided", "rounds")
    assert len(field.visits) <= len(truths) * (1 + ROUNDS_MOST)


@given(st.floats(0.001, 0.02), st.integers(0, 2**32))
def test_a_clear_lead_ends_the_race_at_once(noise: float, seed: int) -> None:
    """At twice the time nobody is measured again, and nobody is measured more often than the leader."""
    field = Field([100.0, *[200.0 + one for one in range(15)]], noise, seed)
    race = run_race(range(16), field.visit, lambda: FOREVER)
    assert (race.leader, race.ended, len(field.visits)) == (0, "decided", 16)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=9), st.floats(0.001, 0.1), st.integers(0, 2**32))
def test_noise_is_found_from_few_times_of_each(truths: list[float], noise: float, seed: int) -> None:
    field = Field(truths, noise, seed)
    found = noise_of([field.visit(one) + field.visit(one) + field.visit(one) for one in range(len(truths))])
    assert noise / 4 < found < 4 * noise


@given(TRUTHS, st.integers(0, 40))
def test_no_visit_begins_after_the_end_but_the_first(truths: list[float], visits: int) -> None:
    field = Field(truths, 0.05)
    race = run_race(range(len(truths)), field.visit, lambda: visits - len(field.visits))
    assert len(field.visits) <= max(1, visits) and race.leader in race.times_us


@given(TRUTHS, st.integers(0, 60))
def test_an_interruption_keeps_what_is_known(truths: list[float], at: int) -> None:
    field = Field(truths, 0.05)

    def visit(one: int) -> list[float]:
        if len(field.visits) == at:
            raise KeyboardInterrupt
        return field.visit(one)

    race = run_race(range(len(truths)), visit, lambda: FOREVER)
    assert set(race.times_us) == set(field.visits) and sum(map(len, race.times_us.values())) == 3 * len(field.visits)
    assert (race.leader is None) == (at == 0)
    # And goes on from there.
    again = Field(truths, 0.05, seed=1)
    second = run_race(range(len(truths)), again.visit, lambda: FOREVER, race.times_us)
    assert again.regret(second.leader) <= 1.3 and set(second.times_us) == set(range(len(truths)))


@given(st.sets(st.integers(0, 7)))
def test_who_is_out_is_never_the_winner(out: set[int]) -> None:
    field = Field([1.0 + one for one in range(8)], 0.01)
    race = run_race(range(8), lambda one: None if one in out else field.visit(one), lambda: FOREVER)
    assert race.leader == min(set(range(8)) - out, default=None) and not out & set(race.times_us)
    assert (race.ended == "nothing") == (len(out) == 8)
