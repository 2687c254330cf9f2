"""The CUDA text of the functions, compiled for the host, with approximate instructions as wrong as their manual allows."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.functions import ARGUMENT_COUNTS, call_text
from minrnn_gen.codegen.render import environment

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
    return std::isfinite(float(exact)) && exact != 0 && exact != 1 ? value : float(exact);
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
    """Inputs of the functions."""

    functions: str
    arithmetic_dtype: str
    has_bf16_convert: bool = True

    @property
    def problem(self) -> Plan:
        """The part of a plan that templates of functions read."""
        return self


class HostFunctions:
    """The functions of one choice, "accurate" or "fast", in one arithmetic."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        files = ("parts/functions.cuh.j2", "parts/functions_behind_sums.cuh.j2")
        texts = [environment().get_template(file).render(plan=plan, cell=None, header=()) for file in files]
        parts = [HOST, f"typedef {self.real} compute_t;", *texts]
        for name in ARGUMENT_COUNTS:
            parts.append(
                f'extern "C" void of_{name}(const compute_t* a, const compute_t* b, compute_t* y, int n) '
                f"{{ for (int i = 0; i < n; ++i) y[i] = {call_text(name, ('a[i]', 'b[i]'))}; }}"
            )
        (folder / "functions.cpp").write_text("\n".join(parts))
        command = ["g++", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-o", "functions.so", "functions.cpp"]
        subprocess.run(command, cwd=folder, check=True)
        self._library = ctypes.CDLL(str(folder / "functions.so"))

    @property
    def real(self) -> str:
        return {"float32": "float", "float64": "double"}[self.plan.arithmetic_dtype]

    @property
    def kind(self) -> str:
        """The choice, or the arithmetic where there is none."""
        return "float64" if self.plan.arithmetic_dtype == "float64" else self.plan.functions

    def results(self, name: str, *arguments: Any) -> Iterator[Any]:
        """Yield what the function gives with every combination of the worst errors."""
        arrays = [np.ascontiguousarray(argument, self.plan.arithmetic_dtype) for argument in (*arguments, *arguments)[:2]]
        function: Callable[..., Any] = getattr(self._library, f"of_{name}")
        for errors in itertools.product((-1, 1), repeat=2):
            for symbol, error in zip(("exp_ulps", "other_ulps"), errors, strict=True):
                ctypes.c_int.in_dll(self._library, symbol).value = error
            y = np.empty_like(arrays[0])
            function(*(array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, y)), len(y))
            yield y

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Return [4, n]: the function with every combination of the worst errors."""
        return np.stack(list(self.results(name, *arguments)))
