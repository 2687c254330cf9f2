"""The functions as they are printed: how exact they are, and what becomes of NaN, infinities and signs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from support.functions_on_cpu import HostFunctions, Plan

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the printed text is compiled by a host C++ compiler, and there is none"
)

CHOICES = (Plan("fast", "float32"), Plan("accurate", "float32"), Plan("accurate", "float64"))


@pytest.fixture(scope="module", params=CHOICES, ids=lambda plan: f"{plan.functions}-{plan.arithmetic_dtype}")
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HostFunctions:
    return HostFunctions(request.param, tmp_path_factory.mktemp("functions"))


POINTS = np.concatenate([sign * np.logspace(-6, 4, 40_001, dtype=np.float64) for sign in (-1, 1)] + [np.zeros(1)])


def test_tanh_keeps_its_digits_near_zero_and_its_sign_and_limit(functions: HostFunctions) -> None:
    """With 16-bit storage within a relative 2^-17, docs/numerics.md; else within 4 units in the last place."""
    bound = {"fast": 2.0**-17, "accurate": 2.0**-21, "float64": 2.0**-50}[functions.kind]
    x = POINTS.astype(np.float32).astype(np.float64)
    found, exact = functions("tanh", x), np.tanh(x)
    assert (np.abs(found - exact) <= bound * np.abs(exact)).all()
    assert np.array_equal(functions("tanh", [np.inf, -np.inf, np.nan])[0], [1, -1, np.nan], equal_nan=True)


def test_sigmoid_is_a_share(functions: HostFunctions) -> None:
    """Never above 1 by more than rounding, never negative; its relative error is that of exp below, absolutely 2^-21 above."""
    x = POINTS.astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-x))
    found = functions("sigmoid", x)
    per_x = {"fast": 4, "accurate": 0, "float64": 0}[functions.kind]
    unit = 2.0**-24 if functions.kind != "float64" else 2.0**-53
    assert (np.abs(found - exact) <= unit * (12 + per_x * np.abs(x)) * exact + 2.0**-126).all()
    assert (found >= 0).all() and (found <= 1 + 2 * unit).all()


def test_least_greatest_and_relu_let_nan_through(functions: HostFunctions) -> None:
    values = np.array([-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf, np.nan])
    a, b = (each.reshape(-1) for each in np.meshgrid(values, values))
    for name, reference in (("min", np.minimum), ("max", np.maximum)):
        assert np.array_equal(functions(name, a, b)[0], reference(a, b), equal_nan=True)
    assert np.array_equal(functions("relu", values)[0], np.maximum(values, 0), equal_nan=True)


def test_quotients_are_quotients(functions: HostFunctions) -> None:
    """Division for every divisor; the product with a reciprocal for those that have one."""
    random = np.random.default_rng(0)
    unit = 2.0**-23 if functions.kind != "float64" else 2.0**-52
    a = random.normal(size=10_000).astype(np.float32)
    for name, exponent in (("divide", 126), ("quotient", 120)):
        b = np.ldexp(random.uniform(1, 2, 10_000), random.integers(-exponent, exponent, 10_000)).astype(np.float32)
        exact = a.astype(np.float64) / b
        normal = (np.abs(exact) > 2.0**-125) & (np.abs(exact) < 2.0**126)
        assert (np.abs(functions(name, a, b) - exact) <= 3 * unit * np.abs(exact))[:, normal].all()
    with np.errstate(all="ignore"):
        values = np.array([-1.0, 0.0, np.inf, np.nan])
        a, b = (each.reshape(-1) for each in np.meshgrid(values, values))
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        special = ~np.isfinite(a32 / b32) | (a32 / b32 == 0)
        assert np.array_equal(functions("divide", a32, b32)[0][special], (a32 / b32)[special], equal_nan=True)
