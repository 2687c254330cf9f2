"""The tangent of a cell as a cell: each state, and its derivative along given tangents of all that a step reads.

The backward of the tangent cell is the double backward of the cell. Every kernel that runs cells runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell import functions as fn
from minrnn_gen.cell.expressions import ONE, ZERO, Expr, Symbol
from minrnn_gen.cell.gradient import INVERSE_SLOPES, SLOPES
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.norms import composed
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.rounds import PRODUCTS_MOST
from minrnn_gen.cell.tangent_names import NAME_LENGTH, Names, TangentNames
from minrnn_gen.cell.value_numbering import COMPOSED
from minrnn_gen.errors import BadInput

# Digits of a number that an equation spells out; longer ones are rounded to float64.
DIGITS_MOST = 15


def tangent_cell(cell: Cell, moves_R: bool) -> tuple[dict[str, Any], TangentNames]:
    """Return the file of the tangent cell, whose output is the tangent of y, and its names; `moves_R`: R has a tangent as well.

    Names that the tangent does not depend on are left out. Raises BadInput where y has no derivatives.
    """
    return _Tangent(cell, moves_R).file()


def joint_cell(cell: Cell) -> tuple[dict[str, Any], TangentNames] | None:
    """Return the file of a cell with its tangent, whose products with R are known, and its names; None where it has none.

    Its output is the cell's. A further state, the total, sums the tangent of the output times an input X.*: with a
    gradient of 1 for the final total, the backward takes that input as the gradient of the output's tangent.
    """
    is_output = not (cell.arguments or cell.projection or cell.norms or cell.vectors)
    if not (cell.recurrent_gates and is_output and len(_sums_of_products(cell)) == len(cell.recurrent_gates)):
        return None
    return _Tangent(cell, False, is_joint=True).file()


class _Tangent:
    def __init__(self, cell: Cell, moves_R: bool, is_joint: bool = False) -> None:
        self._cell, self._moves_R, self._is_joint = cell, moves_R, is_joint
        self._names = Names((*cell.states, *cell.parameters, *(name for name, _ in cell.lets)))
        of_gates = Names((*cell.gates, *cell.recurrent_gates))
        gates = of_gates.tangents_of(tuple(dict.fromkeys((*cell.gates, *cell.recurrent_gates))))
        of_inputs = Names(cell.inputs)
        inputs = of_inputs.tangents_of(cell.inputs)
        has_output = bool(cell.recurrent_gates) and not (cell.arguments or cell.projection or cell.norms)
        self._sums = _sums_of_products(cell) if has_output else {}
        beside = [gate for gate in cell.recurrent_gates if gate not in self._sums.values()] if has_output else []
        self._named = TangentNames(
            {gate: gates[gate] for gate in cell.gates},
            self._names.tangents_of(cell.states),
            self._names.tangents_of(cell.parameters),
            Names(cell.vectors.shared).tangents_of(cell.vectors.shared),
            inputs,
            {
                gate: (gates[gate], of_gates.of_matrix(gate) if moves_R and not has_output else None)
                for gate in cell.recurrent_gates
            },
            has_output,
            {gate: (of_inputs.of_product(gate), of_inputs.of_matrix(gate)) for gate in beside},
            (self._names.tangent_of("total"), of_inputs.tangent_of("along")) if is_joint else None,
        )
        # Values that a definition gives another name.
        self._renamed: dict[str, str] = {}
        self._lines: list[tuple[str, Expr]] = []
        self._values: dict[Expr, Symbol] = {}
        self._arguments: dict[str, Expr] = {}
        self._tangents: dict[Symbol, Expr] = {}
        self._tangents |= {ex.gate(name): ex.gate(tangent) for name, tangent in self._named.gates.items()}
        self._tangents |= {ex.previous(name): ex.previous(tangent) for name, tangent in self._named.states.items()}
        self._tangents |= {ex.named(name): ex.named(tangent) for name, tangent in self._named.parameters.items()}
        self._tangents |= {ex.shared(name): ex.shared(tangent) for name, tangent in self._named.shared.items()}
        self._tangents |= {ex.channel_input(name): ex.channel_input(tangent) for name, tangent in self._named.inputs.items()}

    def file(self) -> tuple[dict[str, Any], TangentNames]:
        for symbol, expression in self._cell.definitions:
            self._define(symbol, expression)
        output = self._both(_plain(self._cell.output))[1]
        if output == ZERO:
            raise BadInput(f"the output of {self._cell.name} has no derivatives; use what it is made of without detach")
        output = self._with_all_states(self._summed(output) if self._is_joint else output)
        needed = self._needed(output)
        lines = [(self._renamed.get(name, name), value) for name, value in self._lines if name in needed]
        needed |= {self._renamed.get(name, name) for name in needed}
        named = self._named
        states = {
            state: "n" if of in self._cell.vectors.states else "p" if of in self._cell.projection.states else 1
            for of, tangent in named.states.items()
            for state in (tangent, of)
            if f"{state}[t]" in needed
        }
        states |= dict.fromkeys([named.total[0]] if named.total else [], 1)
        cell, projection = self._cell, self._cell.projection
        parameters = {
            name: "n" if of in cell.vectors.parameters else "p" if of in projection.parameters else 1
            for name, of in _primal_first(named.parameters)
            if name in needed
        }
        has_axes, suffix = bool(cell.vectors or projection), "_joint" if self._is_joint else "_tangent"
        data: dict[str, Any] = {
            "name": cell.name[: NAME_LENGTH - len(suffix)] + suffix,
            "equations": "\n".join(f"{name} = {self._text(value)}" for name, value in lines),
            "output": self._text(output).removesuffix("[t]") if isinstance(output, Symbol) else self._text(output),
            "gates": [name for name, _ in _primal_first(named.gates) if ex.gate(name).name in needed],
            "states": states if has_axes else list(states),
            "parameters": parameters if has_axes else list(parameters),
        }
        shared = [name for name, _ in _primal_first(named.shared) if ex.shared(name).name in needed]
        of_products = (name for names in zip(*named.inputs_of_products.values(), strict=True) for name in names)
        of_total = [named.total[1]] if named.total else []
        inputs = [*(name for name, _ in _primal_first(named.inputs)), *of_products, *of_total]
        inputs = [name for name in inputs if ex.channel_input(name).name in needed]
        data |= {"shared": shared} if shared else {}
        data |= {"inputs": inputs} if inputs else {}
        # A tangent may exceed the limits on a cell's size.
        data |= {"norm_parts": cell.norm_parts} if cell.norm_parts > 1 else {}
        data |= {"embedded": True} if len(self._arguments) > PRODUCTS_MOST else {}
        return data, named

    def _define(self, symbol: Symbol, expression: Expr) -> None:
        """Write the equations of a state or of a named value, and of its tangent."""
        value, tangent = self._both(_plain(expression))
        if isinstance(value, Symbol) and value in self._values.values() and value.name not in self._renamed:
            self._renamed[value.name] = symbol.name
        else:
            self._lines.append((symbol.name, value))
        state = symbol.name.removesuffix("[t]")
        if state != symbol.name:
            of_state = ex.current(self._named.states[state])
            self._lines.append((of_state.name, tangent))
            self._tangents[symbol] = ZERO if tangent == ZERO else of_state
        elif isinstance(tangent, Symbol) or tangent == ZERO:
            self._tangents[symbol] = tangent
        else:
            self._tangents[symbol] = self._line(self._names.tangent_of(state), tangent)

    def _line(self, name: str, value: Expr) -> Symbol:
        self._lines.append((name, value))
        return ex.named(name)

    def _value(self, expression: Expr) -> Expr:
        """Return a value that several equations use, under a name."""
        if isinstance(expression, Symbol) or ex.is_number(expression):
            return expression
        if expression not in self._values:
            self._values[expression] = self._line(self._names.of_value(), expression)
        return self._values[expression]

    def _both(self, expression: Expr) -> tuple[Expr, Expr]:
        """Return an expression with named parts, and its tangent, 0 where it has none."""
        name, operands = ex.operation(expression)
        if name == "number":
            return expression, ZERO
        if isinstance(expression, Symbol):
            return self._of_symbol(expression)
        if isinstance(expression, fn.CellFunction):
            return self._of_call(expression)
        if expression in self._sums:
            gate = self._sums[expression]
            if self._is_joint:
                return expression, self._tangents[ex.gate(gate)]
            return ex.gate(gate), _plus(self._tangents[ex.gate(gate)], self._along(gate))
        values, tangents = zip(*map(self._both, operands), strict=True)
        value = ex.rebuilt(expression, values)
        if name in ("add", "subtract"):
            return value, _plus(tangents[0], tangents[1] if name == "add" else _minus(tangents[1]))
        if name == "negate":
            return value, _minus(tangents[0])
        if name == "power":
            exponent = ex.power_exponent(expression)
            return value, _times(ex.multiply(ex.number(exponent), ex.power(self._value(values[0]), exponent - 1)), tangents[0])
        if name == "multiply":
            shares = [_times(self._value(values[1 - side]), tangents[side]) for side in (0, 1) if tangents[side] != ZERO]
            return value, _sum(shares)
        return self._of_quotient(values, tangents)

    def _of_quotient(self, values: tuple[Expr, ...], tangents: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        below = self._value(values[1])
        value = ex.divide(values[0], below)
        if tangents[1] != ZERO:
            value = self._value(value)
        above = _plus(tangents[0], _minus(_times(value, tangents[1])))
        return value, ZERO if above == ZERO else ex.divide(above, below)

    def _of_symbol(self, symbol: Symbol) -> tuple[Expr, Expr]:
        gate = symbol.name.removeprefix("R.")
        if self._named.has_output and gate != symbol.name:
            known, tangent = map(ex.channel_input, self._named.inputs_of_products[gate])
            return known, _plus(self._along(gate), tangent if self._moves_R else ZERO)
        if symbol.name.startswith("R.") and symbol not in self._tangents:
            self._tangents[symbol] = self._of_product(symbol.name.removeprefix("R."))
        return symbol, self._tangents[symbol]

    def _along(self, gate: str) -> Expr:
        """Return the product of R.g with the tangent of the output."""
        along = self._named.products[gate][0]
        output = self._cell.output.name.removesuffix("[t]")  # type: ignore[attr-defined]
        self._arguments[along] = ex.previous(self._named.states[output])
        return ex.product(along)

    def _of_product(self, gate: str) -> Expr:
        """Return the tangent of a product: R.g of the argument's tangent, plus R's tangent times the argument."""
        argument = dict(self._cell.arguments).get(gate)
        if argument is None:
            argument = ex.previous(self._cell.output.name.removesuffix("[t]"))  # type: ignore[attr-defined]
        value, tangent = self._both(_plain(argument))
        along, of_matrix = self._named.products[gate]
        self._arguments[gate] = self._value(value) if of_matrix else value
        total: Expr = ZERO
        if tangent != ZERO:
            self._arguments[along] = tangent
            total = ex.product(along)
        if of_matrix:
            self._arguments[of_matrix] = self._arguments[gate]
            total = _plus(total, ex.product(of_matrix))
        return total

    def _of_call(self, expression: fn.CellFunction) -> tuple[Expr, Expr]:
        function = type(expression)
        if isinstance(expression, fn.Where):
            condition, *branches = expression.args
            pairs = [self._both(branch) for branch in branches]
            chosen = self._condition(condition)
            return fn.Where(chosen, *(value for value, _ in pairs)), _chosen(chosen, *(tangent for _, tangent in pairs))
        values, tangents = zip(*map(self._both, expression.args), strict=True)
        if function in (fn.Minimum, fn.Maximum):
            values = tuple(map(self._value, values))
            first_is_taken = (fn.LessOrEqual if function is fn.Minimum else fn.GreaterOrEqual)(*values)
            return function(*values), _chosen(first_is_taken, *tangents)
        if function is fn.Surrogate:
            return function(*values), tangents[1]
        value = function(*values)
        (tangent,) = tangents
        if tangent == ZERO or function is fn.Detach:
            return value, ZERO
        if isinstance(expression, fn.Mean | fn.Sum):
            return value, function(tangent)
        x = self._value(values[0])
        return self._of_function(function, x, self._value(function(x)), tangent)

    def _of_function(self, function: type[fn.CellFunction], x: Expr, value: Expr, tangent: Expr) -> tuple[Expr, Expr]:
        """Return the value of a function of `x`, and its tangent with the same slope as in gradients."""
        if function in SLOPES:
            return value, _times(SLOPES[function](x, value), tangent)
        if function in INVERSE_SLOPES:
            return value, ex.divide(tangent, INVERSE_SLOPES[function](x))
        if function is fn.SquareRoot:
            return value, _chosen(fn.NotEqual(value, ZERO), ex.divide(tangent, ex.add(value, value)), ZERO)
        if function is fn.Relu:
            return value, _chosen(fn.LessOrEqual(x, ZERO), ZERO, tangent)
        assert function is fn.Absolute, function
        of_negative = _chosen(fn.Less(x, ZERO), _minus(tangent), ZERO)
        return value, _chosen(fn.Greater(x, ZERO), tangent, of_negative)

    def _condition(self, condition: Expr) -> Expr:
        return ex.rebuilt(condition, [self._value(self._both(operand)[0]) for operand in condition.args])

    def _summed(self, tangent: Expr) -> Expr:
        """Write the equation of the total of the output's `tangent`, and return the cell's own output."""
        assert self._named.total is not None
        total, along = self._named.total
        self._lines.append((ex.current(total).name, ex.add(ex.previous(total), ex.multiply(ex.channel_input(along), tangent))))
        return self._cell.output

    def _with_all_states(self, output: Expr) -> Expr:
        """Return the output, which reads the tangents of all states; tangents that y does not depend on have no effect."""
        reached, totals = self._needed(output), self._named.total[:1] if self._named.total else ()
        missing = [tangent for tangent in (*self._named.states.values(), *totals) if ex.current(tangent).name not in reached]
        if not missing:
            return output
        wide = {self._named.states[name] for name in self._cell.vectors.states}
        reads: list[Expr] = [fn.Sum(ex.previous(name)) if name in wide else ex.previous(name) for name in missing]
        never = fn.Where(fn.Less(ONE, ZERO), _sum(reads), ZERO)
        if not self._cell.recurrent_gates:
            return ex.add(output, never)
        # R multiplies the output, which is a state.
        self._lines = [
            (name, ex.add(value, never) if ex.named(self._renamed.get(name, name)) == output else value)
            for name, value in self._lines
        ]
        return output

    def _needed(self, output: Expr) -> set[str]:
        """Return the names that the output depends on; a state at either step stands for its equation."""
        known, called = dict(self._lines), {name: value for value, name in self._renamed.items()}
        known |= {ex.product(gate).name: argument for gate, argument in self._arguments.items()}
        needed: set[str] = set()
        waiting = [output]
        while waiting:
            for symbol in ex.symbols_of(waiting.pop()):
                name = called.get(symbol.name.replace("[t-1]", "[t]"), symbol.name.replace("[t-1]", "[t]"))
                if name not in needed:
                    needed.add(name)
                    waiting += [known[name]] if name in known else []
        return needed

    def _text(self, expression: Expr) -> str:
        return equation_text(self._with_arguments(expression))

    def _with_arguments(self, expression: Expr) -> Expr:
        """Return an expression whose products are written with their operands."""
        if isinstance(expression, Symbol):
            gate = expression.name.removeprefix("R.")
            if gate == expression.name:
                return ex.named(self._renamed.get(gate, gate))
            if self._is_joint:
                return expression
            return ex.named(f"R.{gate}({self._text(self._arguments[gate])})")
        operands = ex.operation(expression)[1]
        return ex.rebuilt(expression, [self._with_arguments(operand) for operand in operands]) if operands else expression


def _primal_first(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return all names, tangents last, each with the name of its primal."""
    return [*((name, name) for name in names), *((tangent, name) for name, tangent in names.items())]


