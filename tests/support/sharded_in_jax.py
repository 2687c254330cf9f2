"""Calls of the JAX front over four devices of a CPU, beside the same calls on one: `python -m support.sharded_in_jax`.

Prints {case: the largest difference of values and gradients}, of float64, as JSON: of the cases that are named, else of
all. JAX counts its devices when it starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

DEVICES = 4
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402
from support.stage_cells import STAGES, STAGES_OF_VALUES  # noqa: E402

import minrnn_gen  # noqa: E402
import minrnn_gen.jax as front  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
MESH = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
BATCH, TIME, HIDDEN = 4, 12, 8
# n of cells with n values per channel.
VALUES = 3
RANDOM = np.random.default_rng(0)
WHOLE = PartitionSpec()


def drawn(*shape: int) -> Any:
    return RANDOM.standard_normal(shape) / 2


def over(axis: int) -> PartitionSpec:
    """Return how an array is split over its axis number `axis`."""
    return PartitionSpec(*[None] * axis, "ranks")


def difference(run: Callable[..., Any], split: Callable[..., Any], arrays: Any, in_specs: Any, out_specs: Any) -> float:
    """Return how far `split`, on all devices, is from `run` on one, in its results and in all gradients."""
    sharded = jax.shard_map(split, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def total(of: Callable[..., Any]) -> Any:
        def loss(arrays: Any) -> Any:
            results = of(*arrays)
            return sum(
                (jnp.cos(jnp.arange(array.size)) * array.ravel() ** 2).sum() for array in jax.tree.leaves(results)
            ), results

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)

    pairs = zip(*(jax.tree.leaves(total(of)) for of in (sharded, run)), strict=True)
    return max(float(np.abs(one - other).max() / max(1, np.abs(other).max())) for one, other in pairs)


def of_batch(model: str) -> float:
    spec = {"model": model, "hidden_size": HIDDEN, "precision": "fp64"}
    arrays = (
        drawn(BATCH, TIME, 4, HIDDEN),
        drawn(4, 1, HIDDEN, HIDDEN),
        {"h": drawn(BATCH, HIDDEN), "c": drawn(BATCH, HIDDEN)},
    )

    def run(x: Any, R: Any, state: Any) -> Any:
        return front.recurrence(spec, x, R, state=state)

    return difference(run, run, arrays, (over(0), WHOLE, over(0)), (over(0), over(0)))


def of_heads(model: str) -> float:
    """Heads have nothing to do with each other: each device has a cell of as many fewer channels."""
    whole, share = (
        {"model": model, "hidden_size": DEVICES * HIDDEN // parts, "heads": DEVICES // parts, "precision": "fp64"}
        for parts in (1, DEVICES)
    )
    arrays = (drawn(BATCH, TIME, 4, DEVICES * HIDDEN), drawn(4, DEVICES, HIDDEN, HIDDEN))
    run, split = (lambda x, R, spec=spec: front.recurrence(spec, x, R)[0] for spec in (whole, share))
    return difference(run, split, arrays, (over(3), over(1)), over(2))


def of_time(model: Any, boundaries: str = "", **keys: Any) -> float:
    spec = {"model": model, "hidden_size": HIDDEN, "precision": "fp64", **keys}
    interface = minrnn_gen.compile(spec, gpu="h200").interface
    of_time = interface.x_axes.index("t")
    rows = 1 if boundaries == "cu_seqlens" else BATCH
    sequences: dict[str, Any] = {}
    if boundaries == "resets":
        sequences["resets"] = RANDOM.random((BATCH, TIME)) < 0.2
    if boundaries == "lengths":
        sequences["lengths"] = np.array([TIME, 0, 7, 3], np.int32)
    if boundaries == "cu_seqlens":
        sequences["cu_seqlens"] = np.array([0, 2, 2, 7, TIME], np.int32)
    arrays = (
        drawn(*interface.shape(interface.x_axes, rows, TIME)),
        {name: drawn(*interface.shape(interface.shared_axes, rows, TIME)) for name in interface.shared},
        {name: drawn(*interface.shape_of_state(name, BATCH)) for name in interface.states},
        {name: drawn(*interface.shape_of_parameter(name)) for name in interface.parameters},
        drawn(len(interface.gates), HIDDEN),
    )

    def run(
        x: Any, of_group: Any, state: Any, parameters: Any, bias: Any, sequences: Any = sequences, axis_name: str | None = None
    ) -> Any:
        weights = {"bias": bias, "parameters": parameters, "shared": of_group or None}
        return front.recurrence(spec, x, state=state, axis_name=axis_name, **weights, **sequences)

    def split(x: Any, of_group: Any, state: Any, parameters: Any, bias: Any) -> Any:
        own = dict(sequences)
        if boundaries == "resets":
            steps = TIME // DEVICES
            own["resets"] = jax.lax.dynamic_slice_in_dim(own["resets"], jax.lax.axis_index("ranks") * steps, steps, 1)
        return run(x, of_group, state, parameters, bias, own, "ranks")

    pieces = over(of_time)
    return difference(run, split, arrays, (pieces, pieces, WHOLE, WHOLE, WHOLE), (pieces, WHOLE))


def of_raw_scan(dtype: str, log_a: bool, reverse: bool, has_state: bool = True) -> float:
    def values(*shape: int) -> Any:
        return (drawn(*shape) + (1j * drawn(*shape) if dtype == "complex128" else 0)).astype(dtype)

    arrays = (values(BATCH, TIME, HIDDEN), values(BATCH, TIME, HIDDEN), *((values(BATCH, HIDDEN),) if has_state else ()))

    def run(*arrays: Any, axis_name: str | None = None) -> Any:
        results = front.scan(*arrays, log_a=log_a, reverse=reverse, axis_name=axis_name)
        return [part for array in results for part in (array.real, array.imag)] if dtype == "complex128" else results

    def split(*arrays: Any) -> Any:
        return run(*arrays, axis_name="ranks")

    parts = 2 if dtype == "complex128" else 1
    out_specs = (*[over(1)] * parts, *[WHOLE] * parts)
    return difference(
        run, split, arrays, (over(1), over(1), WHOLE)[: len(arrays)], list(out_specs) if parts == 2 else out_specs
    )


def of_layer(model: str, **sizes: int) -> float:
    layer = front.RNN(model, 6, HIDDEN, num_layers=2, dtype=jnp.float64, **sizes)
    arrays = (layer.init(jax.random.key(0)), drawn(BATCH, TIME, 6))
    run, split = (lambda params, x, name=name: layer.apply(params, x, axis_name=name) for name in (None, "ranks"))
    return difference(run, split, arrays, (WHOLE, over(1)), (over(1), WHOLE))


CASES: dict[str, Callable[[], float]] = {
    "batch": lambda: of_batch("lstm"),
    "heads": lambda: of_heads("lstm"),
    "time, min_gru": lambda: of_time("min_gru"),
    "time, resets": lambda: of_time("min_gru", "resets", direction="reverse"),
    "time, lengths": lambda: of_time("min_lstm", "lengths", layout="TBD"),
    "time, packed": lambda: of_time("rg_lru", "cu_seqlens"),
    "time, rg_lru": lambda: of_time("rg_lru", direction="reverse", layout="TBD"),
    "time, biquad": lambda: of_time("biquad", "cu_seqlens"),
    "time, stages": lambda: of_time(STAGES, "resets", direction="reverse"),
    "time, stages of n values": lambda: of_time(STAGES_OF_VALUES, "lengths", state_size=VALUES),
    "time, selective": lambda: of_time("selective", "resets", state_size=VALUES),
    "time, selective in reverse": lambda: of_time("selective", direction="reverse", layout="TBD", state_size=VALUES),
    "time, raw scan": lambda: of_raw_scan("float64", False, False),
    "time, raw scan in logarithms": lambda: of_raw_scan("float64", True, True, has_state=False),
    "time, complex raw scan": lambda: of_raw_scan("complex128", False, True),
    "time, layers": lambda: of_layer("min_lstm"),
    "time, layers of n values": lambda: of_layer("selective", state_size=VALUES),
}


def main() -> int:
    print(json.dumps({name: CASES[name]() for name in sys.argv[1:] or CASES}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
