"""Exported kernels compiled and called: a folder built by the system's compiler alone, and its functions on NumPy arrays."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from support.patience import within

from minrnn_gen.build.c_compiler import OPTIONS, c_compiler
from minrnn_gen.export.source import ExportSource

PASSES = {"forward": 0, "step": 1, "backward": 2}
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiler_environment() -> dict[str, str]:
    """Return an environment in which a compiler finds no header but the system's."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def run_in(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with nothing of this process's environment but PATH."""
    environment = compiler_environment() | variables
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=within(120), check=False
    )


def cublas_folders() -> str:
    """Return where cuBLAS is looked for: in the packages that bring it, and where this process finds libraries."""
    spec = importlib.util.find_spec("nvidia")
    packages = () if spec is None else spec.submodule_search_locations or ()
    brought = {str(path.parent) for package in packages for path in Path(package).rglob("libcublas.so.*")}
    return ":".join([*sorted(brought), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def check(folder: Path, name: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build check.c and the kernel of a folder, and run it; raises AssertionError with what the compiler says."""
    compiler = c_compiler().program
    built = run_in(folder, compiler, "-std=c99", *options, "check.c", f"{name}.c", "-o", "check", "-lm", "-pthread", "-ldl")
    assert built.returncode == 0, built.stderr
    return run_in(folder, str(folder / "check"), **variables)


class Strides(ctypes.Structure):
    """NAME_strides."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "time", "direction", "gate", "channel")]


class ExportedLibrary:
    """The functions of an exported kernel on arrays of NumPy."""

    def __init__(self, folder: Path, source: ExportSource, threads: int) -> None:
        options = (*OPTIONS, "-march=native", "-shared", "-fPIC", "-pthread")
        built = run_in(folder, c_compiler().program, *options, f"{source.name}.c", "-o", "kernel.so", "-lm", "-ldl")
        assert built.returncode == 0, built.stderr
        self._library, self._source = ctypes.CDLL(os.fspath(folder / "kernel.so")), source
        members = [(array.name, Strides if array.is_strides else ctypes.c_void_p) for array in source.arrays]

        class Call(ctypes.Structure):
            _fields_ = [("batch", ctypes.c_int64), ("time", ctypes.c_int64), *members]

        self._Call = Call
        self._kernel = ctypes.c_void_p()
        self._function("message").restype = ctypes.c_char_p
        for name in ("workspace_bytes", "saved_bytes"):
            if name != "saved_bytes" or source.has_backward:
                self._function(name).restype = ctypes.c_int64
        assert self._function("create")(ctypes.byref(self._kernel), threads) == 0, self.message

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self._source.name}_{name}")

    @property
    def message(self) -> str:
        """Why the last function failed."""
        return str(self._function("message")().decode())

    def call(self, batch: int, time: int, arrays: Mapping[str, Any]) -> Any:
        """Return the structure of a call; strides are given in elements by axis."""
        call = self._Call(batch=batch, time=time)
        for name, array in arrays.items():
            if array is not None:
                setattr(call, name, Strides(**array) if isinstance(array, dict) else array.ctypes.data)
        return call

    def saved(self, call: Any) -> np.ndarray:
        """Return memory for what a backward needs."""
        size = self._function("saved_bytes")(self._kernel, ctypes.byref(call))
        assert size >= 0, self.message
        return np.full(size, 0xFF, np.uint8)

    def run(self, kernel_pass: str, call: Any, workspace_bytes: int | None = None) -> int:
        """Run a pass, in as much memory as it asks for."""
        size = self._function("workspace_bytes")(self._kernel, ctypes.byref(call), PASSES[kernel_pass])
        workspace = np.full(max(size, 0), 0xFF, np.uint8)
        given = size if workspace_bytes is None else workspace_bytes
        arguments = (self._kernel, ctypes.byref(call), ctypes.c_void_p(workspace.ctypes.data), ctypes.c_int64(given), None)
        return int(self._function(kernel_pass)(*arguments))
