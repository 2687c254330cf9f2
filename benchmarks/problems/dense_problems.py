"""Problems of dense cells, table by table."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.problems.scan_problems import Problem, TableName, Task
from minrnn_gen.precision import PrecisionName

TITLES: dict[TableName, str] = {
    "cells": "Dense cells, from pre-activations; those of torch.nn from x of the width of the cell, projection included",
    "sweep": "Dense cells over head_dim, batch, time and precision",
    "large": "Dense cells with many sequences, one head in 16 bits",
    "waiting": "Cells with several products or norms in a step, from pre-activations; lstm and gru beside them",
    "accuracy": "Errors of y and of the last states after many steps with forget gates near 1",
}
TABLES = tuple(TITLES)
LIMIT_SOURCE = "hand-written kernels for this cell and shape alone, measured once on an H200; with backward, both loops added"

# (model, heads, head_dim, batch)
_Cell = tuple[str, int, int, int]
TIME, BATCH = 1024, 16
_TRAINING: tuple[Task, ...] = ("forward", "forward + backward")
# The shapes with which FlashRNN and cuDNN are usually measured.
_CELLS: tuple[_Cell, ...] = (
    ("lstm", 12, 64, 16),
    ("lstm", 6, 128, 16),
    ("lstm", 3, 256, 16),
    ("lstm", 1, 256, 16),
    ("lstm", 1, 512, 16),
    ("lstm", 1, 768, 16),
    ("lstm", 1, 1024, 8),
    ("slstm", 12, 64, 16),
    ("slstm", 1, 768, 16),
    ("elman", 12, 64, 16),
    ("elman", 1, 768, 16),
    ("gru", 12, 64, 16),
    ("gru", 1, 768, 16),
)
# {cell: ms of the forward, and of the loop of the backward} (LIMIT_SOURCE); bf16, 1,024 steps.
_LIMITS_MS: dict[_Cell, tuple[float, float | None]] = {
    ("lstm", 12, 64, 16): (0.170, 0.245),
    ("lstm", 6, 128, 16): (0.307, 0.407),
    ("lstm", 3, 256, 16): (0.400, 0.503),
    ("lstm", 1, 256, 16): (0.40, 0.50),
    ("lstm", 1, 512, 16): (0.736, 0.782),
    ("lstm", 1, 768, 16): (1.67, None),
}
# {(model, head_dim, batch, time): ms of the forward} (LIMIT_SOURCE), in bf16.
_LARGE: dict[tuple[str, int, int, int], float | None] = {
    ("lstm", 1024, 256, 128): 0.69,
    ("lstm", 512, 256, 256): 0.78,
    ("lstm", 1024, 64, 256): 0.87,
    ("lstm", 256, 1024, 64): 0.19,
    ("lstm", 512, 128, 128): 0.35,
    ("lstm", 2048, 32, 256): 1.34,
    ("gru", 1024, 256, 128): None,
    ("gru", 512, 128, 256): None,
    ("slstm", 768, 64, 256): None,
}
# One shape for every cell, table and library, so that a library compiles once; torch.nn has one head.
_QUICK: _Cell = ("lstm", 1, 64, 16)
_QUICK_TIME = 64
# {head_dim: heads}: heads enough for a hidden size of 768, which other libraries are measured with; a larger head is alone.
_SWEPT_HEADS = {16: 48, 32: 24, 64: 12, 128: 6, 256: 3, 512: 1, 1024: 1, 2048: 1}
# Centres around which batch, time and precision vary: many small heads, and a large head, which torch.nn has as well.
_CENTRES = ((12, 64), (1, 512))
ACCURACY_TIME = 4096
# DreamerV3's sequence model of 8 blocks, and its neighbours: (cell, P); each with 16 sequences of 512 steps.
_WAITING: tuple[tuple[_Cell, int | None], ...] = (
    (("block_gru", 8, 64, 16), 512),
    (("gru_reset_before", 1, 512, 16), None),
    (("lstm_projected", 1, 512, 16), 256),
    (("layer_norm_lstm", 1, 512, 16), None),
    (("gru", 1, 512, 16), None),
    (("lstm", 1, 512, 16), None),
)
_WAITING_TIME = 512
# {cell: us of a step on one H200, forward and with gradients}: what was asked of these kernels.
_WAITING_LIMITS_US = {"block_gru": (3.5, 9.0), "layer_norm_lstm": (2.2, 5.0)}


def problems_of(table: TableName, quick: bool = False) -> tuple[Problem, ...]:
    """Return the problems of `table`, in the order in which they are measured; `quick`: one or two small ones."""
    problems: dict[TableName, Callable[[bool], tuple[Problem, ...]]] = {
        "cells": _cells,
        "sweep": _sweep,
        "large": _large,
        "accuracy": _accuracy,
        "waiting": _waiting,
    }
    return problems[table](quick)


def is_of_cells(problem: Problem) -> bool:
    """Return whether the table `cells`, quick or not, has this cell, shape and precision, so that its build runs here."""
    cell = (problem.model, problem.heads, problem.head_dim, problem.batch)
    return problem.precision == "bf16" and cell in (*_CELLS, *_quick_cells())


def _cells(quick: bool) -> tuple[Problem, ...]:
    cells, time = (_quick_cells(), _QUICK_TIME) if quick else (_CELLS, TIME)
    return tuple(
        _problem("cells", task, cell, time, limit_ms=None if quick else limit_ms(cell, task))
        for cell in cells
        for task in _TRAINING
    )


def limit_ms(cell: _Cell, task: Task) -> float | None:
    """Return the time of the best kernels known for this cell (LIMIT_SOURCE), None where none is known."""
    forward, backward = _LIMITS_MS.get(cell, (None, None))
    if task == "forward":
        return forward
    return None if forward is None or backward is None else round(forward + backward, 3)


def _quick_cells() -> tuple[_Cell, ...]:
    return (_QUICK, ("slstm", *_QUICK[1:]))


def _sweep(quick: bool) -> tuple[Problem, ...]:
    """Return a star of problems: every head_dim, and around two of them batch, time and precision varied singly."""
    if quick:
        return tuple(_problem("sweep", task, _QUICK, _QUICK_TIME) for task in _TRAINING)
    both: Task = "forward + backward"
    heads = [(heads, head_dim) for head_dim, heads in _SWEPT_HEADS.items()]
    problems = [_problem("sweep", task, ("lstm", *shape, BATCH), TIME) for shape in heads for task in _TRAINING]
    problems += [_problem("sweep", both, ("gru", *shape, BATCH), TIME) for shape in heads]
    for shape in _CENTRES:
        batches = [("lstm", *shape, batch) for batch in (1, 4, 64, 256)]
        problems += [_problem("sweep", task, cell, TIME) for cell in batches for task in _TRAINING]
        centre = ("lstm", *shape, BATCH)
        problems += [_problem("sweep", both, centre, time) for time in (256, 4096)]
        problems += [_problem("sweep", both, centre, TIME, precision) for precision in ("fp16", "fp32")]
    return tuple(problems)


def _large(quick: bool) -> tuple[Problem, ...]:
    if quick:
        return tuple(_problem("large", task, _QUICK, _QUICK_TIME) for task in _TRAINING)
    precisions: tuple[PrecisionName, ...] = ("bf16", "fp16")
    return tuple(
        _problem("large", task, (model, 1, head_dim, batch), time, precision, limit if task == "forward" else None)
        for (model, head_dim, batch, time), limit in _LARGE.items()
        for precision in precisions
        for task in _TRAINING
    )


def _accuracy(quick: bool) -> tuple[Problem, ...]:
    if quick:
        return (_problem("accuracy", "forward", _QUICK, _QUICK_TIME),)
    cells: tuple[_Cell, ...] = (("lstm", 1, 512, 16), ("lstm", 12, 64, 16), ("slstm", 12, 64, 16))
    return tuple(_problem("accuracy", "forward", cell, ACCURACY_TIME) for cell in cells)


def _waiting(quick: bool) -> tuple[Problem, ...]:
    time = _QUICK_TIME if quick else _WAITING_TIME
    problems = []
    for cell, projection_size in _WAITING[:1] if quick else _WAITING:
        limits = _WAITING_LIMITS_US.get(cell[0], (None, None))
        for task, limit_us in zip(_TRAINING, limits, strict=True):
            limit_ms = None if limit_us is None else limit_us * time / 1e3
            problem = _problem("waiting", task, cell, time, limit_ms=limit_ms)
            problems.append(problem.model_copy(update={"projection_size": projection_size}))
    return tuple(problems)


def _problem(
    table: TableName, task: Task, cell: _Cell, time: int, precision: PrecisionName = "bf16", limit_ms: float | None = None
) -> Problem:
    model, heads, head_dim, batch = cell
    return Problem(
        table=table,
        task=task,
        model=model,
        precision=precision,
        batch=batch,
        time=time,
        channels=heads * head_dim,
        heads=heads,
        limit_ms=limit_ms,
    )
