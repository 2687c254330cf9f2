"""Things made at once: in order, from when each is known, until one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.patience import within

from minrnn_gen.build.at_once import made_at_once


def test_results_come_in_order_and_each_is_counted() -> None:
    seen: list[tuple[int, int]] = []
    assert made_at_once(lambda n: n * n, range(20), lambda done, of: seen.append((done, of))) == tuple(n * n for n in range(20))
    assert seen == [(done, 20) for done in range(1, 21)]
    assert made_at_once(str, ()) == ()


def test_each_is_begun_while_the_next_is_not_known_yet() -> None:
    begun = threading.Event()

    def wanted() -> Iterator[int]:
        yield 0
        assert begun.wait(within(10))
        yield 1

    def make(n: int) -> int:
        begun.set()
        return n

    assert made_at_once(make, wanted()) == (0, 1)


def test_two_are_made_at_once() -> None:
    both = threading.Barrier(2)
    assert made_at_once(lambda _: both.wait(within(10)) >= 0, range(2)) == (True, True)


def test_after_a_failure_no_other_is_begun() -> None:
    begun: list[int] = []

    def make(n: int) -> None:
        begun.append(n)
        if n == 0:
            raise ValueError("the first")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="the first"):
        made_at_once(make, range(1000))
    assert len(begun) < 1000
