"""The equation language: the text of a cell to a `Cell`, through Python's syntax tree and a whitelist; nothing is executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from fractions import Fraction

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.axes import NO_VECTORS, Axes, Vectors, check_no_product, names_with_axes
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.files import CellFile, CellSource
from minrnn_gen.cell.functions import (
    COMPARISONS,
    FREE_NAMES,
    FUNCTIONS,
    REDUCTIONS,
    Comparison,
    Surrogate,
    Where,
)
from minrnn_gen.cell.liveness import check_all_is_read, names_in_order
from minrnn_gen.cell.syntax import (
    DEPTH_LIMIT,
    OPERATION_LIMIT,
    EquationText,
    Place,
    equation_statements,
    located,
    nearest_form,
    node_text,
    output_expression,
    why_a_word,
    why_no_function,
    why_no_part,
)
from minrnn_gen.config.documents import validated
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
_RESERVED = {"W", "R", "t", *FUNCTIONS} - FREE_NAMES
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Cell:
    """What one time step computes.

    `definitions` are the equations, each after everything it uses. An expression's symbols are spelled `W.g`, `R.g`, `S.b`,
    `s[t-1]`, `s[t]`, or as the bare name of a let or a parameter. `gates` is W's order, `recurrent_gates` R's, `states` has the
    order of the state arrays. `vectors` are the names with n values per channel, those of S.* in their order.
    """

    name: str
    gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    definitions: tuple[tuple[Symbol, Expr], ...]
    output: Expr
    equations: str
    vectors: Vectors = NO_VECTORS

    @property
    def lets(self) -> tuple[tuple[str, Expr], ...]:
        """The named values, in the order of their definitions."""
        return tuple((symbol.name, expression) for symbol, expression in self.definitions if "[" not in symbol.name)

    @property
    def next_states(self) -> tuple[tuple[str, Expr], ...]:
        """Each state with its next value, in the order of their definitions."""
        return tuple((symbol.name[:-3], expression) for symbol, expression in self.definitions if "[" in symbol.name)


def parse_cell(source: CellSource) -> Cell:
    """Return the cell that `source` describes.

    Raises `BadInput`, "file:line:column: sentence", for anything the language does not have: docs/cells.md.
    """
    file = validated(source.document, CellFile)
    file_text = source.canonical.decode("utf-8", "replace")
    reader = _Reader(file, located(source.document, "equations", file.equations, file_text), Axes(file))
    for statement in equation_statements(reader.source):
        reader.read_statement(statement)
    if file.output is None:
        return reader.finished(source, None, None)
    text = located(source.document, "output", file.output.strip(), file_text)
    return reader.finished(source, text, reader.read_output(text))


@dataclass
class _Reader:
    """The names met so far, each with the node of its first use or definition."""

    file: CellFile
    source: EquationText
    axes: Axes
    gate_uses: dict[str, Place] = field(default_factory=dict)
    product_uses: dict[str, Place] = field(default_factory=dict)
    state_uses: dict[str, Place] = field(default_factory=dict)
    parameter_uses: dict[str, Place] = field(default_factory=dict)
    shared_uses: dict[str, Place] = field(default_factory=dict)
    defined: dict[str, tuple[Place, Expr]] = field(default_factory=dict)
    measures: dict[Symbol, tuple[int, int]] = field(default_factory=dict)
    operation_count: int = 0

    def read_statement(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            shown = node_text(self.source, statement)
            raise self.source.error_at(
                statement, f"'{shown}' is no equation; write `name = expression` or `state[t] = expression`"
            )
        target = statement.targets[0]
        if isinstance(target, ast.Subscript):
            name = self.state_reference(target)
            if name.endswith("[t-1]"):
                raise self.source.error_at(target, f"{name} is the previous step's value; an equation defines {name[:-5]}[t]")
        elif isinstance(target, ast.Name):
            name = target.id
            self.check_new_name(target, name)
        else:
            shown = node_text(self.source, target)
            raise self.source.error_at(target, f"'{shown}' cannot be defined; write `name = …` or `state[t] = …`")
        if name in self.defined:
            line = self.defined[name][0].line
            raise self.source.error_at(target, f"{name} is defined twice, first on line {line}; give one of them another name")
        expression = self.expression(statement.value, 0)
        self.defined[name] = (Place(self.source, target), expression)
        self.axes.define(self.defined[name][0], name, expression)
        self.measure(target, ex.named(name), expression)

    def check_new_name(self, node: ast.expr, name: str) -> None:
        if name in _RESERVED:
            raise self.source.error_at(node, why_a_word(name, "a value's name"))
        if not _NAME.fullmatch(name):
            raise self.source.error_at(node, f"'{name[:40]}' is not a name: a letter, then at most 63 letters, digits or _")
        if name in self.file.parameters:
            raise self.source.error_at(node, f"'{name}' is a parameter and cannot be defined; choose another name")
        if name in self.state_names():
            raise self.source.error_at(node, f"'{name}' is a state; define {name}[t], or choose another name")

    def state_names(self) -> set[str]:
        return {*self.state_uses, *(self.file.states or ())}

    def measure(self, node: ast.expr, symbol: Symbol, expression: Expr) -> None:
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
            if node.id in _RESERVED:
                raise self.source.error_at(node, why_a_word(node.id, "a parameter's name"))
            self.parameter_uses.setdefault(node.id, Place(self.source, node))
            return ex.named(node.id)
        if node.id in self.defined:
            return ex.named(node.id)
        if node.id in self.state_names():
            raise self.source.error_at(node, f"'{node.id}' is a state; write {node.id}[t-1] or {node.id}[t]")
        if node.id in ("W", "R"):
            raise self.source.error_at(node, f"'{node.id}' needs a gate; write {node.id}.<gate>")
        if node.id in FUNCTIONS:
            raise self.source.error_at(node, f"'{node.id}' is a function; write {node.id}(…)")
        known = [name for name in (*self.defined, *self.file.parameters) if "[" not in name]
        raise self.source.error_at(
            node,
            f"'{node.id[:40]}' is not defined before this point{nearest_form(node.id, known)}; define it above, "
            "or list it under parameters",
        )

    def gate_form(self, node: ast.Attribute) -> Expr:
        if not isinstance(node.value, ast.Name) or node.value.id not in ("W", "R", "S"):
            shown = node_text(self.source, node)
            raise self.source.error_at(node, f"'{shown}' has no meaning; a dot is only in W.<gate> and R.<gate>, or S.<name>")
        if node.attr in _RESERVED:
            raise self.source.error_at(node, why_a_word(node.attr, "a gate's name"))
        if not _NAME.fullmatch(node.attr):
            raise self.source.error_at(node, f"'{node.attr[:40]}' is not a gate's name: a letter, then letters, digits or _")
        if node.value.id == "W":
            self.gate_uses.setdefault(node.attr, Place(self.source, node))
            return ex.gate(node.attr)
        if node.value.id == "S":
            if why := self.axes.why_not_shared(node.attr):
                raise self.source.error_at(node, why)
            self.shared_uses.setdefault(node.attr, Place(self.source, node))
            return ex.shared(node.attr)
        self.product_uses.setdefault(node.attr, Place(self.source, node))
        return ex.product(node.attr)

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
        if name in _RESERVED or not _NAME.fullmatch(name):
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
        return self.in_range(node, build(left, right))

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
        function = FUNCTIONS.get(name) or REDUCTIONS.get(name)
        if name in ("W", "R") or name.startswith(("W.", "R.")):
            what, multiplied = name[0], {"W": "the input", "R": "the previous output"}[name[0]]
            raise self.source.error_at(
                node, f"{what} takes no argument, it always multiplies {multiplied}; write {what}.<gate>"
            )
        if name in FREE_NAMES and (name in self.defined or name in self.file.parameters):
            raise self.source.error_at(node, f"'{name}' is a value of this cell, which cannot be called; give it another name")
        if function is None:
            raise self.source.error_at(node, why_no_function(node, name, FUNCTIONS))
        wanted = function.argument_count
        if node.keywords or len(node.args) != wanted or any(isinstance(argument, ast.Starred) for argument in node.args):
            plural = "argument" if wanted == 1 else "arguments"
            raise self.source.error_at(node, f"{name} takes {wanted} {plural}, separated by commas")
        if function is Where:
            condition = self.condition(node.args[0], depth + 1)
            return Where(condition, *(self.expression(argument, depth + 1) for argument in node.args[1:]))
        built = function(*(self.expression(argument, depth + 1) for argument in node.args))
        if function is Surrogate and self.axes.is_wide(built.args[0]) != self.axes.is_wide(built.args[1]):
            raise self.source.error_at(node, "surrogate takes two values that both have the axis n, or both none of it")
        if name in REDUCTIONS and (why := self.axes.why_no_sum(built.args[0])):
            raise self.source.error_at(node, why)
        return built

    def condition(self, node: ast.expr, depth: int) -> Comparison:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise self.source.error_at(node, "where needs one comparison as its first argument, such as x > 0")
        self.operation_count += 1
        left, right = self.expression(node.left, depth + 1), self.expression(node.comparators[0], depth + 1)
        return _COMPARISONS[type(node.ops[0])](left, right)

    def read_output(self, text: EquationText) -> Expr:
        """Return the expression of the key `output`."""
        name = text.text.strip()
        if name in self.state_names():
            return ex.current(name)
        equations, self.source = self.source, text
        node = output_expression(text)
        output = self.expression(node, 0)
        self.measure(node, ex.named("output"), output)
        self.source = equations
        return output

    def finished(self, source: CellSource, output_text: EquationText | None, output: Expr | None) -> Cell:
        """Return the cell, its output the first state where the file names none."""
        file = self.file
        for state, place in self.state_uses.items():
            if f"{state}[t]" not in self.defined:
                raise place.error(f"the state {state} has no equation; add `{state}[t] = …`")
        for gate, place in self.product_uses.items():
            if gate not in self.gate_uses:
                raise place.error(f"R.{gate} names no gate{nearest_name(gate, self.gate_uses)}; use W.{gate} as well")
        if not self.gate_uses:
            raise self.source.error(1, 1, "no gate is used; an equation must read its input through W.<gate>")
        if not self.state_uses:
            raise self.source.error(1, 1, "there is no state; add an equation `h[t] = …`")
        gates = names_in_order(source, "gates", file.gates, self.gate_uses, "W.{0}")
        states = names_with_axes(source, "states", file.states, self.state_uses, "{0}[t]")
        parameters = names_with_axes(source, "parameters", file.parameters, self.parameter_uses, "{0}")
        shared = names_in_order(source, "shared", file.shared, self.shared_uses, "S.{0}")
        vectors = self.axes.vectors(states, parameters, shared)
        check_no_product(vectors, self.product_uses)
        default = states[0] if output is None else None
        output = ex.current(states[0]) if output is None else output
        if self.product_uses and output_text and output not in {ex.current(state) for state in states}:
            raise output_text.error(
                1,
                1,
                "with R the output must be a state, because R multiplies the previous output; define one above, "
                "`name[t] = …`, and give its name here",
            )
        if why := self.axes.why_no_output(output, default):
            raise (output_text or self.source).error(1, 1, why)
        check_all_is_read(self.defined, output, default, vectors.states, bool(self.product_uses))
        return Cell(
            name=file.name,
            gates=gates,
            recurrent_gates=tuple(gate for gate in gates if gate in self.product_uses),
            states=states,
            parameters=parameters,
            definitions=tuple((ex.named(name), expression) for name, (_, expression) in self.defined.items()),
            output=output,
            equations=file.equations,
            vectors=vectors,
        )
