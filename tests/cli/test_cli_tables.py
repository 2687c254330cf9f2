"""A pipe gets what rich would print there, without rich."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.examples import examples

from minrnn_gen.cli.tables import Screen, Table, Title
from minrnn_gen.cli.terminal import PIPE_COLUMNS, facts, new_table

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    if draw(st.booleans()):
        return facts(draw(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4)))
    headings = draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
    table = new_table(*headings, right=draw(st.sets(st.sampled_from(headings))))
    for row in draw(st.lists(st.lists(TEXTS, min_size=1, max_size=len(headings)), max_size=4)):
        table.add_row(*row)
    return table


def by_rich(shown: Table | Title | str) -> str:
    console = Console(markup=False, highlight=False, emoji=False, width=PIPE_COLUMNS, height=25)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


@settings(max_examples=examples(100))
@given(st.one_of(tables(), TEXTS, st.builds(Title, st.tuples(st.tuples(TEXTS, st.booleans())))))
def test_a_pipe_gets_what_rich_prints(shown: Table | Title | str) -> None:
    lines = [shown] if isinstance(shown, str) else shown.plain()
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in by_rich(shown).splitlines()]


@pytest.mark.parametrize("text", ["x" * (PIPE_COLUMNS + 1), "\u4e2d", "a\tb", "two\nlines"])
def test_the_rest_is_left_to_rich(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Screen(PIPE_COLUMNS, 25).print(text)
    assert capsys.readouterr().out == by_rich(text)


def test_a_warm_compile_prints_without_rich() -> None:
    program = (
        "import sys, typer; by_typer = 'rich' in sys.modules\n"  # its versions before 0.17 import it
        "from minrnn_gen.cli.terminal import console, facts, new_table\n"
        "table = new_table('kernel', 'bytes', right=('bytes',)); table.add_row('scan', '12')\n"
        "console().print(facts([('class', 'scan')])); console().print(); console().print(table)\n"
        "print('rich' in sys.modules and not by_typer)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["class      scan", "", "kernel  bytes", "scan       12", "False"]
