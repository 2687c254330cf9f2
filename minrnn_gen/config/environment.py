"""The environment variables that the package reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minrnn_gen.errors import BadInput


def debug_build_is_asked_for() -> bool:
    """Return whether `MINRNN_DEBUG` is 1; unset, empty or 0 it is not. Raises BadInput for anything else."""
    return _one_of("MINRNN_DEBUG", ("0", "1"), "1 for a debug build, 0 or nothing for none") == "1"


def specializes_by_sizes() -> bool:
    """Return whether the sizes of calls choose their kernels: not where `MINRNN_SPECIALIZE` is never, which keeps the first.

    Raises BadInput where it is anything else, and neither empty nor always.
    """
    return (
        _one_of("MINRNN_SPECIALIZE", ("always", "never"), "never to keep the first kernel of a pass, always or nothing")
        != "never"
    )


def chosen_cache_folder() -> Path | None:
    """Return `MINRNN_CACHE_DIR` as an absolute folder, or None where it is unset or empty.

    Raises RuntimeError where it begins in a home folder that is not known.
    """
    chosen = os.path.expanduser(os.environ.get("MINRNN_CACHE_DIR", ""))
    if chosen.startswith("~"):
        raise RuntimeError(f"MINRNN_CACHE_DIR is {chosen!r}, and no such home folder is known")
    return Path(os.path.abspath(chosen)) if chosen else None


def shared_cache_folder() -> Path | None:
    """Return `XDG_CACHE_HOME`, or None where it is unset or relative: the base directory specification says to ignore it."""
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return Path(shared) if os.path.isabs(shared) else None


def cpp_compiler_command() -> str:
    """Return `CXX`, the command of the C++ compiler, or nothing."""
    return os.environ.get("CXX", "")


def c_compiler_command() -> str:
    """Return `CC`, the command of the C compiler, or nothing."""
    return os.environ.get("CC", "")


def runs_native_code() -> bool:
    """Return whether host arrays run native code where it can be compiled: not where `MINRNN_CPU` is numpy.

    Raises BadInput where it is anything else, and neither empty nor native.
    """
    return _one_of("MINRNN_CPU", ("native", "numpy"), "numpy for NumPy, native or nothing for compiled kernels") != "numpy"


def calls_jax_by_c() -> bool:
    """Return whether XLA calls kernels through C where that can be compiled: not where `MINRNN_JAX` is python.

    Raises BadInput where it is anything else, and neither empty nor c.
    """
    return _one_of("MINRNN_JAX", ("c", "python"), "python for calls by Python alone, c or nothing for calls by C") != "python"


def layers_run_beside_each_other() -> bool:
    """Return whether layers, and directions, may run concurrently: not where `MINRNN_WAVEFRONT` is never.

    Raises BadInput where it is anything else, and neither empty nor auto.
    """
    meaning = "never for one after the other, auto or nothing for what is expected to be faster"
    return _one_of("MINRNN_WAVEFRONT", ("auto", "never"), meaning) != "never"


def scans_take_their_projection() -> bool:
    """Return whether a scan may have its input projection in the same kernel: not where `MINRNN_PROJECTED_SCAN` is never.

    Raises BadInput where it is anything else, and neither empty nor auto.
    """
    meaning = "never for a product by cuBLAS and a scan, auto or nothing for what is expected to be faster"
    return _one_of("MINRNN_PROJECTED_SCAN", ("auto", "never"), meaning) != "never"


def makes_graphs() -> bool:
    """Return whether repeated runs on the same memory are launched as CUDA graphs: not where `MINRNN_GRAPHS` is never.

    Raises BadInput where it says anything else.
    """
    meaning = "never for launches one after the other, auto or nothing for one graph where arrays come again at their addresses"
    return _one_of("MINRNN_GRAPHS", ("auto", "never"), meaning) != "never"


def logs_plans() -> bool:
    """Return whether every kernel that is compiled, or taken from the cache, says so on stderr; see `_what_is_logged`."""
    return "plan" in _what_is_logged()


def marks_ranges() -> bool:
    """Return whether calls are ranges of NVTX; see `_what_is_logged`."""
    return "ranges" in _what_is_logged()


def _what_is_logged() -> frozenset[str]:
    """Return what `MINRNN_LOG` names: plan, ranges, both with a comma between, or nothing.

    Raises BadInput where it names anything else.
    """
    text = os.environ.get("MINRNN_LOG", "")
    named = frozenset(filter(None, (word.strip() for word in text.split(","))))
    if named - {"plan", "ranges"}:
        raise BadInput(
            f"MINRNN_LOG is {text!r}; allowed: plan for a line per kernel, ranges for calls as ranges of NVTX, or plan,ranges"
        )
    return named


def thread_count() -> int:
    """Return how many threads the process asks for: as torch says where it is loaded, else `OMP_NUM_THREADS`, else all cores.

    If `OMP_NUM_THREADS` is a list, its first number counts; anything but a positive number is ignored.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    return core_count()


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def numpy_alone() -> Iterator[None]:
    """Make kernels that are compiled and called within run in NumPy."""
    before = os.environ.get("MINRNN_CPU")
    os.environ["MINRNN_CPU"] = "numpy"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINRNN_CPU"]
        else:
            os.environ["MINRNN_CPU"] = before


def _one_of(variable: str, values: tuple[str, ...], meaning: str) -> str:
    """Return a variable's value, or "" where it is unset; raises BadInput where it is neither empty nor one of `values`."""
    asked = os.environ.get(variable, "")
    if asked and asked not in values:
        raise BadInput(f"{variable} is {asked!r}; allowed: {meaning}")
    return asked
