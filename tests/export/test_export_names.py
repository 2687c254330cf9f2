"""An export is built and run under any name that it takes, and under that of any cell."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from support.c_programs import has_c_compiler
from support.export_names import check_export, check_export_by_cmake, names_of_the_system, odd_export_names
from support.exported_operators import build_library, build_onnx_library
from support.needed import needed
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen

if not has_c_compiler():
    pytest.skip("no C compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch, nothing_compiled():
        patch.setenv("MINRNN_CACHE_DIR", str(tmp_path_factory.mktemp("names")))
        yield minrnn_gen.compile({"model": "min_gru", "hidden_size": 4, "training": False}, gpu="h200")


@pytest.mark.parametrize("name", ["check", "x", None])
def test_names_of_an_export_meet_no_others(kernel: Any, name: str | None, tmp_path: Path) -> None:
    check_export(kernel, tmp_path, name)


@pytest.mark.matrix_full
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_export_names())
@example("linux")
@example("pthread")
@example("math")
@example("int")
def test_drawn_names_of_an_export_meet_no_others(kernel: Any, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_export(kernel, Path(folder), name)


@pytest.mark.matrix_full
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_export_names())
@example("test")
@example("m")
@example("x")
@example("stdio")
def test_targets_of_an_export_meet_no_others(kernel: Any, name: str) -> None:
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("no cmake, or no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        check_export_by_cmake(kernel, Path(folder), name)


def test_the_text_of_a_cell_stays_in_comments_and_strings(tmp_path: Path) -> None:
    cell = {"name": "x", "source": 'a */ # é \\ " ??/', "equations": "z = sigmoid(W.z)\nh[t] = z * h[t-1] + W.h\n"}
    with nothing_compiled():
        kernel = minrnn_gen.compile({"model": cell, "hidden_size": 4, "training": False}, gpu="h200")
        check_export(kernel, tmp_path, "x", "-std=c99")
    assert json.loads((tmp_path / "rnn_x.json").read_text())["spec"]


@pytest.mark.parametrize("name", ["check", *(pytest.param(name, marks=pytest.mark.matrix_full) for name in ("linux", "c10"))])
def test_names_of_operators_meet_no_others(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    torch, wing = pytest.importorskip("torch"), needed("minrnn_gen.torch")
    layer, x = wing.MinGRU(2, 4), torch.randn(1, 3, 2)
    program = wing.export_operators(torch.export.export(layer, (x,)), tmp_path, name=name)
    prefix = f"rnn_{name}"
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"{prefix}.cpp", f"{prefix}_onnx.c", "CMakeLists.txt", f"{prefix}_kernel0"}
    build_onnx_library(tmp_path, name)
    if request.node.get_closest_marker("matrix_full"):
        torch.ops.load_library(build_library(tmp_path, name))
        with torch.no_grad():
            torch.testing.assert_close(program.module()(x), layer(x))


def test_the_names_that_are_drawn_are_those_that_would_meet_others() -> None:
    assert {"pthread", "x"} <= {*names_of_the_system()}


@pytest.mark.parametrize("cell", ["check", "test", "Linux", "x"])
def test_a_cell_of_any_name_is_exported(cell: str, tmp_path: Path) -> None:
    equations = "z = sigmoid(W.z)\nh[t] = z * h[t-1] + W.h"
    with nothing_compiled():
        kernel = minrnn_gen.compile(
            {"model": {"name": cell, "equations": equations}, "hidden_size": 4, "training": False}, gpu="h200"
        )
        files = {path.name for path in kernel.export(tmp_path, target="cpu").files}
    assert files == {f"rnn_{cell.lower()}.{end}" for end in ("h", "c", "json")} | {"check.c", "CMakeLists.txt"}
