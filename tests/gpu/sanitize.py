"""Run every kernel once on small arrays, for compute-sanitizer to watch; sanitizers.py does that, in several processes."""

from __future__ import annotations

import argparse
import itertools
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import cupy
import numpy as np
from support.projected_cells import biases, matrices
from support.scan_strategies import EVERY_WAY, Strategy, kernel_taking, round_steps
from support.small_problems import FOUR_STATES
from support.vector_calls import VectorCall

import minrnn_gen
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.pieces import Piece
from minrnn_gen.errors import Infeasible
from minrnn_gen.gpu import memory
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.scan.projected import TILE_STEPS, refusal
from minrnn_gen.precision import precision_of
from minrnn_gen.raw_scan import filters
from minrnn_gen.run.layers.dropout import Dropout
from minrnn_gen.run.layers.stack import StackResult

BATCH = 2
# A cell that keeps its states, one with a parameter, and one in rows that only plain loads can copy.
CELLS = (("qrnn", "fp32", 40), ("rg_lru", "bf16", 34), ("min_gru", "fp16", 33))
# Cells that are no scan: one way each, in every layout; the second keeps two states and has an output that looks back.
NO_SCANS: tuple[tuple[Any, str, int], ...] = (
    ("ind_rnn", "fp32", 40),
    (
        {
            "name": "entangled",
            "equations": "c[t] = tanh(W.x + p * h[t-1])\nh[t] = sigmoid(W.y) * h[t-1] + c[t] * c[t-1]",
            "output": "h[t] - c[t-1]",
            "parameters": ["p"],
        },
        "bf16",
        33,
    ),
)
LAYOUTS = ("BTD", "TBD", "BDT")
# Dense cells: (cell, precision, heads, head_dim, layout); several warps, blocks of a cluster and of a grid,
# sizes of no power of two.
DENSE = (
    ("lstm", "bf16", 2, 40, "BTD"),
    ("gru", "fp16", 1, 200, "TBD"),
    ("slstm", "bf16", 1, 320, "BTD"),
    ("gru", "fp32", 1, 96, "TBD"),
    ("elman", "fp32", 3, 7, "BDT"),
    ("lstm", "fp64", 1, 9, "BTD"),
    ("lstm", "bf16", 1, 840, "BTD"),
    ("lstm", "bf16", 1, 256, "BTD"),
)
# Steps that wait for products and for means, in a block, in clusters, in grids, and step by step:
# (cell, precision, heads, head_dim, layout, rest of the spec).
WAITING: tuple[tuple[str, str, int, int, str, dict[str, Any]], ...] = (
    ("gru_reset_before", "fp16", 1, 256, "BTD", {}),
    ("gru_reset_before", "bf16", 2, 40, "TBD", {}),
    ("gru_reset_before", "bf16", 1, 1280, "BTD", {}),
    ("layer_norm_lstm", "bf16", 1, 256, "BTD", {}),
    ("layer_norm_lstm", "fp32", 2, 40, "TBD", {}),
    ("layer_norm_lstm", "bf16", 1, 1024, "BTD", {}),
    ("layer_norm_lstm", "fp16", 1, 40, "BDT", {}),
    ("lstm_projected", "bf16", 1, 256, "BTD", {"projection_size": 128}),
    ("block_gru", "bf16", 8, 64, "BTD", {"projection_size": 512}),
)
# Planned for so many sequences: tiles of eight, whose cells warps share.
MANY = {("lstm", 256): 64}
# Of many sequences: (cell, precision, head_dim, layout, batch); by warpgroups, forward and backward, the last in an older way.
LARGE = (
    ("lstm", "bf16", 512, "TBD", 128),
    ("lstm", "bf16", 320, "BTD", 512),
    ("slstm", "fp16", 512, "BTD", 128),
)
STREAMED = Strategy("streamed", {"streams_matrix": 1})
# With n values per channel: (cell, precision, hidden_size, state_size, groups).
VECTORS = (("selective", "bf16", 48, 16, 2), ("selective", "fp32", 33, 5, 1), ("gated_linear", "fp16", 64, 40, 1))
IN_PARTS = Strategy("in parts", {"time_parts": 4})
# With their projection in the kernel: (cell, precision, inputs, hidden_size, batch, tiles); fewer tiles than blocks and more.
PROJECTED = (("min_gru", "bf16", 192, 128, 2, 2), ("min_gru", "fp16", 128, 256, 1, 8), ("min_gru", "bf16", 128, 768, 16, 4))
# Coupled states over time: (cell, precision, channels, layout, plan); lanes along time, along channels, tiles in a row, lanes
# that share a map.
COUPLED: tuple[tuple[Any, str, int, str, dict[str, int]], ...] = (
    ("biquad", "fp32", 3, "BDT", {"channel_lanes": 1, "chunk_tiles": 1}),
    ("holt", "bf16", 1, "BDT", {"channel_lanes": 1, "chunk_tiles": 1}),
    ("complex_lru", "fp32", 20, "BTD", {"channel_lanes": 8, "chunk_tiles": 1}),
    ("linoss", "fp16", 40, "TBD", {"channel_lanes": 16, "chunk_tiles": 1}),
    ("conv_min_gru", "bf16", 33, "BTD", {"channel_lanes": 8, "chunk_tiles": 32}),
    (FOUR_STATES["model"], "fp32", 9, "BTD", {"channel_lanes": 8, "map_lanes": 4}),
    (FOUR_STATES["model"], "fp64", 1, "BDT", {"channel_lanes": 1, "map_lanes": 4}),
)
# Filters and their gradients: (order, dtype, signals, steps), of tiles that wait for others.
FILTERS = ((1, "float32", 3, 70_001), (2, "float16", 40, 16_384), (4, "float64", 2, 140_003))
# (direction, whether there are resets and lengths, whether the states of every step are returned)
REGIMES = (("forward", False, False), ("reverse", True, True))


