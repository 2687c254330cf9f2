"""Calls as ranges of NVTX, by which profilers attribute kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from minrnn_gen.config.environment import marks_ranges


def mark_ranges(runs: object, cell: str, methods: Iterable[str]) -> None:
    """Make methods of an object NVTX ranges named by the cell and the pass, if `MINRNN_LOG` enables ranges.

    A range encloses the host's work in a method.
    """
    if not marks_ranges():
        return
    for method in methods:
        name = f"minrnn_gen {cell} {method.removeprefix('replay_')}"
        setattr(runs, method, partial(_within, name, getattr(runs, method)))


def _within(name: str, run: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    from cupy.cuda import nvtx

    nvtx.RangePush(name)
    try:
        return run(*arguments, **keywords)
    finally:
        nvtx.RangePop()
