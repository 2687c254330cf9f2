"""The equation language: the text of a cell to a `Cell`, through Python's syntax tree and a whitelist; nothing is executed."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.axes import (
    NO_VECTORS,
    Axes,
    Vectors,
    check_no_input,
    check_no_product,
    check_no_vectors,
    check_norms,
    names_with_axes,
)
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.files import CellFile, CellSource, named_with
from minrnn_gen.cell.functions import OverUnits
from minrnn_gen.cell.liveness import check_all_is_read, names_in_order
from minrnn_gen.cell.norms import norm_levels, norms_in
from minrnn_gen.cell.projection import NO_PROJECTION, Projection
from minrnn_gen.cell.reading import NAME, RESERVED, ExpressionReader
from minrnn_gen.cell.rounds import LEVELS_MOST, PRODUCTS_MOST, Round, levels_of, rounds_of
from minrnn_gen.cell.syntax import (
    EquationText,
    Place,
    equation_statements,
    located,
    node_text,
    output_expression,
    why_a_word,
)
from minrnn_gen.config.documents import validated


@dataclass(frozen=True)
class Cell:
    """Equations of one time step.

    `definitions` are the equations, each after everything it uses. An expression's symbols are spelled `W.g`, `R.g`, `S.b`,
    `X.m`, `s[t-1]`, `s[t]`, or as the bare name of a let or a parameter. `gates` has the order of W, `recurrent_gates` that of
    R, `states` that of the state arrays. `vectors` are the names with n values per channel, those of S.* in their order.
    `arguments` has the operand of each recurrent gate whose product does not multiply the previous output. `inputs` are the
    names of X.*, inputs of each channel that are not projected; the `step_inputs` among them have one value for all channels of
    a step. `projection` has the names with P projected units, and the file's description of products. `block_diagonal` has the
    gates with block-diagonal matrices, each with its number of equal blocks. Norms over a head are over one of `norm_parts`
    equal parts of it.
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
    arguments: tuple[tuple[str, Expr], ...] = ()
    projection: Projection = NO_PROJECTION
    inputs: tuple[str, ...] = ()
    step_inputs: tuple[str, ...] = ()
    block_diagonal: tuple[tuple[str, int], ...] = ()
    norm_parts: int = 1

    @property
    def lets(self) -> tuple[tuple[str, Expr], ...]:
        """The named values, in the order of their definitions."""
        return tuple((symbol.name, expression) for symbol, expression in self.definitions if "[" not in symbol.name)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of products after the product of the previous output, in the order of a step."""
        return rounds_of(self.definitions, self.recurrent_gates, self.arguments)

    @property
    def norms(self) -> tuple[OverUnits, ...]:
        """The norms and means over units, each once, in the order of their uses."""
        values = (expression for _, expression in self.definitions)
        return tuple(dict.fromkeys(norms_in((*values, *(argument for _, argument in self.arguments), self.output))))

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


class _Reader(ExpressionReader):
    """Reads equations in turn, and builds the cell."""

    def read_statement(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            shown = node_text(self.source, statement)
            raise self.source.error_at(
                statement, f"'{shown}' is not an equation; write `name = expression` or `state[t] = expression`"
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
        self.norm_levels[ex.named(name)] = norm_levels(expression, self.norm_levels)
        self.measure(target, ex.named(name), expression)

    def check_new_name(self, node: ast.expr, name: str) -> None:
        if name in RESERVED:
            raise self.source.error_at(node, why_a_word(name, "a value's name"))
        if not NAME.fullmatch(name):
            raise self.source.error_at(node, f"'{name[:40]}' is not a name: a letter, then at most 63 letters, digits or _")
        if name in self.file.parameters:
            raise self.source.error_at(node, f"'{name}' is a parameter and cannot be defined; choose another name")
        if name in self.state_names():
            raise self.source.error_at(node, f"'{name}' is a state; define {name}[t], or choose another name")

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
        """Return the cell; its output is the first state where the file names none."""
        file = self.file
        for state, place in self.state_uses.items():
            if f"{state}[t]" not in self.defined:
                raise place.error(f"the state {state} has no equation; add `{state}[t] = …`")
        if not self.gate_uses:
            raise self.source.error(1, 1, "no gate is used; an equation must read its input through W.<gate>")
        if not self.state_uses:
            raise self.source.error(1, 1, "there is no state; add an equation `h[t] = …`")
        gates = names_in_order(source, "gates", file.gates, self.gate_uses, "W.{0}")
        states = names_with_axes(source, "states", file.states, self.state_uses, "{0}[t]")
        parameters = names_with_axes(source, "parameters", file.parameters, self.parameter_uses, "{0}")
        shared = names_in_order(source, "shared", file.shared, self.shared_uses, "S.{0}")
        inputs = names_with_axes(source, "inputs", file.inputs, self.input_uses, "X.{0}")
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
        arguments = self.arguments_beside(output)
        recurrent_gates = self.recurrent_gates(gates)
        projection = self.axes.units.projection(source, states, parameters, recurrent_gates, output, dict(arguments))
        uses = {**self.state_uses, **self.parameter_uses}
        check_no_vectors(projection, vectors, uses)
        check_no_input(vectors, projection, self.input_uses, named_with("step", file.inputs))
        check_norms(vectors, self.norm_uses, self.product_uses)
        check_all_is_read(self.defined, output, default, vectors.states, bool(self.product_uses), dict(arguments))
        return Cell(
            name=file.name,
            gates=gates,
            recurrent_gates=recurrent_gates,
            states=states,
            parameters=parameters,
            definitions=tuple((ex.named(name), expression) for name, (_, expression) in self.defined.items()),
            output=output,
            equations=file.equations,
            vectors=vectors,
            arguments=arguments,
            projection=projection,
            inputs=inputs,
            step_inputs=tuple(name for name in inputs if name in named_with("step", file.inputs)),
            block_diagonal=tuple((file.block_diagonal or {}).items()),
            norm_parts=file.norm_parts or 1,
        )

    def recurrent_gates(self, gates: tuple[str, ...]) -> tuple[str, ...]:
        """Return R's order: the gates of W first, in their order, then the others in order of first use."""
        of_W = (gate for gate in gates if gate in self.product_uses)
        return (*of_W, *(gate for gate in self.product_uses if gate not in gates))

    def arguments_beside(self, output: Expr) -> tuple[tuple[str, Expr], ...]:
        """Return the argument of each gate's product, where it is not the previous output."""
        before = next((ex.previous(state) for state in self.state_uses if ex.current(state) == output), None)
        arguments = tuple(
            (gate, argument) for gate, argument in self.arguments.items() if argument is not None and argument != before
        )
        definitions = tuple(self.known().items())
        levels = levels_of(definitions, tuple(self.arguments), dict(arguments))
        for gate, level in levels.items():
            if level > LEVELS_MOST:
                raise self.product_uses[gate].error(
                    f"R.{gate} is the last of {level} products that each need the one before; a step has at most {LEVELS_MOST}"
                )
        if arguments and len(levels) > PRODUCTS_MOST and not self.file.embedded:
            gate = tuple(levels)[PRODUCTS_MOST]
            raise self.product_uses[gate].error(f"R has {len(levels)} gates; a cell has at most {PRODUCTS_MOST} products")
        return arguments
