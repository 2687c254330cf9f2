"""From CUDA text to a cubin and its resources, checked against the plan; the only caller of NVRTC."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import re
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from minrnn_gen.errors import INSTALL_CUDA, CompileFailed, ToolchainMissing, cause_of, needing
from minrnn_gen.plan.kernel_plan import KernelPlan

# -v makes ptxas report registers, shared memory and spills into the log. NVRTC before 13.4 takes a generic lambda for a host
# function unless the default is the device.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")
# The first release seen to know --no-cache; 12.4 refuses it.
NVRTC_WITH_CACHE = (12, 9)
# Held while the process's first program is compiled.
_FIRST = threading.Lock()
# Distributions that bring NVRTC, and CuPy's own, whose wrapper calls it.
_DISTRIBUTIONS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cupy-cuda13x", "cupy-cuda12x", "cupy")


@dataclass(frozen=True)
class KernelResources:
    """ptxas's report on one kernel; `shared_bytes` is static plus the dynamic bytes the plan launches with."""

    name: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class CompiledSource:
    """A cubin that the driver loads directly, and the resources of its kernels."""

    cubin: bytes
    kernels: tuple[KernelResources, ...]


@functools.cache
def toolchain_version() -> str | None:
    """Return the versions of the installed NVRTC distributions, read from metadata alone; None without CuPy.

    They are read once per process, as the library is loaded once: a later installation does not run here.
    """
    installed = []
    for name in _DISTRIBUTIONS:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(installed) if any(entry.startswith("cupy") for entry in installed) else None


@functools.cache
def make_cupy_cache() -> tempfile.TemporaryDirectory[str] | None:
    """Make CuPy's cache folder, without which it cannot be imported, or a temporary folder of this process instead.

    A user without a writable home folder needs the latter, as in a container run under any user id.
    """
    chosen = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    # CuPy takes the ~ of an unknown home for a folder's name.
    with suppress(OSError):
        if not chosen.startswith("~"):
            os.makedirs(chosen, exist_ok=True)
            return None
    folder = tempfile.TemporaryDirectory(prefix="minrnn_gen_", ignore_cleanup_errors=True)
    os.environ["CUPY_CACHE_DIR"] = folder.name
    return folder


def nvrtc_version() -> str:
    """Load NVRTC and return its version, as "13.4"; raises ToolchainMissing with the reason where it cannot be loaded."""
    make_cupy_cache()
    with needing("cupy", "compiling", INSTALL_CUDA):
        from cupy.cuda import nvrtc
    try:
        major, minor = nvrtc.getVersion()
    except Exception as missing:  # CuPy's own of a library that is not found, and whatever an installation by halves ends in
        raise ToolchainMissing(f"NVRTC cannot be loaded ({cause_of(missing)}): {INSTALL_CUDA}") from missing
    return f"{major}.{minor}"


def why_no_nvrtc() -> str:
    """Return why nothing can be compiled for GPUs here, as a part of a sentence; nothing where NVRTC can be loaded."""
    try:
        nvrtc_version()
    except ToolchainMissing as missing:
        return str(missing)
    return ""


@functools.cache
def _compile_nothing() -> None:
    """Compile an empty program, which makes NVRTC open the library of its built-in functions."""
    from cupy.cuda import compiler as cupy_compiler

    try:
        cupy_compiler._NVRTCProgram("", "nothing.cu", method="ptx").compile(())
    except cupy_compiler.CompileException as refused:
        raise OSError(_first_error(refused)) from None


def _open_builtins() -> None:
    """Open NVRTC's built-in functions once per process, in one thread alone.

    NVRTC 13.0, which the CUDA build of torch pins, refuses a source while another thread opens them.
    """
    with _FIRST:
        _compile_nothing()


def _first_error(refused: Exception) -> str:
    """Return the first error of NVRTC's log."""
    return next((line for line in str(refused).splitlines() if "error" in line), str(refused)[:300]).strip()


class ForGpu(Protocol):
    """A problem with the architecture, which compiling needs."""

    @property
    def arch(self) -> str: ...


