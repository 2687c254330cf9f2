"""Tests of native code under the address and undefined-behaviour sanitizers of the system's C compiler: `make sanitize-cpu`.

Kernels alone are compiled for the sanitizers; Python meets their libraries at its start, so that they see every allocation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LIBRARIES = ("libasan.so", "libubsan.so")
OPTIONS = "-fsanitize=address,undefined -fno-sanitize-recover=all"
# Python leaks at its end. A sanitizer that stops the process is the failure: handlers of pytest would hide where it was.
SETTINGS = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
# The driver's library crashes under the sanitizer, and no test here has a GPU.
START = "import sys; sys.modules['cupy'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit status, or the sanitizer's."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    libraries = [_library(compiler, name) for name in LIBRARIES]
    if missing := [name for name, path in zip(LIBRARIES, libraries, strict=True) if path is None]:
        print(f"{compiler} has no {' and no '.join(missing)}; install the sanitizers of the C compiler", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder) / "cc"
        wrapper.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} {OPTIONS} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
        environment = os.environ | SETTINGS | {
            "CC": str(wrapper), "LD_PRELOAD": ":".join(path for path in libraries if path), "OMP_NUM_THREADS": "1",
            "MINRNN_CACHE_DIR": str(Path(folder) / "cache"),
        }  # fmt: skip
        native = ("native_code", "native_log_space", "native_complex", "native_vectors", "host_rounds")
        tests = arguments or [str(TESTS / f"test_{part}.py") for part in native]
        command = [sys.executable, "-c", START, "-q", "-n", "0", "-s", "-p", "no:faulthandler", *tests]
        return subprocess.run(command, env=environment, check=False).returncode


def _library(compiler: str, name: str) -> str | None:
    """Return where a compiler has a library of its own, None where it has none."""
    answer = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = answer.stdout.strip()
    return path if os.path.isabs(path) else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
