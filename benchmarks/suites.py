"""Suites of the five commands: scans, dense cells, single calls, layers against torch's, and the JAX front."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.contenders import (
    baselines,
    decoding,
    dense,
    flash,
    fused_cells,
    host_calls,
    jax_calls,
    layers,
    raw_scans,
    selective_scans,
    single_sequence,
    torch_cells,
    torch_layers,
    waiting_cells,
)
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Contender, Limits
from benchmarks.harness.session import Suite
from benchmarks.problems import call_problems, dense_problems, jax_problems, layer_problems, scan_problems
from benchmarks.problems.scan_problems import CALLS_IN_A_ROW, Problem


def _scan_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    match problem.table:
        case "raw":
            return raw_scans.contenders(
                problem, gpu, [baseline for baseline in baselines.BASELINES if baseline.name in chosen], refused
            )
        case "cells":
            return fused_cells.contenders(problem, gpu)
        case "selective":
            return selective_scans.contenders(
                problem, gpu, [baseline for baseline in selective_scans.BASELINES if baseline.name in chosen], refused
            )
        case "layers":
            return layers.contenders(problem, gpu)
        case "classic":
            return single_sequence.contenders(problem, gpu)
        case _:
            raise ValueError(f"{problem.table} is no table of scans")


def _scan_refusals(_: Gpu, chosen: Sequence[str], asked: Sequence[Problem], seconds: float) -> dict[str, str]:
    tables = {problem.table for problem in asked}
    refused = selective_scans.refusals(chosen) if "selective" in tables else {}
    if "raw" in tables:
        refused |= baselines.refusals([baseline for baseline in baselines.BASELINES if baseline.name in chosen], seconds)
    return refused


def _call_contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    contenders = host_calls.contenders if problem.table == "host" else decoding.contenders
    return contenders(problem, gpu, chosen, refused)


SCAN = Suite(
    command="scan",
    titles=scan_problems.TITLES,
    problems=scan_problems.problems_of,
    baselines=tuple(dict.fromkeys(baseline.name for baseline in (*baselines.BASELINES, *selective_scans.BASELINES))),
    refusals=_scan_refusals,
    contenders=_scan_contenders,
    method={"inputs": "random, new for every shape; raw scans: half of the channels with a between 0.99 and 1"},
)


def _recurrent_contenders(
    problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str], peer: str | None = None
) -> list[Contender]:
    if problem.table == "waiting":
        return waiting_cells.contenders(problem, gpu, chosen, refused, peer)
    return dense.contenders(problem, gpu, chosen, refused)


RECURRENT = Suite(
    command="recurrent",
    titles=dense_problems.TITLES,
    problems=dense_problems.problems_of,
    baselines=(*flash.BACKENDS, torch_cells.NAME, *waiting_cells.NAMES),
    refusals=flash.refusals,
    contenders=_recurrent_contenders,
    method={
        "inputs": "normal, new for every shape, R with a variance of 1 / head_dim; table accuracy: forget gates of mean 3",
        "first call": "from compile() to the results, nothing in the cache, the context made; of flashrnn a build of many",
        "limit": dense_problems.LIMIT_SOURCE,
        "torch.nn": "cuDNN, its projection from the width of the cell included; fp32 without TF32; a column for each precision",
        "flashrnn": flash.CHANGED,
        "waiting": "ours and TorchRL's in a CUDA graph, so that events enclose the device's work; torch.compile of a step",
    },
    # Some problems take 50 ms for a call, and there are a hundred of them.
    limits=Limits(seconds=0.75),
    # An eager loop takes seconds with its gradients.
    table_limits={"waiting": Limits(rounds_least=1, seconds=0.75)},
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
LAYERS = Suite(
    command="layers",
    titles=layer_problems.TITLES,
    problems=layer_problems.problems_of,
    baselines=torch_layers.NAMES,
    refusals=lambda *_: {},
    contenders=torch_layers.contenders,
    method={
        "clock": "the host's, from an idle device until it is done; an untimed call goes before each timed one",
        "forward": "in torch.no_grad() and eval()",
        "training step": "forward, backward from a given dy, gradients of x and of all parameters set to None",
        "ours": "minrnn_gen.torch.nn, and minrnn_gen.torch.MinGRULog and MinLSTMLog, without hints",
        "torch": "as it is installed: TF32 in cuDNN, none in other products; batch_first, biases in recurrent layers",
        "weights": "the same values for all; autocast: inputs and weights in fp32",
        "tolerance": "ours: for fp32 that of fp16, which has as many digits as TF32; torch's: that of bf16, whatever the kind",
    },
    # Times of one call vary with the host's; and there are hundreds of problems.
    limits=Limits(rounds_most=21, seconds=0.6),
    table_limits={"sizes": Limits(rounds_least=5, rounds_most=11, seconds=0.15)},
)
JAX = Suite(
    command="jax",
    titles=jax_problems.TITLES,
    problems=jax_problems.problems_of,
    baselines=jax_calls.NAMES,
    refusals=lambda *_: {},
    contenders=jax_calls.contenders,
    method={
        "clock": "the host's, from an idle device until it is done; an untimed call goes before each timed one",
        "jit": "forward, and gradients of x and R by a given dy, in one jitted program; minrnn_gen.torch: eager, by autograd",
        "dispatch": f"{CALLS_IN_A_ROW} calls in a row of one program; then {jax_calls.RETRACES} programs traced anew and "
        f"{jax_calls.CALLS} calls, and what they left behind",
        "first call": "from the first call of the program to its results: traced, compiled by XLA, kernels compiled or "
        "found in the cache",
        "lax.scan": "the equations step by step, products of bf16 summed in fp32, states, gates and the gradient of R in fp32",
        "jax.experimental.rnn": "cuDNN, in fp32 with TF32, its projection included",
    },
    limits=Limits(rounds_most=21, seconds=1.5),
)
SUITES = {suite.command: suite for suite in (SCAN, RECURRENT, CALLS, LAYERS, JAX)}


def recurrent_suite(peer: str | None) -> Suite:
    """Return the suite of dense cells with TorchRL's kernel of the block GRU, whose file is `peer`; None leaves it out."""
    return replace(RECURRENT, contenders=partial(_recurrent_contenders, peer=peer))
