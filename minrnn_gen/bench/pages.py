"""The measured tables in the project's own pages, between markers: what a committed record gives, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from minrnn_gen.bench.functions import FunctionRecord, functions_text
from minrnn_gen.bench.plot import panels_of
from minrnn_gen.bench.problems import TABLES, TITLES, TableName
from minrnn_gen.bench.record import Record, Row
from minrnn_gen.bench.tables import provenance, shares_text, table_text
from minrnn_gen.errors import BadInput, nearest_name

# From the top of the checkout.
PUBLISHED_RECORD = "benchmarks/results/scan_h200.json"
PLOT = "docs/scans.svg"
PAGES = ("README.md", "docs/performance.md")

_SECTION = re.compile(
    r"(?<=<!-- measured: )(?P<name>[a-z ]+)(?P<opened> -->\n)(?P<text>.*?)(?=<!-- end of measured -->)", re.DOTALL
)


def filled(page: str, record: Record, name: str) -> str:
    """Return the text of a page with every section between its markers made anew; BadInput for a section nobody knows.

    A section begins with `<!-- measured: NAME -->` and ends with `<!-- end of measured -->`, each on a line of its own.
    """
    return _filled(page, name, {section: partial(text, record) for section, text in SECTIONS.items()})


def filled_functions(page: str, record: FunctionRecord | None, name: str) -> str:
    """Return the text of a page with its section `functions` made anew, in the same way."""
    return _filled(page, name, {"functions": partial(functions_text, record)})


def _filled(page: str, name: str, sections: Mapping[str, Callable[[], str]]) -> str:
    def section(found: re.Match[str]) -> str:
        if found["name"] not in sections:
            allowed = ", ".join(sections)
            raise BadInput(
                f"{name}: measured: '{found['name']}' is given{nearest_name(found['name'], sections)}; allowed: {allowed}"
            )
        return f"{found['name']}{found['opened']}\n{sections[found['name']]()}\n"

    return _SECTION.sub(section, page)


def _headline(record: Record) -> str:
    """What one wants to know first: the long scans, the two cells at one shape, one layer over time."""
    chosen: dict[TableName, Callable[[Row], bool]] = {
        "raw": lambda row: row.problem.batch == 8,
        "cells": lambda row: (row.problem.time, row.problem.channels) == (16384, 1536) and row.problem.task == "forward",
        "classic": lambda row: row.problem.model == "min_gru" and row.problem.time in (256, 4096, 65536),
    }
    parts = [provenance(record)]
    for table, is_chosen in chosen.items():
        if rows := [row for row in record.of_table(table) if is_chosen(row)]:
            parts += [f"{TITLES[table]}:", table_text(rows).rstrip()]
    return "\n\n".join(parts) + "\n"


def _table(table: TableName, record: Record) -> str:
    rows: Sequence[Row] = record.of_table(table)
    if not rows:
        return f"Not measured yet; `minrnn-gen bench scan --only {table}` does.\n"
    return "\n".join(filter(None, (table_text(rows), shares_text(rows))))


def _plot(record: Record) -> str:
    return f"![Scans and layers over the length of the sequence]({PLOT.removeprefix('docs/')})\n" if panels_of(record) else ""


SECTIONS: Mapping[str, Callable[[Record], str]] = {
    "headline": _headline,
    "provenance": lambda record: provenance(record) + "\n",
    "method": lambda record: "".join(f"- **{name}**: {text}.\n" for name, text in record.method.items()),
    "plot": _plot,
    **{table: partial(_table, table) for table in TABLES},
}
