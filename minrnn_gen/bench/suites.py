"""What the three commands measure: scans, dense cells, and single calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from minrnn_gen.bench import (
    call_problems,
    cells,
    classic,
    decoding,
    dense,
    dense_problems,
    flash,
    host_calls,
    layers,
    peers,
    problems,
    raw,
    torch_cells,
)
from minrnn_gen.bench.gpu import Gpu
from minrnn_gen.bench.problems import Problem
from minrnn_gen.bench.rounds import Contender, Limits
from minrnn_gen.bench.session import Suite


def _scan_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    match problem.table:
        case "raw":
            return raw.contenders(problem, gpu, [peer for peer in peers.PEERS if peer.name in chosen], refused)
        case "cells":
            return cells.contenders(problem, gpu)
        case "layers":
            return layers.contenders(problem, gpu)
        case "classic":
            return classic.contenders(problem, gpu)
        case _:
            raise ValueError(f"{problem.table} is no table of scans")


def _scan_refusals(_: Gpu, chosen: Sequence[str], asked: Sequence[Problem], seconds: float) -> dict[str, str]:
    if all(problem.table != "raw" for problem in asked):
        return {}
    return peers.refusals([peer for peer in peers.PEERS if peer.name in chosen], seconds)


def _call_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    contenders = host_calls.contenders if problem.table == "host" else decoding.contenders
    return contenders(problem, gpu, chosen, refused)


SCAN = Suite(
    command="scan",
    titles=problems.TITLES,
    problems=problems.problems_of,
    peers=tuple(peer.name for peer in peers.PEERS),
    refusals=_scan_refusals,
    contenders=_scan_contenders,
    method={"inputs": "random, new for every shape; raw scans: half of the channels with a between 0.99 and 1"},
)
RECURRENT = Suite(
    command="recurrent",
    titles=dense_problems.TITLES,
    problems=dense_problems.problems_of,
    peers=(*flash.BACKENDS, torch_cells.NAME),
    refusals=flash.refusals,
    contenders=dense.contenders,
    method={
        "inputs": "normal, new for every shape, R with a variance of 1 / head_dim; table accuracy: forget gates of mean 3",
        "first call": "from compile() to the results, nothing in the cache, the context made; of flashrnn a build of many",
        "limit": dense_problems.LIMIT_SOURCE,
        "torch.nn": "cuDNN, its projection from the width of the cell included; fp32 without TF32; a column for each precision",
        "flashrnn": flash.CHANGED,
    },
    # Some take 50 ms for a call, and there are a hundred problems.
    limits=Limits(seconds=0.75),
)
CALLS = Suite(
    command="calls",
    titles=call_problems.TITLES,
    problems=call_problems.problems_of,
    peers=(torch_cells.NAME,),
    refusals=lambda *_: {},
    contenders=_call_contenders,
    method={
        "host": f"calls of a form met {host_calls.WARM_UP_CALLS} times before, the device idle when each begins; without "
        "gradients in torch.no_grad(), entered anew; with them those of x and all parameters",
        "decode": f"{call_problems.DECODED} steps, each with the state of the last, in one CUDA graph of torch; eager: as they "
        "are called, by the host's clock until the device is done",
        "torch.nn": "one head, flatten_parameters() called; the record says where that left the weights apart, so that every "
        "call copies them",
    },
    # What Python takes varies from call to call, and a call takes no time.
    limits=Limits(rounds_least=201, rounds_most=201),
)
SUITES = {suite.command: suite for suite in (SCAN, RECURRENT, CALLS)}
