"""The daily share of cases that are alike: no value is left out, and no failure is lost."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from support.everyday import for_each, in_turn, one_in


def everyday(cases: list[object]) -> list[tuple[object, ...]]:
    return [case.values for case in cases if not case.marks]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sizes", [(2, 2), (3, 5), (2, 4, 2), (2, 3, 3)], ids=str)
def test_every_value_has_its_turn(sizes: tuple[int, ...]) -> None:
    cases = in_turn(*map(range, sizes))
    chosen = everyday(cases)
    assert len(cases) == len({case.values for case in cases}) and len(chosen) == -(-len(cases) // 2)
    # Of two choices each value, of three each pair of values.
    for places in itertools.combinations(range(len(sizes)), len(sizes) - 1):
        wanted = set(itertools.product(*(range(sizes[place]) for place in places)))
        assert {tuple(case[place] for place in places) for case in chosen} == wanted


def test_one_in_takes_the_first() -> None:
    assert everyday(one_in(3, range(7))) == [(0,), (3,), (6,)]


def test_every_case_that_fails_is_named() -> None:
    checked = []

    @for_each(range(5))
    def test_small(number: int) -> None:
        checked.append(number)
        assert number in (0, 2, 4), "is odd"

    with pytest.raises(AssertionError, match=re.compile(r"1: is odd.*3: is odd", re.DOTALL)):
        test_small()
    assert checked == [*range(5)] and test_small.__name__ == "test_small"
    with pytest.raises(AssertionError):
        for_each([])(print)()


def test_gradients_of_torch_are_checked_in_one_place() -> None:
    """Element by element they take as many calls as there are elements, which only the whole matrix has time for."""
    folder = Path(__file__).parent
    paths = [path for path in folder.rglob("*.py") if re.search(r"autograd\.gradcheck\(", path.read_text(encoding="utf-8"))]
    allowed = {folder / "support" / "gradients_checked.py", folder / "torch_layers" / "test_filters.py"}
    assert {path for path in paths if path != Path(__file__)} <= allowed
