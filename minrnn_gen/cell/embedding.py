"""A cell with projected units rewritten with H units everywhere: projected units come first, matrices are padded with zeros."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import COMPARISONS, OverUnits, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.norms import Counted, composed
from minrnn_gen.cell.printing import equation_text


def embedded_cell(cell: Cell, hidden_size: int, projection_size: int, heads: int = 1) -> tuple[dict[str, Any], str | None]:
    """Return the file of the cell with H units everywhere, and its parameter that is 1 at projected units and 0 beyond, if any.

    Matrices, biases, parameters and states are 0 beyond P units, and so are products to p. Other operands of products and means
    may have any value there, infinity included, so the parameter masks them. A mean over P units is a mean over H units, times
    H / P. Where some products are over all heads, one head has all units: the products within a head have block-diagonal
    matrices, and norms over a head are over a part of that one.
    """
    return _Embedding(cell, Fraction(hidden_size, projection_size or hidden_size), heads).file()


class _Embedding:
    def __init__(self, cell: Cell, spread: Fraction, heads: int) -> None:
        self._cell, self._spread, self._heads = cell, spread, heads
        self._known, self._arguments = dict(cell.definitions), dict(cell.arguments)
        self._names = {*cell.parameters, *cell.states, *(name for name, _ in cell.lets)}
        self._mask = self._new_name("within")
        self._is_masked = False
        self._counted = Counted(spread, self._within, self._named)
        # What is defined before the equation that is being written.
        self._lines: list[str] = []

    def file(self) -> tuple[dict[str, Any], str | None]:
        cell = self._cell
        for symbol, value in cell.definitions:
            text = self._text(self._equation(symbol, value))
            self._lines.append(f"{symbol.name} = {text}")
        mask = self._mask if self._is_masked else None
        file: dict[str, Any] = {
            "name": cell.name,
            "gates": list(cell.gates),
            "states": list(cell.states),
            "equations": "\n".join(self._lines),
            "output": equation_text(cell.output).removesuffix("[t]"),
        }
        if cell.norms:
            file["embedded"] = True
        if cell.inputs:
            file["inputs"] = list(cell.inputs)
        if cell.projection.across and any(norm.over == "head" for norm in cell.norms):
            file["norm_parts"] = self._heads
        if self._block_diagonal:
            file["block_diagonal"] = dict.fromkeys(self._block_diagonal, self._heads)
        parameters = [*cell.parameters, *([mask] if mask else [])]
        return (file | {"parameters": parameters} if parameters else file), mask

    @property
    def _block_diagonal(self) -> tuple[str, ...]:
        """The gates with products within a head, where others are over all heads. Gates with P units are not among them."""
        projection = self._cell.projection
        if not projection.across or self._heads == 1:
            return ()
        return tuple(gate for gate in self._cell.recurrent_gates if gate not in projection.across)

    def _equation(self, symbol: Symbol, value: Expr) -> Expr:
        """Return the definition of a symbol; a state with P units is masked, since the next step and layer read it."""
        state = symbol.name.removesuffix("[t]")
        return self._within(value) if state != symbol.name and state in self._cell.projection.states else value

    def _within(self, value: Expr) -> Expr:
        """Return a value with P units that is 0 beyond them."""
        if self._spread == 1:
            return value
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
        """Return an expression whose products are written with their operands."""
        if isinstance(value, Symbol):
            gate = value.name.removeprefix("R.")
            if gate == value.name or gate not in self._arguments:
                return value
            argument = self._arguments[gate]
            operand = self._within(argument) if gate in self._cell.projection.of else argument
            return ex.named(f"R.{gate}({self._text(operand)})")
        operands = ex.operation(value)[1]
        if isinstance(value, OverUnits) and self._counted.of != 1 and self._is_projected(value):
            return composed(value.__class__(*map(self._with_arguments, operands)), self._counted)
        return ex.rebuilt(value, [self._with_arguments(operand) for operand in operands]) if operands else value

    def _named(self, value: Expr) -> Expr:
        """Return a symbol for a value that is used more than once."""
        if isinstance(value, Symbol):
            return value
        name = self._new_name("of_units")
        self._lines.append(f"{name} = {equation_text(value)}")
        return ex.named(name)

    def _new_name(self, like: str) -> str:
        name = next(name for number in range(len(self._names) + 1) if (name := f"{like}_{number}") not in self._names)
        self._names.add(name)
        return name

    def _is_projected(self, value: Expr) -> bool:
        """Whether a value has P units."""
        projection = self._cell.projection
        for symbol in ex.symbols_of(value):
            name = symbol.name.removesuffix("[t-1]").removesuffix("[t]")
            if symbol.name.startswith("R."):
                return symbol.name.removeprefix("R.") in projection.to
            if name != symbol.name or name in self._cell.parameters:
                return name in (projection.states if name != symbol.name else projection.parameters)
            return symbol in self._known and self._is_projected(self._known[symbol])
        return False
