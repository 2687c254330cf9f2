"""Kernels for the CPU: the text of a pass compiled by the system's compiler, kept, and loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.store import Store, digest
from minrnn_gen.codegen.cpu_source import NativePlan, cpu_source, pool_source
from minrnn_gen.config.environment import runs_native_code
from minrnn_gen.errors import CompileFailed, ToolchainMissing

if TYPE_CHECKING:
    from minrnn_gen.build.entry import Entry

LIBRARY, TEXT = "kernel.so", "kernel.c"


@dataclass(frozen=True)
class CpuKernel:
    """A loaded kernel: its arguments by name in their order, and its functions, which take them packed.

    `run` performs a call, and is at `address`; its first arguments are the functions by which it releases the interpreter's
    lock and raises the errors of signals. `workspace_bytes` returns the size of a call's workspace.
    """

    plan: NativePlan
    text: str
    run: Callable[[bytes], None]
    workspace_bytes: Callable[[bytes], int]
    address: int


def cpu_kernel(plan: NativePlan, store: Store) -> CpuKernel:
    """Return a kernel, from the store if it is there; raises ToolchainMissing and CompileFailed."""
    text = cpu_source(plan)
    library = host_library(text, store, {"cpu": [plan.cell.name, plan.kernel_pass, plan.precision]})
    workspace_bytes = library.workspace_bytes
    workspace_bytes.argtypes, workspace_bytes.restype = (ctypes.c_char_p,), ctypes.c_long
    address = _address(library.run)
    return CpuKernel(plan, text, ctypes.PYFUNCTYPE(None, ctypes.c_char_p)(address), workspace_bytes, address)


def why_no_native_code() -> str:
    """Return why host arrays run in NumPy here, as a part of a sentence; empty where kernels are compiled for them."""
    if not runs_native_code():
        return "MINRNN_CPU is numpy"
    if os.name != "posix" or sys.maxsize < 2**32:
        return "native code needs a 64-bit POSIX system"
    try:
        c_compiler()
    except ToolchainMissing as missing:
        return str(missing)
    return ""


@dataclass(frozen=True)
class ThreadPool:
    """Runs a function on several threads, as addresses of C functions."""

    parallel: int
    team_size: int
    library: Any


def own_threads(store: Store) -> ThreadPool:
    """Return the pool that all kernels of this process share."""
    return _own_threads(store.folder)


@functools.cache
def _own_threads(folder: Path) -> ThreadPool:
    library = host_library(pool_source(), Store(folder), {"cpu": ["threads"]})
    return ThreadPool(_address(library.parallel), _address(library.team_size), library)


@functools.cache
def openmp_threads() -> ThreadPool | None:
    """Return the threads of the OpenMP runtime that this process has loaded, None where it has none.

    A second set of threads would wait for the processors on which the first set spins.
    """
    for path in _loaded_libraries():
        if Path(path).name.startswith(("libgomp", "libomp", "libiomp")):
            try:
                library = ctypes.CDLL(path)
                return ThreadPool(_address(library.GOMP_parallel), _address(library.omp_get_num_threads), library)
            except (OSError, AttributeError):
                continue
    return None


def _loaded_libraries() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return sorted({line[line.index("/") :] for line in lines if "/" in line and ".so" in line})


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def host_library(text: str, store: Store, manifest: dict[str, Any], include: str = "", headers: str = "") -> ctypes.CDLL:
    """Return a text as a loaded library, from the store if it is there; raises ToolchainMissing and CompileFailed.

    `headers`: the text's headers in the folder `include`, in addition to the system's.
    """
    compiler = c_compiler()
    key = digest("cpu", compiler.key, text, *((headers,) if headers else ()))
    entry = _found(store, key)
    if entry is None:
        with store.lock(key):
            entry = _found(store, key)
            if entry is None:
                library, host_options = compiler.compile(text, include)
                files = {LIBRARY: library, TEXT: text.encode()}
                entry = store.put(key, files, {**manifest, "options": list(host_options)})
    try:
        return _loaded(entry)
    except OSError as refused:
        raise CompileFailed(f"the compiled kernel cannot be loaded: {' '.join(str(refused).split())}") from None


def _found(store: Store, key: str) -> Entry | None:
    return store.find(key, lambda entry: entry.files[LIBRARY])


def _loaded(entry: Entry) -> ctypes.CDLL:
    """Load the library of an entry; an entry that is not on disk goes through a temporary file."""
    if entry.folder is not None:
        return ctypes.CDLL(os.fspath(entry.folder / LIBRARY))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / LIBRARY
        path.write_bytes(entry.files[LIBRARY])
        return ctypes.CDLL(os.fspath(path))
