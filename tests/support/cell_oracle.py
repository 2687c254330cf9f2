"""An oracle of calls of drawn cells: sequence by sequence and step by step, with bounds, and its gradients on a tape.

It reads the drawn expressions themselves and shares neither parser nor gradient nor step with the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from support.bounded import Arithmetic, Bounded, exact
from support.cell_tape import Node, Tape
from support.drawn_cells import DrawnCell

from minrnn_gen.precision import Precision

Array = Any
Results = dict[str, Bounded]
# A product of tensor cores, of fp32 by three of tf32, adds in an order and a precision of its own.
PRODUCT_ROUNDOFF = {"float64": 2.0**-50, "float32": 2.0**-18}
# A composition of steps rounds each element of a scan once more per step and level.
SCAN_ROUNDINGS = 64


@dataclass(frozen=True)
class Problem:
    """A call of one direction; x [B, T, G, H], resets [B, T], lengths [B], all in float64 or bool.

    `gates` and `recurrent_gates` are the orders of x and R [Gr, N, D, D].
    """

    cell: DrawnCell
    precision: Precision
    gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    x: Array
    bias: Array
    parameters: Mapping[str, Array]
    initial: Mapping[str, Array]
    resets: Array
    lengths: Array
    reverse: bool
    R: Array
    recurrent_bias: Array
    inputs: Mapping[str, Array]  # [B, T, H]
    is_scan: bool
    # On a GPU the gradient of R is a product over all rows of y, and a row that R does not multiply is multiplied by 0. And
    # a backward takes the product of R and an initial state that is not given as 0, where a forward may have 0 times NaN.
    is_on_gpu: bool = False
    has_initial: bool = True
    # Native code multiplies nothing by an initial state that is not given, so that 0 times NaN or an infinity is 0.
    is_native: bool = False

    @property
    def output_gates(self) -> tuple[str, ...]:
        """The gates of R that multiply the previous output, as far as no equation names what they multiply."""
        named = {tree[1] for _, tree in self.cell.equations if tree[0] == "product"}
        return tuple(gate for gate in self.recurrent_gates if gate not in named)

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(self.precision, loose=self.is_scan)

    def steps(self, sequence: int) -> list[int]:
        steps = list(range(int(self.lengths[sequence])))
        return steps[::-1] if self.reverse else steps


@dataclass
class _Sequence:
    """The nodes of one sequence."""

    tape: Tape
    parameters: dict[str, Node]
    initial: dict[str, Node]
    gates: dict[int, dict[str, Node]] = field(default_factory=dict)
    inputs: dict[int, dict[str, Node]] = field(default_factory=dict)
    states: dict[int, dict[str, Node]] = field(default_factory=dict)
    outputs: dict[int, Node] = field(default_factory=dict)
    products: list[_Product] = field(default_factory=list)
    final: dict[str, Node] = field(default_factory=dict)
    # Behind a reset states get a gradient of 0, which times a slope that is NaN is NaN, as behind a mask of torch's.
    dropped: list[Node] = field(default_factory=list)


@dataclass
class _Product:
    """R by an output or another value, for some gates; `output` is None behind a reset, where it is 0 whatever R is."""

    output: Node | None
    nodes: dict[str, Node]


def forward(problem: Problem) -> tuple[Results, Results]:
    """Return (y [B, T, H] and each final state [B, H], states after each step [B, T, H]), 0 beyond the lengths."""
    count, time, _, hidden = problem.x.shape
    y, all_states = _empty(count, time, hidden), {name: _empty(count, time, hidden) for name in problem.cell.states}
    final = {name: _empty(count, hidden) for name in problem.cell.states}
    for sequence in range(count):
        ran = _run(problem, sequence, saves=False)
        for t, node in ran.outputs.items():
            _put(y, (sequence, t), node.value)
            for name, state in ran.states[t].items():
                _put(all_states[name], (sequence, t), state.value)
        for name, node in ran.final.items():
            _put(final[name], (sequence,), node.value)
    return {"y": y, **final}, all_states


def backward(problem: Problem, dy: Array, dfinal: Mapping[str, Array]) -> Results:
    """Return the gradients, by the names that lead to them."""
    count, time, gates, hidden = problem.x.shape
    arithmetic = problem.arithmetic()
    dx = _empty(count, time, gates, hidden)
    dinitial = {name: _empty(count, hidden) for name in problem.cell.states}
    dparameters = {name: exact(np.zeros(hidden)) for name in problem.cell.parameters}
    zeros = (np.zeros(array.shape[1:]) for array in (problem.R, problem.recurrent_bias))
    dR, dproducts = ({gate: exact(zero) for gate in problem.recurrent_gates} for zero in zeros)
    dbias = exact(np.zeros((gates, hidden)))
    dinputs = {name: _empty(count, time, hidden) for name in problem.inputs}
    for sequence in range(count):
        ran = _run(problem, sequence, saves=True)
        seeds = [(ran.outputs[t], exact(dy[sequence, t])) for t in ran.outputs]
        seeds += [(ran.final[name], exact(dfinal[name][sequence])) for name in ran.final]
        seeds += [(node, exact(np.zeros(hidden))) for node in ran.dropped]
        _backward(problem, ran, seeds)
        for t, nodes in ran.gates.items():
            for index, gate in enumerate(problem.gates):
                _put(dx, (sequence, t, index), ran.tape.gradient_of(nodes[gate]))
        for t, nodes in ran.inputs.items():
            for name, node in nodes.items():
                _put(dinputs[name], (sequence, t), ran.tape.gradient_of(node))
        for name, node in ran.initial.items():
            _put(dinitial[name], (sequence,), ran.tape.gradient_of(node))
        for name, node in ran.parameters.items():
            dparameters[name] = _sum(arithmetic, [dparameters[name], ran.tape.gradient_of(node)])
        for product in ran.products:
            for gate, node in product.nodes.items():
                dproduct = _reshaped(arithmetic.stored(ran.tape.gradient_of(node)), problem.recurrent_bias.shape[1:])
                dproducts[gate] = _sum(arithmetic, [dproducts[gate], dproduct])
                dR[gate] = _sum(arithmetic, [dR[gate], _outer(arithmetic, problem, dproduct, product.output)])
        of_steps = [dx[sequence, t] for t in ran.gates]
        dbias = _sum(arithmetic, [dbias, *of_steps])
    results = {"x": dx, "bias": dbias}
    if problem.recurrent_gates:
        results |= {"R": _stack([*dR.values()]), "recurrent_bias": _stack([*dproducts.values()])}
        if problem.is_on_gpu:
            results["R"] = _known_of_finite(problem, results["R"])
    results |= {f"parameters {name}": value for name, value in dparameters.items()}
    results |= {f"state {name}": value for name, value in dinitial.items()}
    results |= {f"inputs {name}": value for name, value in dinputs.items()}
    if problem.is_on_gpu and not problem.has_initial and not np.isfinite(problem.R).all():
        return {
            name: Bounded(np.zeros(value.value.shape), np.full(value.value.shape, np.inf)) for name, value in results.items()
        }
    return results


def _run(problem: Problem, sequence: int, saves: bool) -> _Sequence:
    """Run a sequence; with `saves` as a backward has it, whose states were rounded to storage in between."""
    arithmetic, cell = problem.arithmetic(), problem.cell
    hidden = problem.x.shape[-1]
    tape = Tape(arithmetic, (hidden,), problem.R.shape[1])
    ran = _Sequence(
        tape,
        {name: tape.leaf(exact(values)) for name, values in problem.parameters.items()},
        {name: tape.leaf(exact(values[sequence]), True) for name, values in problem.initial.items()},
    )
    state, largest = dict(ran.initial), np.zeros(hidden)
    forgetting = _forgetting(cell) if problem.is_scan else ()
    for t in problem.steps(sequence):
        is_reset = bool(problem.resets[sequence, t])
        if is_reset:
            ran.dropped += state.values()
            state = {name: tape.leaf(exact(np.zeros(hidden)), True) for name in state}
        names = dict(ran.parameters)
        ran.gates[t] = {}
        for index, gate in enumerate(problem.gates):
            value = replace(arithmetic, loose=False).add(exact(problem.x[sequence, t, index]), exact(problem.bias[index]))
            names[f"W.{gate}"] = ran.gates[t][gate] = tape.leaf(value)
        ran.inputs[t] = {name: tape.leaf(exact(values[sequence, t])) for name, values in problem.inputs.items()}
        names |= {f"X.{name}": node for name, node in ran.inputs[t].items()}
        if problem.recurrent_gates:
            output = None if is_reset else state[cell.states[0]]
            product = _product(problem, tape, problem.output_gates, output)
            if problem.is_native and not problem.has_initial and output is ran.initial[cell.states[0]]:
                _forget_odd(problem, product)
            ran.products.append(product)
            names |= {f"R.{gate}": node for gate, node in product.nodes.items()}
        names |= {f"{name}[t-1]": node for name, node in state.items()}
        for name, tree in cell.equations:
            if tree[0] == "product":
                _, gate, argument = tree
                is_of_output = argument == ("leaf", f"{cell.states[0]}[t-1]")
                operand = None if is_of_output and is_reset else tape.evaluate(argument, names)
                ran.products.append(_product(problem, tape, (gate,), operand))
                names[name] = ran.products[-1].nodes[gate]
                continue
            node = tape.evaluate(tree, names)
            if name.endswith("[t]") and problem.is_scan:
                largest = np.fmax(largest, np.where(np.isfinite(node.value.value), np.abs(node.value.value), 0.0))
                node.value = _wider(node.value, SCAN_ROUNDINGS * arithmetic.roundoff * largest)
                if name[:-3] in forgetting:
                    node.value = _known_behind(node.value, state[name[:-3]].value)
            if name.endswith("[t]") and saves:
                node.value = arithmetic.stored(node.value)
            names[name] = node
        state = {name: names[f"{name}[t]"] for name in cell.states}
        ran.states[t] = state
        ran.outputs[t] = state[cell.states[0]] if cell.output is None else tape.evaluate(cell.output, names)
    ran.final = state
    return ran


def _backward(problem: Problem, ran: _Sequence, seeds: list[tuple[Node, Bounded]]) -> None:
    ran.tape.backward(seeds)
    if problem.is_scan:
        # Gradients of states are composed like states.
        gradients = [node.gradient for node in ran.tape.nodes if node.gradient is not None]
        sizes = [
            np.where(gradient.is_unknown | ~np.isfinite(gradient.value), 0, np.abs(gradient.value)) for gradient in gradients
        ]
        largest = np.max(sizes, axis=0) if sizes else 0.0
        for node in ran.tape.nodes:
            if node.gradient is not None:
                spread = SCAN_ROUNDINGS * problem.arithmetic().roundoff * largest
                node.gradient = _wider(node.gradient, spread)
                if _forgetting(problem.cell):
                    for other in gradients:
                        node.gradient = _known_behind(node.gradient, other)


def _forgetting(cell: DrawnCell) -> tuple[str, ...]:
    """The states whose equations do not read what they were: a scan multiplies that by 0."""
    equations = dict(cell.equations)

    def reads(tree: object, leaf: str) -> bool:
        if tree == ("leaf", leaf):
            return True
        if isinstance(tree, tuple) and len(tree) == 2 and tree[0] == "leaf":
            return tree[1] in equations and reads(equations[tree[1]], leaf)
        return isinstance(tree, tuple) and any(reads(part, leaf) for part in tree)

    return tuple(name for name in cell.states if not reads(equations[f"{name}[t]"], f"{name}[t-1]"))


def _known_behind(value: Bounded, earlier: Bounded) -> Bounded:
    """Return a value as unknown where 0 times what was there is NaN."""
    is_odd = earlier.is_unknown | ~np.isfinite(earlier.value)
    return Bounded(np.where(is_odd, 0.0, value.value), np.where(is_odd, np.inf, value.radius))


def _wider(value: Bounded, radius: Array) -> Bounded:
    is_exact = (value.value == 0) & (value.radius == 0) | ~np.isfinite(value.value)
    return Bounded(value.value, np.where(is_exact, value.radius, value.radius + radius))


def _product(problem: Problem, tape: Tape, gates: tuple[str, ...], output: Node | None) -> _Product:
    """R of some gates by the previous output or another value, rounded to storage, and the recurrent bias.

    Behind a reset, where the output is None, the bias.
    """
    arithmetic = problem.arithmetic()
    _gates, heads, size, _ = problem.R.shape
    hidden = heads * size
    nodes = {}
    for gate in gates:
        index = problem.recurrent_gates.index(gate)
        bias = exact(problem.recurrent_bias[index].reshape(hidden))
        if output is None:
            nodes[gate] = tape.leaf(bias)
            continue
        R = problem.R[index]
        total = arithmetic.add(_matrix(problem, R, _reshaped(arithmetic.stored(output.value), (heads, size))), bias)

        def back(gradient: Bounded, R: Array = R) -> Bounded:
            return _matrix(problem, R.swapaxes(1, 2), _reshaped(arithmetic.stored(gradient), (heads, size)))

        node = Node(
            Bounded(*np.broadcast_arrays(total.value, total.radius)),
            [(output, back, None)],
            is_stateful=True,
            mixes_channels=True,
        )
        tape.nodes.append(node)
        nodes[gate] = node
    return _Product(output, nodes)


def _forget_odd(problem: Problem, product: _Product) -> None:
    """Make unknown whatever a number of R that is not finite has a part in."""
    for gate, node in product.nodes.items():
        odd = ~np.isfinite(problem.R[problem.recurrent_gates.index(gate)]).all(-1).reshape(-1)
        node.value = Bounded(np.where(odd, 0.0, node.value.value), np.where(odd, np.inf, node.value.radius))


def _matrix(problem: Problem, R: Array, vector: Bounded) -> Bounded:
    """[N, out, in] by [N, in], in whatever order the sum is; an infinity or an unknown makes it unknown, NaN makes it NaN."""
    roundoff = PRODUCT_ROUNDOFF[problem.precision.arithmetic_dtype]
    terms = R * vector.value[:, None, :]
    is_nan = np.isnan(R) | np.isnan(vector.value[:, None, :])
    odd = ~is_nan & (np.isinf(R) | np.isinf(vector.value[:, None, :]) | vector.is_unknown[:, None, :])
    safe = np.where(is_nan | odd, 0.0, terms)
    radii = np.where(is_nan | odd, 0.0, np.abs(R) * np.where(np.isfinite(vector.radius), vector.radius, 0.0)[:, None, :])
    value, radius = safe.sum(-1), radii.sum(-1) + roundoff * np.abs(safe).sum(-1) + 2.0**-100
    radius = np.where(is_nan.any(-1), 0.0, np.where(odd.any(-1), np.inf, radius))
    result = Bounded(np.where(is_nan.any(-1), np.nan, np.where(odd.any(-1), 0.0, value)), radius)
    return _reshaped(result, (-1,))


def _outer(arithmetic: Arithmetic, problem: Problem, dproduct: Bounded, output: Node | None) -> Bounded:
    """The share of a product in the gradient of R of its gate."""
    shape = problem.R.shape[1:]
    if output is None:
        # Behind a reset nothing comes from R; where 0 meets an infinity, sums of products may say NaN.
        odd = ~np.isfinite(dproduct.value) | dproduct.is_unknown
        return Bounded(np.zeros(shape), np.broadcast_to(np.where(odd, np.inf, 0.0)[..., None], shape))
    stored = _reshaped(arithmetic.stored(output.value), shape[:2])
    left = Bounded(dproduct.value[..., None], dproduct.radius[..., None])
    right = Bounded(stored.value[:, None, :], stored.radius[:, None, :])
    loose = replace(arithmetic, loose=True)
    result = loose.multiply(left, right)
    roundoff = PRODUCT_ROUNDOFF[problem.precision.arithmetic_dtype]
    return Bounded(result.value, result.radius + np.where(np.isfinite(result.value), roundoff * np.abs(result.value), 0.0))


def _known_of_finite(problem: Problem, dR: Bounded) -> Bounded:
    """Return the gradient of R, unknown for the outputs of which one is not finite, but for NaN."""
    output = forward(problem)[0]["y"]
    odd = (~np.isfinite(output.value) | output.is_unknown).any(axis=(0, 1)).reshape(problem.R.shape[1], 1, -1)
    return Bounded(dR.value, np.where(odd & ~np.isnan(dR.value), np.inf, dR.radius))


def _sum(arithmetic: Arithmetic, terms: list[Bounded]) -> Bounded:
    """The sum of terms in any order."""
    loose, total = replace(arithmetic, loose=True), terms[0]
    for term in terms[1:]:
        total = loose.add(total, term)
    return total


def _stack(parts: list[Bounded]) -> Bounded:
    return Bounded(np.stack([part.value for part in parts]), np.stack([part.radius for part in parts]))


def _reshaped(value: Bounded, shape: tuple[int, ...]) -> Bounded:
    return Bounded(np.reshape(value.value, shape), np.reshape(value.radius, shape))


def _empty(*shape: int) -> Bounded:
    return Bounded(np.zeros(shape), np.zeros(shape))


def _put(whole: Bounded, place: tuple[int, ...], part: Bounded) -> None:
    whole.value[place], whole.radius[place] = part.value, part.radius


def disagreements(precision: Precision, result: Array, expected: Bounded, stored: bool) -> Iterator[str]:
    """Yield what of a result is beyond its bounds; where nothing is known, nothing is."""
    values = np.asarray(result).astype(np.float64).reshape(-1)
    bounds = Arithmetic(precision).stored(expected) if stored else expected
    exactly, radius = bounds.value.reshape(-1), bounds.radius.reshape(-1)
    known = ~np.isinf(radius)
    with np.errstate(all="ignore"):
        finite = np.isfinite(exactly)
        near = np.abs(values - exactly) <= radius * (1 + 2.0**-20)
        right = np.where(finite, near, (values == exactly) | (np.isnan(values) & np.isnan(exactly)))
    for place in np.flatnonzero(known & ~right)[:3]:
        where = tuple(map(int, np.unravel_index(place, expected.value.shape)))
        yield f"{where}: {values[place]!r}, not {exactly[place]!r} within {radius[place]:.3g}"
