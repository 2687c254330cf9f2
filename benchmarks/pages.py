"""Measured tables of the project's own pages, written between markers from the committed records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.problems.scan_problems import TableName
from benchmarks.report.functions import FunctionRecord, functions_text
from benchmarks.report.plot import panels_of
from benchmarks.report.record import Record, Row
from benchmarks.report.tables import provenance, table_text, whole_text
from benchmarks.suites import CALLS, JAX, LAYERS, RECURRENT, SCAN, SUITES
from minrnn_gen.errors import BadInput, nearest_name

LAYER_SIZES, LARGE, SELECTIVE = f"{LAYERS.command} sizes", f"{RECURRENT.command} large", f"{SCAN.command} selective"
DENSE_AGAIN, LAYERS_SPREAD = f"{RECURRENT.command} again", f"{LAYERS.command} spread"
# {command, and its table where that has a record of its own: path from the top of the checkout}; what was not measured yet has
# no file there.
PUBLISHED_RECORDS = {
    SCAN.command: "benchmarks/results/scan_h200.json",
    RECURRENT.command: "benchmarks/results/recurrent_h200.json",
    CALLS.command: "benchmarks/results/calls_h200.json",
    LAYERS.command: "benchmarks/results/layers_h200.json",
    JAX.command: "benchmarks/results/jax_h200.json",
    # Measured by themselves.
    SELECTIVE: "benchmarks/results/selective_h200.json",
    LARGE: "benchmarks/results/recurrent_large_h200.json",
    LAYER_SIZES: "benchmarks/results/layer_sizes_h200.json",
    # Later, on another GPU.
    DENSE_AGAIN: "benchmarks/results/recurrent_h100.json",
    LAYERS_SPREAD: "benchmarks/results/layers_h100.json",
}
PLOTS = {SCAN.command: "docs/scans.svg", RECURRENT.command: "docs/recurrent.svg", LAYERS_SPREAD: "docs/layers.svg"}
PAGES = ("docs/performance.md", "docs/torch.md", "docs/jax.md")
_DRAWN = {
    SCAN.command: "Scans and layers over the length of the sequence",
    RECURRENT.command: "Dense cells over head_dim and over batch",
    LAYERS_SPREAD: "Layers beside torch's over batch, time and units",
}

Records = Mapping[str, Record | None]

_SECTION = re.compile(
    r"(?<=<!-- measured: )(?P<name>[a-z ]+)(?P<opened> -->\n)(?P<text>.*?)(?=<!-- end of measured -->)", re.DOTALL
)


def filled(page: str, records: Records, name: str) -> str:
    """Return a page with every section between its markers written anew; BadInput for an unknown section.

    A section begins with `<!-- measured: NAME -->` and ends with `<!-- end of measured -->`, both on lines of their own.
    Names of sections of another command than `scan` begin with that command. `records` are by command.
    """
    sections = {section: partial(text, records.get(command)) for section, (command, text) in SECTIONS.items()}
    return filled_sections(page, name, sections)


def filled_functions(page: str, record: FunctionRecord | None, name: str) -> str:
    """Return a page with its section `functions` written anew, between the same markers."""
    return filled_sections(page, name, {"functions": partial(functions_text, record)})


def filled_sections(page: str, name: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with every section between its markers written anew by the function of its name."""

    def section(match: re.Match[str]) -> str:
        title = match["name"]
        if title not in sections:
            allowed = ", ".join(sections)
            raise BadInput(f"{name}: measured: '{title}' is given{nearest_name(title, sections)}; allowed: {allowed}")
        return f"{title}{match['opened']}\n{sections[title]()}\n"

    return _SECTION.sub(section, page)


def _table(command: str, table: TableName, record: Record) -> str:
    rows: Sequence[Row] = record.of_table(table)
    if not rows:
        return f"Not measured yet; `python -m benchmarks {command} --only {table}` does.\n"
    # Over many shapes a table of first calls would repeat that of the table `cells`.
    return table_text(rows) if table == "sweep" else whole_text(rows)


def _plot(command: str, record: Record) -> str:
    return f"![{_DRAWN[command]}]({PLOTS[command].removeprefix('docs/')})\n" if panels_of(record) else ""


def _of_record(command: str, text: Callable[[Record], str], record: Record | None) -> str:
    return f"Not measured yet; `python -m benchmarks {command}` does.\n" if record is None else text(record)


def _sections(command: str) -> dict[str, Callable[[Record | None], str]]:
    """Return {section: text of a record} for one command; the text takes None where there is no record yet."""
    texts: dict[str, Callable[[Record], str]] = {
        "provenance": lambda record: provenance(record) + "\n",
        "method": lambda record: "".join(f"- **{name}**: {text}.\n" for name, text in record.method.items()),
        **{table: partial(_table, command, table) for table in SUITES[command].tables},
    }
    if command in PLOTS:
        texts["plot"] = partial(_plot, command)
    return {name: partial(_of_record, command, text) for name, text in texts.items()}


# {section: (the command whose record it shows, the text of that record)}
SECTIONS: Mapping[str, tuple[str, Callable[[Record | None], str]]] = {
    **{name: (SCAN.command, text) for name, text in _sections(SCAN.command).items()},
    **{f"{RECURRENT.command} {name}": (RECURRENT.command, text) for name, text in _sections(RECURRENT.command).items()},
    **{f"{CALLS.command} {name}": (CALLS.command, text) for name, text in _sections(CALLS.command).items()},
    **{
        f"{LAYERS.command} {name}": (LAYERS.command, _sections(LAYERS.command)[name])
        for name in ("provenance", "method", "headline", "weights")
    },
    **{f"{JAX.command} {name}": (JAX.command, text) for name, text in _sections(JAX.command).items()},
    SELECTIVE: (SELECTIVE, _sections(SCAN.command)["selective"]),
    f"{SELECTIVE} provenance": (SELECTIVE, _sections(SCAN.command)["provenance"]),
    LARGE: (LARGE, _sections(RECURRENT.command)["large"]),
    f"{LARGE} provenance": (LARGE, _sections(RECURRENT.command)["provenance"]),
    **{f"{DENSE_AGAIN} {name}": (DENSE_AGAIN, _sections(RECURRENT.command)[name]) for name in ("provenance", "cells")},
    LAYER_SIZES: (LAYER_SIZES, _sections(LAYERS.command)["sizes"]),
    f"{LAYER_SIZES} provenance": (LAYER_SIZES, _sections(LAYERS.command)["provenance"]),
    LAYERS_SPREAD: (LAYERS_SPREAD, _sections(LAYERS.command)["spread"]),
    **{f"{LAYERS_SPREAD} {name}": (LAYERS_SPREAD, _sections(LAYERS.command)[name]) for name in ("token", "scans")},
    f"{LAYERS_SPREAD} provenance": (LAYERS_SPREAD, _sections(LAYERS.command)["provenance"]),
    f"{LAYERS_SPREAD} plot": (LAYERS_SPREAD, partial(_of_record, LAYERS.command, partial(_plot, LAYERS_SPREAD))),
}
