"""Which cases of a test are run every day: a few of those that are alike. All of them are part of the whole matrix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases of which every `count`-th is run every day, the first too; a tuple is a case of several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.matrix_full if number % count else ())
        for number, case in enumerate(cases)
    ]