class Shared(Protocol):
    """A budget with the dynamic shared memory, which compiling needs."""

    @property
    def shared_bytes(self) -> int: ...


class Compilable(Protocol):
    """The parts of a plan that compiling needs."""

    @property
    def entry(self) -> str: ...
    @property
    def problem(self) -> ForGpu: ...
    @property
    def budget(self) -> Shared: ...


def compile_source(text: str, plan: Compilable) -> CompiledSource:
    """Compile `text` for the plan's architecture; needs NVRTC but no driver and no GPU.

    Raises ToolchainMissing without CuPy or NVRTC, CompileFailed with NVRTC's first error where the text is refused.
    """
    make_cupy_cache()
    with needing("cupy", "compiling", INSTALL_CUDA):
        from cupy.cuda import compiler as cupy_compiler
        from cupy_backends.cuda.libs import nvrtc

        refusal = cupy_compiler.CompileException
    log = io.StringIO()
    try:
        _open_builtins()
        # Private, but the only way to compile for an architecture that is not plugged in; a test pins its behaviour.
        program = cupy_compiler._NVRTCProgram(text, f"{plan.entry}.cu", method="cubin")
        # Where a driver is present NVRTC keeps a cache of its own, and what comes from there comes without ptxas' report.
        fresh = ("--no-cache",) if nvrtc.getVersion() >= NVRTC_WITH_CACHE else ()
        cubin, _ = program.compile((f"-arch={plan.problem.arch}", *OPTIONS, *fresh), log)
    except refusal as refused:
        error = _first_error(refused)
        raise CompileFailed(f"NVRTC refused the source of {plan.entry} for {plan.problem.arch}: {error}") from refused
    except Exception as missing:  # as in `nvrtc_version`
        raise ToolchainMissing(
            f"NVRTC cannot be loaded ({cause_of(missing)}): {INSTALL_CUDA}, brings it without a CUDA toolkit"
        ) from missing
    # CuPy hands the cubin over without its last byte.
    return CompiledSource(cubin + b"\0", parse_resources(log.getvalue(), plan.budget.shared_bytes))


def parse_resources(log: str, dynamic_shared_bytes: int) -> tuple[KernelResources, ...]:
    """Read the resources of every kernel from ptxas' report.

    Raises CompileFailed for a report without registers or spills: a kernel without any still reports them.
    """
    kernels = []
    for report in re.split(r"Compiling entry function '", log)[1:]:
        name = report.split("'", 1)[0]

        def number(pattern: str, absent: int | None = None, name: str = name, report: str = report) -> int:
            if match := re.search(pattern, report):
                return int(match.group(1))
            if absent is None:
                raise CompileFailed(
                    f"ptxas' report of {name[:80]!r} has no '{pattern}'; this release of NVRTC words it differently"
                )
            return absent

        kernels.append(
            KernelResources(
                name=name,
                registers=number(r"Used (\d+) registers"),
                shared_bytes=number(r"(\d+) bytes smem", absent=0) + dynamic_shared_bytes,
                spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                stack_bytes=number(r"(\d+) bytes stack frame", absent=0),
            )
        )
    return tuple(kernels)


def broken_promises(plan: KernelPlan, kernels: tuple[KernelResources, ...]) -> tuple[str, ...]:
    """Return the compiled kernels' excess over the plan, one phrase each; empty when the plan holds."""
    broken = []
    for kernel in kernels:
        if kernel.spill_bytes:
            broken.append(f"{kernel.name} spills {kernel.spill_bytes} bytes")
        if kernel.registers > plan.budget.registers_per_thread:
            broken.append(f"{kernel.name} uses {kernel.registers} registers of {plan.budget.registers_per_thread}")
        if kernel.shared_bytes != plan.budget.shared_bytes:
            broken.append(
                f"{kernel.name} takes {kernel.shared_bytes} bytes of shared memory, the plan {plan.budget.shared_bytes}"
            )
    if not kernels:
        broken.append("the compiler reported no kernel")
    return tuple(broken)
