"""`minrnn-gen cells`: the built-in cells, and what is proved and derived of a cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli import completion
from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import command_line, console, facts, new_table, print_json

if TYPE_CHECKING:
    from minrnn_gen.cell.files import CellFile
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.tangent_names import TangentNames

app = command_line("List the cells, or show one.")

CellName = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        help="A built-in cell, or the path of a cell file.",
        show_default=False,
        autocompletion=completion.cells,
    ),
]
PASSES = ("forward", "backward")
KINDS_OF_CELLS = ("cells", "cells_with_n", "cells_with_inputs", "cells_with_p", "cells_by_blocks")


@app.callback(invoke_without_command=True)
def cells(context: typer.Context, as_json: AsJson = False) -> None:
    """List the built-in cells: class, gates, states, parameters, and what an element takes in a step, forward / backward."""
    if context.invoked_subcommand is not None:
        return
    from minrnn_gen.cell.files import library_folders

    folders = [[_entry(name)[0] for name in names] for names in library_folders()]
    if as_json:
        print_json(dict(zip(KINDS_OF_CELLS, folders, strict=True)))
        return
    counts = {"words": "words", "operations": "operations", "special_functions": "special functions"}
    table = new_table("cell", "class", "gates", "states", "parameters", *counts.values(), "kernels", right=[*counts.values()])
    for entry in chain.from_iterable(folders):
        listed = [", ".join(entry[key]) for key in ("gates", "states", "parameters")]
        numbers = [" / ".join(str(entry["work"][kernel_pass][key]) for kernel_pass in PASSES) for key in counts]
        table.add_row(entry["name"], entry["class"], *listed, *numbers)
    console().print(table)


@app.command()
def show(
    name: CellName,
    as_json: AsJson = False,
    tangent: Annotated[bool, typer.Option("--tangent", help="Show the cell of its tangent instead.")] = False,
) -> None:
    """Show a cell: equations, class with its proof, derived gradient, gates, states, parameters, work, source."""
    if tangent:
        _show_tangent(name, as_json)
        return
    from minrnn_gen.cell.gradient_text import gradient_equations
    from minrnn_gen.cell.projection import shown_products

    entry, file, cell = _entry(name)
    equations, gradient = cell.equations.strip("\n").splitlines(), gradient_equations(cell)
    if as_json:
        print_json(entry | {"equations": equations, "gradient": list(gradient), "description": file.description})
        return
    rows = [
        ("class", entry["class"]),
        ("proof", entry["proof"]),
        ("gates", ", ".join(entry["gates"])),
        ("recurrent gates", ", ".join(entry["recurrent_gates"])),
        ("products", "" if cell.projection.is_plain else shown_products(cell.projection, cell.recurrent_gates)),
        ("states", _with_axes(entry["states"], cell.vectors.states, cell.projection.states)),
        ("inputs", ", ".join(f"{name} [step]" if name in cell.step_inputs else name for name in entry["inputs"])),
        ("shared inputs", _with_axes(entry["shared"], cell.vectors.shared)),
        ("output", entry["output"]),
        ("parameters", _with_axes(entry["parameters"], cell.vectors.parameters, cell.projection.parameters)),
        *((kernel_pass, _work_text(entry["work"][kernel_pass], bool(cell.vectors))) for kernel_pass in PASSES),
        ("source", file.source or ""),
    ]
    screen = console()
    screen.print(entry["name"], style="bold")
    if file.description:
        screen.print(file.description)
    screen.print()
    for line in equations:
        screen.print(f"    {line}".rstrip(), soft_wrap=True)
    screen.print()
    screen.print(facts([(label, text) for label, text in rows if text]))
    screen.print()
    incoming = ", ".join(f"in.{state}[t]" for state in cell.states)
    screen.print(f"The gradient of one step: in.y is that of y, and later steps pass on {incoming}.", soft_wrap=True)
    for line in _through_products(cell):
        screen.print(line, soft_wrap=True)
    screen.print()
    for line in gradient:
        screen.print(f"    {line}", soft_wrap=True)


def _show_tangent(name: str, as_json: bool) -> None:
    """Show the cell whose states are those of the cell `name` and their tangents."""
    from minrnn_gen.cell.files import find_cell
    from minrnn_gen.cell.language import parse_cell
    from minrnn_gen.cell.tangent import tangent_cell

    cell = parse_cell(find_cell(name, Path.cwd(), "cells show"))
    data, names = tangent_cell(cell, bool(cell.recurrent_gates))
    if as_json:
        print_json(data)
        return
    screen = console()
    screen.print(data["name"], style="bold")
    screen.print()
    for line in data["equations"].splitlines():
        screen.print(f"    {line}", soft_wrap=True)
    screen.print()
    tangents = {**names.gates, **names.states, **names.parameters, **names.shared, **names.inputs}
    rows = [
        ("output", data["output"]),
        *((key, ", ".join(data[key])) for key in ("gates", "states", "parameters", "shared", "inputs") if data.get(key)),
        ("tangents", ", ".join(f"{tangent} of {of}" for of, tangent in tangents.items())),
        ("products", "; ".join(_products_of(gate, along, moved) for gate, (along, moved) in names.products.items())),
        ("from y", "; ".join(_known_of(names))),
    ]
    screen.print(facts([(label, text) for label, text in rows if text]))


def _known_of(names: TangentNames) -> list[str]:
    """Return the parts of the tangent that come from the known output."""
    inputs = names.inputs_of_products
    known = [f"W.{gate} has R.{gate} added" for gate in names.products if names.has_output and gate not in inputs]
    return [*known, *(f"X.{product} is R.{gate}, X.{moved} that of its tangent" for gate, (product, moved) in inputs.items())]


def _products_of(gate: str, along: str, moved: str | None) -> str:
    return f"R.{gate} and R.{along} have one matrix" + (f", R.{moved} its tangent" if moved else "")


def _through_products(cell: Cell) -> list[str]:
    """Return the values that pass through R in a step: the previous output and the argument of each later round."""
    from minrnn_gen.cell.printing import equation_text

    def through(gates: Iterable[str]) -> str:
        return " + ".join(f"R.{gate}^T dR.{gate}" for gate in gates)

    of_output = [gate for gate in cell.recurrent_gates if gate not in dict(cell.arguments)]
    lines = [
        f"Through R, in.argument.{number}, of {equation_text(together.argument)}, is {through(together.gates)}."
        for number, together in enumerate(cell.rounds)
    ]
    if of_output:
        lines.append(f"Through R, {equation_text(cell.output).replace('[t]', '[t-1]')} gets {through(of_output)} besides.")
    return lines


def _with_axes(names: list[str], wide: tuple[str, ...], projected: tuple[str, ...] = ()) -> str:
    axes = dict.fromkeys(wide, " [n]") | dict.fromkeys(projected, " [p]")
    return ", ".join(f"{name}{axes.get(name, '')}" for name in names)


def _work_text(work: dict[str, int], has_vectors: bool) -> str:
    counts = (
        f"{work['words_read']} words read and {work['words_written']} written per element and step, "
        f"{work['operations']} operations, {work['special_functions']} special functions"
    )
    return f"{counts}; what has the axis n counts once, and S.* not" if has_vectors else counts


def _entry(name: str) -> tuple[dict[str, Any], CellFile, Cell]:
    """Read, classify and lower the cell `name`; raises BadInput where it is none."""
    from minrnn_gen.cell.analysis import classify
    from minrnn_gen.cell.files import CellFile, find_cell
    from minrnn_gen.cell.language import parse_cell
    from minrnn_gen.cell.lowering import lower_scan, lower_scan_backward
    from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
    from minrnn_gen.cell.operation_counts import backward_work, forward_work
    from minrnn_gen.cell.printing import equation_text
    from minrnn_gen.config.documents import validated

    source = find_cell(name, Path.cwd(), "cells show")
    cell = parse_cell(source)
    recurrence = classify(cell)
    forward = lower_scan(cell, recurrence) if recurrence.is_scan else lower_steps(cell)
    backward = lower_scan_backward(cell, recurrence) if recurrence.is_scan else lower_steps_backward(cell)
    work = {"forward": forward_work(forward), "backward": backward_work(backward)}
    entry = {
        "name": cell.name,
        "class": recurrence.kind,
        "gates": list(cell.gates),
        "recurrent_gates": list(cell.recurrent_gates),
        "states": list(cell.states),
        "inputs": list(cell.inputs),
        "shared": list(cell.vectors.shared),
        "parameters": list(cell.parameters),
        "with_n": [*cell.vectors.states, *cell.vectors.parameters, *cell.vectors.shared],
        "with_p": [*cell.projection.states, *cell.projection.parameters],
        "output": equation_text(cell.output),
        "a": {state: equation_text(a) for state, a in recurrence.a},
        "b": {state: equation_text(b) for state, b in recurrence.b},
        "blocks": [
            {
                "states": list(block.states),
                "form": block.form,
                "constant": block.is_constant,
                "A": [[equation_text(entry) for entry in row] for row in block.a],
                "b": list(map(equation_text, block.b)),
            }
            for block in recurrence.blocks
        ],
        "proof": recurrence.proof,
        "saved_states": list(backward.needs_saved_states),
        "work": {kernel_pass: asdict(counts) | {"words": counts.words} for kernel_pass, counts in work.items()},
    }
    return entry, validated(source.document, CellFile), cell
