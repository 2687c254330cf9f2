"""Cells of calls with reset states and holds, which reach any kernel as further inputs X.*.

Reset states: an input is added to each state that a step reads. A reset makes that state 0, and the input is 0 at every other
step, so that a step begins from their sum. Holds: where an input is above 0, each state keeps the value that the step began
from.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minrnn_gen.build.recipe import cell_source_of, spec_from
from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.errors import BadInput

if TYPE_CHECKING:  # imported only by the first call that needs such a cell
    from minrnn_gen.cell.language import Cell

# Length of a cell's name, with its suffix.
NAME_LENGTH = 64


@dataclass(frozen=True)
class AlteredRecipe:
    """The recipe of a kernel with further inputs X.*, the last ones of the cell.

    `begins` maps each state that a step reads to the name of its input, in the order of those inputs; empty without reset
    states. `hold` is the name of the input after them, None without holds.
    """

    recipe: str
    begins: tuple[tuple[str, str], ...]
    hold: str | None


def refuse_projected(cell: str, reset_states: Any, holds: Any) -> None:
    """Refuse reset states and holds of a cell with the axis p."""
    if reset_states is not None or holds is not None:
        raise _refusal(f"the cell {cell} has the axis p", reset_states is not None)


def _refusal(why: str, begins: bool) -> BadInput:
    """Return the error of a cell or a spec without reset states, if a call `begins` with them, or without holds: `why`."""
    if begins:
        instead = "give zeros, or split the sequences at their resets by cu_seqlens and give each its state"
        return BadInput(f"reset_states was given, but {why}, whose resets are to zeros; {instead}")
    return BadInput(f"holds was given, but {why}, whose states no step holds; take the held steps out of the sequences")


@functools.lru_cache(maxsize=256)
def altered_recipe(recipe: str, begins: bool, holds: bool) -> AlteredRecipe:
    """Return the recipe of the same kernel with reset states where it `begins` from them, or holds, or both.

    Raises BadInput for a cell or a spec that has none.
    """
    from minrnn_gen.cell.language import parse_cell

    spec = spec_from(recipe)
    source = cell_source_of(spec)
    cell = parse_cell(source)
    why = f"the cell {cell.name} has the axis {'n' if cell.vectors else 'p'}"
    why = why if cell.vectors or cell.projection else "the spec has scan_arithmetic: log"
    if cell.vectors or cell.projection or spec.scan_arithmetic == "log":
        raise _refusal(why, begins)
    rewriting = _Rewriting(cell, begins, holds)
    equations = [rewriting.equation(symbol.name, value) for symbol, value in cell.definitions]
    output = rewriting.text(cell.output)
    names = _free_names("begin", cell.inputs)
    added = tuple((state, next(names)) for state in cell.states if begins and state in rewriting.read)
    hold = rewriting.hold if holds else None
    first = [f"{rewriting.begins[state]} = {state}[t-1] + X.{name}" for state, name in added]
    ending = ("_begun" if begins else "") + ("_held" if holds else "")
    data = {
        **source.document.data,
        "name": cell.name[: NAME_LENGTH - len(ending)] + ending,
        "equations": "\n".join((*first, *equations)),
        "output": output,
        "gates": [*cell.gates],
        "states": [*cell.states],
        "inputs": [*cell.inputs, *(name for _, name in added), *([hold] if hold else [])],
    }
    said = {**json.loads(recipe), "model": data}
    return AlteredRecipe(json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False), added, hold)


@dataclass
class _Rewriting:
    """Expressions of a cell with each previous state replaced by the state that a step begins from."""

    cell: Cell
    has_begins: bool
    has_holds: bool
    hold: str = field(init=False)
    begins: dict[str, str] = field(init=False)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        cell = self.cell
        used = {
            *cell.gates,
            *cell.recurrent_gates,
            *cell.states,
            *cell.parameters,
            *(symbol.name for symbol, _ in cell.definitions),
        }
        names = _free_names("begin", used)
        self.begins = {state: next(names) for state in cell.states}
        self.hold = next(_free_names("hold", cell.inputs))

    def equation(self, name: str, value: Expr) -> str:
        """Return the equation of a state or of a named value; it keeps a held state."""
        if not (self.has_holds and name.endswith("[t]")):
            return f"{name} = {self.text(value)}"
        before = self._symbol(ex.previous(name.removesuffix("[t]")))
        return f"{name} = where(X.{self.hold} > 0, {before}, {self.text(value)})"

    def text(self, expression: Expr) -> str:
        from minrnn_gen.cell.printing import equation_text

        return equation_text(self._rewritten(expression))

    def _rewritten(self, expression: Expr) -> Expr:
        if isinstance(expression, Symbol):
            return self._symbol(expression)
        name, operands = ex.operation(expression)
        if name == "number":
            return expression
        return ex.rebuilt(expression, [self._rewritten(operand) for operand in operands])

    def _symbol(self, symbol: Symbol) -> Symbol:
        if symbol.name.endswith("[t-1]"):
            state = symbol.name.removesuffix("[t-1]")
            self.read.add(state)
            return ex.named(self.begins[state]) if self.has_begins else symbol
        if not symbol.name.startswith("R."):
            return symbol
        gate = symbol.name.removeprefix("R.")
        argument = dict(self.cell.arguments).get(gate)
        if argument is None:
            if not self.has_begins:
                return symbol
            # R multiplies what the step begins from, where a kernel's own reset makes the products of an output 0.
            argument = ex.previous(self._output_state)
        return ex.named(f"R.{gate}({self.text(argument)})")

    @property
    def _output_state(self) -> str:
        return next(state for state in self.cell.states if ex.current(state) == self.cell.output)


def _free_names(stem: str, used: Collection[str]) -> Iterator[str]:
    place = 0
    while True:
        name = f"{stem}{place}"
        if name not in used:
            yield name
        place += 1
