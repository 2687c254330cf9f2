"""Which values of a cell have P projected units, found as its equations are read."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.files import CellFile, CellSource, named_with
from minrnn_gen.cell.projection import Projection
from minrnn_gen.cell.syntax import Place
from minrnn_gen.errors import nearest_name


class ProjectedUnits:
    """Which values have P units, as a cell is read from the top."""

    def __init__(self, file: CellFile) -> None:
        self._products = file.products
        self._states = named_with("p", file.states)
        self._symbols = {symbol for name in self._states for symbol in (ex.previous(name), ex.current(name))}
        self._symbols |= {ex.named(name) for name in named_with("p", file.parameters)}
        self._symbols |= {ex.product(gate) for gate, product in file.products.items() if product.to == "p"}

    def has(self, expression: Expr) -> bool:
        """Whether `expression` has P units; a number takes the units of the other operand."""
        return any(symbol in self._symbols for symbol in ex.symbols_of(expression))

    def why_unequal(self, expression: Expr) -> str | None:
        """Return why an operation mixes P projected units with H; None where its operands have the same units."""
        if not self._symbols:
            return None
        symbols = [*ex.symbols_of(expression)]
        narrow = next((symbol for symbol in symbols if symbol in self._symbols), None)
        wide = next((symbol for symbol in symbols if symbol not in self._symbols), None)
        if narrow is None or wide is None:
            return None
        shown = (symbol.name.removesuffix("[t-1]").removesuffix("[t]") for symbol in (narrow, wide))
        return "{} has P projected units and {} has H; only a product R.g(…) leads from one to the other".format(*shown)

    def define(self, place: Place, name: str, expression: Expr) -> None:
        """Set the units of a defined symbol; raises `BadInput` for a state whose equation has other units."""
        if not self._symbols or not any(True for _ in ex.symbols_of(expression)):
            return
        has, state = self.has(expression), name.removesuffix("[t]")
        if state == name:
            self._symbols |= {ex.named(name)} if has else set()
        elif has and state not in self._states:
            raise place.error(
                f"{name} has H units, but its expression has P projected units; list the state as `states: {{{state}: p}}`, or "
                "lead back to H by a product R.g(…)"
            )
        elif not has and state in self._states:
            raise place.error(
                f"{name} has P projected units, but its expression has H; lead to p by a product R.g(…) with "
                f"`products: {{g: {{to: p}}}}`, or list the state as `{state}: 1`"
            )

    def projection(
        self,
        source: CellSource,
        states: tuple[str, ...],
        parameters: tuple[str, ...],
        gates: tuple[str, ...],
        output: Expr,
        arguments: Mapping[str, Expr],
    ) -> Projection:
        """Return which of a cell's names have P units; raises `BadInput` for a product that is listed and never used."""
        for gate in self._products:
            if gate not in gates:
                message = f"'{gate}' is never used as R.{gate}{nearest_name(gate, gates)}; remove it or use it"
                raise source.document.error(("products", gate), message)
        products = {gate: self._products[gate] for gate in gates if gate in self._products}
        return Projection(
            states=tuple(name for name in states if ex.current(name) in self._symbols),
            parameters=tuple(name for name in parameters if ex.named(name) in self._symbols),
            to=tuple(gate for gate, product in products.items() if product.to == "p"),
            of=tuple(gate for gate in gates if self.has(arguments.get(gate, output))),
            across=tuple(gate for gate, product in products.items() if product.over == "all"),
            output=self.has(output),
            biases=tuple((gate, product.bias) for gate, product in products.items() if product.bias is not None),
        )
