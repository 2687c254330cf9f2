"""Cell text is untrusted: whatever it holds, the answer is a cell or one `BadInput`, soon, and nothing in it is executed."""

from __future__ import annotations

import ast
import builtins
import inspect
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import built_in, cell_of
from support.examples import examples
from support.one_step import lower_step
from support.patience import within

from minrnn_gen.cell import (
    analysis,
    expressions,
    files,
    functions,
    language,
    liveness,
    lowering,
    printing,
    program,
    syntax,
    value_numbering,
)
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import library_names
from minrnn_gen.cell.lowering import lower_scan
from minrnn_gen.errors import BadInput

TEXTS = [built_in(name).equations for name in library_names()]
# What a text is made of, so that random texts often get past the first character.
WORDS = """
    h[t] h[t-1] c[t] W.h W.z R.h z t ( ) [ ] , . + - * / ** 0 1 2 0.5 1e9 sigmoid( tanh( where( max( detach( < == # { } :
    canary() canary(t) W.canary canary.real @canary lambda:canary() __import__('os') __class__ \\ ' " é
"""
PIECES = [*WORDS.split(), " = ", "\n", "\t", "\r", "\x0c", " if ", " else ", " and ", "not ", "\ud800", "\x00"]


def answer_of(equations: str, **keys: Any) -> None:
    """Take a cell all the way; raises `BadInput` or returns."""
    cell = cell_of(equations, **keys)
    recurrence = classify(cell)
    steps = [lower_step(cell)]
    if recurrence.kind == "affine-diagonal":
        lowered = lower_scan(cell, recurrence)
        steps += [lowered.coefficients, lowered.output]
    for step in steps:
        assert all(isinstance(statement.cuda, str) for statement in step.statements)


def checked_answer_of(equations: str, **keys: Any) -> None:
    try:
        answer_of(equations, **keys)
    except BadInput as error:
        assert "\n" not in str(error) and len(str(error)) < 800


@pytest.fixture(autouse=True, scope="module")
def _canary() -> Iterator[None]:
    """Many of the pieces call `canary`, which exists everywhere: text that is executed is heard of."""

    def canary(*_: object) -> None:
        raise AssertionError("text was executed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "canary", canary, raising=False)
        yield


fuzzing = settings(max_examples=examples(250))


@fuzzing
@given(st.text(max_size=200))
def test_any_text(equations: str) -> None:
    checked_answer_of(equations)


@fuzzing
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_text_made_of_the_languages_pieces(equations: str) -> None:
    checked_answer_of(equations)


@fuzzing
@given(
    st.sampled_from(TEXTS), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(PIECES)), max_size=4)
)
def test_built_in_cells_with_parts_replaced(equations: str, changes: list[tuple[int, int, str]]) -> None:
    for start, length, piece in changes:
        start %= len(equations) + 1
        equations = equations[:start] + piece + equations[start + length :]
    checked_answer_of(equations)


@fuzzing
@given(st.sampled_from(TEXTS), st.permutations(range(8)))
def test_built_in_cells_with_lines_exchanged(equations: str, order: list[int]) -> None:
    lines = equations.splitlines()
    checked_answer_of("\n".join(lines[index] for index in order if index < len(lines)))


@fuzzing
@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_output(output: str) -> None:
    checked_answer_of(TEXTS[0], output=output)


def chain(lines: int, line: str, first: str, last: str) -> str:
    """x0 = first, then `line` with {0} the last and {1} the next number, then `last`."""
    return "\n".join([f"x0 = {first}", *(line.format(n, n + 1) for n in range(lines)), last.format(lines)])


