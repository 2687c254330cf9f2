"""Programs with the axis n as stages: values once per channel, then n times per channel, then sums over n, and so on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Exp, Exp2, Spread, Sum
from minrnn_gen.cell.preparation import PreparedParts, is_trivial, names_in
from minrnn_gen.cell.program import Program, Statement

LOG2_E = ex.number(math.log2(math.e))


@dataclass(frozen=True)
class Stage:
    """Statements in the order of execution: `narrow` ones, `wide` ones for each of n values, then `sums` over n.

    A sum is a statement, too: its name, and the expression that is added up.
    """

    narrow: tuple[Statement, ...] = ()
    wide: tuple[Statement, ...] = ()
    sums: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class StagedProgram:
    """A program whose statements have no sum within: `constants` are free of the step, and `steps` the rest.

    `inputs` are the inputs of the program, `wide` all names that have the axis n; `results` maps each label to the name of its
    value.
    """

    inputs: tuple[str, ...]
    constants: tuple[Stage, ...]
    steps: tuple[Stage, ...]
    results: tuple[tuple[str, str], ...]
    wide: frozenset[str]

    @property
    def constant_names(self) -> frozenset[str]:
        """The names of parameters, and of values computed from parameters alone."""
        computed = {statement.name for stage in self.constants for statement in statements_of(stage)}
        return frozenset(computed | {name for name in self.inputs if is_constant_input(name)})

    @property
    def held(self) -> tuple[str, ...]:
        """The names of parameters and constants that steps read, in order."""
        constant = self.constant_names
        read = [name for stage in self.steps for statement in statements_of(stage) for name in names_in(statement.expression)]
        read += [name for _, name in self.results]
        return tuple(name for name in dict.fromkeys(read) if name in constant)


def restricted(program: StagedProgram, labels: Collection[str], prepared: Collection[str] = ()) -> StagedProgram:
    """Return the program of these results, with `prepared` values as inputs; all constants of `program` stay."""
    results = tuple((label, name) for label, name in program.results if label in labels)
    needed = {name for _, name in results}

    def of_stage(stage: Stage) -> Stage:
        # Sums read wide values, wide values narrow ones; within a kind each reads those before it.
        kept = [list[Statement]() for _ in range(3)]
        for place, statements in ((2, stage.sums), (1, stage.wide), (0, stage.narrow)):
            for statement in reversed(statements):
                if statement.name in needed and statement.name not in prepared:
                    kept[place].insert(0, statement)
                    needed.update(names_in(statement.expression))
        return Stage(*map(tuple, kept))

    steps = tuple(of_stage(stage) for stage in reversed(program.steps))[::-1]
    while steps and not statements_of(steps[-1]):
        steps = steps[:-1]
    inputs = tuple(name for name in dict.fromkeys((*program.inputs, *prepared)) if name in needed)
    return replace(program, inputs=inputs, steps=steps, results=results)


@dataclass(frozen=True)
class PreparedProgram:
    """A program in two parts: `preparation` takes gates and constants alone, and gives the `values` of a channel for `steps`.

    Being free of states, it may run for many steps at once. A gate that `steps` reads is one of the `values`, too.
    """

    preparation: StagedProgram
    steps: StagedProgram

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the prepared values, none of which has the axis n."""
        return tuple(name for name, _ in self.preparation.results)


def prepared(program: StagedProgram) -> PreparedProgram:
    """Return `program` with the values without the axis n that read gates and constants alone computed before its steps."""
    return _Preparation(program).program()


@dataclass(frozen=True)
class FinishedProgram:
    """A program in two parts: `steps` computes what the next step needs, `finish` the rest from the totals of `sums` over n.

    `steps` returns each sum under its own name, and reads no total, so that the sums of several steps may be added up together.
    If the rest needs more than such sums, `sums` and `finish` are empty.
    """

    steps: StagedProgram
    finish: StagedProgram
    sums: tuple[str, ...]


def finished(program: PreparedProgram, label: str) -> FinishedProgram:
    """Return the steps of `program`, split from the part of the result `label` that reads sums."""
    steps = program.steps
    others = {name for name, _ in steps.results} - {label}
    sums = {summed.name for stage in steps.steps for summed in stage.sums}
    finish = restricted(steps, {label}, sums)
    read = dict.fromkeys((*finish.inputs, *(name for _, name in finish.results)))
    added_up = tuple(name for name in read if name in sums)
    kept = restricted(steps, others)
    is_narrow = not any(stage.wide or stage.sums for stage in finish.steps)
    known = {*sums, *program.values, *(steps.constant_names - steps.wide)}
    is_free = known.issuperset(finish.inputs) and sums.isdisjoint(
        statement.name for stage in kept.steps for statement in stage.sums
    )
    if not added_up or not is_narrow or not is_free:
        return FinishedProgram(steps, replace(steps, inputs=(), steps=(), results=()), ())
    shares = replace(steps, results=(*steps.results, *((name, name) for name in added_up)))
    return FinishedProgram(restricted(shares, {*others, *added_up}), finish, added_up)


