"""Expressions to text: back to the equation language, to CUDA C++, and to C over vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fractions import Fraction

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.expressions import Expr, Number, Symbol, operation, power_exponent, rebuilt
from minrnn_gen.cell.functions import Comparison, Conjugate, Detach, OverUnits, Quotient, Times, Where
from minrnn_gen.cell.norms import arguments_of

_INFIX = {"add": ("+", 1), "subtract": ("-", 1), "multiply": ("*", 2)}
_QUOTIENT, _PREFIX, _POWER, _ATOM = 2, 3, 4, 5

Part = tuple[str, int]
"""A text and how tightly it binds: the level of its outermost operator."""


def equation_text(expression: Expr) -> str:
    """Return `expression` in the equation language; reading it back gives the same expression."""
    return _part(expression, _equation_part)[0]


def shown_equation(expression: Expr) -> str:
    """Return `expression` in the equation language, cut where it is long."""
    text = equation_text(expression)
    return text if len(text) <= 160 else f"{text[:157]}..."


def cuda_text(expression: Expr) -> str:
    """Return `expression` as C++ over the type `compute_t`: a symbol s is the variable `cell_s`, a function f is `fn_f`.

    Powers have no C++ operator: a program has written them as products before. Division has a function as well, because C++'s
    own, exact to the last bit, takes a branch.
    """
    return _part(expression, _cuda_part)[0]


def c_text(expression: Expr) -> str:
    """Return `expression` as C over vectors: a symbol s is the variable `cell_s`, a function f is `fn_f`, a choice `choose`."""
    return _part(expression, _c_part)[0]


def complex_c_text(expression: Expr, conjugated: Collection[str] = ()) -> str:
    """Return `expression` as C over vectors of complex numbers, each of these inputs conjugated.

    Raises ValueError for more than sums, differences and products: cells are equations over real numbers.
    """
    return c_text(_over_complex(expression, conjugated))


def _over_complex(expression: Expr, conjugated: Collection[str]) -> Expr:
    if isinstance(expression, Symbol):
        return Conjugate(expression) if expression.name in conjugated else expression
    name, operands = operation(expression)
    if name not in (*_INFIX, "negate"):
        raise ValueError(f"{equation_text(expression)} is no sum and no product of complex numbers")
    parts = [_over_complex(operand, conjugated) for operand in operands]
    return Times(*parts) if name == "multiply" else rebuilt(expression, parts)


def _part(expression: Expr, special: Callable[[Expr], Part]) -> Part:
    name, operands = operation(expression)
    if name in _INFIX:
        sign, level = _INFIX[name]
        return _infix(sign, level, operands, special)
    if name == "negate":
        return f"-{_bound(operands[0], _PREFIX + 1, special)}", _PREFIX
    return special(expression)


def _infix(sign: str, level: int, operands: tuple[Expr, ...], special: Callable[[Expr], Part]) -> Part:
    # The right operand of the same level keeps its parentheses: floating-point sums and products do not associate.
    left, right = _bound(operands[0], level, special), _bound(operands[1], level + 1, special)
    return f"{left} {sign} {right}", level


def _bound(expression: Expr, level: int, special: Callable[[Expr], Part]) -> str:
    text, own_level = _part(expression, special)
    return text if own_level >= level else f"({text})"


def _equation_part(expression: Expr) -> Part:
    if isinstance(expression, Number):
        return _exact_number(expression)
    if isinstance(expression, Symbol):
        return expression.name, _ATOM
    name, operands = operation(expression)
    if name == "power":
        return f"{_bound(operands[0], _ATOM, _equation_part)} ** {power_exponent(expression)}", _POWER
    if name == "divide":
        return _infix("/", _QUOTIENT, operands, _equation_part)
    if isinstance(expression, Comparison):
        left, right = (_bound(operand, 1, _equation_part) for operand in operands)
        return f"{left} {expression.cell_name} {right}", 0
    if isinstance(expression, OverUnits):
        return _over_units(expression), _ATOM
    return f"{expression.spelling}({', '.join(equation_text(operand) for operand in operands)})", _ATOM


def _over_units(expression: OverUnits) -> str:
    epsilon, x, of = arguments_of(expression)
    texts = [equation_text(value) for value in of]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    parts = [*([] if x is None or of == (x,) else [equation_text(x)]), listed, expression.over]
    if x is not None and len(of) == 1 and of != (x,):
        parts[1] = f"[{listed}]"
    return f"{expression.spelling}({', '.join([*parts, *([] if epsilon is None else [equation_text(epsilon)])])})"


def _exact_number(number: Number) -> Part:
    value = number.value
    short = repr(float(value)).removesuffix(".0")
    if Fraction(short) == value:
        return short, _ATOM if value >= 0 else _PREFIX
    return f"{value.numerator} / {value.denominator}", _QUOTIENT


def _cuda_part(expression: Expr) -> Part:
    if isinstance(expression, Number):
        # The decimal is the shortest that reads back as the nearest double, so no digit is lost before the conversion to real.
        return f"compute_t({float(expression)!r})", _ATOM
    if isinstance(expression, Symbol):
        return cuda_name(expression.name), _ATOM
    operands = expression.args
    if isinstance(expression, Detach):
        return _part(operands[0], _cuda_part)
    if isinstance(expression, Where):
        condition, yes, no = (cuda_text(operand) for operand in operands)
        return f"({condition} ? {yes} : {no})", _ATOM
    if isinstance(expression, Comparison):
        left, right = (_bound(operand, 1, _cuda_part) for operand in operands)
        return f"{left} {expression.cell_name} {right}", 0
    return f"fn_{expression.spelling}({', '.join(cuda_text(operand) for operand in operands)})", _ATOM


def _c_part(expression: Expr) -> Part:
    if isinstance(expression, Number):
        return f"number({float(expression)!r})", _ATOM
    if isinstance(expression, Symbol):
        return cuda_name(expression.name), _ATOM
    name, operands = operation(expression)
    if name == "divide" or isinstance(expression, Quotient):
        return _infix("/", _QUOTIENT, operands, _c_part)
    if isinstance(expression, Detach):
        return _part(operands[0], _c_part)
    if isinstance(expression, Comparison):
        left, right = (_bound(operand, 1, _c_part) for operand in operands)
        return f"{left} {expression.cell_name} {right}", 0
    called = "choose" if isinstance(expression, Where) else f"fn_{expression.spelling}"
    return f"{called}({', '.join(c_text(operand) for operand in operands)})", _ATOM
