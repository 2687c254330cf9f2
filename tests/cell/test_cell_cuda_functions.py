"""The CUDA text of the functions, compiled for the host, with approximate instructions as wrong as their manual allows."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minrnn_gen.cell.functions import FUNCTIONS, Comparison, Detach, Where, argument_count
from minrnn_gen.source import environment

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the printed text is compiled by a host C++ compiler, and there is none"
)

NAMES = [name for name, function in FUNCTIONS.items() if not issubclass(function, Comparison | Detach | Where)]
NAMES += ["divide", "quotient"]
# PTX ISA: units in the last place by which ex2, rcp, div.full and sqrt may be off; lg2 by so much in all.
HOST = """
#include <cmath>
#define __device__
#define __forceinline__ inline
extern "C" { int exp_ulps, other_ulps; }
namespace minrnn_host {
static float off(double exact, int ulps) {
    float value = float(exact);
    for (int i = 0; i < (ulps < 0 ? -ulps : ulps); ++i) value = std::nextafter(value, ulps < 0 ? -INFINITY : INFINITY);
    return std::isfinite(exact) && exact != 0 && exact != 1 ? value : float(exact);
}
static float exp2(float x) { return off(std::exp2(double(x)), 2 * exp_ulps); }
static float log2(float x) { return float(std::log2(double(x)) + other_ulps * 0x1p-22); }
static float reciprocal(float x) { return off(1 / double(x), other_ulps); }
static float quotient(float x, float y) { return off(double(x) / double(y), 2 * other_ulps); }
static float square_root(float x) { return off(std::sqrt(double(x)), other_ulps); }
static float lesser(float x, float y) { return x != x ? x : y != y ? y : x < y ? x : y; }
static float greater(float x, float y) { return x != x ? x : y != y ? y : x > y ? x : y; }
}
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the functions depend on."""

    storage_dtype: str
    arithmetic_dtype: str
    has_bf16_convert: bool = True


@pytest.fixture(scope="module", params=[("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")], ids=str)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return f(name, *arguments) -> [4, n]: the function with every combination of the worst errors."""
    storage, arithmetic = request.param
    folder: Path = tmp_path_factory.mktemp("functions")
    text = environment().get_template("parts/functions.cuh.j2").render(plan=Plan(storage, arithmetic), cell=None, header=())
    real = {"float32": "float", "float64": "double"}[arithmetic]
    parts = [HOST, f"typedef {real} real;", text]
    for name in NAMES:
        count = argument_count(FUNCTIONS[name]) if name in FUNCTIONS else 2
        call = ", ".join(("a[i]", "b[i]")[:count])
        parts.append(
            f'extern "C" void of_{name}(const real* a, const real* b, real* y, int n) '
            f"{{ for (int i = 0; i < n; ++i) y[i] = fn_{name}({call}); }}"
        )
    (folder / "functions.cpp").write_text("\n".join(parts))
    command = ["g++", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-o", "functions.so", "functions.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "functions.so"))

    def call_all(name: str, *arguments: Any) -> Any:
        arrays = [np.ascontiguousarray(each, arithmetic) for each in (*arguments, *arguments)[:2]]
        results = []
        for errors in itertools.product((-1, 1), repeat=2):
            for symbol, error in zip(("exp_ulps", "other_ulps"), errors, strict=True):
                ctypes.c_int.in_dll(library, symbol).value = error
            y = np.empty_like(arrays[0])
            pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, y)]
            getattr(library, f"of_{name}")(*pointers, len(y))
            results.append(y)
        return np.stack(results)

    call_all.precision = storage  # type: ignore[attr-defined]
    return call_all


POINTS = np.concatenate([sign * np.logspace(-6, 4, 40_001, dtype=np.float64) for sign in (-1, 1)] + [np.zeros(1)])


def test_tanh_keeps_its_digits_near_zero_and_its_sign_and_limit(functions: Any) -> None:
    """With 16-bit storage within a relative 2^-17, docs/numerics.md; else within 4 units in the last place."""
    bound = {"bfloat16": 2.0**-17, "float32": 2.0**-21, "float64": 2.0**-50}[functions.precision]
    x = POINTS.astype(np.float32).astype(np.float64)
    found, exact = functions("tanh", x), np.tanh(x)
    assert (np.abs(found - exact) <= bound * np.abs(exact)).all()
    assert np.array_equal(functions("tanh", [np.inf, -np.inf, np.nan])[0], [1, -1, np.nan], equal_nan=True)


def test_sigmoid_is_a_share(functions: Any) -> None:
    """Never above 1 by more than rounding, never negative; its relative error is that of exp below, absolutely 2^-21 above."""
    x = POINTS.astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-x))
    found = functions("sigmoid", x)
    per_x = {"bfloat16": 4, "float32": 0, "float64": 0}[functions.precision]
    unit = 2.0**-24 if functions.precision != "float64" else 2.0**-53
    assert (np.abs(found - exact) <= unit * (12 + per_x * np.abs(x)) * exact + 2.0**-126).all()
    assert (found >= 0).all() and (found <= 1 + 2 * unit).all()


def test_least_greatest_and_relu_let_nan_through(functions: Any) -> None:
    values = np.array([-np.inf, -1.5, -0.0, 0.0, 2.0, np.inf, np.nan])
    a, b = (each.reshape(-1) for each in np.meshgrid(values, values))
    for name, reference in (("min", np.minimum), ("max", np.maximum)):
        assert np.array_equal(functions(name, a, b)[0], reference(a, b), equal_nan=True)
    assert np.array_equal(functions("relu", values)[0], np.maximum(values, 0), equal_nan=True)


def test_quotients_are_quotients(functions: Any) -> None:
    """Division for every divisor; the product with a reciprocal for those that have one."""
    random = np.random.default_rng(0)
    unit = 2.0**-23 if functions.precision != "float64" else 2.0**-52
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
