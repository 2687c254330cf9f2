"""The system's headers, read once for all native code that tests compile."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from minrnn_gen.build.c_compiler import HOST_OPTIONS, LINK_OPTIONS, OPTIONS, HostCompiler, c_compiler
from minrnn_gen.errors import ToolchainMissing

# Those of templates/cpu, and time.h of its timed calls. Where one is missing, as on Arm, each kernel reads its own.
HEADERS = ("math.h", "stdint.h", "string.h", "immintrin.h", "pthread.h", "time.h")


def read_headers_once(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the system's C compiler take its headers from a precompiled one: the machine code is the same to the byte.

    To read them is a tenth of what a kernel takes. Another compiler that a test names reads them itself.
    """
    try:
        usual = c_compiler()
    except ToolchainMissing:
        return
    run = HostCompiler._run

    @functools.cache
    def included() -> tuple[str, ...]:
        folder.mkdir(exist_ok=True)
        header, precompiled = folder / "headers.h", folder / "headers.h.gch"
        with FileLock(folder / "lock"):
            if not header.exists():
                header.write_text("".join(f"#include <{name}>\n" for name in HEADERS), encoding="utf-8")
                options = (*OPTIONS, *HOST_OPTIONS[0], *(option for option in LINK_OPTIONS if option != "-shared"))
                command = [usual.program, *options, "-x", "c-header", "-o", str(precompiled), str(header)]
                subprocess.run(command, capture_output=True, check=False)
        return ("-include", str(header)) if precompiled.exists() else ()

    @functools.wraps(run)
    def run_with_headers(compiler: HostCompiler, where: Path, options: tuple[str, ...]) -> str:
        headers = included() if compiler == usual and set(HOST_OPTIONS[0]) <= set(options) else ()
        return run(compiler, where, (*headers, *options))

    patch.setattr(HostCompiler, "_run", run_with_headers)
