"""Problems drawn at random for each family of kernels, with another seed each time: nothing can be fitted to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from benchmarks.problems.tuner_problems import FILTER, TunerProblem
from minrnn_gen.plan.scan.filter import ORDER_MOST

# States of all steps of a problem: a kernel then takes 20 us to 20 ms on an H200, longer than a launch, and short
# enough for a hundred problems.
ELEMENTS_LEAST, ELEMENTS_MOST = 1 << 21, 1 << 28
# Steps of a dense cell wait for each other, one to several microseconds each.
DENSE_STEPS_LEAST, DENSE_STEPS_MOST = 32, 1024
PRECISIONS = ("bf16", "bf16", "fp32", "fp16")


def between(draw: random.Random, least: int, most: int, multiple: int = 1) -> int:
    """Return a multiple of `multiple`, drawn evenly by its logarithm."""
    value: float = least * (most / least) ** draw.random()
    return max(least, round(value / multiple) * multiple)


def _scan(draw: random.Random) -> TunerProblem:
    model = draw.choice(("min_gru", "min_lstm", "hgrn", "qrnn", "rg_lru", "scan"))
    layout = draw.choice(("BTD", "BTD", "TBD", "BDT"))
    return TunerProblem(
        model, between(draw, 1, 64), between(draw, 64, 65536), between(draw, 64, 4096, 32), _precision(draw), layout=layout
    )


def _vectors(draw: random.Random) -> TunerProblem:
    """Few sequences, and n that need be no power of two."""
    return TunerProblem(
        "selective", between(draw, 1, 16), between(draw, 256, 8192), between(draw, 128, 4096, 64), _precision(draw),
        state_size=draw.randint(4, 64),
    )  # fmt: skip


def _diagonal(draw: random.Random) -> TunerProblem:
    return TunerProblem(
        draw.choice(("ind_rnn", "lif")),
        between(draw, 1, 256),
        between(draw, 64, 8192),
        between(draw, 64, 4096, 32),
        _precision(draw),
    )


def _coupled(draw: random.Random) -> TunerProblem:
    """Few channels, where maps are composed over time; the backward is a diagonal cell's."""
    return TunerProblem(
        draw.choice(("biquad", "complex_lru", "linoss", "holt", "conv_min_gru")),
        between(draw, 1, 64),
        between(draw, 1024, 1 << 20),
        between(draw, 1, 1024),
        draw.choice(("fp32", "fp32", "bf16", "fp16")),
        layout=draw.choice(("BTD", "TBD", "BDT")),
        passes=("forward",),
    )


def _filter(draw: random.Random) -> TunerProblem:
    order = draw.randint(1, ORDER_MOST)
    signals, steps = between(draw, 1, 1024), between(draw, 1024, 1 << 20)
    return TunerProblem(f"{FILTER}{order}", signals, steps, 1, _precision(draw), layout="BDT", passes=("filter",))


def _dense(draw: random.Random) -> TunerProblem:
    """At most 64 sequences, where R stays on the chip."""
    return _of_heads(draw, between(draw, 1, 64), between(draw, 32, 512, 16))


def _large_batch(draw: random.Random) -> TunerProblem:
    return _of_heads(draw, between(draw, 65, 2048), between(draw, 32, 2048, 16))


def _of_heads(draw: random.Random, batch: int, head_dim: int) -> TunerProblem:
    heads = between(draw, 1, max(1, min(16, 2048 // head_dim)))
    steps = between(draw, DENSE_STEPS_LEAST, DENSE_STEPS_MOST)
    model = draw.choice(("lstm", "gru", "elman", "slstm"))
    return TunerProblem(model, batch, steps, heads * head_dim, _precision(draw), heads=heads)


def _precision(draw: random.Random) -> str:
    return draw.choice(PRECISIONS)


FAMILIES: Mapping[str, Callable[[random.Random], TunerProblem]] = {
    "scans": _scan,
    "n values per channel": _vectors,
    "diagonal cells": _diagonal,
    "coupled states": _coupled,
    "filters": _filter,
    "dense cells": _dense,
    "dense cells, many sequences": _large_batch,
}


def drawn_problems(count: int, seed: int) -> dict[str, tuple[TunerProblem, ...]]:
    """Return `count` problems of each family, the same for the same seed."""
    problems = {}
    for family, draw_problem in FAMILIES.items():
        draw = random.Random(f"{seed} {family}")
        drawn: list[TunerProblem] = []
        while len(drawn) < count:
            problem = draw_problem(draw)
            if ELEMENTS_LEAST <= problem.elements <= ELEMENTS_MOST:
                drawn.append(problem)
        problems[family] = tuple(drawn)
    return problems
