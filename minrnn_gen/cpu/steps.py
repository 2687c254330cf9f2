"""Cells that are no scan in NumPy, step by step, and their gradients, vectorised over batch and hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from minrnn_gen.cell.levels import Level
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.projection import Projection, by_summand, by_units
from minrnn_gen.cpu.call import BackwardCall, ForwardCall, StepMarks, narrowed, write_shared
from minrnn_gen.cpu.matmul import StepProducts, matrices_of
from minrnn_gen.cpu.recurrence import Values


def run_steps(
    cell: LoweredSteps, call: ForwardCall, *, products: StepProducts | None = None, heads: int = 1
) -> dict[str, Values]:
    """Run any cell over time and return its final states.

    `products`, of a dense cell, multiply the previous output in the dtype of the arithmetic, not y as rounded to storage; their
    arguments are not rounded either.
    """
    constants, states = call.constants(), call.entering(cell.states)
    with numpy.errstate(all="ignore"):
        for part in call.parts():
            values = call.values(cell.gates, part)
            for step in range(part.start, part.stop):
                marked = call.marks[step]
                inputs = constants | {name: value[step - part.start] for name, value in values.items()}
                inputs |= {f"previous_{name}": marked.cut_off(state) for name, state in states.items()}
                if products is not None:
                    output = inputs[f"previous_{cell.output_state}"]
                    inputs |= products.named(0, products.of_output.of(output, marked.cuts))
                    for number, product in enumerate(products.rounds):
                        of_round = cell.rounds[number]
                        argument = evaluated(
                            of_round.program,
                            cell,
                            with_means(inputs, of_round.levels, heads * cell.norm_parts, cell.projection),
                            of_round.of_projected,
                        )["argument"]
                        shape = (*output.shape[:-1], products.operand_units(number + 1))
                        inputs |= products.named(number + 1, product.of(in_shape(argument, shape, call.arithmetic), None))
                results = evaluated(cell.step, cell, with_means(inputs, cell.levels, heads * cell.norm_parts, cell.projection))
                for name, before in states.items():
                    after = spread(results[f"state_{name}"], before)
                    states[name] = marked.within_or(before, after)
                    call.keep(name, step, after)
                call.write(step, results["y"])
    return states


def with_means(
    inputs: Mapping[str, Values], levels: Sequence[Level], heads: int, projection: Projection
) -> Mapping[str, Values]:
    """Return a program's inputs with the means over units, each mean broadcast to the units that share it."""
    if not levels:
        return inputs
    known = dict(inputs)
    for level in levels:
        summands = {label: value for part in by_summand(level, projection) for label, value in part.evaluate(known).items()}
        for (name, over), label in zip(level.means, summands, strict=True):
            by_head = summands[label]
            *rows, hidden = by_head.shape
            groups = heads if over == "head" else 1
            means = by_head.reshape(*rows, groups, hidden // groups).mean(-1, keepdims=True)
            known[name] = numpy.broadcast_to(means, (*rows, groups, hidden // groups)).reshape(by_head.shape)
    return known


def evaluated(
    program: Program, cell: LoweredSteps | LoweredStepsBackward, inputs: Mapping[str, Values], of_projected: bool = False
) -> dict[str, Values]:
    """Return the results of a program, in two parts where some have P units; `of_projected`: its argument has P units, too."""
    parts = by_units(program, cell.projection, of_projected)
    return {label: value for _, part in parts for label, value in part.evaluate(inputs).items()}


def spread(value: Values, like: Values) -> Values:
    """Return a result of a program, which has no more axes than its inputs, in the shape and dtype of `like`."""
    return in_shape(value, like.shape, like.dtype)


def in_shape(value: Values, shape: tuple[int, ...], dtype: Any) -> Values:
    """Return a result of a program in a shape; a result that depends on no input has another dtype and no axes."""
    return value if value.shape == shape else narrowed(value.astype(dtype), shape)


@dataclass(frozen=True)
class StepsGradients:
    """Gradients except that of x: `initial` {state: [B, H]}, `sums` [gates + recurrent gates + parameters, H], and `R`.

    `sums` are of bias, recurrent bias and parameters; `R` has the shape of the call's, for a cell with products. Both, sums
    over batch and time, are in float64, and 0 beyond the P units of projected entries. For a cell with the axis n, these sums
    have a last axis of 1, and gradients of its parameters with n are `vectors` {name: [H, n]}.
    """

    initial: dict[str, Values]
    sums: Values
    R: Values | None
    vectors: dict[str, Values] = field(default_factory=dict)


def run_steps_backward(
    cell: LoweredStepsBackward,
    call: BackwardCall,
    *,
    products: StepProducts | None = None,
    clip: float | None = None,
    heads: int = 1,
) -> StepsGradients:
    """Write the gradient of x and return the others.

    `states` of the call are those of `cell.read_states` and, with a product, `cell.output_state`. The products are recomputed
    from these, for a block of steps at once. `clip` bounds, element by element, the gradient that arrives at the output of a
    step from later steps, through R and past it; a cell without a product has no such bound.
    """
    gates, marks, arithmetic = call.gates, call.marks, call.arithmetic
    batch, hidden = gates.shape[1], gates.shape[3]
    units = {False: hidden, True: _projected_units(cell, products, call.initial, call.parameters) or hidden}
    arriving, constants = call.arriving(cell.states), call.constants()
    bound = None if clip is None or products is None else _Bound(clip, _precede_others(marks, len(gates), batch))
    walk = _Walk(cell, constants, products, bound, heads, units, (batch, *gates.shape[3:]))
    sums = numpy.zeros((len(walk.labels), *gates.shape[3:]))
    vectors = {name: numpy.zeros(call.parameters[name].shape) for name in cell.vectors.parameters}
    dR = None if products is None else numpy.zeros(products.R_shape)
    with numpy.errstate(all="ignore"):
        for part in call.parts_back():
            marked, values = marks[part], call.values(cell.gates, part)
            for name in cell.states:
                if name in cell.read_states or (products is not None and name == cell.output_state):
                    values[f"previous_{name}"] = call.previous(name, part)
            arguments = None if products is None else _Arguments(cell, constants, products, values, marked, heads)
            wide = {
                f"gradient_parameter_{name}": numpy.zeros((part.stop - part.start, batch, *total.shape), arithmetic)
                for name, total in vectors.items()
            }
            wide |= {
                f"gradient_S_{name}": numpy.zeros((part.stop - part.start, batch, hidden, written.shape[-1]), arithmetic)
                for name, written in call.dshared.items()
            }
            wide |= {
                f"gradient_X_{name}": numpy.zeros((part.stop - part.start, batch, hidden), arithmetic) for name in call.dinputs
            }
            gradients, arriving = walk.back(values, arriving, marked, part.start, wide)
            call.dx[part] = numpy.moveaxis(gradients[walk.of_gates], 0, 2)
            for name, total in vectors.items():
                total += wide[f"gradient_parameter_{name}"].sum((0, 1), dtype=numpy.float64)
            for name, written in call.dshared.items():
                write_shared(written[part], wide[f"gradient_S_{name}"])
            for name, written in call.dinputs.items():
                written[part] = wide[f"gradient_X_{name}"]
            sums += gradients.sum((1, 2), dtype=numpy.float64)
            if arguments is not None and dR is not None:
                arguments.add_to_matrix(dR, gradients[walk.of_products])
    return StepsGradients(arriving, sums, dR, vectors)


def _projected_units(
    cell: LoweredStepsBackward, products: StepProducts | None, states: Mapping[str, Values], parameters: Mapping[str, Values]
) -> int:
    """Return P; 0 without the axis."""
    projection = cell.projection
    sizes = [products.units(products.gates.index(gate)) for gate in projection.to] if products is not None else []
    sizes += [states[name].shape[-1] for name in projection.states]
    sizes += [parameters[name].shape[-1] for name in projection.parameters]
    return sizes[0] if sizes else 0


def _precede_others(marks: StepMarks, time: int, batch: int) -> Values:
    """Return [T, B]: True for steps that another step of the same sequence follows."""
    within = numpy.ones((time, batch), bool) if marks.within is None else marks.within
    precede = numpy.zeros((time, batch), bool)
    precede[:-1] = numpy.logical_or.accumulate(within[:0:-1])[::-1]
    return precede


class _Arguments:
    """Arguments of the products of a block of steps, by rounds as rows [T * B, units]; the products join the `values`."""

    def __init__(
        self,
        cell: LoweredStepsBackward,
        constants: Mapping[str, Values],
        products: StepProducts,
        values: dict[str, Values],
        marked: StepMarks,
        heads: int,
    ) -> None:
        self._products = products
        # Values beyond a sequence may be NaN, which times a gradient of 0 would enter the sum over time.
        zero = values["gradient_y"].dtype.type(0)
        output = marked.within_or(zero, values[f"previous_{cell.output_state}"])
        self._rows = [output.reshape(-1, output.shape[-1])]
        self._cuts = None if marked.cuts is None else marked.cuts.reshape(len(self._rows[0]), 1)
        if not cell.read_products and not cell.rounds:
            return
        steps = output.shape[:-1]
        values |= self._named(0, products.of_output.of(self._rows[0], self._cuts), steps)
        for number, (of_round, product) in enumerate(zip(cell.arguments, products.rounds, strict=True), start=1):
            shape = (*steps, products.operand_units(number))
            inputs = with_means({**constants, **values}, of_round.levels, heads * cell.norm_parts, cell.projection)
            argument = in_shape(
                evaluated(of_round.program, cell, inputs, of_round.of_projected)["argument"], shape, output.dtype
            )
            rows = marked.within_or(zero, argument).reshape(-1, shape[-1])
            values |= self._named(number, product.of(rows, None), steps)
            self._rows.append(rows)

    def _named(self, number: int, products: Sequence[Values], steps: tuple[int, ...]) -> dict[str, Values]:
        return self._products.named(number, [product.reshape(*steps, product.shape[-1]) for product in products])

    def add_to_matrix(self, dR: Values, gradients: Values) -> None:
        """Add to the gradient of R from the gradients [Gr, T, B, units] of the products."""
        of_products, matrices = (self._products.of_output, *self._products.rounds), matrices_of(dR, self._products.shapes)
        for number, (places, product, rows) in enumerate(zip(self._products.places, of_products, self._rows, strict=True)):
            units = map(self._products.units, places)
            passed = [gradients[place][..., :size].reshape(len(rows), size) for place, size in zip(places, units, strict=True)]
            if number == 0 and self._cuts is not None:
                passed = [numpy.where(self._cuts, gradient.dtype.type(0), gradient) for gradient in passed]
            for place, gradient in zip(places, product.to_matrices(passed, rows), strict=True):
                matrices[place] += gradient


@dataclass(frozen=True)
class _Bound:
    """The bound on the gradient that arrives at the output of a step from later steps.

    `precede_others` [T, B]: marks of steps that have a later one. The last step has none: the gradient of a final state is not
    bounded.
    """

    clip: float
    precede_others: Values

    def clipped(self, arriving: Values, step: int) -> Values:
        """Return the arriving gradient [B, H] of a step, clipped."""
        return numpy.where(self.precede_others[step, :, None], numpy.clip(arriving, -self.clip, self.clip), arriving)


class _Walk:
    """The steps of a block, the last one first."""

    def __init__(
        self,
        cell: LoweredStepsBackward,
        constants: dict[str, Values],
        products: StepProducts | None,
        bound: _Bound | None,
        heads: int,
        units: Mapping[bool, int],
        shape: tuple[int, ...],
    ) -> None:
        self._cell, self._constants, self._products, self._bound = cell, constants, products, bound
        self._heads, self._shape = heads * cell.norm_parts, shape
        parameters = [name for name in cell.parameters if name not in cell.vectors.parameters]
        names = ("W", cell.gates), ("R", cell.recurrent_gates), ("parameter", parameters)
        self.labels = [f"gradient_{kind}_{name}" for kind, named in names for name in named]
        self._units = [units[cell.projection.has(label)] for label in self.labels]
        self.of_gates = slice(0, len(cell.gates))
        self.of_products = slice(len(cell.gates), len(cell.gates) + len(cell.recurrent_gates))

    def back(
        self,
        values: Mapping[str, Values],
        arriving: Mapping[str, Values],
        marks: StepMarks,
        first_step: int,
        wide: Mapping[str, Values],
    ) -> tuple[Values, dict[str, Values]]:
        """Return the gradients [labels, T, B, units] of each step, and of the states before `first_step`, the first.

        Gradients with the axis n, and of inputs X.*, are written into `wide` {label: [T, B, H, n] or [T, B, H]}.
        """
        cell, products = self._cell, self._products
        steps, dtype = len(values["gradient_y"]), values["gradient_y"].dtype
        label_gradients = numpy.zeros((len(self.labels), steps, *self._shape), dtype)
        arriving = dict(arriving)
        for step in reversed(range(steps)):
            marked = marks[step]
            inputs = self._constants | {name: value[step] for name, value in values.items()}
            inputs |= {f"gradient_state_{name}": gradient for name, gradient in arriving.items()}
            if self._bound is not None:
                output = f"gradient_state_{cell.output_state}"
                inputs[output] = self._bound.clipped(inputs[output], first_step + step)
            for number in reversed(range(len(cell.rounds))):
                inputs |= self._of_argument(number, inputs, dtype)
            gradients = evaluated(cell.backward, cell, with_means(inputs, cell.levels, self._heads, cell.projection))
            for index, label in enumerate(self.labels):
                of_label = label_gradients[index, step][:, : self._units[index]]
                of_label[...] = marked.within_or(dtype.type(0), narrowed(gradients[label], of_label.shape))
            for label, of_steps in wide.items():
                gradient = numpy.broadcast_to(gradients[label], of_steps.shape[1:])
                of_steps[step] = marked.within_or(of_steps.dtype.type(0), gradient)
            for name, after in arriving.items():
                before = spread(gradients[f"gradient_previous_{name}"], after)
                if products is not None and products.places[0] and name == cell.output_state:
                    of_products = label_gradients[self.of_products, step]
                    passed = [of_products[place][:, : products.units(place)] for place in products.places[0]]
                    before = before + products.of_output.to_operand(passed)
                arriving[name] = marked.within_or(after, marked.cut_off(before))
        return label_gradients, arriving

    def _of_argument(self, number: int, inputs: Mapping[str, Values], dtype: Any) -> dict[str, Values]:
        """Return the gradient of a round's argument by its name."""
        assert self._products is not None
        of_round, units = self._cell.rounds[number], map(self._products.units, self._products.places[number + 1])
        of_gates = evaluated(
            of_round.program, self._cell, with_means(inputs, of_round.levels, self._heads, self._cell.projection)
        )
        passed = [
            in_shape(of_gates[f"gradient_R_{gate}"], (self._shape[0], size), dtype)
            for gate, size in zip(of_round.gates, units, strict=True)
        ]
        return {f"gradient_argument_{number}": self._products.rounds[number].to_operand(passed)}
