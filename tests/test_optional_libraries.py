"""Optional libraries that are absent, half there or broken: host arrays run, and what needs one says so, as `doctor` does.

Which libraries are optional follows from the owners of imports and from the requirements that the package declares.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import OWN, needed
from support.optional_libraries import USES
from test_layering import OWNERS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Modules that are called otherwise than what pip installs.
MODULES = {
    "python-constraint2": "constraint",
    "pyyaml": "yaml",
    "cupy-cuda13x": "cupy",
    "cupy-cuda12x": "cupy",
    "nvidia-cuda-nvrtc": "cuda",  # found by CuPy, through cuda.pathfinder
    "fla-core": "fla",
}
# Extras of those who change this package, which nothing in it imports.
TOOLS = {"docs", "runner", "test", "dev"}

ABSENT = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
# What an import ends in.
BROKEN = {
    "half there": "",
    "numpy": "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
    "driver": "raise RuntimeError('CUDA driver version is insufficient')",
    "shared object": "raise OSError('libcudart.so.13: cannot open shared object file')",
    "symbol": "raise ImportError('undefined symbol: _ZN3c10')",
    "attribute": "raise AttributeError('module has no attribute dtypes')",
}
# The rows of `doctor` that speak of a library.
ROWS = {"cupy": "CuPy", "cupy_backends": "NVRTC", "cuda": "NVRTC", "torch": "torch", "jax": "JAX", "onnx": "ONNX"}


def modules_of(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


OPTIONAL = sorted(OWNERS.keys() - modules_of(PROJECT["dependencies"]))
# Each is imported while a contender of a benchmark is prepared, where a failure of any kind is that contender's.
CONTENDERS = {name for name in OPTIONAL if all(owner.startswith("benchmarks.contenders.") for owner in OWNERS[name].split())}


def test_every_optional_library_is_tried() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = modules_of([one for name, some in extras.items() if name not in TOOLS for one in some])
    assert declared <= set(OPTIONAL), "give the library its owners"
    assert set(OPTIONAL) == USES.keys() | CONTENDERS, "give the library a use in support/optional_libraries.py"


def said_with(stubs: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return what a process says where these libraries are packages of one file each."""
    for library, text in stubs.items():
        (folder / library).mkdir()
        (folder / library / "__init__.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(folder), str(ROOT / "tests"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "MINRNN_CPU": "numpy"}
    command = [sys.executable, "-m", "support.optional_libraries", *stubs]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def check(stubs: dict[str, str], folder: Path) -> None:
    """Demand one sentence of every use, which names the cause where the library is broken, and a row of `doctor`."""
    answer = said_with(stubs, folder)
    for library, sentence in answer["said"].items():
        assert sentence and sentence.isprintable() and len(sentence) < 600, (library, sentence)
        assert "pip install" in sentence, sentence
    for library in stubs.keys() & ROWS.keys():
        row = answer["doctor"][ROWS[library]]
        assert not row["is_well"] and row["mend"], row
    if stubs.get("cupy") == ABSENT:
        assert "the GPU here needs CuPy, which is not installed" in answer["doctor"]["GPU"]["state"]


@pytest.mark.parametrize("kind", one_in(12, ["numpy", *(kind for kind in ("absent", *BROKEN) if kind != "numpy")]))
def test_without_any_host_arrays_run(kind: str, tmp_path: Path) -> None:
    """Fronts of torch need torch first, and are tried where it is there."""
    fronts = {"onnx", "onnxscript", "xlstm", "transformers", "minGRU_pytorch", "torchrl"}
    check(dict.fromkeys([name for name in OPTIONAL if name not in fronts], {"absent": ABSENT, **BROKEN}[kind]), tmp_path)


@pytest.mark.matrix_full
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_with_torch_alone_its_fronts_say_what_they_need(tmp_path: Path) -> None:
    check(dict.fromkeys([name for name in OPTIONAL if name != "torch"], BROKEN["half there"]), tmp_path)


@pytest.mark.matrix_full
@pytest.mark.parametrize("kind", ["absent", *BROKEN])
@pytest.mark.parametrize("library", sorted(set(OPTIONAL) - CONTENDERS))
def test_each_alone(library: str, kind: str, tmp_path: Path) -> None:
    if library in {"onnx", "onnxscript", "xlstm", "transformers", "minGRU_pytorch", "torchrl"} and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    check({library: {"absent": ABSENT, **BROKEN}[kind]}, tmp_path)


ABSENT_NAME = "absent_library_of_tests"


@pytest.mark.parametrize(
    ("text", "ends_in"),
    [
        (f"import {ABSENT_NAME}.part", pytest.skip.Exception),
        ("import minrnn_gen.absent", ModuleNotFoundError),
        ("from minrnn_gen.errors import Absent", ImportError),
        ("import json.absent", ModuleNotFoundError),
        ("raise ImportError('undefined symbol: _ZN3c10')", ImportError),
    ],
)
def test_only_an_absent_library_skips(
    text: str, ends_in: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_is_needed.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ends_in):
        needed("module_that_is_needed")


def test_modules_import_no_optional_library_but_their_own() -> None:
    """Others are imported where they are used: without them a module, and what lists all modules, could not be imported."""
    allowed = {*sys.stdlib_module_names, *modules_of(PROJECT["dependencies"]), "minrnn_gen"}
    own = {"torch": {"torch"}, "compat": {"torch"}, "jax": {"jax"}}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "minrnn_gen").rglob("*.py"))
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        for name in imported_by(statement)
        if name.partition(".")[0] not in allowed | own.get(path.relative_to(ROOT).parts[1], set())
    ]
    assert found == []


