"""Libraries of exported operators, built by the compilers alone, and what a process without this package makes of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.c_programs import has_c_compiler
from support.exported import WARNINGS, run_in

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.export.folder import prefixed_name

# Of the headers of torch are no warnings wanted; of what is exported are all.
OPTIONS = ("-std=gnu++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS)


def torch_folder() -> Path:
    """Return the folder of torch's headers and libraries; skips where there are none, or no compilers."""
    torch = pytest.importorskip("torch")
    folder = Path(torch.__file__).parent
    if not (folder / "include" / "torch" / "csrc" / "stable" / "ops.h").exists():
        pytest.skip("torch has no headers of its stable interface")
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        pytest.skip("torch has no libtorch_cpu.so to link")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    if not has_c_compiler():
        pytest.skip("no C compiler")
    return folder


def build_library(folder: Path, name: str) -> Path:
    """Compile and link the library rnn_NAME of a folder, as CMakeLists.txt does but for optimisation, and return it."""
    torch, name = torch_folder(), prefixed_name(name, name)
    headers = ("-isystem", str(torch / "include"))
    libraries = ("-L", str(torch / "lib"), "-ltorch_cpu", "-lm", "-pthread")
    library, objects = f"lib{name}.so", _kernels(folder, name)
    built = run_in(folder, "c++", *OPTIONS, *headers, f"{name}.cpp", *objects, "-o", library, *libraries)
    assert built.returncode == 0, built.stderr
    return folder / library


def build_onnx_library(folder: Path, name: str) -> Path:
    """Compile and link the library for ONNX Runtime of an exported folder, and return it; skips where there is no compiler."""
    try:
        compiler = c_compiler().program
    except ToolchainMissing:
        pytest.skip("no C compiler")
    options = ("-std=c99", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS)
    name = prefixed_name(name, name)
    library, objects = f"lib{name}_onnx.so", _kernels(folder, name)
    built = run_in(folder, compiler, *options, f"{name}_onnx.c", *objects, "-o", library, "-lm", "-pthread")
    assert built.returncode == 0, built.stderr
    return folder / library


def _kernels(folder: Path, name: str) -> list[str]:
    """Compile the kernels of a folder, and return their object files."""
    objects = []
    for source in sorted(folder.glob(f"{name}_kernel*/{name}_kernel*.c")):
        objects.append(source.with_suffix(".o").name)
        options = ("-std=c99", "-O1", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-c")
        built = run_in(folder, c_compiler().program, *options, str(source), "-o", objects[-1])
        assert built.returncode == 0, built.stderr
    return objects


def run_without_the_package(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python in which minrnn_gen cannot be imported."""
    hidden = "import sys\nsys.modules['minrnn_gen'] = None\n"
    return run_in(folder, sys.executable, "-c", hidden + program, HOME=str(folder))