def _sums_of_products(cell: Cell) -> dict[Expr, str]:
    """Return the sums W.g + R.g of a cell, each with its g, if neither term occurs elsewhere."""
    counts: Counter[Expr] = Counter()
    waiting = [*(expression for _, expression in cell.definitions), cell.output]
    while waiting:
        expression = waiting.pop()
        counts[expression] += 1
        waiting += ex.operation(expression)[1]
    sums = {}
    for gate in cell.recurrent_gates:
        pair = ex.gate(gate), ex.product(gate)
        for total in (ex.add(*pair), ex.add(*reversed(pair))):
            if counts[total] == counts[pair[0]] == counts[pair[1]] == 1:
                sums[total] = gate
    return sums


def _plain(expression: Expr) -> Expr:
    """Return an expression without norms and functions that are composed of others.

    A variance's mean is no constant here: a second derivative goes through it.
    """
    if ex.is_number(expression):
        is_long = len(str(expression.value.numerator)) > DIGITS_MOST
        return ex.number(repr(float(expression.value))) if is_long else expression
    if isinstance(expression, fn.OverUnits) and (together := composed(expression)) != expression:
        return _plain(together)
    if isinstance(expression, fn.Centre):
        return _plain(expression.args[0])
    function: Callable[[Expr], Expr] | None = COMPOSED.get(type(expression))  # type: ignore[arg-type]
    if function is not None:
        return _plain(function(expression.args[0]))
    operands = ex.operation(expression)[1]
    return ex.rebuilt(expression, list(map(_plain, operands))) if operands else expression


def _chosen(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return ZERO if yes == no == ZERO else fn.Where(condition, yes, no)


def _plus(left: Expr, right: Expr) -> Expr:
    if left == ZERO:
        return right
    return left if right == ZERO else ex.add(left, right)


def _sum(values: Sequence[Expr]) -> Expr:
    total: Expr = ZERO
    for value in values:
        total = _plus(total, value)
    return total


def _minus(value: Expr) -> Expr:
    return ZERO if value == ZERO else ex.negate(value)


def _times(factor: Expr, tangent: Expr) -> Expr:
    if ZERO in (factor, tangent):
        return ZERO
    return tangent if factor == ONE else ex.multiply(factor, tangent)
