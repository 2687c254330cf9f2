"""Output of the command line: one JSON object, text for people, and progress while they wait."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from minrnn_gen.cli.tables import Screen, Table

# A pipe has no width of its own: nothing that is printed here is wider, so that no line is broken in a log.
PIPE_COLUMNS = 160
# Where a terminal has no height of its own; nothing is cut at it.
_LINES = 25

# The longest label of most tables, so that one below the other line up.
_LABEL_COLUMNS = len("tolerance")

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Commands(TyperGroup):
    """A group of commands whose help wraps their summaries, which the library would cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command that is not hidden with its whole summary."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in commands if command and not command.hidden]
            )


def command_line(help_text: str, *, completes: bool = False, cls: type[Commands] = Commands) -> typer.Typer:
    """Return an empty command line or group of commands; `completes`: shells can be taught to complete the program.

    `cls` is its class, which finds the commands.
    """
    return typer.Typer(
        cls=cls,
        help=help_text,
        add_completion=completes,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_json(data: Mapping[str, Any]) -> None:
    """Write `data` to stdout as one JSON object."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def print_note(sentence: str) -> None:
    """Write a sentence to stderr, so that stdout stays clean."""
    sys.stderr.write(sentence + "\n")


def console() -> Screen:
    """Return stdout for people; where colours are forced on a pipe it passes for a terminal of the width of a pipe."""
    width, height = (PIPE_COLUMNS, _LINES)
    if sys.stdout.isatty():
        width, height = shutil.get_terminal_size((PIPE_COLUMNS, _LINES))
    return Screen(width, height)


def new_table(*headings: str, right: Collection[str] = ()) -> Table:
    """Return an empty table without lines; the columns in `right` are numbers, set flush right."""
    return Table(headings, right)


def facts(rows: list[tuple[str, str]]) -> Table:
    """Return labelled sentences, one below the other."""
    return Table(label_columns=_LABEL_COLUMNS, rows=list(rows))


@contextmanager
def progress(doing: str, quiet: bool = False) -> Iterator[None]:
    """Show activity on a terminal; nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(f"{doing} ..."):
        yield


@contextmanager
def progress_bar(title: str, quiet: bool = False) -> Iterator[Callable[[str, float, str], None]]:
    """Yield a function that shows (the activity, the share done, a note) on a terminal, and nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda _doing, _share, _note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[note]}", markup=False))
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(title, total=1.0, note="")
        yield lambda doing, share, note: bar.update(task, description=doing, completed=share, note=note)


@contextmanager
def counting(doing: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the number done of a total, as `progress_bar` does."""
    with progress_bar(doing, quiet) as show:
        yield lambda done, of: show(doing, done / of, f"{done} of {of}")


def size_text(size_bytes: int) -> str:
    """Return a size in the largest binary unit that keeps it at 1 or more."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Return a duration with three digits, in the unit that suits it."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError("the last unit takes everything")
