"""Reverse-mode differentiation of drawn expressions over bounded values: an oracle that shares no code with the package.

A gradient passes to what was taken alone: of a choice not taken the gradient is 0, whatever its own derivative is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from support.bounded import Arithmetic, Bounded, Choice, exact
from support.cell_evaluation import OVER_UNITS, Tree, over_units

Pull = Callable[[Bounded], Bounded]


@dataclass(eq=False)
class Node:
    """A value, and for each operand how a gradient goes back to it, under which choice."""

    value: Bounded
    operands: list[tuple[Node, Pull, Choice | None]] = field(default_factory=list)
    is_stateful: bool = False
    mixes_channels: bool = False
    gradient: Bounded | None = None
    active: Choice | None = None
    is_mean_of: int = 0  # so many neighbouring units; 0 for what is no mean


@dataclass
class Tape:
    """Operations in the order in which they were done."""

    arithmetic: Arithmetic
    shape: tuple[int, ...]
    heads: int = 1
    nodes: list[Node] = field(default_factory=list)

    def leaf(self, value: Bounded, is_stateful: bool = False) -> Node:
        value = Bounded(*(np.broadcast_to(part, self.shape) for part in (value.value, value.radius)))
        return self._kept(Node(value, is_stateful=is_stateful))

    def _kept(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _made(self, value: Bounded, *operands: tuple[Node, Pull, Choice | None]) -> Node:
        value = Bounded(*(np.broadcast_to(part, self.shape) for part in (value.value, value.radius)))
        return self._kept(Node(value, list(operands), any(node.is_stateful for node, _, _ in operands)))

    def _of(self, *nodes: Node) -> Arithmetic:
        # What is free of states is computed as it is written, whatever composes the steps.
        return self.arithmetic if any(node.is_stateful for node in nodes) else replace(self.arithmetic, loose=False)

    def evaluate(self, tree: Tree, names: Mapping[str, Node]) -> Node:
        """Return the node of an expression."""
        name, *parts = tree
        if name == "leaf":
            return names[parts[0]]
        if name == "number":
            return self.leaf(self.arithmetic.number(parts[0]))
        if name == "where":
            (comparison, *compared), *branches = parts
            left, right = (self.evaluate(part, names) for part in compared)
            yes, no = (self.evaluate(part, names) for part in branches)
            return self.chosen(self.arithmetic.compare(comparison, left.value, right.value), yes, no)
        if name == "**":
            return self.power(self.evaluate(parts[0], names), parts[1])
        if name in OVER_UNITS:
            return self.over_units(tree, names)
        operands = [self.evaluate(part, names) for part in parts]
        if name == "-" and len(operands) == 1:
            return self._made(self.arithmetic.negate(operands[0].value), (operands[0], self.arithmetic.negate, None))
        if name in ("min", "max"):
            a, b = operands
            first = self.arithmetic.first_is_taken(name, a.value, b.value)
            return self._made(self.arithmetic.extreme(name, a.value, b.value), (a, _same, first), (b, _same, ~first))
        if name in ("+", "-"):
            return self.add(*operands, name == "-")
        if name == "*":
            return self.multiply(*operands)
        if name == "/":
            return self.divide(*operands)
        return self.function(name, operands[0])

    def chosen(self, choice: Choice, yes: Node, no: Node) -> Node:
        value = self.arithmetic.choose(choice, yes.value, no.value)
        if self.arithmetic.loose and (yes.is_stateful or no.is_stateful):
            # A scan chooses between coefficients, and 0 times a state that is no number is none.
            odd = ~np.isfinite(yes.value.value) | ~np.isfinite(no.value.value) | yes.value.is_unknown | no.value.is_unknown
            value = Bounded(np.where(odd, 0.0, value.value), np.where(odd, np.inf, value.radius))
        return self._made(value, (yes, _same, choice), (no, _same, ~choice))

    def add(self, a: Node, b: Node, negated: bool = False) -> Node:
        arithmetic = self._of(a, b)
        right = arithmetic.negate(b.value) if negated else b.value
        return self._made(arithmetic.add(a.value, right), (a, _same, None), (b, arithmetic.negate if negated else _same, None))

    def multiply(self, a: Node, b: Node) -> Node:
        multiply = self.arithmetic.multiply
        value = self._of(a, b).multiply(a.value, b.value)
        return self._made(value, (a, lambda g: multiply(g, b.value), None), (b, lambda g: multiply(g, a.value), None))

    def divide(self, a: Node, b: Node) -> Node:
        at = self.arithmetic
        value = self._of(a, b).divide(a.value, b.value)

        def to_divisor(g: Bounded) -> Bounded:
            return at.negate(at.multiply(at.divide(g, b.value), value))

        return self._made(value, (a, lambda g: at.divide(g, b.value), None), (b, to_divisor, None))

    def power(self, base: Node, exponent: int) -> Node:
        """By squaring, and a negative one as a quotient."""
        if exponent < 0:
            return self.divide(self.leaf(exact(1.0)), self.power(base, -exponent))
        if exponent == 1:
            return base
        half = self.power(base, exponent // 2)
        square = self.multiply(half, half)
        return self.multiply(square, base) if exponent % 2 else square

    def function(self, name: str, x: Node) -> Node:
        at, one = self.arithmetic, exact(1.0)
        if name == "detach":
            return self._kept(Node(x.value, [], x.is_stateful))
        value = at.function(name, x.value)

        def times(slope: Bounded) -> Pull:
            return lambda g: at.multiply(g, slope)

        def less(a: Bounded, b: Bounded) -> Bounded:
            return at.add(a, at.negate(b))

        zero = exact(0.0)
        if name == "relu":
            return self._made(value, (x, _same, ~at.compare("<=", x.value, zero)))
        if name == "abs":
            positive, negative = at.compare(">", x.value, zero), at.compare("<", x.value, zero)
            nothing = exact(np.zeros(self.shape))
            return self._made(value, (x, lambda g: at.choose(positive, g, at.choose(negative, at.negate(g), nothing)), None))
        if name == "sqrt":
            return self._made(value, (x, lambda g: at.divide(g, at.add(value, value)), at.compare("!=", value, zero)))
        if name in ("log", "log1p"):
            divisor = x.value if name == "log" else at.add(one, x.value)
            return self._made(value, (x, lambda g: at.divide(g, divisor), None))
        sigmoid = at.function("sigmoid", x.value)
        slopes: dict[str, Callable[[], Bounded]] = {
            "sigmoid": lambda: at.multiply(value, less(one, value)),
            "tanh": lambda: less(one, at.multiply(value, value)),
            "exp": lambda: value,
            "expm1": lambda: at.add(value, one),
            "logsigmoid": lambda: at.function("sigmoid", at.negate(x.value)),
            "softplus": lambda: sigmoid,
            "silu": lambda: at.multiply(sigmoid, at.add(one, at.multiply(x.value, less(one, sigmoid)))),
        }
        return self._made(value, (x, times(slopes[name]()), None))

    def over_units(self, tree: Tree, names: Mapping[str, Node]) -> Node:
        """Return the node of a mean or a norm: what it is of joins by sums, and a variance is one of differences."""
        tree_of, trees, over, epsilon = over_units(tree)
        size = self.shape[0] // (self.heads if over == "head" else 1)
        if tree[0] == "mean":
            return self.mean([self.evaluate(value, names) for value in trees], size)
        x = self.evaluate(tree_of, names)
        of = [x if value == tree_of else self.evaluate(value, names) for value in trees]
        if tree[0] == "rms_norm":
            squares = [self.multiply(x, x)]
        else:
            mean = self.mean(of, size)
            # Of the mean within a variance the derivative is 0.
            centre = self.function("detach", mean)
            x, differences = self.add(x, mean, True), [self.add(value, centre, True) for value in of]
            squares = [self.multiply(difference, difference) for difference in differences]
        root = self.function("sqrt", self.add(self.mean(squares, size), self.leaf(self.arithmetic.number(epsilon))))
        return self.divide(x, root)

    def mean(self, nodes: list[Node], size: int) -> Node:
        """Return the mean of several values over so many neighbouring units each."""
        total = nodes[0]
        for node in nodes[1:]:
            total = self.add(total, node)
        if len(nodes) > 1:
            share = 1 / len(nodes)
            total = self.multiply(self.leaf(Bounded(np.float64(share), np.float64(self.arithmetic.roundoff * share))), total)

        def averaged(value: Bounded) -> Bounded:
            return self.arithmetic.mean(value, size)

        node = self._made(averaged(total.value), (total, averaged, None))
        node.is_mean_of = size
        return node

    def backward(self, seeds: list[tuple[Node, Bounded]]) -> None:
        """Leave the gradient of every node in it."""
        everywhere = Choice(np.ones(self.shape, bool), np.ones(self.shape, bool))
        for node, gradient in seeds:
            self._arrive(node, gradient, everywhere)
        for node in reversed(self.nodes):
            if node.mixes_channels and node.gradient is None:
                self._arrive(node, exact(np.zeros(self.shape)), everywhere)  # 0 times an infinity of R is NaN
            if node.gradient is None or node.active is None:
                continue
            for operand, pull, choice in node.operands:
                active = everywhere if node.mixes_channels else node.active if choice is None else node.active & choice
                active = active.of_any(node.is_mean_of) if node.is_mean_of else active
                self._arrive(operand, pull(node.gradient), active)

    def _arrive(self, node: Node, gradient: Bounded, active: Choice) -> None:
        gradient = self.arithmetic.choose(active, gradient, exact(np.zeros(self.shape)))
        if node.gradient is None or node.active is None:
            node.gradient, node.active = gradient, active
        else:
            node.gradient, node.active = self.arithmetic.add(node.gradient, gradient), node.active | active

    def gradient_of(self, node: Node) -> Bounded:
        return node.gradient or exact(np.zeros(self.shape))


def _same(gradient: Bounded) -> Bounded:
    return gradient
