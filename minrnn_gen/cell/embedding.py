"""A cell with projected units as a cell without: they are the first of as many units as the others, and matrices have zeros."""

from __future__ import annotations

from typing import Any

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import COMPARISONS, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import equation_text


def embedded_cell(cell: Cell) -> tuple[dict[str, Any], str | None]:
    """Return the file of the cell whose units are all H, and its parameter that is 1 at projected units and 0 beyond, if any.

    Matrices, biases, parameters and states are 0 beyond P units. So are products to p; other values that products multiply may
    be anything there, infinite too, and are selected by that parameter.
    """
    return _Embedding(cell).file()


class _Embedding:
    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._known, self._arguments = dict(cell.definitions), dict(cell.arguments)
        names = {*cell.parameters, *cell.states, *(name for name, _ in cell.lets)}
        self._mask = next(name for number in range(len(names) + 1) if (name := f"within_{number}") not in names)
        self._is_masked = False

    def file(self) -> tuple[dict[str, Any], str | None]:
        cell = self._cell
        lines = [f"{symbol.name} = {self._text(self._equation(symbol, value))}" for symbol, value in cell.definitions]
        mask = self._mask if self._is_masked else None
        file: dict[str, Any] = {
            "name": cell.name,
            "gates": list(cell.gates),
            "states": list(cell.states),
            "equations": "\n".join(lines),
            "output": equation_text(cell.output).removesuffix("[t]"),
        }
        parameters = [*cell.parameters, *([mask] if mask else [])]
        return (file | {"parameters": parameters} if parameters else file), mask

    def _equation(self, symbol: Symbol, value: Expr) -> Expr:
        """Return the definition of a symbol: of the output, which the next step and the next layer multiply, selected."""
        return self._within(value) if symbol == self._cell.output and self._cell.projection.output else value

    def _within(self, value: Expr) -> Expr:
        """Return a value with P units that is 0 beyond them."""
        inner = value
        while isinstance(inner, Symbol) and inner in self._known:
            inner = self._known[inner]
        if isinstance(inner, Symbol) and inner.name.removeprefix("R.") in self._cell.projection.to:
            return value
        self._is_masked = True
        return Where(COMPARISONS[">"](ex.named(self._mask), ex.ZERO), value, ex.ZERO)

    def _text(self, value: Expr) -> str:
        return equation_text(self._with_arguments(value))

    def _with_arguments(self, value: Expr) -> Expr:
        """Return an expression whose products are written with what they multiply."""
        if isinstance(value, Symbol):
            gate = value.name.removeprefix("R.")
            if gate == value.name or gate not in self._arguments:
                return value
            argument = self._arguments[gate]
            operand = self._within(argument) if gate in self._cell.projection.of else argument
            return ex.named(f"R.{gate}({self._text(operand)})")
        operands = ex.operation(value)[1]
        return ex.rebuilt(value, [self._with_arguments(operand) for operand in operands]) if operands else value
