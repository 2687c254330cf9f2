"""Problems of single calls, table by table."""

from __future__ import annotations

from benchmarks.problems.scan_problems import Problem, TableName, Task

TITLES: dict[TableName, str] = {
    "host": "The host's time of one call of a layer, projection from 768 included, until Python goes on",
    "decode": "Decoding token by token, from pre-activations; projected and torch.nn from x of the width of the cell",
}
TABLES = tuple(TITLES)

# (model, heads, head_dim)
_Cell = tuple[str, int, int]
# So few steps that the device is done before the next call: no launch waits for room in its queue.
HOST_BATCH, HOST_TIME, HOST_INPUTS = 16, 16, 768
_HOST_TASKS: tuple[Task, ...] = ("forward", "forward, recorded", "forward + backward")
_HOST_CELLS: tuple[_Cell, ...] = (("lstm", 12, 64), ("gru", 12, 64), ("min_gru", 1, 768), ("lstm", 1, 256))
# Tokens of a text, which is decoded in one run.
DECODED = 64
_DECODED_CELLS: tuple[_Cell, ...] = (
    ("lstm", 1, 512),
    ("gru", 1, 512),
    ("lstm", 12, 64),
    ("min_gru", 1, 512),
    # One product waits for another, with R on the chip and beyond it.
    ("gru_reset_before", 1, 512),
    ("gru_reset_before", 1, 4096),
)
_BATCHES = (1, 16)
_QUICK: _Cell = ("lstm", 1, 64)


def problems_of(table: TableName, quick: bool = False) -> tuple[Problem, ...]:
    """Return the problems of `table`, in the order in which they are measured; `quick`: one or two small ones."""
    if table == "host":
        return tuple(_host(cell, task) for cell in ((_QUICK,) if quick else _HOST_CELLS) for task in _HOST_TASKS)
    cells, batches = ((_QUICK,), (1,)) if quick else (_DECODED_CELLS, _BATCHES)
    return tuple(_problem("decode", "forward", cell, batch, DECODED) for cell in cells for batch in batches)


def _host(cell: _Cell, task: Task) -> Problem:
    return _problem("host", task, cell, HOST_BATCH, HOST_TIME).model_copy(update={"inputs": HOST_INPUTS})


def _problem(table: TableName, task: Task, cell: _Cell, batch: int, time: int) -> Problem:
    model, heads, units = cell
    return Problem(
        table=table,
        task=task,
        model=model,
        precision="bf16",
        batch=batch,
        time=time,
        channels=heads * units,
        heads=heads,
    )
