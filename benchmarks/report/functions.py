"""Accuracy of the functions of the equation language: sampled arguments, errors against float64, and the table."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from minrnn_gen.cell.functions import FUNCTIONS, Comparison, Detach, Surrogate, Where
from minrnn_gen.cell.value_numbering import COMPOSED
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.precision import FunctionAccuracy

# From the top of the checkout.
PUBLISHED_FUNCTIONS = "benchmarks/function_accuracy_h100.json"
FUNCTIONS_PAGE = "docs/numerics.md"

Array = np.ndarray[Any, np.dtype[Any]]

# Every function that templates define for equations, with its number of arguments.
ARGUMENT_COUNTS: Mapping[str, int] = {
    **{
        name: node.argument_count
        for name, node in FUNCTIONS.items()
        if not issubclass(node, Comparison | Detach | Surrogate | Where) and node not in COMPOSED
    },
    "divide": 2,
    "quotient": 2,
    # Of templates/parts/functions_behind_sums.cuh.j2.
    "sigmoid_of_sum": 2,
}

SAMPLE_COUNT = 1_000_000
# Where an implementation changes its formula, or its function ends: 0; the limits of tanh's cubic and of libraries'
# polynomials for tanh, expm1 and log1p; 1 for log; where exp overflows, flushes and vanishes, and sigmoid and tanh are flat.
KINKS = (0.0, 2.0**-24, 0.078125, 0.25, 0.5, 0.55, 0.625, 1.0, 2.0, 8.67, 17.33, 44.36, 87.34, 88.73, 103.97)
NEIGHBOURS = 4096  # adjacent floats on either side of every kink
_LARGEST_BITS = 0x7F7FFFFF  # of a finite float32
_LEAST_NORMAL = 2.0**-126
_LARGEST = float(np.finfo(np.float32).max)
_PRECISION_BITS = 24
OVERFLOW_MARGIN = 2.0**-15  # the error of the coarsest function, fast exp, at its largest results: (2 + 89) 2^-23
# `quotient` is printed only for divisors that are proved to lie between these.
_QUOTIENT_DIVISORS = (2.0**-120, 2.0**120)


class FunctionError(pydantic.BaseModel):
    """Errors of a function over all samples, with the arguments of the worst results.

    `ulp` is in units in the last place of a float32 at the exact value. `ulp` and `relative` are over exact values of at least
    2^-126 in magnitude, `absolute` over all. `lost_count` counts results that are infinite or NaN where the exact value is a
    float32, or finite where it is not; values next to the largest float do not count. `lost_at` are the arguments of one.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    function: str
    accuracy: FunctionAccuracy
    ulp: float
    ulp_at: tuple[float, ...]
    relative: float
    relative_at: tuple[float, ...]
    absolute: float
    absolute_at: tuple[float, ...]
    lost_count: int
    lost_at: tuple[float, ...] | None


