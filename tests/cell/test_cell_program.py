"""Evaluation in NumPy: the formulas of docs/cells.md, in the inputs' own dtype, without warnings, NaN where NaN came in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from support.cell_evaluation import built_in, cell_of
from support.one_step import lower_step

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import library_names
from minrnn_gen.cell.functions import FUNCTIONS
from minrnn_gen.cell.lowering import lower_scan
from minrnn_gen.cell.program import Array, Program


def program_of(expression: str) -> Program:
    return lower_step(cell_of(f"h[t] = {expression}"))


def value(expression: str, x: Array) -> Array:
    return program_of(expression).evaluate({"W_x": x, "previous_h": x})["y"]


EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "tanh": mpmath.tanh,
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "logsigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "relu": lambda x: max(x, mpmath.mpf(0)),
    "abs": abs,
    "sqrt": mpmath.sqrt,
    "atan": mpmath.atan,
    "erf": lambda x: _erf(x),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "softsign": lambda x: x / (1 + abs(x)),
    "hard_sigmoid": lambda x: min(max(x / 6 + mpmath.mpf(1) / 2, mpmath.mpf(0)), mpmath.mpf(1)),
    "gelu": lambda x: x / 2 * (1 + _erf(x / mpmath.sqrt(2))),
}


def _erf(x: Any) -> Any:
    """Return erf, 1 or -1 where it differs from that by less than exp(-900): its series takes seconds there."""
    return mpmath.erf(x) if abs(x) < 30 else mpmath.sign(x)


POINTS = [0.0, 1e-30, 1e-8, 1e-3, 0.1, 0.7, 1.0, 3.0, 9.5, 20.0, 80.0, 90.0, 110.0, 700.0, 1e3, 1e4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_functions_are_right_to_a_few_roundings_from_minus_to_plus_ten_thousand(name: str, dtype: type) -> None:
    points = np.array([sign * point for point in POINTS for sign in (1, -1)], dtype)
    if name in ("log", "sqrt"):
        points = points[points > 0]
    if name == "log1p":
        points = points[points > -1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = value(f"{name}(W.x)", points)
    assert found.dtype == dtype
    # More digits than 1 + erf(-30) needs.
    with mpmath.workdps(500), np.errstate(over="ignore", under="ignore"):
        exact = [EXACT[name](mpmath.mpf(float(x))) for x in points]
        largest = mpmath.mpf(float(np.finfo(dtype).max))
        expected = np.array([np.inf if each > largest else float(each) for each in exact]).astype(dtype)
    absolute = np.finfo(dtype).tiny
    if name in ("gelu", "hard_sigmoid"):  # 1 + erf, and x / 6 + 1 / 2: near 0 they have lost their digits
        absolute = 4 * np.finfo(dtype).eps * np.maximum(np.abs(points), 1)
    if name in ("sin", "cos"):
        absolute = np.finfo(dtype).eps
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~is_finite], expected[~is_finite])
    off = np.abs(np.where(is_finite, found, 0) - np.where(is_finite, expected, 0))
    assert (off <= 4 * np.finfo(dtype).eps * np.abs(expected) + absolute).all()


@pytest.mark.parametrize("name", library_names())
def test_a_built_in_cell_is_finite_in_fp32_for_any_gates_up_to_ten_thousand(name: str) -> None:
    cell = built_in(name)
    extremes = np.array([0, 1e-30, 1, 10, 88, 89, 104, 1e3, 1e4], np.float32)
    extremes = np.concatenate([extremes, -extremes])
    random = np.random.default_rng(0)
    recurrence = classify(cell)
    programs = [lower_step(cell)]
    if recurrence.kind == "affine-diagonal":
        programs.append(lower_scan(cell, recurrence).coefficients)
    for program in programs:
        inputs = {key: random.choice(extremes, 20_000) for key in program.inputs if not key.startswith(("previous_", "mean_"))}
        inputs |= {key: np.zeros(20_000, np.float32) for key in program.inputs if key.startswith("previous_")}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = program.evaluate(inputs)
        for label, result in results.items():
            assert result.dtype == np.float32
            assert np.isfinite(result).all(), (label, [{key: each[~np.isfinite(result)][0] for key, each in inputs.items()}])


@pytest.mark.parametrize(
    "expression", ["W.x * 0.1 + 2", "1 / 3 * W.x", "where(W.x > 0, 1, 0) * 0.5", "max(W.x, 0.1)", "2 ** 0 + 0 * W.x"]
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_numbers_and_shapes_do_not_change_the_dtype(expression: str, dtype: type, shape: tuple[int, ...]) -> None:
    found = value(expression, np.ones(shape, dtype))
    assert found.dtype == dtype and found.shape == shape


def test_numbers_are_rounded_once_to_the_dtype() -> None:
    assert value("0.1 + 0 * W.x", np.ones(1, np.float32))[0] == np.float32(0.1)
    assert value("1 / 3 + 0 * W.x", np.ones(1, np.float64))[0] == 1 / 3


def test_results_have_the_common_shape_of_the_inputs() -> None:
    cell = cell_of("h[t] = softplus(u) * h[t-1] + 0 * W.x", parameters=["u"])
    found = lower_scan(cell, classify(cell)).coefficients.evaluate({"W_x": np.zeros((5, 4, 3)), "parameter_u": np.zeros(3)})
    assert found["a_h"].shape == found["b_h"].shape == (5, 4, 3)


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("exp", "expm1", "log", "log1p", "where", "surrogate")]
)
def test_nan_goes_in_and_out_of_its_own_element_only(name: str) -> None:
    x = np.array([np.nan, 1.0, np.nan, 2.0])
    for arguments in ("W.x, h[t-1]", "h[t-1], W.x") if name in ("min", "max") else ("W.x",):
        program = program_of(f"{name}({arguments}) + 0 * W.x")
        found = program.evaluate({"W_x": x, "previous_h": np.ones(4)})["y"]
        assert np.isnan(found).tolist() == [True, False, True, False]