def run(kernel: Kernel, has_sequences: bool, all_states: bool, batch: int) -> None:
    """Call forward, backward and step on a length of more than a round."""
    interface, precision, random = kernel.interface, precision_of(kernel.spec.precision), np.random.default_rng(0)
    time = round_steps(kernel.plan) + 5
    if kernel.plan.launch.group_tiles:
        time = (kernel.plan.launch.group_tiles + 1) * kernel.plan.launch.tile_steps + 5

    def normal(shape: tuple[int, ...], dtype: str = precision.storage_dtype) -> Any:
        return cupy.asarray(random.normal(size=shape).astype(numpy_dtype(dtype)))

    if interface.has_vectors:
        run_with_vectors(kernel, VectorCall(BATCH, time, has_sequences, has_sequences), all_states)
        return
    states = {name: normal(interface.shape_of_state(name, batch), precision.arithmetic_dtype) for name in kernel.states}
    vectors: dict[str, Any] = {
        "bias": normal((len(kernel.gates), interface.hidden_size)),
        "parameters": {name: normal(interface.shape_of_parameter(name)) for name in kernel.parameters},
        "state": states,
    }
    if interface.recurrent_gates:
        vectors |= {"R": matrices(interface, normal), "recurrent_bias": biases(interface, normal)}
    sequences: dict[str, Any] = {}
    if has_sequences:
        sequences = {
            "resets": cupy.asarray(random.random((batch, time)) < 0.1),
            "lengths": cupy.asarray(random.integers(0, time + 1, batch)),
        }
    x = normal(interface.shape(interface.x_axes, batch, time))
    if not kernel.spec.training:
        kernel(x, **vectors, **sequences, all_states=all_states)
        cupy.cuda.Device().synchronize()
        return
    y, _, saved = kernel.forward(x, **vectors, **sequences, all_states=all_states)
    kernel.backward(saved, y, states)
    kernel.step(normal((batch, len(kernel.gates), interface.hidden_size)), **vectors)
    if interface.recurrent_gates and interface.layout != "BDT" and not interface.directions:
        drop(kernel, y)
    cupy.cuda.Device().synchronize()


def drop(kernel: Kernel, y: Any) -> None:
    """Drop a piece of the time of y, as between layers."""
    axes, mask = Y_AXES[kernel.interface.layout], cupy.random.random(y.shape) < 0.5
    dropout = Dropout(*(memory.inspect(array, "an array") for array in (y, mask, cupy.empty_like(y))), 0.5)
    time = y.shape[axes.index("t")]
    recorder = kernel.executor.backend.begin(dropout.source, None, ())
    dropout.piece(axes, Piece(1, time - 1, time)).run(recorder)
    recorder.finish(StackResult(()), None)


