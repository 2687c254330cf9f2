"""Suites of the three commands: scans, dense cells, and single calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from minrnn_gen.bench.contenders import (
    baselines,
    decoding,
    dense,
    flash,
    fused_cells,
    host_calls,
    layers,
    raw_scans,
    single_sequence,
    torch_cells,
)
from minrnn_gen.bench.harness.gpu import Gpu
from minrnn_gen.bench.harness.rounds import Contender, Limits
from minrnn_gen.bench.harness.session import Suite
from minrnn_gen.bench.problems import call_problems, dense_problems, scan_problems
from minrnn_gen.bench.problems.scan_problems import CALLS_IN_A_ROW, Problem


def _scan_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    match problem.table:
        case "raw":
            return raw_scans.contenders(
                problem, gpu, [baseline for baseline in baselines.BASELINES if baseline.name in chosen], refused
            )
        case "cells":
            return fused_cells.contenders(problem, gpu)
        case "layers":
            return layers.contenders(problem, gpu)
        case "classic":
            return single_sequence.contenders(problem, gpu)
        case _:
            raise ValueError(f"{problem.table} is no table of scans")


def _scan_refusals(_: Gpu, chosen: Sequence[str], asked: Sequence[Problem], seconds: float) -> dict[str, str]:
    if all(problem.table != "raw" for problem in asked):
        return {}
    return baselines.refusals([baseline for baseline in baselines.BASELINES if baseline.name in chosen], seconds)


def _call_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    contenders = host_calls.contenders if problem.table == "host" else decoding.contenders
    return contenders(problem, gpu, chosen, refused)


SCAN = Suite(
    command="scan",
    titles=scan_problems.TITLES,
    problems=scan_problems.problems_of,
    baselines=tuple(baseline.name for baseline in baselines.BASELINES),
    refusals=_scan_refusals,
    contenders=_scan_contenders,
    method={"inputs": "random, new for every shape; raw scans: half of the channels with a between 0.99 and 1"},
)
RECURRENT = Suite(
    command="recurrent",
    titles=dense_problems.TITLES,
    problems=dense_problems.problems_of,
    baselines=(*flash.BACKENDS, torch_cells.NAME),
    refusals=flash.refusals,
    contenders=dense.contenders,
    method={
        "inputs": "normal, new for every shape, R with a variance of 1 / head_dim; table accuracy: forget gates of mean 3",
        "first call": "from compile() to the results, nothing in the cache, the context made; of flashrnn a build of many",
        "limit": dense_problems.LIMIT_SOURCE,
        "torch.nn": "cuDNN, its projection from the width of the cell included; fp32 without TF32; a column for each precision",
        "flashrnn": flash.CHANGED,
    },
    # Some problems take 50 ms for a call, and there are a hundred of them.
    limits=Limits(seconds=0.75),
)
CALLS = Suite(
    command="calls",
    titles=call_problems.TITLES,
    problems=call_problems.problems_of,
    baselines=(torch_cells.NAME,),
    refusals=lambda *_: {},
    contenders=_call_contenders,
    method={
        "host": f"{CALLS_IN_A_ROW} calls in a row of a form met before, the device idle when they begin; without gradients in "
        "torch.no_grad(), entered anew; with them those of x and all parameters",
        "decode": f"{call_problems.DECODED} steps, each with the state of the last, in one CUDA graph of torch; eager: as they "
        "are called, by the host's clock until the device is done",
        "torch.nn": "one head, flatten_parameters() called; the record says where that left the weights apart, so that every "
        "call copies them",
    },
    # Python's time varies from call to call, and many calls are cheap.
    limits=Limits(rounds_least=61, rounds_most=61),
)
SUITES = {suite.command: suite for suite in (SCAN, RECURRENT, CALLS)}
