"""The functions of the equation language, as classes of expressions.

Nothing rewrites them: an author who wrote a stable form keeps it. Each docstring is the formula that every target computes. It
propagates NaN, and overflows for no argument up to 1e4 unless the true value does.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeVar

from minrnn_gen.cell.tree import Expr


class CellFunction(Expr):
    """An operation of the language that is not +, -, *, / or a power.

    `cell_name` is its spelling in equations and, after `fn_`, in CUDA; `argument_count` is how many arguments it takes;
    `transcendental_count` is how many results of a GPU's special-function unit (exponentials, logarithms, roots, reciprocals)
    one evaluation takes.
    """

    __slots__ = ()
    operation = "call"
    cell_name: ClassVar[str]
    argument_count: ClassVar[int]
    transcendental_count: ClassVar[int] = 0

    @property
    def spelling(self) -> str:
        """The function's name."""
        return self.cell_name


class Sigmoid(CellFunction):
    """1 / (1 + exp(-x)) for x >= 0, exp(x) / (1 + exp(x)) below."""

    cell_name, argument_count, transcendental_count = "sigmoid", 1, 2


class Tanh(CellFunction):
    """The hyperbolic tangent."""

    cell_name, argument_count, transcendental_count = "tanh", 1, 2


class Exp(CellFunction):
    """e**x."""

    cell_name, argument_count, transcendental_count = "exp", 1, 1


class Expm1(CellFunction):
    """e**x - 1, accurate near 0."""

    cell_name, argument_count, transcendental_count = "expm1", 1, 1


class Log(CellFunction):
    """The natural logarithm."""

    cell_name, argument_count, transcendental_count = "log", 1, 1


class Log1p(CellFunction):
    """log(1 + x), accurate near 0."""

    cell_name, argument_count, transcendental_count = "log1p", 1, 1


class LogSigmoid(CellFunction):
    """min(x, 0) - log1p(exp(-|x|))."""

    cell_name, argument_count, transcendental_count = "logsigmoid", 1, 2


class Softplus(CellFunction):
    """max(x, 0) + log1p(exp(-|x|))."""

    cell_name, argument_count, transcendental_count = "softplus", 1, 2


class Silu(CellFunction):
    """x * sigmoid(x)."""

    cell_name, argument_count, transcendental_count = "silu", 1, 2


class Relu(CellFunction):
    """0 if x < 0 else x."""

    cell_name, argument_count = "relu", 1


class Absolute(CellFunction):
    """|x|."""

    cell_name, argument_count = "abs", 1


class SquareRoot(CellFunction):
    """The square root; NaN below 0."""

    cell_name, argument_count, transcendental_count = "sqrt", 1, 1


class Arctangent(CellFunction):
    """The arctangent, between -pi/2 and pi/2."""

    cell_name, argument_count, transcendental_count = "atan", 1, 2


class ErrorFunction(CellFunction):
    """2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    cell_name, argument_count, transcendental_count = "erf", 1, 2


class Sine(CellFunction):
    """The sine of an angle in radians."""

    cell_name, argument_count, transcendental_count = "sin", 1, 1


class Cosine(CellFunction):
    """The cosine of an angle in radians."""

    cell_name, argument_count, transcendental_count = "cos", 1, 1


class Softsign(CellFunction):
    """x / (1 + |x|)."""

    cell_name, argument_count = "softsign", 1


class HardSigmoid(CellFunction):
    """x / 6 + 1/2, not below 0 nor above 1; at both kinks the gradient is 0."""

    cell_name, argument_count = "hard_sigmoid", 1


class Gelu(CellFunction):
    """x / 2 * (1 + erf(x / sqrt(2)))."""

    cell_name, argument_count = "gelu", 1


class Minimum(CellFunction):
    """a if a <= b or a is NaN else b: a tie takes the first argument."""

    cell_name, argument_count = "min", 2


class Maximum(CellFunction):
    """a if a >= b or a is NaN else b: a tie takes the first argument."""

    cell_name, argument_count = "max", 2


class Where(CellFunction):
    """The second argument where the first, a comparison, holds, else the third."""

    cell_name, argument_count = "where", 3


class Detach(CellFunction):
    """x, with no gradient."""

    cell_name, argument_count = "detach", 1


class Surrogate(CellFunction):
    """The first argument, with the gradient of the second."""

    cell_name, argument_count = "surrogate", 2


class Quotient(CellFunction):
    """a / b where b was proved to have a reciprocal, so that a GPU may multiply by it; equations just divide."""

    cell_name, argument_count = "quotient", 2


class Sum(CellFunction):
    """The sum over the axis n, from n values per channel to one."""

    cell_name, argument_count = "sum", 1


class Spread(CellFunction):
    """The first argument, one value per channel, repeated for each of the second's n values; equations just mix the two."""

    cell_name, argument_count = "spread", 2