def run_projected(kernel: Kernel, batch: int, tiles: int) -> None:
    """Call a scan with its projection in it, whatever is faster, for y alone and with what a backward reads.

    That is another scan's; under synccheck cuBLAS fails to launch some of its products, of all that follow one.
    """
    interface, random = kernel.interface, np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return cupy.asarray(random.normal(size=shape).astype(numpy_dtype(precision_of(kernel.spec.precision).storage_dtype)))

    inputs = interface.input_size or 0
    x, weight = normal(batch, tiles * TILE_STEPS, inputs), normal(interface.weight_rows, inputs)
    with mock.patch.object(ProjectionChoice, "serves", lambda _, problem: not refusal(problem)):
        kernel(x, weight=weight)
        kernel.forward(x, weight=weight)
    cupy.cuda.Device().synchronize()
    assert "projected_forward" in {built.plan.entry for built in kernel.executor.backend.built.values()}


def run_with_vectors(kernel: Kernel, call: VectorCall, all_states: bool) -> None:
    """Call forward, backward and step of a cell with n values per channel."""

    def on_gpu(given: Any) -> Any:
        return {name: on_gpu(value) for name, value in given.items()} if isinstance(given, dict) else cupy.asarray(given)

    arguments = call.arguments(kernel.interface)
    y, _, saved = kernel.forward(**on_gpu(arguments), all_states=all_states)
    kernel.backward(saved, y, on_gpu(arguments["state"]))
    time_axis = kernel.interface.x_axes.index("t")
    one = {name: value for name, value in arguments.items() if name not in ("x", "shared", "resets", "lengths")}
    if "shared" in arguments:
        shared_axis = kernel.interface.shared_axes.index("t")
        one["shared"] = {name: values.take(0, shared_axis) for name, values in arguments["shared"].items()}
    kernel.step(on_gpu(np.ascontiguousarray(arguments["x"].take(0, time_axis))), **on_gpu(one))
    cupy.cuda.Device().synchronize()


def run_filter(order: int, dtype: str, signals: int, steps: int) -> None:
    """Filter signals of two channels, and compute the gradients."""
    random, columns = np.random.default_rng(order), 2
    x, dy = (cupy.asarray(random.normal(size=(signals, columns, steps)).astype(dtype)) for _ in range(2))
    a = cupy.asarray(np.stack([np.poly(random.uniform(-0.9, 0.9, order)) for _ in range(columns)]))
    zi = cupy.asarray(random.normal(size=(signals, columns, order)))
    y, zf = filters.run_filter(x, a, a, zi)
    filters.run_filter_backward(x, y, a, a, dy, zf)
    cupy.cuda.Device().synchronize()


@dataclass(frozen=True)
class Case:
    """One kernel of each pass: of the strategy, where one is given, whatever the cost model prefers."""

    name: str
    spec: Mapping[str, Any]
    has_sequences: bool
    all_states: bool
    strategy: Strategy | None = None
    batch: int = BATCH
    tiles: int = 0
    """Steps in tiles of a scan that has its projection in it; 0 for other cases."""
    filtered: tuple[int, str, int, int] | None = None
    """A filter of `FILTERS`, which has no spec."""

    def kernel(self, store: Store) -> Kernel:
        return kernel_taking(self.strategy, store, self.spec) if self.strategy else minrnn_gen.compile(self.spec)


