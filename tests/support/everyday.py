"""Which cases of a test are run every day: a few of those that are alike. All of them are part of the whole matrix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases of which every `count`-th is run every day, the first too; a tuple is a case of several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.matrix_full if number % count else ())
        for number, case in enumerate(cases)
    ]


def in_turn(*choices: Iterable[Any]) -> list[Any]:
    """Return the product of choices, of which every second case is run every day, the first too.

    Every value of two choices is among them, and every pair of values of three or more.
    """
    numbered = itertools.product(*(enumerate(values) for values in choices))
    return [
        pytest.param(*values, marks=pytest.mark.matrix_full if sum(places) % 2 else ())
        for places, values in (zip(*case, strict=True) for case in numbered)
    ]


def for_each(cases: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Make one test of a check over many cases, for checks that are faster than pytest is with a test of each.

    All cases are checked, and those that fail are named.
    """
    cases = [*cases]

    def for_all(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for case in cases:
                try:
                    check(case)
                except AssertionError as error:
                    wrong.append(f"{case}: {error}")
            assert cases and not wrong, "\n".join(wrong)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return for_all
