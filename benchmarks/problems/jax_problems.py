"""Problems of the JAX front, table by table."""

from __future__ import annotations

from benchmarks.problems.scan_problems import Problem, TableName

TITLES: dict[TableName, str] = {
    "jit": "A jitted forward and its gradients, from pre-activations; jax.experimental.rnn from x of the width of the cell",
    "dispatch": "One jitted call of a small cell, until the device is done with 16 of them in a row",
    "ensemble": "Eight cells of one head under vmap, beside one kernel with eight heads, forward and gradients",
}
TABLES = tuple(TITLES)
ENSEMBLE = 8

# (model, heads, batch, time, channels)
_JIT = (("lstm", 1, 16, 1024, 512), ("gru", 1, 16, 1024, 512), ("min_gru", 1, 8, 4096, 1536))
_DISPATCH = (("min_gru", 1, 16, 16, 64), ("lstm", 1, 16, 16, 64))
_ENSEMBLE = (("lstm", ENSEMBLE, 16, 1024, 64 * ENSEMBLE),)
_QUICK = {"jit": (("lstm", 1, 2, 16, 64),), "dispatch": _DISPATCH[:1], "ensemble": (("lstm", ENSEMBLE, 2, 16, 16 * ENSEMBLE),)}
_WHOLE = {"jit": _JIT, "dispatch": _DISPATCH, "ensemble": _ENSEMBLE}


def problems_of(table: TableName, quick: bool = False) -> tuple[Problem, ...]:
    """Return the problems of `table`, in the order in which they are measured; `quick`: a small one."""
    return tuple(
        Problem(
            table=table,
            task="forward" if table == "dispatch" else "forward + backward",
            model=model,
            precision="bf16",
            batch=batch,
            time=time,
            channels=channels,
            heads=heads,
        )
        for model, heads, batch, time, channels in (_QUICK if quick else _WHOLE)[table]
    )
