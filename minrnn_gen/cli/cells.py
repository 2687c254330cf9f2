"""`minrnn-gen cells`: the built-in cells, and what is proved of a cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import console, facts, new_table, print_json

if TYPE_CHECKING:
    from minrnn_gen.cell.files import CellFile
    from minrnn_gen.cell.language import Cell

app = typer.Typer(help="List the cells, or show one.", rich_markup_mode=None)

CellName = Annotated[
    str, typer.Argument(metavar="NAME", help="A built-in cell, or the path of a cell file.", show_default=False)
]


@app.callback(invoke_without_command=True)
def cells(context: typer.Context, as_json: AsJson = False) -> None:
    """List the built-in cells: class, gates, states, parameters, and whether kernels are generated."""
    if context.invoked_subcommand is not None:
        return
    from minrnn_gen.cell.files import library_names

    entries = [_entry(name)[0] for name in library_names()]
    if as_json:
        print_json({"cells": entries})
        return
    table = new_table("cell", "class", "gates", "states", "parameters", "kernels")
    for entry in entries:
        listed = [", ".join(entry[key]) for key in ("gates", "states", "parameters")]
        table.add_row(entry["name"], entry["class"], *listed, "generated" if entry["generated"] else "not yet")
    console().print(table)


@app.command()
def show(name: CellName, as_json: AsJson = False) -> None:
    """Show a cell: equations, class with its proof, gates, states, parameters, source."""
    entry, file, cell = _entry(name)
    if as_json:
        print_json(entry | {"equations": cell.equations.strip().splitlines(), "description": file.description})
        return
    rows = [
        ("class", f"{entry['class']}; kernels are {'generated' if entry['generated'] else 'not generated yet'}"),
        ("proof", entry["proof"]),
        ("gates", ", ".join(entry["gates"])),
        ("recurrent gates", ", ".join(entry["recurrent_gates"])),
        ("states", ", ".join(entry["states"])),
        ("output", entry["output"]),
        ("parameters", ", ".join(entry["parameters"])),
        ("source", file.source or ""),
    ]
    screen = console()
    screen.print(entry["name"], style="bold")
    if file.description:
        screen.print(file.description)
    screen.print()
    for line in cell.equations.strip().splitlines():
        screen.print(f"    {line}", soft_wrap=True)
    screen.print()
    screen.print(facts([(label, text) for label, text in rows if text]))


def _entry(name: str) -> tuple[dict[str, Any], CellFile, Cell]:
    """Read and classify the cell `name`; raises BadInput where it is none."""
    from minrnn_gen.cell.analysis import classify
    from minrnn_gen.cell.files import CellFile, find_cell
    from minrnn_gen.cell.language import parse_cell
    from minrnn_gen.cell.text import equation_text
    from minrnn_gen.documents import validated
    from minrnn_gen.plan.families import GENERATED_KINDS

    source = find_cell(name, Path.cwd(), "cells show")
    cell = parse_cell(source)
    recurrence = classify(cell)
    entry = {
        "name": cell.name,
        "class": recurrence.kind,
        "generated": recurrence.kind in GENERATED_KINDS,
        "gates": list(cell.gates),
        "recurrent_gates": list(cell.recurrent_gates),
        "states": list(cell.states),
        "parameters": list(cell.parameters),
        "output": equation_text(cell.output),
        "a": {state: equation_text(a) for state, a in recurrence.a},
        "b": {state: equation_text(b) for state, b in recurrence.b},
        "proof": recurrence.proof,
    }
    return entry, validated(source.document, CellFile), cell
