"""Things made at once: in order, from when each is known, until one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.patience import within

from minrnn_gen.build.at_once import made_at_once
from minrnn_gen.build.compiled_once import CompiledOnce
from minrnn_gen.build.nvrtc import CompiledSource
from minrnn_gen.errors import CompileFailed


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


def test_texts_that_differ_in_their_header_are_compiled_once() -> None:
    once, compiled = CompiledOnce(), list[str]()

    def get(text: str, how: str = "sm_90") -> CompiledSource:
        def compile_it() -> CompiledSource:
            compiled.append(text)
            time.sleep(0.05)  # so that others ask for it meanwhile
            return CompiledSource(text.encode(), ())

        return once.get(text, how, compile_it)

    texts = [f"// for {n}\n\n// and\nint a;  // {n % 2}\n" for n in range(8)]
    found = made_at_once(get, texts)
    assert len(compiled) == len({made.cubin for made in found}) == 2
    assert get(texts[0]) == found[0] and len(compiled) == 2
    assert get(texts[0], "sm_80") and len(compiled) == 3


def test_what_failed_to_compile_is_tried_again() -> None:
    once = CompiledOnce()

    def fails() -> CompiledSource:
        raise CompileFailed("no")

    for _ in range(2):
        with pytest.raises(CompileFailed):
            once.get("int a;", "sm_90", fails)
    made = CompiledSource(b"", ())
    assert once.get("int a;", "sm_90", lambda: made) is made
