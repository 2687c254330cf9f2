"""Names that an export may be given and that mean something elsewhere, and an export of each built and run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from support.exported import check, run_in
from support.odd_names import KEYWORDS, words

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.export.folder import PREFIX, prefixed_name

# ISO/IEC 9899:2024, 6.4.1, in small letters.
KEYWORDS_OF_C = words(
    """auto break case char const continue default do double else enum extern float for goto if inline int long nullptr register
    restrict return short signed sizeof static struct switch thread_local typedef typeof typeof_unqual union unsigned void
    volatile while asm main defined"""
)
# cmake-policies(7), CMP0037, and what a project of CMake links.
TARGETS = words(
    """all clean depend edit_cache help install list_install_components package package_source preinstall rebuild_cache test
    experimental nightly continuous m c dl pthread threads"""
)
# Windows has no files of these names, whatever their ending.
DEVICES = ("con", "prn", "aux", "nul", *(f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)))
FILES = ("check", "cmakelists", "rnn_", "rnn_check", "makefile")
# What templates put behind a name.
ENDS = re.compile(
    r"([a-z][a-z0-9_]*?)_(?:h|ok|failed|bad_argument|no_device|no_memory|not_exported|forward|backward|step|gates|heads|groups"
    r"|state_size|hidden_size|input_size|directions|recurrent_gates|native|create|destroy|call|strides|storage|real|message"
    r"|saved_bytes|workspace_bytes|check|onnx)"
)
HEADERS = tuple(f"{name}.h" for name in ("unistd", "stdio", "stdlib", "string", "math", "pthread", "dlfcn", "sched", "stdint"))


@cache
def names_of_the_system() -> tuple[str, ...]:
    """Return macros and functions that the compiler knows, by the names that would meet them, and headers of the system."""
    includes = [part for header in HEADERS for part in ("-include", header)]
    text = run_in(Path(), c_compiler().program, "-dM", "-E", *includes, "-x", "c", "/dev/null").stdout
    known = {word.lower() for word in re.findall(r"#define (\w+)", text)}
    text = run_in(Path(), c_compiler().program, "-E", *includes, "-x", "c", "/dev/null").stdout
    known.update(re.findall(r"\b[a-z]\w*\b", text))
    names = {"linux", "unix", "i386"} & known | {end[1] for end in map(ENDS.fullmatch, known) if end}
    headers = {path.stem for path in Path("/usr/include").glob("*.h")}
    return tuple(sorted(name for name in names | headers if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)))


def odd_export_names() -> st.SearchStrategy[str]:
    """Return names of every kind that an export takes."""
    known = {*KEYWORDS, *KEYWORDS_OF_C, *TARGETS, *DEVICES, *FILES}
    listed = sorted(name for name in known if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name))
    return st.one_of(
        st.sampled_from(listed), st.sampled_from(names_of_the_system()), st.from_regex(r"[a-z][a-z0-9_]{0,39}", fullmatch=True)
    )


def check_export(kernel: Any, folder: Path, name: str | None, standard: str = "-std=gnu99") -> None:
    """Export a kernel for the CPU under a name, build it with what a system defines by default, and run its check."""
    files = [path.name for path in kernel.export(folder, target="cpu", name=name).files]
    stems = {file.lower().partition(".")[0] for file in files}
    assert len({file.lower() for file in files}) == len(files) == 5
    assert not stems & {*DEVICES}
    prefix = prefixed_name(name, "min_gru")
    assert name is None or name in prefix
    assert {f"{prefix}.{end}" for end in ("h", "c", "json")} | {"check.c", "CMakeLists.txt"} == {*files}
    ran = check(folder, prefix, standard, "-O0", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-I", str(folder))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert run_in(folder, c_compiler().program, "-c", f"{prefix}.c", "-o", "kernel.o").returncode == 0
    symbols = run_in(folder, "nm", "-g", "--defined-only", "kernel.o").stdout.splitlines()
    assert symbols and all(line.split()[-1].startswith((prefix, f"_{prefix}")) for line in symbols), symbols
    assert prefix.startswith(PREFIX)


def check_export_by_cmake(kernel: Any, folder: Path, name: str) -> None:
    """Export a kernel under a name, and build and test it as a CMake project, with a program in C++ that calls it."""
    kernel.export(folder / name, target="cpu", name=name)
    prefix = prefixed_name(name, name)
    (folder / "main.cpp").write_text(
        f'#include <cmath>\n#include <cstdio>\n#include <unistd.h>\n#include "{prefix}.h"\n'
        f"int main() {{ {prefix} *k; return {prefix}_create(&k, 1) || {prefix.upper()}_OK ? 1 : ({prefix}_destroy(k), 0); }}\n"
    )
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.10)\nproject(program C CXX)\nenable_testing()\nadd_subdirectory({name})\n"
        f"add_executable(program main.cpp)\ntarget_link_libraries(program {prefix})\nadd_test(NAME program COMMAND program)\n"
    )
    for command in (
        ("cmake", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug", f"-D{prefix.upper()}_NATIVE=OFF"),
        ("cmake", "--build", "build"),
        ("ctest", "--test-dir", "build"),
    ):
        ran = run_in(folder, *command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "100% tests passed, 0 tests failed out of 2" in ran.stdout