@dataclass(frozen=True)
class SummedProgram:
    """A program in two parts: `steps` gives results that are summed over steps, and `finish` completes their totals.

    Factors of such a result that are the same at every step are left to `finish`, whose inputs are `total_<label>`.
    """

    steps: StagedProgram
    finish: StagedProgram


def summed(program: StagedProgram, labels: Mapping[str, bool]) -> SummedProgram:
    """Return `program` without the constant factors of these results, and the program that applies these factors.

    `labels` maps each label to whether its total has the axis n.
    """
    results = dict(program.results)
    read = [name for stage in program.steps for statement in statements_of(stage) for name in names_in(statement.expression)]
    totals = {results[label]: ex.named(f"total_{label}") for label in labels}
    is_alone = {name for name in totals if name not in read and [*results.values()].count(name) == 1}
    finished = {label: Statement(f"finished_{label}", totals[results[label]]) for label in labels}

    def rest(statement: Statement) -> Statement:
        if statement.name not in is_alone:
            return statement
        expression, total = _without_factors(statement.expression, totals[statement.name], program.constant_names)
        (label,) = (label for label in labels if results[label] == statement.name)
        finished[label] = Statement(f"finished_{label}", total)
        return Statement(statement.name, expression)

    parts = ((stage.narrow, stage.wide, stage.sums) for stage in program.steps)
    steps = tuple(Stage(*(tuple(map(rest, part)) for part in of_stage)) for of_stage in parts)
    wide = {label for label, is_wide in labels.items() if is_wide}
    finish = StagedProgram(
        inputs=tuple(total.name for total in totals.values()),
        constants=program.constants,
        steps=(
            Stage(
                narrow=tuple(finished[label] for label in labels if label not in wide),
                wide=tuple(finished[label] for label in labels if label in wide),
            ),
        ),
        results=tuple((label, finished[label].name) for label in labels),
        wide=program.wide | {name for label in wide for name in (finished[label].name, totals[results[label]].name)},
    )
    return SummedProgram(replace(program, steps=steps), finish)


def _without_factors(expression: Expr, total: Expr, constants: Collection[str]) -> tuple[Expr, Expr]:
    """Return `expression` without its constant factors, and `total`, its sum over steps, with them."""
    name, operands = ex.operation(expression)
    if name == "negate":
        return _without_factors(operands[0], ex.negate(total), constants)
    if name == "multiply":
        for factor, other in (operands, reversed(operands)):
            if set(names_in(factor)) <= set(constants):
                return _without_factors(other, ex.multiply(total, factor), constants)
    return expression, total


class _Preparation:
    """The statements of a program's steps, in two parts."""

    def __init__(self, program: StagedProgram) -> None:
        self._program = program
        constants = {*program.constant_names} - program.wide
        self._parts = PreparedParts(constants | {name for name in program.inputs if is_gate(name)})
        self._is_constant = constants.__contains__

    def program(self) -> PreparedProgram:
        rest, free = self._parts.rest, self._parts.free
        inputs = tuple(name for name in self._program.inputs if name in free)
        steps = tuple(Stage(rest(stage.narrow), rest(stage.wide), rest(stage.sums)) for stage in self._program.steps)
        read = [name for stage in steps for statement in statements_of(stage) for name in names_in(statement.expression)]
        read += [name for _, name in self._program.results]
        values = tuple(name for name in dict.fromkeys(read) if name in free and not self._is_constant(name))
        others = tuple(name for name in self._program.inputs if not is_gate(name))
        preparation = replace(
            self._program,
            inputs=inputs,
            steps=(Stage(narrow=tuple(self._parts.statements)),),
            results=tuple((name, name) for name in values),
        )
        return PreparedProgram(preparation, replace(self._program, inputs=(*others, *values), steps=steps))


def is_gate(name: str) -> bool:
    """Whether an input of a program is one of a channel's gates."""
    return name.startswith("W_")


def is_constant_input(name: str) -> bool:
    """Whether an input of a program is the same at every step: a parameter."""
    return name.startswith("parameter_")


def statements_of(stage: Stage) -> tuple[Statement, ...]:
    """Return all statements of a stage."""
    return (*stage.narrow, *stage.wide, *stage.sums)


def staged(program: Program, wide_inputs: Collection[str]) -> StagedProgram:
    """Return `program` as stages; `wide_inputs` are the inputs that have the axis n."""
    return _Stages(program, wide_inputs).program()


