"""How exact the functions are said to be: the samples, the statistics, the table, and the kernels that are measured."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.functions_on_cpu import HostFunctions, Plan

from benchmarks.pages import filled_functions
from benchmarks.report.functions import (
    ARGUMENT_COUNTS,
    FUNCTIONS_PAGE,
    PUBLISHED_FUNCTIONS,
    FunctionRecord,
    error_of,
    exact_values,
    functions_text,
    read_functions,
    samples_of,
)
from minrnn_gen.build.nvrtc import compile_source, toolchain_version
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
FEW = 20_000
CHOICES = ("accurate", "fast")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The benchmark, as a module."""
    path = ROOT / "benchmarks" / "function_accuracy.py"
    found = importlib.util.spec_from_file_location("function_accuracy", path)
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # where its dataclasses look for their own module
    found.loader.exec_module(module)
    return module


def test_samples_are_of_every_exponent_and_both_signs_and_beside_every_kink() -> None:
    (x,) = samples_of("exp", FEW)
    assert np.isfinite(x).all()
    for part in (x[x > 0], -x[x < 0]):
        assert set(range(1, 255)) <= set(part.view(np.int32) >> 23)
    for kink in (0.0, 0.078125, 1.0):
        beside = np.nextafter(np.float32(kink), np.float32([-1, 2]), dtype=np.float32)
        assert np.isin([kink, *beside], x).all() and np.isin([-kink, *-beside], x).all()
    assert len(samples_of("exp")[0]) >= 1_000_000
    a, b = samples_of("max", FEW)
    assert (a == b).any() and (a < b).any() and (a > b).any()
    assert (samples_of("quotient", FEW)[1] > 0).all()


@pytest.mark.parametrize("name", ARGUMENT_COUNTS)
def test_a_correctly_rounded_function_is_off_by_half_a_unit(name: str) -> None:
    arguments = samples_of(name, FEW)
    with np.errstate(over="ignore"):
        rounded = exact_values(name, arguments).astype(np.float32)
    error = error_of(name, "accurate", arguments, rounded)
    assert error.ulp <= 0.5 and error.relative <= 2.0**-24 and error.lost_count == 0


@given(st.integers(1, 1000), st.integers(0, 4 * FEW), st.booleans())
def test_the_worst_argument_is_found_and_its_error_counted_in_units(units: int, place: int, is_above: bool) -> None:
    (x,) = samples_of("abs", FEW)
    place %= len(x)
    found = np.abs(x)
    bits = found[place : place + 1].view(np.int32)
    if not 2.0**-120 < found[place] < 2.0**120:
        return
    bits += units if is_above else -units
    error = error_of("abs", "fast", (x,), found)
    assert error.ulp_at == error.relative_at == error.absolute_at == (float(x[place]),)
    assert error.absolute == abs(float(found[place]) - abs(float(x[place])))
    assert units / 2 <= error.ulp <= 2 * units  # a unit doubles where the exponent changes
    assert error.relative == error.absolute / abs(float(x[place]))


def test_what_is_infinite_or_nan_without_reason_is_lost() -> None:
    x = np.float32([1, 2, -1, 100, 1e-40])
    found = np.float32([np.nan, np.exp(2), np.exp(-1), 1e38, np.inf])
    error = error_of("exp", "fast", (x,), found)
    assert (error.lost_count, error.lost_at) == (3, (1.0,))
    assert error_of("log", "fast", (x,), np.log(np.abs(x))).lost_count == 0, "below 0 a logarithm has no value"


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="the printed text is compiled by a host C++ compiler, and there is none"
)
@pytest.mark.parametrize("accuracy", CHOICES)
def test_functions_with_the_worst_instructions_keep_what_the_page_says(accuracy: str, tmp_path: Path) -> None:
    """The table of docs/numerics.md, over the samples of the benchmark."""
    functions = HostFunctions(Plan(accuracy, "float32"), tmp_path)
    is_fast = accuracy == "fast"
    # In units in the last place; what is not here has no relative bound: log near 1, and sums around 0.
    allowed = dict.fromkeys(("tanh", "expm1", "exp", "divide", "quotient"), 4.0)
    allowed |= dict.fromkeys(("abs", "relu", "min", "max"), 0.0) | {"sqrt": 2.0, "log": 2.0, "log1p": 2.0}
    if is_fast:
        allowed |= {"tanh": 2.0**7, "exp": 2 * (2 + 89.0)}
        del allowed["log"], allowed["log1p"]
    for name in ARGUMENT_COUNTS:
        arguments = samples_of(name, FEW)
        for found in functions.results(name, *arguments):
            error = error_of(name, "fast" if is_fast else "accurate", arguments, found)
            assert error.ulp <= allowed.get(name, np.inf), (name, error)
            if name in ("log", "log1p"):
                assert error.absolute <= 2.0**-21 + 2.0**-23 * 104, (name, error)  # and the rounding of values up to 104


@pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
@pytest.mark.parametrize("accuracy", CHOICES)
@pytest.mark.parametrize("gpu", ["t4", "h200"])
def test_the_kernels_that_are_measured_compile(script: ModuleType, gpu: str, accuracy: str) -> None:
    plan = script.plan_for(load_profile(gpu), accuracy)
    assert (plan.problem.functions, plan.problem.storage_dtype) == (accuracy, "float32")
    kernels = compile_source(script.text_for(plan), plan).kernels
    assert {kernel.name for kernel in kernels} == {f"apply_{name}" for name in ARGUMENT_COUNTS}


def test_the_choice_decides_the_text_and_not_the_storage(script: ModuleType) -> None:
    texts = {choice: script.text_for(script.plan_for(load_profile("h200"), choice)) for choice in CHOICES}
    assert "expf(x)" in texts["accurate"] and "ex2.approx" in texts["fast"] and "tanhf" not in texts["fast"]


def record_of_exact_functions() -> FunctionRecord:
    errors = []
    for name, accuracy in (("tanh", "accurate"), ("tanh", "fast"), ("max", "accurate")):
        arguments = samples_of(name, 100)
        errors.append(error_of(name, accuracy, arguments, exact_values(name, arguments).astype(np.float32)))
    return FunctionRecord(gpu="a GPU", versions={"NVRTC": "13.4"}, sample_count=100, errors=tuple(errors))


def test_a_record_reads_back_and_fills_its_section(tmp_path: Path) -> None:
    record = record_of_exact_functions()
    path = tmp_path / "record.json"
    path.write_text(record.model_dump_json())
    assert read_functions(path) == record
    page = "before\n<!-- measured: functions -->\nold\n<!-- end of measured -->\nafter\n"
    once = filled_functions(page, record, "page.md")
    assert "| tanh | 0.5 |" in once and "| max | 0 | 0.0e+00 | 0.0e+00 | - | - | - |" in once and "old" not in once
    assert filled_functions(once, record, "page.md") == once
    path.write_text("{}")
    with pytest.raises(BadInput, match="give a record of"):
        read_functions(path)


def test_the_page_has_the_table_of_the_record() -> None:
    record = read_functions(ROOT / PUBLISHED_FUNCTIONS)
    page = (ROOT / FUNCTIONS_PAGE).read_text(encoding="utf-8")
    assert functions_text(record) in page
    assert filled_functions(page, record, FUNCTIONS_PAGE) == page, "run: python -m benchmarks.write_pages"
