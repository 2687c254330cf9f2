"""Run every kernel once on small arrays, for compute-sanitizer to watch: `make sanitize`, or python tests/gpu/sanitize.py."""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np
from strategies import EVERY_WAY, kernel_taking, round_steps

import minrnn_gen
from minrnn_gen.arrays import numpy_dtype
from minrnn_gen.errors import Infeasible
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of
from minrnn_gen.store import Store, cache_folder

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
# Dense cells: (cell, precision, heads, head_dim, layout); several warps, blocks of a cluster, sizes of no power of two.
DENSE = (
    ("lstm", "bf16", 2, 40, "BTD"),
    ("gru", "fp16", 1, 200, "TBD"),
    ("slstm", "bf16", 1, 320, "BTD"),
    ("gru", "fp32", 1, 96, "TBD"),
    ("elman", "fp32", 3, 7, "BDT"),
    ("lstm", "fp64", 1, 9, "BTD"),
)
# (direction, whether there are resets and lengths, whether the states of every step are returned)
REGIMES = (("forward", False, False), ("reverse", True, True))


def run(kernel: Kernel, has_sequences: bool, all_states: bool) -> None:
    """Call forward, backward and step on a length of more than a round."""
    contract, precision, random = kernel.contract, precision_of(kernel.spec.precision), np.random.default_rng(0)
    time = round_steps(kernel.plan) + 5
    if kernel.plan.group_tiles:
        time = (kernel.plan.group_tiles + 1) * kernel.plan.tile_steps + 5

    def normal(shape: tuple[int, ...], dtype: str = precision.storage_dtype) -> Any:
        return cupy.asarray(random.normal(size=shape).astype(numpy_dtype(dtype)))

    states = {name: normal(contract.state_shape(BATCH), precision.arithmetic_dtype) for name in kernel.states}
    vectors: dict[str, Any] = {
        "bias": normal((len(kernel.gates), contract.hidden_size)),
        "parameters": {name: normal(contract.parameter_shape) for name in kernel.parameters},
        "state": states,
    }
    if contract.recurrent_gates:
        vectors |= {"R": normal(contract.R_shape), "recurrent_bias": normal(contract.recurrent_bias_shape)}
    sequences: dict[str, Any] = {}
    if has_sequences:
        sequences = {
            "resets": cupy.asarray(random.random((BATCH, time)) < 0.1),
            "lengths": cupy.asarray(np.array([time, time // 2])),
        }
    x = normal(contract.shape(contract.x_axes, BATCH, time))
    y, _, saved = kernel.forward(x, **vectors, **sequences, all_states=all_states)
    kernel.backward(saved, y, states)
    kernel.step(normal((BATCH, len(kernel.gates), contract.hidden_size)), **vectors)
    cupy.cuda.Device().synchronize()


def main() -> None:
    store = Store(cache_folder())
    for layout, strategy in EVERY_WAY:
        for model, precision, hidden_size in CELLS:
            for direction, has_sequences, all_states in REGIMES:
                spec = {"model": model, "hidden_size": hidden_size, "precision": precision, "layout": layout}
                try:
                    kernel = kernel_taking(strategy, store, {**spec, "direction": direction})
                except Infeasible as nothing:
                    print(f"{layout} {precision}: {nothing}", flush=True)
                    continue
                print(layout, strategy, model, precision, direction, flush=True)
                run(kernel, has_sequences, all_states)
    for layout in LAYOUTS:
        for model, precision, hidden_size in NO_SCANS:
            for direction, has_sequences, all_states in REGIMES:
                spec = {"model": model, "hidden_size": hidden_size, "precision": precision, "layout": layout}
                kernel = minrnn_gen.compile({**spec, "direction": direction})
                print(layout, kernel.plan.model, precision, direction, flush=True)
                run(kernel, has_sequences, all_states)
    for cell, precision, heads, head_dim, layout in DENSE:
        for direction, has_sequences, all_states in REGIMES:
            spec = {"model": cell, "hidden_size": heads * head_dim, "heads": heads, "precision": precision, "layout": layout}
            kernel = minrnn_gen.compile({**spec, "direction": direction, "recurrent_bias": True})
            print(layout, cell, precision, f"{heads} x {head_dim}", direction, flush=True)
            run(kernel, has_sequences, all_states)


if __name__ == "__main__":
    sys.exit(main())
