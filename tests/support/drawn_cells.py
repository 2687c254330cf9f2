"""Strategies of whole cells and of calls of them: equations, names and special values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from support.cell_evaluation import COMPARISONS, OVER_UNITS, Tree, tree_text
from support.odd_names import odd_names

from minrnn_gen.cell.norms import NORM_LEVELS_MOST

NUMBERS = ("1", "0.5", "2", "0.1", "0.25", "0.3")
SMOOTH = ("sigmoid", "tanh", "softplus", "logsigmoid", "silu", "relu", "abs", "-")
STEEP = ("exp", "expm1", "log", "log1p", "sqrt", "detach")


@dataclass(frozen=True)
class DrawnCell:
    """A cell by its equations: (name, expression) in order, a state's name with its [t]."""

    kind: str
    equations: tuple[tuple[str, Tree], ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    output: Tree | None
    inputs: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The cell as a spec has it."""
        lines = "\n".join(f"{name} = {tree_text(tree)}" for name, tree in self.equations)
        document = {"name": "drawn", "equations": lines, "states": list(self.states), "parameters": list(self.parameters)}
        if self.inputs:
            document["inputs"] = list(self.inputs)
        return document if self.output is None else document | {"output": tree_text(self.output)}


@dataclass(frozen=True)
class DrawnCall:
    """A spec beside its cell, and a call: sizes, what is given, and how many special values each array has."""

    precision: str
    layout: str
    direction: str
    heads: int
    head_dim: int
    batch: int
    time: int
    given: frozenset[str]
    specials: int
    seed: int


# As rounds go: a chain of three has one more than is needed to tell the first, one between and the last apart.
PRODUCTS_MOST = 3
# Beside the odd names: usual ones, such that meet those of programs, and the longest.
NAMES = (
    *odd_names(),
    *("a", "b", "h", "x", "y", "z", "A", "f_", "cell_", "cell_y", "shared_0", "carried_0", "let_a", "state_h", "adjoint_let_a"),
    *(letter + "0" * 63 for letter in "hW"),
    "a" + "_" * 63,
)


@st.composite
def expressions(draw: st.DrawFn, leaves: tuple[str, ...], depth: int) -> Tree:
    """Expressions that stay moderate for moderate leaves, most of them; no operation has only numbers for operands."""
    kinds = ["leaf", "smooth", "+", "-", "*", "smooth", "steep", "/", "min", "max", "where", "**"]
    kind = draw(st.sampled_from(kinds)) if depth else "leaf"
    inner = expressions(leaves, depth - 1)
    if kind == "leaf":
        return "leaf", draw(st.sampled_from(leaves))
    if kind == "smooth":
        return draw(st.sampled_from(SMOOTH)), draw(inner)
    if kind == "steep":
        name, argument = draw(st.sampled_from(STEEP)), draw(inner)
        if name == "detach" or draw(st.integers(0, 3)) == 0:
            return name, argument
        tamed = ("tanh", argument) if name.startswith("exp") else ("+", ("abs", argument), ("number", "0.25"))
        return name, tamed
    if kind == "**":
        return "**", draw(inner), draw(st.sampled_from((2, 3, 4)))
    number = st.sampled_from(NUMBERS).map(lambda text: ("number", text))
    left = draw(inner)
    right = draw(inner | number if draw(st.booleans()) else inner)
    if kind == "/":
        tamed = draw(st.sampled_from(("softplus", "abs", "sigmoid", "")))
        divisor = ("+", (tamed, right), ("number", "0.5")) if tamed and right[0] != "number" else right
        return "/", left, divisor
    if kind == "where":
        condition = (draw(st.sampled_from(COMPARISONS)), draw(inner), right)
        return "where", condition, left, draw(inner | number)
    return (kind, right, left) if right[0] == "number" and draw(st.booleans()) else (kind, left, right)


def leaves_of(tree: Tree) -> set[str]:
    name, *parts = tree
    if name == "leaf":
        return {parts[0]}
    return {leaf for part in parts if isinstance(part, tuple) for leaf in leaves_of(part)}


@dataclass
class _Products:
    """Products of a dense cell that multiply something else than the previous output, some of them the same argument."""

    draw: st.DrawFn
    gates: list[str]
    names: list[str]
    reach_back: set[str]
    last: Tree | None = None

    def equation(self, inputs: list[str]) -> tuple[str, Tree]:
        """Draw one, of `inputs`."""
        again = self.last if self.draw(st.integers(0, 3)) == 0 else None
        argument = again or self.draw(expressions(tuple(inputs), 2))
        if not leaves_of(argument) & self.reach_back:
            argument = ("*", argument, ("leaf", self.draw(st.sampled_from(sorted(self.reach_back)))))
        self.last, name = argument, self.names.pop()
        self.reach_back.add(name)
        return name, ("product", self.gates.pop(), argument)


@st.composite
def cells(draw: st.DrawFn, kinds: tuple[str, ...] = ("affine", "coupled", "diagonal", "dense")) -> DrawnCell:
    """Cells of a kind, as far as the equations mean it; every name in them is read.

    Of coupled ones states are linear in previous values of others too, and curved in current ones.

    Dense ones have at most `PRODUCTS_MOST` products of something else than the previous output. Half of them have norms or
    means over units, as far as their names leave them any.
    """
    kind = draw(st.sampled_from(kinds))
    counts = {
        name: draw(st.integers(*limits))
        for name, limits in {
            "gate": (1, 3),
            "state": (1 + (kind == "coupled"), 3),
            "parameter": (0, 2),
            "value": (0, 2),
        }.items()
    }
    gates = draw(st.lists(st.sampled_from(NAMES), min_size=counts["gate"], max_size=counts["gate"], unique=True))
    later = draw(st.integers(0, PRODUCTS_MOST)) if kind == "dense" else 0
    total = counts["state"] + counts["parameter"] + counts["value"] + later
    others = draw(st.lists(st.sampled_from(NAMES), min_size=total, max_size=total, unique=True))
    states, parameters = others[: counts["state"]], others[counts["state"] : counts["state"] + counts["parameter"]]
    values = others[counts["state"] + counts["parameter"] : total - later]
    recurrent = [gate for gate in gates if draw(st.booleans())] if kind == "dense" else []
    if kind == "dense" and not later:
        recurrent = recurrent or gates[:1]
    read_inputs = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)) if draw(st.booleans()) else []
    free_gates = [gate for gate in gates if gate not in recurrent]
    free_gates += draw(st.lists(st.sampled_from(NAMES).filter(lambda name: name not in gates), min_size=later, unique=True))
    free = [*(f"W.{gate}" for gate in gates), *parameters, *(f"X.{name}" for name in read_inputs)]
    previous = [f"{state}[t-1]" for state in states]
    is_linear = kind in ("affine", "coupled")
    inputs = free if is_linear else [*free, *(f"R.{gate}" for gate in recurrent), *previous]
    equations: list[tuple[str, Tree]] = []
    reach_back = {*previous, *(f"R.{gate}" for gate in recurrent)}
    products = _Products(draw, free_gates[:later], others[total - later :], reach_back)
    places = [draw(st.integers(0, len(states) - 1)) for _ in range(later)]

    def add_products(place: int) -> None:
        for _ in range(places.count(place)):
            equations.append(products.equation(inputs))
            inputs.append(equations[-1][0])

    for value in values:
        equations.append((value, draw(expressions(tuple(inputs), 3))))
        inputs.append(value)
        if leaves_of(equations[-1][1]) & reach_back:
            reach_back.add(value)
    add_products(0)
    # The output's state last, so that all of the others may reach it.
    for number, state in enumerate((*states[1:], states[0])):
        if number:
            add_products(number)
        body = draw(expressions(tuple(inputs), 2 if is_linear else 3))
        own = ("leaf", f"{state}[t-1]")
        factor = (draw(st.sampled_from(("sigmoid", "tanh"))), draw(expressions(tuple(inputs), 1)))
        shape = draw(st.sampled_from(("leaky", "gated", "difference", "leaky" if is_linear else "bare")))
        if not is_linear:
            body = (draw(st.sampled_from(("tanh", "sigmoid", "relu", "tanh"))), body)
        tree: Tree = {
            "leaky": ("+", ("*", factor, own), body),
            "gated": ("+", ("*", ("-", ("number", "1"), factor), own), ("*", factor, body)),
            "difference": ("+", own, ("*", ("sigmoid", factor), ("-", body, own))),
            "bare": body,
        }[shape]
        for other in states if kind == "coupled" else ():
            if other != state and draw(st.booleans()):
                tree = ("+", tree, ("*", ("*", ("number", "0.5"), factor), ("leaf", f"{other}[t-1]")))
        if kind == "coupled" and number and draw(st.booleans()):
            tree = ("+", tree, ("tanh", ("leaf", equations[-1][0])))
        equations.append((f"{state}[t]", tree))
        if not is_linear:
            inputs.append(f"{state}[t]")
            if leaves_of(tree) & reach_back:
                reach_back.add(f"{state}[t]")
    values += [name for name, tree in equations if tree[0] == "product"]
    wanted = [*free, *(f"R.{gate}" for gate in recurrent), *values, *previous, *(f"{state}[t]" for state in states[1:])]
    drawn = DrawnCell(kind, tuple(equations), tuple(states), tuple(parameters), None, tuple(read_inputs))
    if kind == "dense":
        drawn = _reading(drawn, wanted, equations[-1][0])
        return _with_norms(draw, drawn) if draw(st.booleans()) else drawn
    current = [f"{state}[t]" for state in states]
    output = draw(st.none() | expressions((*inputs, *previous, *current), 2))
    if output is None and is_linear and (len(states) > 1 or values):
        output = ("leaf", current[0])
    if output is None:
        return _reading(drawn, wanted, equations[-1][0])
    return _reading(replace(drawn, output=output), [*wanted, *current], "")


@st.composite
def normed_cells(draw: st.DrawFn) -> DrawnCell:
    """Dense cells with norms or means over units, at least one."""
    cell = _with_norms(draw, draw(cells(("dense",))))
    assume(any(has_norm(tree) for _, tree in cell.equations))
    return cell


def has_norm(tree: Tree) -> bool:
    """Whether a mean or a norm is in an expression."""
    return tree[0] in OVER_UNITS or any(isinstance(part, tuple) and has_norm(part) for part in tree)


def _with_norms(draw: st.DrawFn, cell: DrawnCell) -> DrawnCell:
    """Return a dense cell in which values that the previous step reaches are replaced by ones over units, some of them."""
    names = {*cell.states, *cell.parameters, *(name for name, _ in cell.equations)}
    if names & {*OVER_UNITS} or any(has_norm(tree) for _, tree in cell.equations):
        return cell
    reached = {f"{state}[t-1]" for state in cell.states}
    reached |= {leaf for _, tree in cell.equations for leaf in leaves_of(tree) if leaf.startswith("R.")}
    equations: list[tuple[str, Tree]] = []
    count = 0
    for name, tree in cell.equations:
        value = tree[2] if tree[0] == "product" else tree
        if leaves_of(value) & reached:
            reached.add(name)
            if count < NORM_LEVELS_MOST and draw(st.booleans()):
                value, count = _over_units(draw, value), count + 1
        equations.append((name, (*tree[:2], value) if tree[0] == "product" else value))
    return replace(cell, equations=tuple(equations))


def _over_units(draw: st.DrawFn, tree: Tree) -> Tree:
    function, over = draw(st.sampled_from(OVER_UNITS)), draw(st.sampled_from(("head", "all")))
    listed: Tree = ("list", tree, ("leaf", draw(st.sampled_from(sorted(leaves_of(tree))))))
    has_list = function != "rms_norm" and draw(st.booleans())
    if function == "mean":
        return "-", tree, ("mean", listed if has_list else tree, over)
    epsilon = draw(st.sampled_from(("1", "0.1", "1e-3")))
    return "*", ("number", "0.5"), (function, tree, *([listed] if has_list else []), over, epsilon)


def _reading(cell: DrawnCell, wanted: list[str], reader: str) -> DrawnCell:
    """Return the cell with everything `wanted` read by one equation, or without a name by the output."""
    bodies = dict(cell.equations)
    read = {leaf for tree in (*bodies.values(), cell.output or ("number", "0")) for leaf in leaves_of(tree)}
    # What only a state reads that nothing reads is not read: the last reader reads every value and state itself.
    of_reader = leaves_of(bodies[reader] if reader else cell.output or ("number", "0"))
    tree = bodies[reader] if reader else cell.output
    assert tree is not None
    for name in wanted:
        is_defined = name in bodies
        if name not in read or (is_defined and name not in of_reader):
            tree = ("+", tree, ("*", ("number", "0.125"), ("leaf", name)))
    if not reader:
        return replace(cell, output=tree)
    equations = tuple((name, tree if name == reader else body) for name, body in cell.equations)
    return replace(cell, equations=equations)


@st.composite
def calls(draw: st.DrawFn, precisions: tuple[str, ...] = ("fp32", "bf16", "fp16", "fp64")) -> DrawnCall:
    """Calls with few channels and steps."""
    optional = ("bias", "recurrent_bias", "state", "dstate", "resets", "lengths", "all_states")
    return DrawnCall(
        precision=draw(st.sampled_from(precisions)),
        layout=draw(st.sampled_from(("BTD", "TBD", "BDT"))),
        direction=draw(st.sampled_from(("forward", "forward", "reverse", "bidirectional"))),
        heads=draw(st.sampled_from((1, 1, 2))),
        head_dim=draw(st.integers(1, 6)),
        batch=draw(st.integers(1, 3)),
        time=draw(st.integers(1, 9) | st.sampled_from((17, 40))),
        given=draw(st.sets(st.sampled_from(optional)).map(frozenset)),
        specials=draw(st.sampled_from((0, 0, 1, 2))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
