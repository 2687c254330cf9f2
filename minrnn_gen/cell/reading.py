"""Expressions of the equation language: pieces of Python's syntax tree to an `Expr`, by a whitelist; nothing is executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from fractions import Fraction

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.axes import Axes
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.files import CellFile
from minrnn_gen.cell.functions import (
    COMPARISONS,
    EMBEDDED,
    FREE_NAMES,
    FUNCTIONS,
    NAMES_OVER_UNITS,
    OVER_UNITS,
    REDUCTIONS,
    Comparison,
    Surrogate,
    Where,
)
from minrnn_gen.cell.norms import NORM_LEVELS_MOST, norm_levels, norm_written
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.rounds import check_argument, reads_previous_step
from minrnn_gen.cell.syntax import (
    DEPTH_LIMIT,
    OPERATION_LIMIT,
    EquationText,
    Place,
    nearest_form,
    node_text,
    why_a_word,
    why_no_function,
    why_no_part,
)
from minrnn_gen.errors import BadInput, nearest_name

# Beyond these the arithmetic of fp32 has only infinity and denormals (IEEE 754-2019, table 3.5: 1.2e-38 to 3.4e38).
NUMBER_RANGE = (Fraction("1e-37"), Fraction("1e38"))
POWER_LIMIT = 16  # a power is written out as products
# With every name replaced by its expression: bounds on what the proof of a recurrence may have to look at.
SUBSTITUTED_OPERATION_LIMIT, SUBSTITUTED_DEPTH_LIMIT = 10_000, 150

_ARITHMETIC = {ast.Add: ex.add, ast.Sub: ex.subtract, ast.Mult: ex.multiply, ast.Div: ex.divide}
_COMPARISONS: dict[type[ast.cmpop], type[Comparison]] = {
    ast.Lt: COMPARISONS["<"],
    ast.LtE: COMPARISONS["<="],
    ast.Gt: COMPARISONS[">"],
    ast.GtE: COMPARISONS[">="],
    ast.Eq: COMPARISONS["=="],
    ast.NotEq: COMPARISONS["!="],
}
RESERVED = {"W", "R", "t", *FUNCTIONS} - FREE_NAMES
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass
class ExpressionReader:
    """The names met so far, each with the node of its first use or definition."""

    file: CellFile
    source: EquationText
    axes: Axes
    gate_uses: dict[str, Place] = field(default_factory=dict)
    product_uses: dict[str, Place] = field(default_factory=dict)
    state_uses: dict[str, Place] = field(default_factory=dict)
    parameter_uses: dict[str, Place] = field(default_factory=dict)
    shared_uses: dict[str, Place] = field(default_factory=dict)
    input_uses: dict[str, Place] = field(default_factory=dict)
    defined: dict[str, tuple[Place, Expr]] = field(default_factory=dict)
    # The operand of each gate of R: None for the previous output, whichever state that is.
    arguments: dict[str, Expr | None] = field(default_factory=dict)
    measures: dict[Symbol, tuple[int, int]] = field(default_factory=dict)
    # The number of norms and means in the longest chain to each defined name.
    norm_levels: dict[Symbol, int] = field(default_factory=dict)
    norm_uses: dict[str, Place] = field(default_factory=dict)
    operation_count: int = 0

    def state_names(self) -> set[str]:
        return {*self.state_uses, *(self.file.states or ())}

    def measure(self, node: ast.expr, symbol: Symbol, expression: Expr) -> None:
        if self.file.embedded:  # of a cell that was measured before
            return
        operations, depth = self.measured(expression)
        if operations > SUBSTITUTED_OPERATION_LIMIT or depth > SUBSTITUTED_DEPTH_LIMIT:
            raise self.source.error_at(
                node,
                f"with all names replaced by their expressions this has {operations:,} operations, {depth} deep; at most "
                f"{SUBSTITUTED_OPERATION_LIMIT:,} and {SUBSTITUTED_DEPTH_LIMIT} are allowed",
            )
        self.measures[symbol] = (operations, depth)

    def measured(self, expression: Expr) -> tuple[int, int]:
        if isinstance(expression, Symbol):
            return self.measures.get(expression, (0, 0))
        below = [self.measured(operand) for operand in expression.args]
        return 1 + sum(operations for operations, _ in below), 1 + max((depth for _, depth in below), default=0)

    def expression(self, node: ast.expr, depth: int) -> Expr:
        if depth > DEPTH_LIMIT:
            raise self.source.error_at(node, f"this nests deeper than {DEPTH_LIMIT} levels; name the parts")
        if isinstance(node, ast.Constant):
            return self.number(node)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.Attribute):
            return self.gate_form(node)
        if isinstance(node, ast.Subscript):
            return self.state_value(node)
        self.operation_count += 1
        if self.operation_count > OPERATION_LIMIT:
            raise self.source.error_at(node, f"there are more than {OPERATION_LIMIT:,} operations, the most a cell may have")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            operand = self.expression(node.operand, depth + 1)
            return ex.negate(operand) if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            return self.binary(node, depth)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        raise self.source.error_at(node, why_no_part(self.source, node))

    def number(self, node: ast.Constant) -> Expr:
        text = node_text(self.source, node)
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise self.source.error_at(node, f"'{text}' is not part of the equation language")
        exponent = re.search(r"[eE]([+-]?\d+)$", text)
        if text.endswith("...") or (exponent and abs(int(exponent[1])) > 99):
            raise self.out_of_range(node, text)
        return self.in_range(node, ex.number(text))

    def in_range(self, node: ast.expr, value: Expr) -> Expr:
        if ex.is_number(value) and value != ex.ZERO and not NUMBER_RANGE[0] <= abs(value.value) <= NUMBER_RANGE[1]:
            raise self.out_of_range(node, node_text(self.source, node))
        return value

    def out_of_range(self, node: ast.expr, text: str) -> BadInput:
        return self.source.error_at(node, f"the number {text} is out of range: 0, or 1e-37 to 1e38 in at most 37 characters")

    def name(self, node: ast.Name) -> Expr:
        if node.id in self.file.parameters:
            if node.id in RESERVED:
                raise self.source.error_at(node, why_a_word(node.id, "a parameter's name"))
            self.parameter_uses.setdefault(node.id, Place(self.source, node))
            return ex.named(node.id)
        if node.id in self.defined:
            return ex.named(node.id)
        if node.id in self.state_names():
            raise self.source.error_at(node, f"'{node.id}' is a state; write {node.id}[t-1] or {node.id}[t]")
        if node.id in ("W", "R"):
            raise self.source.error_at(node, f"'{node.id}' needs a gate; write {node.id}.<gate>")
        if node.id in (*FUNCTIONS, *NAMES_OVER_UNITS):
            raise self.source.error_at(node, f"'{node.id}' is a function; write {node.id}(…)")
        known = [name for name in (*self.defined, *self.file.parameters) if "[" not in name]
        raise self.source.error_at(
            node,
            f"'{node.id[:40]}' is not defined before this point{nearest_form(node.id, known)}; define it above, "
            "or list it under parameters",
        )

    def gate_form(self, node: ast.Attribute) -> Expr:
        if not isinstance(node.value, ast.Name) or node.value.id not in ("W", "R", "S", "X"):
            shown = node_text(self.source, node)
            forms = "W.<gate> and R.<gate>, or S.<name> and X.<name>"
            raise self.source.error_at(node, f"'{shown}' has no meaning; a dot is only in {forms}")
        self.gate_name(node)
        if node.value.id == "W":
            self.gate_uses.setdefault(node.attr, Place(self.source, node))
            return ex.gate(node.attr)
        if node.value.id == "S":
            if why := self.axes.why_not_shared(node.attr):
                raise self.source.error_at(node, why)
            self.shared_uses.setdefault(node.attr, Place(self.source, node))
            return ex.shared(node.attr)
        if node.value.id == "X":
            if node.attr not in (listed := self.file.inputs or ()):
                nearest = nearest_name(node.attr, listed)
                raise self.source.error_at(node, f"X.{node.attr} is not listed{nearest}; list it, `inputs: [{node.attr}]`")
            self.input_uses.setdefault(node.attr, Place(self.source, node))
            return ex.channel_input(node.attr)
        return self.product(node, node.attr, None)

    def gate_name(self, node: ast.Attribute) -> None:
        """Raise `BadInput` for a name after the dot that is no gate."""
        if node.attr in RESERVED:
            raise self.source.error_at(node, why_a_word(node.attr, "a gate's name"))
        if not NAME.fullmatch(node.attr):
            raise self.source.error_at(node, f"'{node.attr[:40]}' is not a gate's name: a letter, then letters, digits or _")

    def product(self, node: ast.expr, gate: str, argument: Expr | None) -> Expr:
        """Return the product of R.gate with `argument`, or with the previous output."""
        place = Place(self.source, node)
        if gate in self.product_uses and self.arguments[gate] != argument:
            line = self.product_uses[gate].line
            other, here = self.shown_argument(self.arguments[gate]), self.shown_argument(argument)
            raise place.error(
                f"R.{gate} multiplies {here} here and {other} on line {line}; give one of these products a gate of its own"
            )
        if argument is not None:
            check_argument(place, gate, argument, self.known(), self.shown_argument(argument))
        self.product_uses.setdefault(gate, place)
        self.arguments[gate] = argument
        return ex.product(gate)

    def known(self) -> dict[Symbol, Expr]:
        return {ex.named(name): expression for name, (_, expression) in self.defined.items()}

    def shown_argument(self, argument: Expr | None) -> str:
        return "the previous output" if argument is None else equation_text(argument)[:60]

    def state_reference(self, node: ast.Subscript) -> str:
        """Return "s[t]" or "s[t-1]"."""
        index = node.slice
        shown = node_text(self.source, node)
        is_previous = (
            isinstance(index, ast.BinOp)
            and isinstance(index.op, ast.Sub)
            and isinstance(index.right, ast.Constant)
            and type(index.right.value) is int  # True and 1.0 are equal to 1
            and index.right.value == 1
        )
        time = index.left if is_previous and isinstance(index, ast.BinOp) else index
        if not isinstance(node.value, ast.Name) or not (isinstance(time, ast.Name) and time.id == "t"):
            raise self.source.error_at(node, f"'{shown}' has no meaning; a state is written h[t-1] or h[t]")
        name = node.value.id
        if name in self.defined or name in self.file.parameters:
            raise self.source.error_at(node, f"'{name}' is not a state; write it without [t], or give the state another name")
        if name in RESERVED or not NAME.fullmatch(name):
            raise self.source.error_at(node, f"'{name[:40]}' cannot be a state's name; choose another name")
        self.state_uses.setdefault(name, Place(self.source, node))
        return f"{name}[t-1]" if is_previous else f"{name}[t]"

    def state_value(self, node: ast.Subscript) -> Expr:
        reference = self.state_reference(node)
        if reference.endswith("[t]") and reference not in self.defined:
            raise self.source.error_at(
                node, f"{reference} is used before it is defined; define it above, or use the previous step"
            )
        return ex.named(reference)

    def binary(self, node: ast.BinOp, depth: int) -> Expr:
        left = self.expression(node.left, depth + 1)
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, depth)
        right = self.expression(node.right, depth + 1)
        build = _ARITHMETIC.get(type(node.op))
        if build is None:
            shown = node_text(self.source, node)
            raise self.source.error_at(node, f"the operator in '{shown}' is not part of the language; use + - * / **")
        if build is ex.divide and right == ex.ZERO:
            raise self.source.error_at(node, "this divides by zero")
        return self.with_equal_units(node, self.in_range(node, build(left, right)))

    def with_equal_units(self, node: ast.expr, expression: Expr) -> Expr:
        """Return `expression`; raises `BadInput` where it mixes P projected units with H."""
        if why := self.axes.units.why_unequal(expression):
            raise self.source.error_at(node, why)
        return expression

    def power(self, node: ast.BinOp, base: Expr, depth: int) -> Expr:
        exponent = self.expression(node.right, max(depth + 1, DEPTH_LIMIT - 2))  # a number, perhaps with a sign
        whole = exponent.value if ex.is_number(exponent) else None
        if whole is None or whole.denominator != 1 or abs(whole) > POWER_LIMIT:
            raise self.source.error_at(
                node.right, f"an exponent is a whole number from -{POWER_LIMIT} to {POWER_LIMIT}; for others use exp and log"
            )
        if base == ex.ZERO and whole < 0:
            raise self.source.error_at(node, "this divides by zero")
        return self.in_range(node, ex.power(base, int(whole)))

    def call(self, node: ast.Call, depth: int) -> Expr:
        name = node.func.id if isinstance(node.func, ast.Name) else node_text(self.source, node.func)
        function = FUNCTIONS.get(name) or REDUCTIONS.get(name) or (EMBEDDED.get(name) if self.file.embedded else None)
        if name == "W" or name.startswith("W."):
            raise self.source.error_at(node, "W takes no argument, it always multiplies the input; write W.<gate>")
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "R":
            self.gate_name(node.func)
            if node.keywords or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
                raise self.source.error_at(node, f"{name} takes one argument, the value that R multiplies; write {name}(value)")
            argument = self.expression(node.args[0], depth + 1)
            self.measure(node, ex.product(node.func.attr), argument)
            return self.product(node, node.func.attr, argument)
        if name == "R":
            raise self.source.error_at(node, "R needs a gate; write R.<gate>(value), or R.<gate> for the previous output")
        if name in FREE_NAMES and (name in self.defined or name in self.file.parameters):
            raise self.source.error_at(node, f"'{name}' is a value of this cell, which cannot be called; give it another name")
        if name in NAMES_OVER_UNITS:
            return self.over_units(node, name, depth)
        if function is None:
            raise self.source.error_at(node, why_no_function(node, name, (*FUNCTIONS, *NAMES_OVER_UNITS)))
        wanted = function.argument_count
        if node.keywords or len(node.args) != wanted or any(isinstance(argument, ast.Starred) for argument in node.args):
            plural = "argument" if wanted == 1 else "arguments"
            raise self.source.error_at(node, f"{name} takes {wanted} {plural}, separated by commas")
        if function is Where:
            condition = self.condition(node.args[0], depth + 1)
            branches = (self.expression(argument, depth + 1) for argument in node.args[1:])
            return self.with_equal_units(node, Where(condition, *branches))
        built = self.with_equal_units(node, function(*(self.expression(argument, depth + 1) for argument in node.args)))
        if function is Surrogate and self.axes.is_wide(built.args[0]) != self.axes.is_wide(built.args[1]):
            raise self.source.error_at(node, "surrogate takes two values that both have the axis n, or both none of it")
        if name in REDUCTIONS and (why := self.axes.why_no_sum(built.args[0])):
            raise self.source.error_at(node, why)
        return built

    def over_units(self, node: ast.Call, name: str, depth: int) -> Expr:
        """Return a mean or a norm over units."""
        place, written = Place(self.source, node), norm_written(node, name)
        if isinstance(written, str):
            raise place.error(written)
        values = [self.expression(value, depth + 1) for value in (*written.normalised, *written.of)]
        epsilon = () if written.epsilon is None else (self.epsilon(name, written.epsilon, depth),)
        built = OVER_UNITS[name, written.over](*epsilon, *values)
        if wide := next(filter(self.axes.is_wide, values), None):
            raise place.error(f"{name} is over units, and {equation_text(wide)[:60]} has the axis n; leave one of the two out")
        self.with_equal_units(node, built)
        if not any(reads_previous_step(value, self.known()) for value in values):
            shown = equation_text(built)[:80]
            raise place.error(f"no previous step reaches {shown}; compute it before the layer, and give its value as a gate")
        if (levels := norm_levels(built, self.norm_levels)) > NORM_LEVELS_MOST and not self.file.embedded:
            raise place.error(
                f"this is the last of {levels} norms and means that each need the one before; at most {NORM_LEVELS_MOST} may"
            )
        self.norm_uses.setdefault(name, place)
        return built

    def epsilon(self, name: str, node: ast.expr, depth: int) -> Expr:
        """Return the number that a norm adds under its root."""
        value = self.expression(node, depth + 1)
        if not ex.is_number(value) or value.value <= 0:
            raise self.source.error_at(node, f"{name} adds a number above 0 under its root; write one, such as 1e-5")
        return value

    def condition(self, node: ast.expr, depth: int) -> Comparison:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise self.source.error_at(node, "where needs one comparison as its first argument, such as x > 0")
        self.operation_count += 1
        left, right = self.expression(node.left, depth + 1), self.expression(node.comparators[0], depth + 1)
        comparison = _COMPARISONS[type(node.ops[0])](left, right)
        self.with_equal_units(node, comparison)
        return comparison