class OverUnits(CellFunction):
    """Functions over all units of a head or, with `over` "all", of a sequence; lists of operands have any length.

    Programs know only `Mean` of one operand; the other functions are composed from it (minrnn_gen/cell/norms.py).
    """

    over: ClassVar[Literal["head", "all"]] = "head"


class Mean(OverUnits):
    """The mean of all values over units."""

    cell_name, argument_count = "mean", 1


class MeanOfAll(Mean):
    """`Mean` over all units."""

    over = "all"


class RmsNorm(OverUnits):
    """The second argument over the root of its mean square plus the first, a number."""

    cell_name, argument_count = "rms_norm", 2


class RmsNormOfAll(RmsNorm):
    """`RmsNorm` over all units."""

    over = "all"


class LayerNorm(OverUnits):
    """The second argument less a mean, over the root of the variance plus the first, a number.

    Mean and variance are of all other arguments.
    """

    cell_name, argument_count = "layer_norm", 3


class LayerNormOfAll(LayerNorm):
    """`LayerNorm` over all units."""

    over = "all"


class Centre(CellFunction):
    """The mean within a variance, which is least there: the mean adds nothing to its derivative, only to a second one."""

    cell_name, argument_count = "centre", 1


class Exp2(CellFunction):
    """2**x; equations use exp, whose argument is scaled where scaling takes no time."""

    cell_name, argument_count, transcendental_count = "exp2", 1, 1


class ReciprocalRoot(CellFunction):
    """1 over the square root of x, where kernels wait for it."""

    cell_name, argument_count, transcendental_count = "reciprocal_root", 1, 1


class SigmoidPart(CellFunction):
    """The part of x that `SigmoidOfSum` reads."""

    cell_name, argument_count = "sigmoid_part", 1


class SigmoidOfSum(CellFunction):
    """sigmoid(x + y), of a `SigmoidPart` of x and of y, with the shortest chain from y."""

    cell_name, argument_count, transcendental_count = "sigmoid_of_sum", 2, 2


class LogOfSum(CellFunction):
    """log(exp(x) + exp(y)); -infinity is the logarithm of 0."""

    cell_name, argument_count, transcendental_count = "log_of_sum", 2, 2


class Times(CellFunction):
    """The product of two complex numbers, which C has no operator for on vectors."""

    cell_name, argument_count = "times", 2


class Conjugate(CellFunction):
    """The conjugate of a complex number."""

    cell_name, argument_count = "conjugate", 1


class Comparison(CellFunction):
    """A condition, the first argument of `where`; false when an operand is NaN (`!=`: true)."""


class Less(Comparison):
    """a < b."""

    cell_name, argument_count = "<", 2


class LessOrEqual(Comparison):
    """a <= b."""

    cell_name, argument_count = "<=", 2


class Greater(Comparison):
    """a > b."""

    cell_name, argument_count = ">", 2


class GreaterOrEqual(Comparison):
    """a >= b."""

    cell_name, argument_count = ">=", 2


class Equal(Comparison):
    """a == b."""

    cell_name, argument_count = "==", 2


class NotEqual(Comparison):
    """a != b."""

    cell_name, argument_count = "!=", 2


_Function = TypeVar("_Function", bound=CellFunction)


def _by_cell_name(*classes: type[_Function]) -> dict[str, type[_Function]]:
    return {function.cell_name: function for function in classes}


COMPARISONS = _by_cell_name(Less, LessOrEqual, Greater, GreaterOrEqual, Equal, NotEqual)
# A cell may give these names to values and parameters of its own, which then cannot be called.
_NEWER = _by_cell_name(Arctangent, ErrorFunction, Sine, Cosine, Softsign, HardSigmoid, Gelu, Surrogate)
# Functions over units, by name and units.
OVER_UNITS: dict[tuple[str, str], type[OverUnits]] = {
    (function.cell_name, function.over): function
    for function in (Mean, MeanOfAll, RmsNorm, RmsNormOfAll, LayerNorm, LayerNormOfAll)
}
NAMES_OVER_UNITS = tuple(dict.fromkeys(name for name, _ in OVER_UNITS))
FREE_NAMES = frozenset((*_NEWER, *NAMES_OVER_UNITS))
FUNCTIONS = {
    **_by_cell_name(
        *(Sigmoid, Tanh, Exp, Expm1, Log, Log1p, LogSigmoid, Softplus, Silu, Relu, Absolute, SquareRoot),
        *(Minimum, Maximum, Where, Detach),
    ),
    **_NEWER,
}


# A name of a value may be theirs in cells without the axis n.
REDUCTIONS = _by_cell_name(Sum)
# Equations derived from another cell's may call it; a user's equations may not.
EMBEDDED = _by_cell_name(Centre)
