"""Uses of a cell's names: a listed name must be used, a used name must be listed, and a defined name must be read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.files import NAME_LIMIT, CellSource
from minrnn_gen.cell.syntax import Place
from minrnn_gen.config.documents import Document
from minrnn_gen.errors import BadInput, nearest_name

Definitions = Mapping[str, tuple[Place, Expr]]
"""Each name, a state's with its [t], with the place and the expression of its definition, in the author's order."""


def names_in_order(
    source: CellSource, key: str, listed: tuple[str, ...] | None, used: Mapping[str, Place], form: str
) -> tuple[str, ...]:
    """Return the names `used` in the order `listed` under `key`, which must name each of them once and nothing else.

    `form` is the spelling in equations, with {0} for the name. Raises `BadInput`.
    """
    if len(used) > NAME_LIMIT:
        raise source.document.error(("equations",), f"{len(used)} {key} are used; a cell has at most {NAME_LIMIT}")
    if listed is None:
        return tuple(used)
    for position, name in enumerate(listed):
        if name in listed[:position]:
            raise _error_in_list(source, key, listed, position, f"'{name}' is listed twice; list each name once")
        if name not in used:
            message = f"'{name}' is never used as {form.format(name)}{nearest_name(name, used)}; remove it or use it"
            raise _error_in_list(source, key, listed, position, message)
    for name, place in used.items():
        if name not in listed:
            raise place.error(
                f"'{name}' is used here but not listed under {key}; list every name of {key}, or leave the key out"
            )
    return listed


def check_all_is_read(
    definitions: Definitions,
    output: Expr,
    default: str | None,
    wide: Collection[str],
    has_products: bool,
    arguments: Mapping[str, Expr],
) -> None:
    """Raise `BadInput` for an equation that neither the output nor a state that reaches it depends on.

    A state that only its own next value reads counts as unread: it would cost memory and time, and change nothing. `default`:
    the state that is the output because the file names none; `wide`: the states with n values per channel; `has_products`: the
    output has to be a state, which R multiplies. `arguments`: the operands of other products.
    """
    reads = {name: _read_by(expression) for name, (_, expression) in definitions.items()}
    reads |= {ex.product(gate).name: _read_by(argument) for gate, argument in arguments.items()}
    needed: set[str] = set()
    waiting = list(_read_by(output))
    while waiting:
        name = waiting.pop()
        if name in reads and name not in needed:
            needed.add(name)
            waiting += reads[name]
    unread = [name for name in definitions if name not in needed]
    if unread:
        by_others = {reader for name in unread for reader in reads[name] if reader != name}
        name = next((reader for reader in unread if reader not in by_others), unread[0])
        chosen = f", which is {default}[t], the first state," if default else ""
        raise definitions[name][0].error(
            f"{name} reaches neither the output{chosen} nor a state that does; "
            f"{_advice(name, wide, has_products) if default else ''}use it, or remove this equation"
        )


def _advice(name: str, wide: Collection[str], has_products: bool) -> str:
    """Advise to make an unread state or value the output, in the words of a cell file."""
    state = name.removesuffix("[t]")
    if state == name:
        return "" if has_products or wide else f"add `output: {name}`, "
    return f"add `output: {f'sum({name})' if state in wide else state}`, "


def _read_by(expression: Expr) -> Collection[str]:
    """Return the names that `expression` reads; a state at either step stands for its equation."""
    return {symbol.name.replace("[t-1]", "[t]") for symbol in ex.symbols_of(expression)}


def _error_in_list(source: CellSource, key: str, listed: tuple[str, ...], position: int, message: str) -> BadInput:
    """Return the error about one name of a list: with line and column where the cell is a file, else with its key."""
    document, name = source.document, listed[position]
    line = document.lines.get((key, position))
    if line is not None and not document.inside:
        text = source.canonical.decode("utf-8", "replace").splitlines()[line - 1]
        # After the key, if that stands on the same line; the same name may stand there before.
        start = text.find(":") + 1 if document.lines.get((key,)) == line else 0
        earlier = sum(listed[index] == name and document.lines.get((key, index)) == line for index in range(position))
        places = [match.start() for match in re.finditer(rf"\b{name}\b", text) if match.start() >= start]
        if earlier < len(places):
            return Document(f"{document.where}:{line}:{places[earlier] + 1}", {}).error((), f"{key}: {message}")
    return document.error((key, position), message)
