"""Problems of layers that take the place of torch's, table by table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.problems.scan_problems import Problem, TableName, Task
from minrnn_gen.precision import PrecisionName

TITLES: dict[TableName, str] = {
    "headline": "Layers of torch.nn at its defaults, and the same classes here: forward without gradients / training step",
    "weights": "The same layers, their weights and inputs in 16 bits",
    "spread": "Recurrent layers over batch, time, units, layers and directions",
    "sizes": "One layer of torch.nn's over batch and units, 256 steps, as a share of torch's time",
    "token": "One step of a layer over time, and of a cell, forward without gradients",
    "scans": "Layers of minGRU and minLSTM, log-space model, and the forms in which torch computes them",
}
TABLES = tuple(TITLES)
# The share of the time of torch's best way that a layer is to take at most.
GOAL = 0.7
# The same wherever the sizes are, those that are nobody's included.
SIZES_GOAL = 0.8
TRAINING: tuple[Task, ...] = ("forward", "forward + backward")

# (precision, whether autocast brings it)
Kind = tuple[PrecisionName, bool]
AT_DEFAULTS: tuple[Kind, ...] = (("fp32", False), ("bf16", True), ("fp16", True))
WEIGHTS: tuple[Kind, ...] = (("bf16", False), ("fp16", False))
# Of tables with many shapes: training as most programs do it, and decoding with weights as they are stored.
_TRAINED: tuple[Kind, ...] = (("fp32", False), ("bf16", True))
_SERVED: tuple[Kind, ...] = (("fp32", False), *WEIGHTS)


@dataclass(frozen=True)
class Shape:
    """Module of torch.nn, and the sizes of its input."""

    model: str
    batch: int
    time: int
    inputs: int
    units: int
    layers: int = 1
    bidirectional: bool = False
    is_cell: bool = False


# Layers that people replace: of taggers, translators, speech recognisers, forecasts, and agents with many environments.
SWAPPED = (
    Shape("lstm", 32, 100, 64, 128),
    Shape("lstm", 64, 256, 256, 256, 2),
    Shape("lstm", 64, 512, 512, 512),
    Shape("lstm", 128, 128, 512, 512, 2),
    Shape("lstm", 256, 256, 512, 512),
    Shape("lstm", 64, 256, 1024, 1024, 2),
    Shape("lstm", 16, 1024, 768, 768, 4),
    Shape("lstm", 1024, 64, 128, 256),
    Shape("lstm", 32, 256, 2048, 2048),
    Shape("gru", 128, 256, 512, 512),
    Shape("gru", 64, 256, 1024, 1024),
)
# A layer whose weights are stored in 16 bits, without autocast.
SWAPPED_IN_16_BITS = (Shape("lstm", 256, 128, 1024, 1024),)
# The centre of the spread; one size at a time differs from it, and then several.
CENTRE = Shape("lstm", 16, 256, 256, 256)
_BATCHES, _TIMES, _UNITS = (1, 256, 4096), (1, 64, 4096), (64, 1024, 2048)
_STACKS = ((2, False), (3, False), (4, False), (1, True), (2, True))
_CORNERS = (
    Shape("lstm", 1, 1, 2048, 2048),
    Shape("lstm", 1, 4096, 512, 512),
    Shape("lstm", 4096, 16, 64, 128),
    Shape("gru", 16, 256, 256, 256),
    Shape("gru", 1, 1024, 1024, 1024),
    Shape("gru", 1024, 64, 128, 256, 2),
    Shape("gru", 32, 512, 512, 512, 3, bidirectional=True),
    Shape("elman", 16, 256, 256, 256),
)
_ALL_BATCHES, _ALL_UNITS = (1, 4, 16, 64, 256, 1024), (64, 128, 256, 512, 1024, 2048)
_DECODED_UNITS, _DECODED_BATCHES = 512, (1, 16)
_SCANS = (
    Shape("min_gru_log", 8, 4096, 1024, 1024),
    Shape("min_gru_log", 16, 1024, 768, 768),
    Shape("min_gru_log", 1, 65536, 512, 512),
    Shape("min_gru_log", 1024, 64, 128, 256),
    Shape("min_lstm_log", 8, 4096, 1024, 1024),
    Shape("min_lstm_log", 16, 1024, 768, 768),
)


def problems_of(table: TableName, quick: bool = False) -> tuple[Problem, ...]:
    """Return the problems of `table`, in the order in which they are measured; `quick`: one or two small ones.

    All kinds of a shape follow each other, and all tasks of a kind: they share inputs and their results in float64.
    """
    problems: dict[TableName, Callable[[], tuple[Problem, ...]]] = {
        "headline": lambda: (
            *_problems("headline", SWAPPED, AT_DEFAULTS),
            *_problems("headline", SWAPPED_IN_16_BITS, WEIGHTS),
        ),
        "weights": lambda: _problems("weights", SWAPPED, WEIGHTS),
        "spread": lambda: _problems("spread", spread(), _TRAINED),
        "sizes": lambda: _problems("sizes", sizes(), AT_DEFAULTS),
        "token": lambda: _problems("token", _decoded(), _SERVED, ("forward",)),
        "scans": lambda: _problems("scans", _SCANS, _TRAINED),
    }
    quick_shapes: dict[TableName, Shape] = {
        "token": Shape("lstm", 1, 1, 64, 64, is_cell=True),
        "scans": Shape("min_gru_log", 2, 256, 64, 64),
    }
    if not quick:
        return problems[table]()
    shape = quick_shapes.get(table, Shape("lstm", 16, 64, 64, 64, 2))
    tasks: tuple[Task, ...] = ("forward",) if table == "token" else TRAINING
    return _problems(table, (shape,), WEIGHTS[:1] if table == "weights" else _TRAINED, tasks)


def spread() -> tuple[Shape, ...]:
    """Return a star of shapes: batch, time, units and the stack varied singly around the centre, and corners beyond it."""
    model, inputs = CENTRE.model, CENTRE.inputs
    star = [CENTRE]
    star += [Shape(model, batch, CENTRE.time, inputs, CENTRE.units) for batch in _BATCHES]
    star += [Shape(model, CENTRE.batch, time, inputs, CENTRE.units) for time in _TIMES]
    star += [Shape(model, CENTRE.batch, CENTRE.time, units, units) for units in _UNITS]
    star += [Shape(model, CENTRE.batch, CENTRE.time, inputs, CENTRE.units, *stack) for stack in _STACKS]
    return (*star, *_CORNERS)


def sizes() -> tuple[Shape, ...]:
    """Return one layer of LSTM and of GRU at all batches and units, its input of the same width."""
    models, time = ("lstm", "gru"), CENTRE.time
    return tuple(Shape(model, batch, time, units, units) for model in models for units in _ALL_UNITS for batch in _ALL_BATCHES)


def _decoded() -> tuple[Shape, ...]:
    units = _DECODED_UNITS
    return tuple(
        Shape(model, batch, 1, units, units, is_cell=is_cell)
        for model in ("lstm", "gru")
        for batch in _DECODED_BATCHES
        for is_cell in (True, False)
    )


def _problems(
    table: TableName, shapes: Sequence[Shape], kinds: Sequence[Kind], tasks: Sequence[Task] = TRAINING
) -> tuple[Problem, ...]:
    return tuple(_problem(table, shape, kind, task) for shape in shapes for kind in kinds for task in tasks)


def _problem(table: TableName, shape: Shape, kind: Kind, task: Task) -> Problem:
    precision, autocast = kind
    return Problem(
        table=table,
        task=task,
        model=shape.model,
        precision=precision,
        batch=shape.batch,
        time=shape.time,
        channels=shape.units,
        inputs=shape.inputs,
        layers=shape.layers,
        bidirectional=shape.bidirectional,
        is_cell=shape.is_cell,
        autocast=autocast,
        goal=SIZES_GOAL if table == "sizes" else GOAL,
    )