def cases() -> Iterator[Case]:
    for (layout, strategy), (model, precision, hidden_size), specialization in itertools.product(EVERY_WAY, CELLS, REGIMES):
        spec = {"model": model, "hidden_size": hidden_size, "precision": precision, "layout": layout}
        yield _case(f"{layout} {strategy} {model} {precision}", spec, specialization, strategy)
    for layout, (model, precision, hidden_size), specialization in itertools.product(LAYOUTS, NO_SCANS, REGIMES):
        spec = {"model": model, "hidden_size": hidden_size, "precision": precision, "layout": layout}
        yield _case(f"{layout} {model if isinstance(model, str) else model['name']} {precision}", spec, specialization)
    for (cell, precision, heads, head_dim, layout), specialization in itertools.product(DENSE, REGIMES):
        spec = {"model": cell, "hidden_size": heads * head_dim, "heads": heads, "precision": precision, "layout": layout}
        hints = {"recurrent_bias": True, "batch": MANY.get((cell, head_dim))}
        yield _case(f"{layout} {cell} {precision} {heads} x {head_dim}", spec | hints, specialization)
    for (cell, precision, heads, head_dim, layout, rest), specialization in itertools.product(WAITING, REGIMES):
        spec = {"model": cell, "hidden_size": heads * head_dim, "heads": heads, "precision": precision, "layout": layout}
        spec |= rest | {"recurrent_bias": True}
        yield _case(f"waiting {layout} {cell} {precision} {heads} x {head_dim}", spec, specialization)
    for (cell, precision, head_dim, layout, batch), specialization in itertools.product(LARGE, REGIMES):
        spec = {"model": cell, "hidden_size": head_dim, "precision": precision, "layout": layout, "recurrent_bias": True}
        case = _case(f"large {layout} {cell} {precision} {head_dim} x {batch}", spec, specialization)
        yield replace(case, batch=batch)
        yield replace(case, name=f"{case.name} streamed", batch=batch, strategy=STREAMED)
    for cell, precision, inputs, hidden_size, batch, tiles in PROJECTED:
        spec = {"model": cell, "hidden_size": hidden_size, "input_size": inputs, "precision": precision}
        yield Case(f"projected {cell} {precision} {inputs} to {hidden_size}", spec, False, False, batch=batch, tiles=tiles)
    for (cell, precision, channels, layout, plan), specialization in itertools.product(COUPLED, REGIMES):
        spec = {"model": cell, "hidden_size": channels, "precision": precision, "layout": layout, "training": False}
        yield _case(
            f"coupled {layout} {cell if isinstance(cell, str) else cell['name']} {precision}",
            spec,
            specialization,
            Strategy("coupled", plan),
        )
    for filtered in FILTERS:
        yield Case(f"filter of order {filtered[0]}, {filtered[1]}", {}, False, False, filtered=filtered)
    for layout, (cell, precision, channels, n, groups), specialization in itertools.product(LAYOUTS, VECTORS, REGIMES):
        spec = {"model": cell, "hidden_size": channels, "state_size": n, "groups": groups, "precision": precision}
        name = f"vectors {layout} {cell} {precision} {channels} x {n}"
        yield _case(name, spec | {"layout": layout}, specialization)
        yield _case(f"{name} in parts", spec | {"layout": layout}, specialization, IN_PARTS)


def _case(name: str, spec: Mapping[str, Any], specialization: tuple[str, bool, bool], strategy: Strategy | None = None) -> Case:
    direction, has_sequences, all_states = specialization
    return Case(f"{name} {direction}", {**spec, "direction": direction}, has_sequences, all_states, strategy)


def part_of(text: str) -> tuple[int, int]:
    """Read "I/N", part I of N, from 1 on."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="I/N", help="every N-th case, from the I-th on")
    parser.add_argument("--only", default="", metavar="WORD", help="the cases whose name has it")
    parser.add_argument("--seconds", type=int, default=0, help="end the process when it takes longer, wherever it hangs")
    given = parser.parse_args()
    signal.alarm(given.seconds)  # 0 is never; a signal reaches what waits for a device too
    part, parts = given.part
    store = Store(cache_folder())
    count = 0
    for case in itertools.islice((case for case in cases() if given.only in case.name), part - 1, None, parts):
        print(case.name, flush=True)
        count += 1
        if case.filtered:
            run_filter(*case.filtered)
            continue
        try:
            kernel = case.kernel(store)
        except Infeasible as nothing:
            print(nothing, flush=True)
            continue
        if case.tiles:
            run_projected(kernel, case.batch, case.tiles)
        else:
            run(kernel, case.has_sequences, case.all_states, case.batch)
    print(f"done: {count} cases", flush=True)


if __name__ == "__main__":
    main()
