"""The system's C++ compiler, which compiles kernels' text unchanged; the store keeps what it compiled."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minrnn_gen.build.store import Store, digest
from minrnn_gen.config.environment import cpp_compiler_command
from minrnn_gen.config.package_files import PACKAGE_FOLDER
from minrnn_gen.errors import CompileFailed, ToolchainMissing

FOLDER = PACKAGE_FOLDER / "interpret"
# The header for a kernel's text, then the machine: each file includes some of the files before it, the last one all.
HEADER = "cuda_on_host.h"
MACHINE = tuple(
    f"machine/{name}"
    for name in (
        "memory.h", "state.h", "findings.h", "fibers.h", "happens_before.h", "race_detector.h", "warps.h", "tensor_cores.h",
        "mbarriers.h", "cp_async.h", "clusters.h", "relaxed_memory.h", "bulk_copies.h", "warpgroups.h", "scheduler.h",
        "machine.cpp",
    )
)  # fmt: skip
COMPILERS = ("g++", "clang++", "c++")
# Contraction would round a product and a sum otherwise than the GPU does; line tables give findings their lines.
_COMMON = ("-std=c++17", "-fPIC", "-ffp-contract=off")
MACHINE_OPTIONS = (*_COMMON, "-O2")
# The compiler announces loads and stores, and indices outside arrays of fixed size, to functions of the machine.
# -Og compiles kernels a third faster than -O1, and they run as fast.
KERNEL_OPTIONS = (*_COMMON, "-g1", "-Og", "-w", "-fsanitize=thread,bounds")
# Uninitialized registers are huge or NaN instead of the stack's contents, mostly 0; g++ supports it since 12.
PATTERN_OPTION = "-ftrivial-auto-var-init=pattern"
LINK_OPTIONS = ("-shared", "-fPIC", "-Wl,-Bsymbolic")
# Links a kernel in a quarter of the default's time, where the compiler finds it.
LINKER_OPTION = "-fuse-ld=gold"
# A kernel takes about a second; one that takes minutes is not worth waiting for.
SECONDS_MOST = 300


@dataclass(frozen=True)
class CppCompiler:
    """A C++ compiler of this system: its program and its version."""

    program: str
    version: str

    def run(self, folder: Path, options: Sequence[str], *arguments: str) -> None:
        """Compile or link in `folder`; raises CompileFailed with the first error."""
        command = [self.program, *options, *arguments]
        try:
            # In English, like `_UNKNOWN`.
            finished = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | {"LC_ALL": "C"},
                capture_output=True,
                text=True,
                timeout=SECONDS_MOST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CompileFailed(f"{self.program} took more than {SECONDS_MOST} seconds for {arguments[-1]}") from None
        if finished.returncode:
            raise CompileFailed(_first_error(self.program, finished.stderr))

    @functools.cached_property
    def kernel_options(self) -> tuple[str, ...]:
        """The options for kernels that this compiler has."""
        probe = [self.program, PATTERN_OPTION, "-fsyntax-only", "-x", "c++", os.devnull]
        is_known = subprocess.run(probe, capture_output=True, check=False).returncode == 0
        return (*KERNEL_OPTIONS, PATTERN_OPTION) if is_known else KERNEL_OPTIONS

    @functools.cached_property
    def link_options(self) -> tuple[str, ...]:
        """The options that link a library, with the faster linker where that works: some linkers do not find libstdc++."""
        options = (*LINK_OPTIONS, LINKER_OPTION)
        with tempfile.TemporaryDirectory() as folder:
            probe = [self.program, *options, "-o", "library.so", "-x", "c++", os.devnull]
            makes_one = subprocess.run(probe, cwd=folder, capture_output=True, check=False).returncode == 0
        return options if makes_one else LINK_OPTIONS


def cpp_compiler() -> CppCompiler:
    """Return the compiler that CXX names, else the first of `COMPILERS`; raises ToolchainMissing where there is none."""
    return _compiler(cpp_compiler_command())


@functools.cache
def _compiler(asked: str) -> CppCompiler:
    if sys.platform == "win32":
        raise ToolchainMissing(
            "emulating kernels on a CPU is not possible on Windows; do it in the Windows Subsystem for Linux"
        )
    for name in (asked,) if asked else COMPILERS:
        if program := shutil.which(name):
            answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
            return CppCompiler(program, answer.stdout.partition("\n")[0])
    if asked:
        raise ToolchainMissing(f"CXX is {asked!r}, which is not installed; name a C++ compiler, such as g++ or clang++")
    raise ToolchainMissing("emulating kernels on a CPU needs a C++ compiler, and there is none: install g++ or clang++")


def has_compiler() -> bool:
    """Say whether there is a C++ compiler."""
    try:
        cpp_compiler()
    except ToolchainMissing:
        return False
    return True


def compiled(source: str, entries: Sequence[str], is_bfloat16: bool, store: Store) -> bytes:
    """Return the text of a kernel as a shared library, in which `entries` can be launched; from the store where it is cached.

    Raises ToolchainMissing without a compiler, CompileFailed for a text that it refuses.
    """
    compiler = cpp_compiler()
    glue = _glue(entries, is_bfloat16)
    key = digest(
        compiler.version, " ".join((*compiler.kernel_options, *compiler.link_options)), source, glue, *_machine_sources()
    )
    if cached := _found(store, key, "kernel.so"):
        return cached
    with store.lock(key), tempfile.TemporaryDirectory() as name:
        if cached := _found(store, key, "kernel.so"):
            return cached
        folder = Path(name)
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        (folder / "glue.cpp").write_text(glue, encoding="utf-8")
        compiler.run(folder, (*compiler.kernel_options, f"-I{FOLDER}"), "-c", "-o", "kernel.o", "glue.cpp")
        (folder / "machine.o").write_bytes(machine_in(store))
        compiler.run(folder, compiler.link_options, "-o", "kernel.so", "kernel.o", "machine.o")
        library = (folder / "kernel.so").read_bytes()
        store.put(key, {"kernel.so": library, "kernel.cu": source.encode()}, {"interpreted": list(entries)})
        return library


def machine_in(store: Store) -> bytes:
    """Return the compiled machine, the same for every kernel; from the store where it is cached."""
    compiler = cpp_compiler()
    key = digest(compiler.version, " ".join(MACHINE_OPTIONS), *_machine_sources())
    with store.lock(key):
        if cached := _found(store, key, "machine.o"):
            return cached
        with tempfile.TemporaryDirectory() as name:
            compiler.run(Path(name), (*MACHINE_OPTIONS, f"-I{FOLDER}"), "-c", "-o", "machine.o", str(FOLDER / MACHINE[-1]))
            machine = (Path(name) / "machine.o").read_bytes()
        store.put(key, {"machine.o": machine}, {"interpreted": []})
        return machine


def _found(store: Store, key: str, name: str) -> bytes | None:
    """Return the file of this name in an entry of the store, None where it is missing."""
    entry = store.find(key, lambda entry: entry.files[name])
    return entry.files[name] if entry else None


def _machine_sources() -> list[bytes]:
    return [(FOLDER / name).read_bytes() for name in (HEADER, *MACHINE)]


def _glue(entries: Sequence[str], is_bfloat16: bool) -> str:
    """Return the translation unit of a kernel's text: the header, the text, and the table of its entries."""
    table = "".join(f'minrnn_host::entry<{entry}>("{entry}"), ' for entry in entries)
    return (
        f"#define MINRNN_IS_BFLOAT16 {str(is_bfloat16).lower()}\n"
        '#include "cuda_on_host.h"\n#include "kernel.cu"\n'
        f'extern "C" const minrnn_host::Entry minrnn_entries[] = {{{table}{{}}}};\n'
    )


# The messages of g++ and clang++ about a name that the header does not have.
_UNKNOWN = re.compile(
    r"error: (?:no member named |use of undeclared identifier |there are no arguments to )?'(?:minrnn_host::)?(\w+)'"
    r"(?: in namespace| is not a member| was not declared| that depend|; did you mean|$)",
    re.MULTILINE,
)


def _first_error(program: str, text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line or "undefined" in line]
    if unknown := _UNKNOWN.search(text):
        remedy = f"its twin belongs into {FOLDER.name}/{HEADER}"
        line = _line_with(text, unknown.start())
        return f"the emulated machine has no {unknown[1]}, which the kernel calls; {remedy} ({line})"
    return f"{Path(program).name} refuses the kernel: {(lines or [text.strip() or 'no reason given'])[0].strip()}"


def _line_with(text: str, position: int) -> str:
    return text[text.rfind("\n", 0, position) + 1 :].partition("\n")[0].strip()