class _Stages:
    """The statements of a program, each put into its stage: after the sums that it reads, and before the steps if it can."""

    def __init__(self, program: Program, wide_inputs: Collection[str]) -> None:
        self._program = program
        self._wide = {name for name in program.inputs if name in wide_inputs}
        # For each name, whether it changes with the step, and how many sums precede it.
        self._places = {name: (not is_constant_input(name), 0) for name in program.inputs}
        self._statements: dict[tuple[bool, int], dict[str, list[Statement]]] = {}
        self._hoisted_parts: dict[Expr, Symbol] = {}
        self._sums: dict[Expr, Symbol] = {}

    def program(self) -> StagedProgram:
        for statement in self._program.statements:
            self._define(statement.name, self._without_sums(statement.expression))
        return StagedProgram(
            inputs=self._program.inputs,
            constants=self._of_phase(False),
            steps=self._of_phase(True),
            results=self._program.results,
            wide=frozenset(self._wide),
        )

    def _of_phase(self, changes: bool) -> tuple[Stage, ...]:
        levels = [level for phase, level in self._statements if phase == changes]
        parts = (self._statements.get((changes, level), {}) for level in range(max(levels, default=-1) + 1))
        return tuple(Stage(*(tuple(part.get(kind, ())) for kind in ("narrow", "wide", "sums"))) for part in parts)

    def _define(self, name: str, expression: Expr) -> None:
        """Put a statement into its stage."""
        place = self._place_of(expression)
        expression = self._hoisted(expression)
        is_wide = self._is_wide(expression)
        if is_wide:
            self._wide.add(name)
        self._places[name] = place
        self._add(place, "wide" if is_wide else "narrow", Statement(name, expression))

    def _add(self, place: tuple[bool, int], kind: str, statement: Statement) -> None:
        self._statements.setdefault(place, {}).setdefault(kind, []).append(statement)

    def _without_sums(self, expression: Expr) -> Expr:
        """Return `expression` with each sum replaced by its name, and each spread value by itself."""
        operands = [self._without_sums(operand) for operand in ex.operation(expression)[1]]
        if isinstance(expression, Spread):
            return operands[0]
        if not isinstance(expression, Sum):
            return ex.rebuilt(expression, operands)
        (operand,) = operands
        if operand not in self._sums:
            changes, level = self._place_of(operand)
            summand = self._hoisted(operand)
            symbol = ex.named(f"sum_{len(self._sums)}")
            self._sums[operand] = symbol
            self._places[symbol.name] = changes, level + 1
            self._add((changes, level), "sums", Statement(symbol.name, summand))
        return self._sums[operand]

    def _hoisted(self, expression: Expr) -> Expr:
        """Return `expression` with names for its largest parts that are computed less often: at no step, or once a channel."""
        expression = self._in_powers_of_2(expression)
        changes, is_wide = self._place_of(expression)[0], self._is_wide(expression)
        return ex.rebuilt(
            expression, [self._named_if_rarer(operand, changes, is_wide) for operand in ex.operation(expression)[1]]
        )

    def _named_if_rarer(self, expression: Expr, changes: bool, is_wide: bool) -> Expr:
        expression = self._in_powers_of_2(expression)
        operands = ex.operation(expression)[1]
        if not operands:
            return expression
        is_rarer = (changes and not self._place_of(expression)[0]) or (is_wide and not self._is_wide(expression))
        if not is_rarer or is_trivial(expression) or not any(True for _ in ex.symbols_of(expression)):
            return ex.rebuilt(expression, [self._named_if_rarer(operand, changes, is_wide) for operand in operands])
        if expression not in self._hoisted_parts:
            symbol = ex.named(f"hoisted_{len(self._hoisted_parts)}")
            self._hoisted_parts[expression] = symbol
            self._define(symbol.name, expression)
        return self._hoisted_parts[expression]

    def _in_powers_of_2(self, expression: Expr) -> Expr:
        """Return the exponential of a product with a constant as a power of 2: only the constant is scaled, and once."""
        if not isinstance(expression, Exp):
            return expression
        name, factors = ex.operation(expression.args[0])
        if name != "multiply":
            return expression
        changes = [self._place_of(factor)[0] for factor in factors]
        if changes == [False, True]:
            return Exp2(ex.multiply(ex.multiply(LOG2_E, factors[0]), factors[1]))
        if changes == [True, False]:
            return Exp2(ex.multiply(factors[0], ex.multiply(LOG2_E, factors[1])))
        return expression

    def _place_of(self, expression: Expr) -> tuple[bool, int]:
        places = [self._places[name] for name in names_in(expression)]
        changes = any(place[0] for place in places)
        return changes, max((level for of_step, level in places if of_step == changes), default=0)

    def _is_wide(self, expression: Expr) -> bool:
        return not self._wide.isdisjoint(names_in(expression))


def operation_counts(staged_program: StagedProgram) -> Mapping[str, tuple[int, int]]:
    """Return (operations, results of the special-function unit) of a step: "narrow" per channel, "wide" per value of n."""
    parts: dict[str, list[Statement]] = {"narrow": [], "wide": []}
    for stage in staged_program.steps:
        parts["narrow"] += stage.narrow
        parts["wide"] += (*stage.wide, *stage.sums)
    sums = sum(len(stage.sums) for stage in staged_program.steps)
    counted = {kind: Program((), tuple(statements), ()) for kind, statements in parts.items()}
    return {
        kind: (program.operation_count + (sums if kind == "wide" else 0), program.transcendental_count)
        for kind, program in counted.items()
    }
