"""Numbers of a program: expressions have the values, the bounds and the divisors of the integers that they stand for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.program.number import (
    Undecided,
    bounds,
    divided_up,
    divisor_of,
    least,
    most,
    overlapped,
    paths,
    same,
    symbol,
    text,
    value,
)

SYMBOLS = {"batch": (1, 64, 1), "time": (1, 4096, 1), "stride": (0, 1 << 20, 16)}
BINARY: tuple[Callable[..., Any], ...] = (operator.add, operator.mul, operator.sub, least, most)
COMPARISONS: tuple[Callable[..., Any], ...] = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    return {name: draw(st.integers(low // step, high // step)) * step for name, (low, high, step) in SYMBOLS.items()}


@st.composite
def numbers(draw: st.DrawFn, values: dict[str, int], depth: int = 4) -> tuple[Any, int]:
    """Draw an expression, and the integer that it is where symbols have these values."""
    kind = draw(st.sampled_from(("symbol", "integer", "binary", "//", "up"))) if depth else "symbol"
    if kind == "integer":
        number = draw(st.integers(0, 64))
        return number, number
    if kind == "symbol":
        name = draw(st.sampled_from(sorted(SYMBOLS)))
        return symbol(name, *SYMBOLS[name]), values[name]
    first, known = draw(numbers(values, depth - 1))
    if kind == "binary":
        second, other = draw(numbers(values, depth - 1))
        apply = draw(st.sampled_from(BINARY))
        return apply(first, second), apply(known, other)
    by = draw(st.integers(1, 48))
    if kind == "up" and bounds(first)[0] >= 0:
        return divided_up(first, by), -(-known // by)
    return first // by, known // by


@given(st.data())
def test_expressions_are_the_integers_that_they_stand_for(data: st.DataObject) -> None:
    values = data.draw(sizes())
    number, known = data.draw(numbers(values))
    assert value(number, values) == known
    low, high = bounds(number)
    assert low <= known <= high
    assert known % divisor_of(number) == 0


@given(st.data())
def test_conditions_are_decided_by_bounds_or_not_at_all(data: st.DataObject) -> None:
    values = data.draw(sizes())
    (first, known), (second, other) = data.draw(numbers(values)), data.draw(numbers(values))
    for compare in COMPARISONS:
        condition = compare(first, second)
        assert bool(value(condition, values)) == compare(known, other)
        try:
            decided = bool(condition)
        except Undecided:
            continue
        assert decided == compare(known, other)


@given(st.lists(st.integers(0, 1 << 60), min_size=2, max_size=2))
def test_what_overlaps_is_the_root_of_third_powers(parts: list[int]) -> None:
    exact = math.fsum(float(part) ** 3 for part in parts) ** (1 / 3)
    assert overlapped(*parts) == pytest.approx(exact, rel=1e-12, abs=1)
    first, second = symbol("first"), symbol("second")
    known = value(overlapped(first, second), dict(zip(("first", "second"), parts, strict=True)))
    assert known == overlapped(*parts) == overlapped(*reversed(parts))


def test_sizes_that_are_not_known_decide_nothing() -> None:
    time = symbol("time", 1)
    assert time > 0 and time >= 1 and not time < 1 and time  # each of them is decided
    with pytest.raises(Undecided, match="depends on sizes that are not known here"):
        bool(time > 1)
    with pytest.raises(Undecided):
        bool(symbol("batch"))
    assert least(time, 0) == 0 and most(time, 1) is time
    assert time != None and time != "time"  # noqa: E711  # as an absent array compares


def test_rounding_up_has_one_form() -> None:
    time = symbol("time", 1)
    assert same(-(-time // 16), divided_up(time, 16))
    assert -(-35 // 16) == divided_up(35, 16) == 3


def test_expressions_are_printed_for_people() -> None:
    batch, time = symbol("batch", 1), symbol("time", 1)
    assert text(batch * divided_up(time, 32) * 64) == "(64 * (batch * divided_up(time, 32)))"
    assert text(least(batch + 1, 2 * time)) == "least((batch + 1), (2 * time))"
    assert text((time * 6) // 3) == "(2 * time)"
    assert text((batch - time) // 2) == "((batch + (-1 * time)) // 2)"


@given(st.integers(-(1 << 40), 1 << 40))
def test_the_divisor_of_an_integer_is_its_lowest_bit(number: int) -> None:
    divisor = divisor_of(number)
    assert number % divisor == 0 and (not number or number % (2 * divisor) != 0) and math.log2(divisor).is_integer()


@given(st.data())
def test_paths_decide_every_condition_once_in_each_way(data: st.DataObject) -> None:
    """For any sizes exactly one path of a branching function holds, and it returns what the function does."""
    values = data.draw(sizes())
    drawn = [data.draw(numbers(values))[0] for _ in range(3)]

    def branching(known: list[Any]) -> list[int]:
        first, second, third = known
        taken = [0] if first < second else [1, 2] if second == third else [3]
        return taken + ([4] if not third else [5] if third > first else [])

    found = list(paths(lambda: branching(drawn)))
    fitting = [result for decided, result in found if all(bool(value(each, values)) is holds for each, holds in decided)]
    assert fitting == [branching([value(number, values) for number in drawn])]
