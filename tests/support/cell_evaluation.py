"""Helpers of tests of cells: reading a cell from text, running a step, and an evaluator of its own, exact or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mpmath
from hypothesis import strategies as st

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.files import CellSource, find_cell
from minrnn_gen.cell.language import Cell, parse_cell

HERE = Path(__file__).parent


def source_of(equations: str, **keys: Any) -> CellSource:
    return find_cell({"name": "tried", "equations": equations, **keys}, HERE, "<dict>")


def cell_of(equations: str, **keys: Any) -> Cell:
    return parse_cell(source_of(equations, **keys))


def built_in(name: str) -> Cell:
    return parse_cell(find_cell(name, HERE, "<test>"))


def value_of(expression: Any, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Evaluate an expression with Python's own operators; `functions` has the calls and, under "number", the numbers."""
    name, operands = ex.operation(expression)
    if name == "symbol":
        return values[expression.name]
    if name == "number":
        return functions["number"](expression)
    inner = [value_of(operand, values, functions) for operand in operands]
    if name == "call":
        return functions[expression.cell_name](*inner)
    if name == "power":
        return inner[0] ** ex.power_exponent(expression)
    if name == "negate":
        return -inner[0]
    left, right = inner
    return {"add": lambda: left + right, "subtract": lambda: left - right, "multiply": lambda: left * right}.get(
        name, lambda: left / right
    )()


LEAVES = ("W.x", "W.y", "h[t-1]", "p", "early")
FUNCTIONS_OF_ONE = (
    *("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "logsigmoid", "softplus", "silu", "relu", "abs", "sqrt", "detach"),
    *("atan", "erf", "sin", "cos", "softsign", "hard_sigmoid", "gelu"),
)
NUMBERS = ("0", "1", "2", "0.5", "8", "0.1", "1e-3", "3.25")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

Tree = tuple[Any, ...]
"""("leaf", name), ("number", text), (operator, Tree, Tree), ("-", Tree), ("**", Tree, n) or (function, Tree…).

Of an equation also ("product", gate, Tree), R's product of that gate with a value; of dense cells a mean or a norm over units,
(function, Tree, "head" or "all"[, eps]), behind the Tree perhaps ("list", Tree…), which the statistics are of.
"""
OVER_UNITS = ("mean", "rms_norm", "layer_norm")


def over_units(tree: Tree) -> tuple[Tree, tuple[Tree, ...], str, str]:
    """Return of a mean or a norm its value, what the statistics are of, "head" or "all", and eps, "" of a mean."""
    _, *parts = tree
    trees = [part for part in parts if isinstance(part, tuple)]
    over, *epsilon = (part for part in parts if isinstance(part, str))
    of = trees[-1][1:] if trees[-1][0] == "list" else (trees[-1],)
    return of[0] if len(trees) == 1 else trees[0], of, over, *(epsilon or [""])


@st.composite
def trees(draw: st.DrawFn, leaves: tuple[str, ...] = LEAVES, functions: bool = True, depth: int = 4) -> Tree:
    """Random expressions in which no operation has only numbers for operands: those are carried out while reading."""
    kinds = ["leaf", "+", "-", "*", "negate", "**", *(("/", "call", "call", "min", "max", "where") if functions else ())]
    kind = draw(st.sampled_from(kinds)) if depth else "leaf"

    def inner() -> Tree:
        return draw(trees(leaves, functions, depth - 1))

    def inner_or_number(*excluded: str) -> Tree:
        numbers = [number for number in NUMBERS if number not in excluded]
        return ("number", draw(st.sampled_from(numbers))) if draw(st.integers(0, 3)) == 0 else inner()

    if kind == "leaf":
        return "leaf", draw(st.sampled_from(leaves))
    if kind == "negate":
        return "-", inner()
    if kind == "**":
        return "**", inner(), draw(st.integers(2, 5 if functions else 3))
    if kind == "call":
        return draw(st.sampled_from(FUNCTIONS_OF_ONE)), inner()
    if kind == "where":
        return "where", (draw(st.sampled_from(COMPARISONS)), inner(), inner_or_number()), inner(), inner_or_number()
    left, right = inner(), inner_or_number(*(("0",) if kind == "/" else ()))
    return (kind, right, left) if right[0] == "number" and kind in "+-*" and draw(st.booleans()) else (kind, left, right)


def tree_text(tree: Tree) -> str:
    """Write a tree with every parenthesis."""
    name, *parts = tree
    if name in ("leaf", "number"):
        return str(parts[0])
    if name == "product":
        return f"R.{parts[0]}({tree_text(parts[1])})"
    texts = [tree_text(part) if isinstance(part, tuple) else str(part) for part in parts]
    if name == "list":
        return f"[{', '.join(texts)}]"
    if name in ("+", "-", "*", "/", "**", *COMPARISONS):
        return f"(-{texts[0]})" if len(texts) == 1 else f"({texts[0]} {name} {texts[1]})"
    return f"{name}({', '.join(texts)})"


def reading(text: str, *names: str) -> str:
    """Return an expression that reads every one of `names`, a state's at either step: what nothing reads is refused."""
    return text + "".join(f" + 0 * {name}" for name in names if name.removesuffix("]") not in text)


# Where a function is undefined, or too large to be worth its digits: NaN, which a branch that is not taken may well have.
EXP_LIMIT = 100


def _guarded(function: Callable[[Any], Any], defined: Callable[[Any], bool]) -> Callable[[Any], Any]:
    return lambda x: function(x) if defined(x) else mpmath.nan


def _softplus(x: Any) -> Any:
    return max(x, 0) + mpmath.log1p(mpmath.exp(-abs(x))) if x == x else x


def _sigmoid(x: Any) -> Any:
    return (1 if x >= 0 else mpmath.exp(x)) / (1 + mpmath.exp(-abs(x))) if x == x else x


def _hard_sigmoid(x: Any) -> Any:
    line = x / 6 + mpmath.mpf(1) / 2
    return line if line != line else min(max(line, mpmath.mpf(0)), mpmath.mpf(1))


EXACT: dict[str, Callable[..., Any]] = {
    "number": lambda number: mpmath.mpf(number.value.numerator) / number.value.denominator,
    "sigmoid": _sigmoid,
    "tanh": _guarded(mpmath.tanh, lambda x: abs(x) < EXP_LIMIT),
    "exp": _guarded(mpmath.exp, lambda x: x < EXP_LIMIT),
    "expm1": _guarded(mpmath.expm1, lambda x: x < EXP_LIMIT),
    "log": _guarded(mpmath.log, lambda x: x > 0),
    "log1p": _guarded(mpmath.log1p, lambda x: x > -1),
    "logsigmoid": lambda x: -_softplus(-x),
    "softplus": _softplus,
    "silu": lambda x: x * _sigmoid(x),
    "atan": mpmath.atan,
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "softsign": lambda x: x / (1 + abs(x)),
    "hard_sigmoid": _hard_sigmoid,
    "gelu": lambda x: x / 2 * (1 + mpmath.erf(x / mpmath.sqrt(2))),
    "quotient": lambda a, b: a / b,
    "relu": lambda x: 0 * x if x < 0 else x,
    "abs": abs,
    "sqrt": _guarded(mpmath.sqrt, lambda x: x >= 0),
    "min": lambda a, b: a if a <= b or a != a else b,
    "max": lambda a, b: a if a >= b or a != a else b,
    "where": lambda condition, yes, no: yes if condition else no,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
"""The functions of the language in mpmath's arithmetic; `detach` is not among them."""
