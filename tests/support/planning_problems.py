"""Problems to plan: drawn over everything a plan depends on, and those of real cells."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from hypothesis import strategies as st

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes, profile_names
from minrnn_gen.config.spec import SIZE_LIMIT, load_spec
from minrnn_gen.plan.classes import CellKind
from minrnn_gen.plan.families import solutions
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import (
    ASSUMED_BATCH,
    ASSUMED_TIME,
    WIDEST_COPY_BYTES,
    CellShape,
    KernelPass,
    Problem,
    Sizes,
)
from minrnn_gen.plan.solver import Solution
from minrnn_gen.precision import PRECISION_NAMES, precision_of

DENSE_CELLS = ("elman", "gru", "lstm", "slstm")
SCAN_CELLS = ("hgrn", "min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "qrnn", "rg_lru")
GENERATED_CELLS = (*SCAN_CELLS, "ind_rnn", *DENSE_CELLS)
profile = functools.cache(load_profile)


def real_builder(
    model: str | Mapping[str, str],
    gpu: str,
    hidden_size: int = 512,
    precision: str = "fp32",
    layout: str = "BTD",
    heads: int = 1,
    fp32_product: str = "tf32x3",
) -> Builder:
    sizes = {"hidden_size": hidden_size, "heads": heads}
    spec = load_spec({"model": model, "precision": precision, "layout": layout, "fp32_product": fp32_product, **sizes})
    return Builder(spec, Target(profile(gpu), profile_bytes(gpu), "spec"), Store(cache_folder()))


def real_solution(
    model: str | Mapping[str, str],
    gpu: str,
    hidden_size: int = 512,
    precision: str = "fp32",
    layout: str = "BTD",
    kernel_pass: KernelPass = "forward",
    alignment_bytes: int | None = None,
    heads: int = 1,
    fp32_product: str = "tf32x3",
    batch: int = ASSUMED_BATCH,
) -> Solution:
    builder = real_builder(model, gpu, hidden_size, precision, layout, heads, fp32_product)
    specialization = Specialization(alignment_bytes) if alignment_bytes else builder.hinted_specialization
    return builder.solve(builder.key_of(kernel_pass, specialization, Sizes(batch, ASSUMED_TIME)))


@functools.cache
def real_shape(model: str) -> CellShape:
    return real_solution(model, "h200").problem.cell


# Beyond the built-in cells: more gates, states and work than anybody has written, but no cell is refused for.
shapes = st.one_of(
    st.sampled_from(GENERATED_CELLS).map(real_shape),
    st.builds(
        CellShape,
        name=st.just("drawn"),
        kind=st.sampled_from([kind for kind in get_args(CellKind) if kind != "dense"]),
        recurrent_gates=st.just(()),
        gates=st.integers(1, 6).map(lambda count: tuple(f"g{index}" for index in range(count))),
        states=st.integers(1, 3).map(lambda count: tuple(f"s{index}" for index in range(count))),
        parameters=st.integers(0, 2).map(lambda count: tuple(f"p{index}" for index in range(count))),
        carried_count=st.integers(0, 2),
        read_count=st.integers(1, 8),
        written_count=st.integers(1, 6),
        operation_count=st.integers(0, 60),
        transcendental_count=st.integers(0, 6),
        saved_values=st.sampled_from(((), ("y", "state c"))),
    ).flatmap(lambda shape: st.sampled_from((shape, replace(shape, kind="dense", recurrent_gates=shape.gates)))),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    precision = precision_of(draw(st.sampled_from(PRECISION_NAMES)))
    alignments = [2**exponent for exponent in range(5) if precision.storage_bytes <= 2**exponent <= WIDEST_COPY_BYTES]
    return Problem(
        kernel_pass=draw(st.sampled_from(("forward", "backward", "step"))),
        cell=draw(shapes),
        hidden_size=draw(st.one_of(st.integers(1, SIZE_LIMIT), st.integers(0, 20).map(lambda exponent: 2**exponent))),
        precision=precision,
        layout=draw(st.sampled_from(("BTD", "TBD", "BDT"))),
        batch=draw(st.sampled_from((1, 8, 2**20, 2**40))),
        time=draw(st.sampled_from((1, 37, 4096, 2**40))),
        specialization=Specialization(draw(st.sampled_from(alignments))),
        gpu=profile(draw(st.sampled_from(profile_names()))),
    )


@st.composite
def dense_problems(draw: st.DrawFn) -> Problem:
    """Heads of any size up to more than fits, of cells with a recurrent matrix."""
    cell, heads = real_shape(draw(st.sampled_from(DENSE_CELLS))), draw(st.integers(1, 4))
    sizes = {"heads": heads, "hidden_size": heads * draw(st.integers(1, 600))}
    return replace(draw(problems()), cell=cell, fp32_product=draw(st.sampled_from(("tf32x3", "tf32", "fma"))), **sizes)


def solved(problem: Problem) -> Solution:
    """Return the solution of the first family that serves."""
    return next(solutions(problem))
