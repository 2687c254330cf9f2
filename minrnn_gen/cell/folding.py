"""Cells whose output is a product, h[t] = R.p(u): R.g h is R.g R.p u, so that a cell with u for h computes the same."""

from __future__ import annotations

from typing import Any, NamedTuple

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Symbol
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import equation_text


class Folded(NamedTuple):
    """The file of a cell whose output is the operand of its product `gate`."""

    file: dict[str, Any]
    gate: str


def folded_cell(cell: Cell) -> Folded | None:
    """Return a cell with its last product folded into all others; None where its output is more than that product.

    From the second step on R.g(h[t-1]) is one product of R.g R.p with the operand of R.p, so the folded cell serves calls
    without initial states. The product must lie within a head and have no bias, and nothing else may read h.
    """
    projection = cell.projection
    values, arguments = dict(cell.definitions), dict(cell.arguments)
    last = values.get(cell.output) if isinstance(cell.output, Symbol) else None
    if not isinstance(cell.output, Symbol) or not isinstance(last, Symbol):
        return None
    state, gate = cell.output.name.removesuffix("[t]"), last.name.removeprefix("R.")
    if gate not in arguments or gate not in projection.to or cell.norms or projection.parameters:
        return None
    others = tuple(name for name in cell.recurrent_gates if name != gate)
    is_alone = projection.to == (gate,) and projection.states == (state,) and set(projection.of) == {*others}
    if not is_alone or projection.across or {*arguments} != {gate} or dict(projection.biases).get(gate) is not False:
        return None
    values[ex.current(state)] = arguments[gate]
    read = {symbol for value in values.values() for symbol in ex.symbols_of(value)}
    if read & {ex.previous(state), ex.current(state), ex.product(gate)}:
        return None
    file: dict[str, Any] = {
        "name": cell.name,
        "gates": list(cell.gates),
        "states": list(cell.states),
        "equations": "\n".join(f"{symbol.name} = {equation_text(value)}" for symbol, value in values.items()),
        "output": state,
    }
    if cell.inputs:
        file["inputs"] = list(cell.inputs)
    if cell.parameters:
        file["parameters"] = list(cell.parameters)
    return Folded(file, gate)