DOUBLING = chain(60, "x{1} = x{0} + x{0}", "W.h * h[t-1]", "h[t] = x{0}")
TWINS = "\n".join(
    [
        "x0 = W.h * h[t-1]\ny0 = W.h * h[t-1]",
        *(f"x{n + 1} = x{n} + x{n}" for n in range(13)),
        *(f"f{n} = W.h * {n}" for n in range(600)),
        *(f"y{n + 1} = y{n} + y{n}" for n in range(13)),
        "h[t] = x13 * W.h - y13 * W.h",
    ]
)
HOSTILE = {
    "100,000 operations": "h[t] = W.h" + " + 1" * 100_000,
    "100,000 operations in short lines": "h[t] = W.h\n" + "a = W.h + W.h\n" * 5_000,
    "a long sum": "h[t] = W.h" + "+1" * 15_000,
    "names only": "a " * 30_000,
    "signs": "h[t] = " + "-" * 1_900 + "W.h",
    "tildes": "h[t] = " + "~" * 60_000 + "W.h",
    "parentheses": "h[t] = " + "(" * 30_000 + "W.h" + ")" * 30_000,
    "open parentheses": "h[t] = " + "(" * 90,
    "brackets": "h[t] = " + "[" * 95 + "W.h",
    "calls": "h[t] = " + "sigmoid(" * 500 + "W.h" + ")" * 500,
    "attributes": "h[t] = W" + ".h" * 30_000,
    "subscripts": "h[t] = W.h" + "[t]" * 20_000,
    "not": "h[t] = " + "not " * 15_000 + "W.h",
    "if else": "h[t] = " + "W.h if W.h else " * 4_000 + "W.h",
    "comparisons": "h[t] = W.h" + " < 1" * 15_000,
    "powers of powers": "h[t] = W.h" + " ** 2" * 900,
    "powers of numbers": "h[t] = W.h * ((((9 ** 16) ** 16) ** 16) ** 16) ** 16",
    "fine numbers": "h[t] = W.h * (" + " + ".join(f"1 / {10**30 + n}" for n in range(90)) + ")",
    "a long number": "h[t] = W.h * 0." + "1" * 60_000,
    "a long name": "h[t] = " + "a" * 60_000,
    "doubling lets": DOUBLING,
    "doubling lets without a state": DOUBLING.replace("* h[t-1]", "* W.g"),
    "twins": TWINS,
    "deep squares": "h[t] = h[t-1] * W.h" + "".join(f"\nx{n} = {'(' * 25}W.h{' ** 16)' * 25}" for n in range(60)),
    "an expansion": "h[t] = (W.a + W.b + W.c + W.d + h[t-1]) ** 16 - h[t-1] ** 16",
    "expansions": "h[t] = " + " + ".join(f"((W.a + W.b + {n}) ** 9 * h[t-1] + W.c) ** 3" for n in range(40)),
    "states": "\n".join(f"s{n}[t] = W.h * s{n}[t-1]" for n in range(1_500)),
    "coupled states": "h[t] = W.h * (" + " + ".join(f"s{n}[t-1]" for n in range(90)) + ") ** 4\n"
    + "\n".join(f"s{n}[t] = W.h" for n in range(90)),
    "coupled conditions": chain(80, "x{1} = where(x{0} > x{0} * 2, x{0}, 1)", "W.h", "h[t] = x{0}"),
    "a megabyte": "#" * 1_000_000,
    "carriage returns": "\r" * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("equations", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_answered_in_well_under_a_second(equations: str) -> None:
    started = time.process_time()
    checked_answer_of(equations)
    checked_answer_of(equations, parameters=[f"p{n}" for n in range(9_000)], gates=["h"] * 10_000)
    assert time.process_time() - started < within(1.0)


def test_what_is_too_large_says_so() -> None:
    for name, fragment in {
        "100,000 operations in short lines": "characters and values",
        "a long sum": "more than 2,000 operations",
        "calls": "nest deeper than 100 levels",
        "doubling lets": "with all names replaced by their expressions",
        "a megabyte": "characters and values",
    }.items():
        with pytest.raises(BadInput) as caught:
            cell_of(HOSTILE[name])
        assert fragment in str(caught.value), name


@pytest.mark.parametrize(
    "module",
    [analysis, expressions, files, functions, language, lowering, value_numbering, program, syntax, printing, liveness],
    ids=lambda m: m.__name__,
)
def test_no_module_of_cells_can_execute_text(module: ModuleType) -> None:
    tree = ast.parse(Path(inspect.getfile(module)).read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    forbidden = {"eval", "exec", "compile", "sympify", "S", "parse_expr", "lambdify", "pickle", "__import__", "getattr_static"}
    # re.compile is the one harmless use of a forbidden word.
    assert not names & (forbidden - ({"compile"} if "re" in names else set()))
