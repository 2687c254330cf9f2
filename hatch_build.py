"""What is compiled when the package is installed: the C part of a replayed call, where there is a C compiler.

Without one, or without Python's headers, the package is pure Python and does the same; `minrnn-gen doctor` says which it is.
`MINRNN_PURE_PYTHON=1` in the environment asks for that: a wheel for every system.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "minrnn_gen/native/trip.c"
HEADERS = ("key.h", "program.h", "graphs.h", "replay.h")
COMPILED = "minrnn_gen/native/_trip.abi3.so"
SECONDS_MOST = 120


class CompileTrip(BuildHookInterface):
    """Compiles `SOURCE` into a wheel, or into the checkout for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one of this platform, for every Python from 3.11 on."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if version == "editable":
            self._compile(root / COMPILED)
            return
        self._folder = tempfile.TemporaryDirectory()
        compiled = Path(self._folder.name) / Path(COMPILED).name
        if self._compile(compiled):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"cp311-abi3-{platform}"}
            build_data["force_include"] = {**build_data.get("force_include", {}), str(compiled): COMPILED}

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        folder: tempfile.TemporaryDirectory[str] | None = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()

    def _compile(self, target: Path) -> bool:
        reason = why_not(Path(self.root) / SOURCE, target)
        if reason:
            self.app.display_warning(f"{SOURCE} is not compiled ({reason}): calls are launched by Python, which takes longer")
        return not reason


def why_not(source: Path, target: Path) -> str:
    """Compile `source` to `target`; return why that failed, nothing where it did not."""
    if os.environ.get("MINRNN_PURE_PYTHON") == "1":
        return "MINRNN_PURE_PYTHON is 1"
    include = Path(sysconfig.get_path("include"))
    if sys.platform == "win32" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "of this Python there is no stable interface for it"
    if not (include / "Python.h").is_file():
        return f"Python's headers are not in {include}"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    kind = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    # Beside the target and then in its place: what a process has loaded is never written into.
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    # By which a checkout that went on knows that it has to be installed again.
    read = b"".join(source.with_name(name).read_bytes() for name in (source.name, *HEADERS))
    digest = f'-DSOURCE_DIGEST="{hashlib.sha256(read).hexdigest()}"'
    command = [*compiler, "-O2", "-fPIC", digest, *kind, f"-I{include}", str(source), "-o", str(beside)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MOST, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode:
        return " ".join(answer.stderr.split())[:300] or f"{compiler[0]} ended with {answer.returncode}"
    beside.replace(target)
    return ""
