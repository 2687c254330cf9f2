"""Tables and titles that print themselves in a pipe, and in colours on a terminal, where rich draws them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rich takes longer to import than a warm compile to find its kernels
    from rich.table import Table as RichTable
    from rich.text import Text

_GAP = 2
# Each makes rich take a pipe for a terminal.
_FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass
class Table:
    """Rows below each other without lines; without `headings` the first column is of labels, at least `label_columns` wide.

    The columns whose headings are in `right` are numbers, set flush right.
    """

    headings: tuple[str, ...] = ()
    right: Collection[str] = ()
    label_columns: int = 0
    rows: list[tuple[str, ...]] = field(default_factory=list)
    styles: dict[int, str] = field(default_factory=dict)

    def add_row(self, *texts: str, style: str | None = None) -> None:
        """Add a row with a text for each column, missing ones empty; a terminal shows it in a `style`."""
        if style:
            self.styles[len(self.rows)] = style
        self.rows.append((*texts, *[""] * (len(self.headings) - len(texts))))

    def plain(self) -> list[str]:
        """Return the lines, without trailing blanks, which a narrow terminal would wrap into empty lines."""
        rows = [self.headings, *self.rows] if self.headings else self.rows
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if not self.headings and widths:
            widths[0] = max(widths[0], self.label_columns)
        flush_right = [heading in self.right for heading in self.headings] or [False] * len(widths)
        columns = tuple(zip(widths, flush_right, strict=True))

        def placed(row: tuple[str, ...]) -> Iterator[str]:
            for text, (width, is_right) in zip(row, columns, strict=True):
                yield text.rjust(width) if is_right else text.ljust(width)

        return [(" " * _GAP).join(placed(row)).rstrip() for row in rows]

    def __rich__(self) -> RichTable:
        from rich.table import Table as RichTable

        if not self.headings:
            table = RichTable.grid(padding=(0, _GAP, 0, 0))
            table.add_column(style="dim", no_wrap=True, min_width=self.label_columns)
            table.add_column()
        else:
            table = RichTable(box=None, padding=(0, _GAP, 0, 0), header_style="dim", pad_edge=False)
            for heading in self.headings:
                table.add_column(heading, justify="right" if heading in self.right else "left")
        for number, row in enumerate(self.rows):
            table.add_row(*row, style=self.styles.get(number))
        return table


@dataclass(frozen=True)
class Title:
    """A line, some of whose parts stand out: (text, whether it does)."""

    parts: tuple[tuple[str, bool], ...]

    def plain(self) -> list[str]:
        """Return the line."""
        return ["".join(text for text, _ in self.parts)]

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text.assemble(*((text, "bold" if stands_out else "") for text, stands_out in self.parts))


class Screen:
    """Stdout; rich prints everything that is not plain there: on a terminal, too wide, or beyond ASCII."""

    def __init__(self, width: int, height: int) -> None:
        """Take the columns and lines of a terminal, or those of a pipe."""
        self._width, self._height = width, height
        self._is_plain = not sys.stdout.isatty() and not any(os.environ.get(name) for name in _FORCED)

    def print(self, shown: Any = "", **how: Any) -> None:
        """Print a text, a table or a title, as rich does; `how` is passed to rich."""
        lines = [shown] if isinstance(shown, str) else shown.plain() if isinstance(shown, Table | Title) else None
        if lines is not None and self._is_plain and all(map(self._fits, lines)):
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            return
        from rich.console import Console

        # Every text is taken as it is: what users named may look like markup.
        screen = Console(markup=False, highlight=False, emoji=False, width=self._width, height=self._height)
        if not self._is_plain:
            screen.print(shown, **how)
            return
        with screen.capture() as printed:
            screen.print(shown, **how)
        sys.stdout.write(re.sub(r" +$", "", printed.get(), flags=re.MULTILINE))

    def _fits(self, line: str) -> bool:
        return len(line) <= self._width and line.isascii() and line.isprintable()
