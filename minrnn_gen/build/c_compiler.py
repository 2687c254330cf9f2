"""The system's C compiler, for the CPU this process runs on."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from minrnn_gen.build.store import digest
from minrnn_gen.config.environment import c_compiler_command
from minrnn_gen.errors import CompileFailed, ToolchainMissing

COMPILERS = ("cc", "gcc", "clang")
# A product and a sum are rounded once only where the text says so; nothing else changes a value: what errno and traps would
# say is not read.
OPTIONS = ("-O3", "-std=gnu99", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w")
LINK_OPTIONS = ("-shared", "-fPIC", "-pthread")
# The instructions of this CPU, as compilers of some architectures call them; the last resort is the architecture's common ones.
HOST_OPTIONS = (("-march=native",), ("-mcpu=native",), ())
# A kernel takes about a second.
SECONDS_MOST = 120
# The keys of /proc/cpuinfo that list a CPU's instructions, on x86 and on Arm.
_CPU_LINES = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")


@dataclass(frozen=True)
class HostCompiler:
    """A C compiler of this system: its program, and an identity that changes when another compiler replaces it."""

    program: str
    identity: str

    @property
    def key(self) -> str:
        """Digest of everything that decides the result of a compilation, except the text: compiler, options, and CPU."""
        return digest(self.identity, *OPTIONS, *LINK_OPTIONS, host_identity())

    def compile(self, text: str, include: str = "") -> tuple[bytes, tuple[str, ...]]:
        """Return a text as a shared library, and the options for this CPU; raises CompileFailed with the first error.

        `include`: a folder with headers in addition to the system's.
        """
        headers = (f"-I{include}",) if include else ()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "kernel.c").write_text(text, encoding="utf-8")
            for host_options in HOST_OPTIONS:
                error = self._run(
                    folder, (*OPTIONS, *headers, *host_options, *LINK_OPTIONS, "-o", "kernel.so", "kernel.c", "-lm")
                )
                if not error:
                    return (folder / "kernel.so").read_bytes(), host_options
        raise CompileFailed(f"{Path(self.program).name} refuses the kernel: {error}")

    def _run(self, folder: Path, options: tuple[str, ...]) -> str:
        """Run in a folder; return the first error, or nothing."""
        command = [self.program, *options]
        environment = os.environ | {"LC_ALL": "C"}
        try:
            finished = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MOST, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            return " ".join(str(failed).split())
        lines = [line for line in finished.stderr.splitlines() if "error" in line] or finished.stderr.splitlines()
        return (lines or ["no reason given"])[0].strip() if finished.returncode else ""


def c_compiler() -> HostCompiler:
    """Return the compiler that CC names, else the first of `COMPILERS`; raises ToolchainMissing where there is none."""
    return _compiler(c_compiler_command())


@functools.cache
def _compiler(asked: str) -> HostCompiler:
    for name in (asked,) if asked else COMPILERS:
        if program := shutil.which(name):
            real = os.path.realpath(program)
            status = os.stat(real)
            return HostCompiler(program, f"{real} {status.st_size} {status.st_mtime_ns}")
    if asked:
        raise ToolchainMissing(f"CC is {asked!r}, which is not installed; name a C compiler, such as cc, gcc or clang")
    raise ToolchainMissing("there is no C compiler; install cc, gcc or clang")


@functools.cache
def host_identity() -> str:
    """Return the properties that distinguish this CPU from other CPUs that share the cache."""
    uname = platform.uname()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    said = [line for line in lines if line.partition("\t")[0].partition(":")[0].strip() in _CPU_LINES]
    return "\n".join((uname.system, uname.machine, uname.processor, *said))
