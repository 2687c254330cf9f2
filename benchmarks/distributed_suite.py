"""The suite of `python -m benchmarks distributed`: run by torchrun on every rank."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata

import torch
import torch.distributed as dist

from benchmarks.contenders.cpu_layers import cpu_name
from benchmarks.contenders.host_over_ranks import HostRow, host_rows_of
from benchmarks.contenders.over_ranks import WATCHED_RUNS, Host, rows_of
from benchmarks.harness.rounds import Limits
from benchmarks.problems.distributed_problems import PASSES, DistributedProblem, problems
from benchmarks.report.distributed_record import DistributedRecord
from minrnn_gen.api import compile
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu.driver import driver_release
from minrnn_gen.torch.sequence_group.clock import CALLS_IN_A_ROW

LIMITS = Limits(rounds_least=7, rounds_most=31, seconds=2.0)
QUICK_LIMITS = Limits(rounds_least=3, rounds_most=3, seconds=0.1)
METHOD = {
    "round": f"on GPUs {CALLS_IN_A_ROW} calls, hosts ahead, ranks waiting for each other in their exchanges alone; on CPUs one",
    "tuned": "the way that tune_sequence_group found the fastest with these arrays, before all that is timed here",
    "one rank": "the first rank computes all of it, the others idle in the same group",
    "in exchange": f"exchanges and waits for others over all time, the mean of the ranks, median of {WATCHED_RUNS} more runs",
    "bytes of a rank": "what a rank contributes to exchanges in a run, the most of the ranks",
    "error": "the largest difference from one rank's results over the largest of their values",
}


def open_host(quick: bool, graphs: bool = True) -> tuple[Host, Callable[[], None]]:
    """Return the ranks that torchrun started, and what ends them; BadInput where it did not, or for large problems on CPUs.

    `graphs`: whether their calls are launched as CUDA graphs.
    """
    if not dist.is_available():
        raise BadInput("distributed: this torch is without torch.distributed; install one that has it")
    if "RANK" not in os.environ:
        raise BadInput("distributed: no ranks were started; start them: torchrun --nproc-per-node 2 -m benchmarks distributed")
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not quick:
        raise BadInput("distributed: no GPU is here, and the problems are large; give --quick for small ones")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    return Host(dist.group.WORLD, device, graphs), dist.destroy_process_group


def measure(
    host: Host, quick: bool, keep: Callable[[DistributedRecord], None], only: str | None = None, seconds: float | None = None
) -> DistributedRecord:
    """Measure all problems on all ranks; `keep` gets the record after each of them, the same on every rank.

    `only`: those alone whose labels have one of these words, between commas. `seconds`: for the rounds of each.
    """
    limits = QUICK_LIMITS if quick else LIMITS if seconds is None else replace(LIMITS, seconds=seconds)
    record = _record(host, quick, limits, only)
    for problem in _named(quick, only):
        kernel = compile(problem.spec)
        for kernel_pass in PASSES:
            rows = rows_of(problem, kernel_pass, kernel, host, limits)
            record = record.model_copy(update={"rows": (*record.rows, *rows)})
            keep(record)
            gc.collect()
            if host.has_events:
                torch.cuda.empty_cache()
    record = record.model_copy(update={"is_complete": True})
    keep(record)
    return record


def count(host: Host, quick: bool, only: str | None = None) -> tuple[HostRow, ...]:
    """Return the host's work of all problems in every way, on all ranks; `only` as in `measure`."""
    return tuple(row for problem in _named(quick, only) for row in host_rows_of(problem, compile(problem.spec), host))


def _named(quick: bool, only: str | None) -> list[DistributedProblem]:
    """Return the problems whose labels have one of the words of `only`, all without it."""
    words = [""] if only is None else only.split(",")
    return [problem for problem in problems(quick) if any(word in problem.label for word in words)]


def _record(host: Host, quick: bool, limits: Limits, only: str | None) -> DistributedRecord:
    devices = dict.fromkeys(host.all_of(torch.cuda.get_device_name(host.device) if host.has_events else cpu_name()))
    return DistributedRecord(
        command=" ".join(
            ["python -m benchmarks distributed"]
            + ["--quick"] * quick
            + ([] if only is None else [f'--only "{only}"'])
            + ["--no-graphs"] * (not host.graphs)
        ),
        device=", ".join(devices),
        ranks=host.size,
        backend=dist.get_backend(host.group),
        clock="device events" if host.has_events else "host",
        driver=driver_release() if host.has_events else None,
        versions={name: metadata.version(name) for name in ("minrnn-gen", "torch")},
        method={"time": f"median of {limits.in_words}, all in turn; a round's time is that of its slowest rank", **METHOD},
    )
