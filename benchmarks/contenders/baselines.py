"""Baselines of raw scans: the scans of other libraries, and whether they work here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from benchmarks.harness.rounds import failure_of
from minrnn_gen.errors import BadInput, nearest_name, shown

Layout = Literal["B,T,C", "B,C,T"]
# y of a (or log a) and b, all in the baseline's layout.
Scan = Callable[[Any, Any], Any]

NOT_INSTALLED = "not installed"
PROBE = (sys.executable, "-m", "benchmarks.contenders.probe")


@dataclass(frozen=True)
class Baseline:
    """Scan of another library.

    `load` imports it and returns the function; `takes_log_a`: its first argument is log a; `has_gradients`: torch's autograd
    goes through it; `on_host`: it works on a stream of its own and returns when it is done.
    """

    name: str
    distribution: str
    layout: Layout
    load: Callable[[], Scan]
    takes_log_a: bool = False
    has_gradients: bool = True
    on_host: bool = False


def _accelerated_warp() -> Scan:
    from accelerated_scan import warp

    return lambda a, b: warp.scan(a, b)


def _accelerated_scalar() -> Scan:
    from accelerated_scan import scalar

    return lambda a, b: scalar.scan(a, b)


def _chunk_hgrn() -> Scan:
    from fla.ops.hgrn import chunk_hgrn

    return lambda log_a, b: chunk_hgrn(b, log_a)[0]


def _fused_recurrent_hgrn() -> Scan:
    from fla.ops.hgrn import fused_recurrent_hgrn

    return lambda log_a, b: fused_recurrent_hgrn(b, log_a)[0]


def _torch_associative_scan() -> Scan:
    import torch
    from torch._higher_order_ops.associative_scan import associative_scan

    # Every shape is compiled for itself; what was compiled for others would count against torch's limit.
    torch._dynamo.reset()
    compiled: Scan = torch.compile(lambda a, b: associative_scan(composed, (a, b), dim=-1)[1], dynamic=False)
    return compiled


def _jax_associative_scan() -> Scan:
    # JAX would take three quarters of the memory at its start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import torch

    compiled = jax.jit(lambda a, b: jax.lax.associative_scan(composed, (a, b), axis=1)[1])
    views: dict[int, Any] = {}

    def scan(a: Any, b: Any) -> Any:
        # The same arrays come again and again, and viewing them is no part of the scan.
        for array in (a, b):
            if id(array) not in views:
                views[id(array)] = jax.dlpack.from_dlpack(array)
        return torch.from_dlpack(compiled(views[id(a)], views[id(b)]).block_until_ready())

    return scan


def composed(earlier: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
    """Composition of two affine maps (a, b): first `earlier`, then `later`."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


BASELINES = (
    Baseline("accelerated_scan.warp", "accelerated-scan", "B,C,T", _accelerated_warp),
    Baseline("accelerated_scan.scalar", "accelerated-scan", "B,C,T", _accelerated_scalar),
    Baseline("fla.chunk_hgrn", "fla-core", "B,T,C", _chunk_hgrn, takes_log_a=True),
    Baseline("fla.fused_recurrent_hgrn", "fla-core", "B,T,C", _fused_recurrent_hgrn, takes_log_a=True),
    Baseline("torch.associative_scan", "torch", "B,C,T", _torch_associative_scan, has_gradients=False),
    Baseline("jax.associative_scan", "jax", "B,T,C", _jax_associative_scan, has_gradients=False, on_host=True),
)


def baseline_of(name: str) -> Baseline:
    """Return the baseline called `name`; another name is BadInput."""
    by_name = {baseline.name: baseline for baseline in BASELINES}
    return by_name[known_name(name, by_name)]


def known_name(name: str, names: Collection[str]) -> str:
    """Return `name`, which is BadInput where it is none of `names`."""
    if name not in names:
        raise BadInput(f"--baseline: {shown(name)} is given{nearest_name(name, names)}; allowed: {', '.join(names)}, or none")
    return name


def load(baseline: Baseline) -> Scan:
    """Return the scan of a baseline, imported here; what it prints while it builds goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        return baseline.load()


def refusals(baselines: Sequence[Baseline], seconds: float) -> dict[str, str]:
    """Return {name: reason} of the baselines that cannot be measured here.

    Every baseline runs a small scan in a process of its own, all at the same time, and may build for `seconds`. So neither a
    crash nor an endless build ends the run, and what was built is there for the next import.
    """
    with ThreadPoolExecutor(max(1, len(baselines))) as pool:
        reasons = pool.map(lambda baseline: refusal(baseline, seconds), baselines)
        return {baseline.name: reason for baseline, reason in zip(baselines, reasons, strict=True) if reason is not None}


def refusal(baseline: Baseline, seconds: float, program: Sequence[str] = PROBE) -> str | None:
    """Return why `baseline` cannot be measured here, None where it can.

    `program` gets its name as an argument and answers by its exit status.
    """
    return failure_in_process((*program, baseline.name), seconds) if is_installed(baseline.distribution) else NOT_INSTALLED


def is_installed(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def failure_in_process(program: Sequence[str], seconds: float) -> str | None:
    """Run `program` for `seconds` at most; return None where its exit status is 0, else the last line it printed."""
    try:
        process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
    except OSError as error:
        return failure_of(error)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"not ready after {seconds:g} s"
    if process.returncode == 0:
        return None
    return output.strip().rpartition("\n")[2] or f"its process ended with status {process.returncode}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and the compilers that it started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