def imported_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [statement.module] if statement.module and not statement.level else []
    return [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []


def test_no_test_skips_for_a_module_of_the_project() -> None:
    """A fault of such a module would skip its own tests: `support.needed.needed` imports it."""
    call = re.compile(r"importorskip\(\s*f?[\"'](?:" + "|".join(OWN) + r")\b")
    paths = [path for path in (ROOT / "tests").rglob("*.py") if call.search(path.read_text(encoding="utf-8"))]
    assert paths == []


SOLVER = """
import minrnn_gen
from minrnn_gen.errors import ToolchainMissing
try:
    minrnn_gen.compile({"model": "min_gru", "hidden_size": 8})
except ToolchainMissing as missing:
    print(missing)
from minrnn_gen.cli import doctor
from minrnn_gen.cli.main import main
doctor._why_not = lambda _: ""  # of other libraries, which take seconds
main(["doctor"])
"""


def test_the_package_of_the_solvers_module_that_is_not_ours(tmp_path: Path) -> None:
    """Remains of python-constraint where it was installed over python-constraint2."""
    (tmp_path / "constraint").mkdir()
    text = "class Problem: ...\nclass BacktrackingSolver: ...\nclass FunctionConstraint: ...\n"
    (tmp_path / "constraint" / "__init__.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "COLUMNS": "400"}
    environment["MINRNN_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", SOLVER], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    sentence, _, rows = done.stdout.partition("\n")
    advice = "has been overwritten by another package's, python-constraint: pip uninstall python-constraint"
    assert advice in sentence
    # The table breaks long cells into lines.
    assert re.search(rf"missing python-constraint2 [^:]* {advice}", " ".join(rows.split()))


COMPILED = """
import numpy as np, minrnn_gen
kernel, x = minrnn_gen.compile({"model": "min_gru", "hidden_size": 8}), np.ones((1, 3, 2, 8), np.float32)
assert np.allclose(kernel(x)[0], kernel.reference(x)[0], rtol=0, atol=1e-5)
assert minrnn_gen.scan(x[:, :, 0], x[:, :, 0])[0].shape == (1, 3, 8)
"""


@pytest.mark.matrix_full
@pytest.mark.skipif(os.name == "nt", reason="the compilers are shell scripts")
@pytest.mark.parametrize(
    "does", [None, "exit 1", "kill -SEGV $$", "exit 0"], ids=["absent", "refuses", "crashes", "makes nothing"]
)
def test_host_arrays_run_whatever_the_c_compiler_does(does: str | None, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    if does is not None:
        compiler.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "MINRNN_CPU": "native", "MINRNN_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
