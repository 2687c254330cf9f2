"""The handler of XLA's custom calls as a library, compiled against the header that jaxlib ships; JAX is not imported."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.cpu_kernel import host_library
from minrnn_gen.build.store import Store
from minrnn_gen.config.environment import calls_jax_by_c
from minrnn_gen.errors import ToolchainMissing

_HEADER = "xla/ffi/api/c_api.h"


def why_no_handler() -> str:
    """Return why no handler is compiled here, as a part of a sentence; empty where it can be compiled."""
    if not calls_jax_by_c():
        return "MINRNN_JAX is python"
    if _folder() is None:
        return f"there is no jaxlib with {_HEADER}"
    try:
        c_compiler()
    except ToolchainMissing as missing:
        return str(missing)
    return ""


def handler_library(text: str, store: Store) -> ctypes.CDLL:
    """Return the text of a handler as a loaded library; raises ToolchainMissing and CompileFailed."""
    folder = _folder()
    if folder is None:
        raise ToolchainMissing(f"there is no jaxlib with {_HEADER}; install jax")
    header = (folder / _HEADER).read_text(encoding="utf-8")
    return host_library(text, store, {"cpu": ["jax"]}, os.fspath(folder), header)


def _folder() -> Path | None:
    """Return the folder of the header, None where there is none."""
    jaxlib = importlib.util.find_spec("jaxlib")
    folders = [] if jaxlib is None else [Path(place) / "include" for place in jaxlib.submodule_search_locations or ()]
    return next((folder for folder in folders if (folder / _HEADER).is_file()), None)