class FunctionRecord(pydantic.BaseModel):
    """Errors of every function in both choices on one GPU."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    gpu: str
    versions: dict[str, str]
    sample_count: int
    errors: tuple[FunctionError, ...]


def call_text(name: str, arguments: tuple[str, ...]) -> str:
    """Return the call of a function in CUDA, of the text of as many arguments as it has."""
    if name == "sigmoid_of_sum":
        arguments = (f"fn_sigmoid_part({arguments[0]})", arguments[1])
    return f"fn_{name}({', '.join(arguments[: ARGUMENT_COUNTS[name]])})"


def samples_of(name: str, count: int = SAMPLE_COUNT) -> tuple[Array, ...]:
    """Return the float32 arguments at which a function is sampled, an array for every argument.

    A single argument takes `count` floats evenly over all bit patterns, so evenly over the exponents, of both signs, and the
    neighbourhoods of the kinks. Two arguments take these values paired with a permutation of them, and with themselves, which
    are the ties.
    """
    x = _floats(count)
    if ARGUMENT_COUNTS[name] == 1:
        return (x,)
    first, second = np.concatenate([x, x]), np.concatenate([np.random.default_rng(0).permutation(x), x])
    if name == "quotient":
        provable = (second >= _QUOTIENT_DIVISORS[0]) & (second <= _QUOTIENT_DIVISORS[1])
        first, second = first[provable], second[provable]
    return first, second


@functools.lru_cache(1)
def _floats(count: int) -> Array:
    """Return `count` floats over all bit patterns and those beside kinks, the same for every function: not to be written to."""
    patterns = np.linspace(0, _LARGEST_BITS, count // 2, dtype=np.float64).astype(np.int64)
    near = np.array(KINKS, np.float32).view(np.int32).astype(np.int64)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    bits = np.unique(np.concatenate([patterns, np.clip(near.reshape(-1), 0, _LARGEST_BITS)]))
    magnitudes = bits.astype(np.int32).view(np.float32)
    x = np.concatenate([magnitudes, -magnitudes])
    x.flags.writeable = False
    return x


def exact_values(name: str, arguments: tuple[Array, ...]) -> Array:
    """Return the values of a function at float32 arguments, computed in float64."""
    with np.errstate(all="ignore"):
        value: Array = _EXACT[name](*(argument.astype(np.float64) for argument in arguments))
    return value


def error_of(name: str, accuracy: FunctionAccuracy, arguments: tuple[Array, ...], results: Array) -> FunctionError:
    """Return the errors of float32 `results` at `arguments`; arguments where the function is NaN do not count."""
    exact = exact_values(name, arguments)
    is_number = ~np.isnan(exact)
    has_float, is_finite = np.abs(exact) <= _LARGEST, np.isfinite(results)
    # Next to the largest float the error of the result decides whether it overflows.
    is_beside = np.abs(np.abs(exact) / _LARGEST - 1) <= OVERFLOW_MARGIN
    lost = is_number & ~is_beside & (has_float != is_finite)
    counts = is_number & has_float & is_finite
    error = np.where(counts, np.abs(np.where(counts, results, 0.0) - np.where(counts, exact, 0.0)), 0.0)
    is_normal = counts & (np.abs(exact) >= _LEAST_NORMAL)
    magnitude = np.where(is_normal, np.abs(exact), 1.0)
    relative = np.where(is_normal, error / magnitude, 0.0)
    unit = np.ldexp(1.0, np.frexp(magnitude)[1] - _PRECISION_BITS)
    ulps = np.where(is_normal, error / unit, 0.0)

    def at(place: int) -> tuple[float, ...]:
        return tuple(float(argument[place]) for argument in arguments)

    worst = {key: int(values.argmax()) for key, values in (("ulp", ulps), ("relative", relative), ("absolute", error))}
    return FunctionError(
        function=name,
        accuracy=accuracy,
        ulp=float(ulps[worst["ulp"]]),
        ulp_at=at(worst["ulp"]),
        relative=float(relative[worst["relative"]]),
        relative_at=at(worst["relative"]),
        absolute=float(error[worst["absolute"]]),
        absolute_at=at(worst["absolute"]),
        lost_count=int(lost.sum()),
        lost_at=at(int(lost.argmax())) if lost.any() else None,
    )


def read_functions(path: str | os.PathLike[str]) -> FunctionRecord | None:
    """Return the record at `path`, None where there is no file yet; BadInput for a file that is no record."""
    if not Path(path).exists():
        return None
    try:
        return FunctionRecord.model_validate_json(Path(path).read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{shown(os.fspath(path))}: {where}: {first['msg']}; give a record of function_accuracy.py") from None


def functions_text(record: FunctionRecord | None) -> str:
    """Return the record as a Markdown table, below a line with its GPU and versions."""
    if record is None:
        return "Not measured yet; `python -m benchmarks.function_accuracy` does, on a GPU.\n"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    lines = [
        f"Over {record.sample_count:,} arguments and more on {record.gpu} ({versions}).",
        "",
        "| function | accurate: ulp | relative | absolute | fast: ulp | relative | absolute |",
        "|---|---|---|---|---|---|---|",
    ]
    by_choice = {(error.function, error.accuracy): error for error in record.errors}
    for name in dict.fromkeys(error.function for error in record.errors):
        cells = [_cells(by_choice.get((name, accuracy))) for accuracy in ("accurate", "fast")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lost = [
        f"{error.lost_count:,} of {error.accuracy} {error.function}, such as at "
        f"{', '.join(f'{argument:.3g}' for argument in error.lost_at or ())}"
        for error in record.errors
        if error.lost_count
    ]
    lines += ["", f"Infinite or NaN where the exact value is a float32, or the reverse: {'; '.join(lost) or 'none'}."]
    return "\n".join(lines) + "\n"


def _cells(error: FunctionError | None) -> str:
    return "- | - | -" if error is None else f"{error.ulp:.3g} | {error.relative:.1e} | {error.absolute:.1e}"


def _softplus(x: Array) -> Array:
    value: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return value


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    value: Array = np.where(x >= 0, 1.0, small) / (1 + small)
    return value


_EXACT: Mapping[str, Callable[..., Array]] = {
    **{name: getattr(np, name) for name in ("tanh", "exp", "expm1", "log", "log1p", "abs", "sqrt")},
    **{name: getattr(np, name) for name in ("sin", "cos")},
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": _sigmoid,
    "logsigmoid": lambda x: -_softplus(-x),
    "softplus": _softplus,
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "min": np.minimum,
    "max": np.maximum,
    "divide": np.divide,
    "quotient": np.divide,
    "sigmoid_of_sum": lambda x, y: _sigmoid(x + y),
}
