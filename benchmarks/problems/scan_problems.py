"""Problems that are measured, and the problems of scans, table by table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pydantic

from minrnn_gen.precision import PrecisionName

TableName = Literal[
    "raw", "cells", "layers", "classic", "sweep", "large", "accuracy", "host", "decode",
    "selective", "waiting", "headline", "weights", "spread", "sizes", "token", "scans", "jit", "dispatch", "ensemble",
]  # fmt: skip
# The table `host` has besides a forward that is recorded for a backward, the table `selective` a single step.
Task = Literal["forward", "forward, recorded", "backward", "forward + backward", "step"]
# Units of the tables whose times are too short for ms.
_UNITS: dict[TableName, str] = {"host": "us", "decode": "us per token", "token": "us", "dispatch": "us", "waiting": "us a step"}
# Calls that are timed together: programs call again and again, and find the processor's caches warm.
CALLS_IN_A_ROW = 16

TABLES: tuple[TableName, ...] = ("raw", "cells", "selective", "layers", "classic")
TITLES: dict[TableName, str] = {
    "raw": "Raw scans, h[t] = a[t] h[t-1] + b[t]",
    "cells": "Fused cells, from pre-activations",
    "selective": "Mamba's selective scan, from pre-activations",
    "layers": "minGRU layer: projection, gates and scan",
    "classic": "One sequence through one layer, on the CPU and on the GPU",
}
GATES = {"min_gru": 2, "min_gru_log": 2, "min_lstm": 3, "selective": 3}


class Problem(pydantic.BaseModel):
    """Problem of a table: a cell, its sizes, the precision and the task.

    `model` is a cell, None for a raw scan; `inputs` the width of x where it is projected first. A dense cell has `heads`,
    perhaps `projection_size`, and `limit_ms`, the time of the best kernels known for this cell and shape alone. A module of
    torch.nn has `layers`, and `is_cell` where it takes a single step. `autocast`: inputs and weights are fp32, and autocast
    chooses `precision`. `goal` is the share of the best alternative's time that is to be reached, and `mark` says what that
    waits for.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    table: TableName
    task: Task
    model: str | None = None
    precision: PrecisionName
    batch: int
    time: int
    channels: int
    inputs: int | None = None
    state_size: int | None = None
    heads: int | None = None
    projection_size: int | None = None
    limit_ms: float | None = None
    layers: int | None = None
    bidirectional: bool = False
    is_cell: bool = False
    autocast: bool = False
    goal: float | None = None

    @property
    def head_dim(self) -> int:
        """The units of a head."""
        return self.channels // (self.heads or 1)

    @property
    def label(self) -> str:
        """The problem as the first cell of a row."""
        return " ".join(filter(None, (self.model, self._sizes, self.arithmetic, "" if self.task == "forward" else self.task)))

    @property
    def _sizes(self) -> str:
        if self.layers is not None:
            steps = f"cell {self.batch}" if self.is_cell else f"{self.batch} x {self.time}"
            many = f", {self.layers} layers" if self.layers > 1 else ""
            return f"{steps}, {self.inputs} to {self.channels}{many}{', both directions' if self.bidirectional else ''},"
        if self.heads is not None:
            return f"{self.heads} x {self.head_dim}, {self.batch} x {self.time}"
        return f"{self.batch} x {self.time} x {self.channels}" + (f" of {self.state_size}" if self.state_size else "")

    @property
    def arithmetic(self) -> str:
        """The precision in words: of a module of torch.nn in 16 bits, whether autocast or the weights bring it."""
        if self.layers is None or self.precision == "fp32":
            return self.precision
        return f"{self.precision} {'autocast' if self.autocast else 'weights'}"

    @property
    def stored_precision(self) -> PrecisionName:
        """The precision of inputs and weights."""
        return "fp32" if self.autocast else self.precision

    @property
    def size_names(self) -> str:
        """The names of the sizes in the label."""
        if self.layers is not None:
            return "batch x time, inputs to units"
        return "batch x time x channels" if self.heads is None else "heads x head_dim, batch x time"

    @property
    def heading(self) -> str:
        """The names of the sizes, and the unit of the times where it is not ms."""
        return f"{_UNITS[self.table]}: {self.size_names}" if self.table in _UNITS else self.size_names

    @property
    def units_per_ms(self) -> float:
        """The time of a run of 1 ms in the unit that the heading names, else in ms."""
        return {
            "host": 1e3 / CALLS_IN_A_ROW,
            "dispatch": 1e3 / CALLS_IN_A_ROW,
            "decode": 1e3 / max(self.time, 1),
            "waiting": 1e3 / max(self.time, 1),
            "token": 1e3,
        }.get(self.table, 1.0)

    @property
    def spec(self) -> dict[str, str | int | bool | None]:
        """The spec of its kernel, in the default layout."""
        return {
            "model": self.model,
            "hidden_size": self.channels,
            "heads": self.heads or 1,
            "input_size": self.inputs,
            "state_size": self.state_size,
            "projection_size": self.projection_size,
            "precision": self.precision,
            "batch": self.batch,
            "time": self.time,
            "training": self.task not in ("forward", "step"),
        }

    @property
    def elements(self) -> int:
        """The elements of y."""
        return self.batch * self.time * self.channels

    @property
    def words(self) -> int | None:
        """Storage words per element of y that any kernel has to read or write; None where a projection decides the time.

        A scan reads a and b and writes y; its backward reads a, y and dy and writes da and db. A cell reads its gates and
        writes y; its backward reads the gates, y and dy and writes the gradients of the gates.
        """
        if self.inputs is not None:
            return None
        if self.model is None:
            return {"forward": 3, "backward": 5}.get(self.task, 8)
        gates = GATES[self.model]
        # With n values per channel y is no state, and the backward does not read it.
        backward = 2 * gates + (2 if self.state_size is None else 1)
        return {"forward": gates + 1, "step": gates + 1, "backward": backward}.get(self.task, gates + 1 + backward)


# (batch, time, channels, precision)
_Shape = tuple[int, int, int, PrecisionName]
_TRAINING: tuple[Task, ...] = ("forward", "forward + backward")


def problems_of(table: TableName, quick: bool = False) -> tuple[Problem, ...]:
    """Return the problems of `table`, in the order in which they are measured; `quick`: one or two small ones."""
    problems: dict[TableName, Callable[[bool], tuple[Problem, ...]]] = {
        "raw": _raw,
        "cells": _cells,
        "selective": _selective,
        "layers": _layers,
        "classic": _classic,
    }
    return problems[table](quick)


def _raw(quick: bool) -> tuple[Problem, ...]:
    forward: tuple[_Shape, ...] = (
        (8, 1024, 1536, "fp32"),
        (8, 4096, 1536, "fp32"),
        (8, 16384, 1536, "fp32"),
        (8, 65536, 1536, "fp32"),
        (8, 16384, 1536, "bf16"),
        (1, 65536, 512, "fp32"),
        (1, 1048576, 512, "fp32"),
        (64, 512, 1024, "fp32"),
    )
    both: tuple[_Shape, ...] = ((8, 4096, 1536, "fp32"), (8, 16384, 1536, "fp32"), (8, 16384, 1536, "bf16"))
    if quick:
        forward, both = ((2, 1024, 256, "fp32"),), ((2, 1024, 256, "bf16"),)
    return (*(_scan("forward", shape) for shape in forward), *(_scan("forward + backward", shape) for shape in both))


def _cells(quick: bool) -> tuple[Problem, ...]:
    sizes = ((8, 4096, 1536), (8, 16384, 1536), (1, 65536, 512), (64, 512, 1024))
    precisions: tuple[PrecisionName, ...] = ("fp32", "bf16")
    shapes: list[_Shape] = [(*size, precision) for size in sizes for precision in precisions]
    # Few channels over a long time, whose tiles are too few for a GPU, and so many steps that all of its memory is moved.
    shapes += [(*size, "bf16") for size in ((1, 65536, 128), (3, 7001, 640), (1, 262144, 4096), (1, 1048576, 1024))]
    tasks: tuple[Task, ...] = ("forward", "backward")
    if quick:
        shapes = [(2, 1024, 256, "bf16")]
    return tuple(
        Problem(table="cells", task=task, model=model, precision=precision, batch=batch, time=time, channels=channels)
        for task in tasks
        for model in ("min_gru", "min_lstm")
        for batch, time, channels, precision in shapes
    )


def _selective(quick: bool) -> tuple[Problem, ...]:
    # Of one Mamba block: channels are twice the width of the model, and N is 16 in every published one.
    shapes = ((2, 1024, 256),) if quick else ((8, 4096, 2048), (1, 65536, 1024), (64, 512, 1536))
    steps = () if quick else ((8, 1, 2048), (64, 1, 2048), (1024, 1, 2048))
    tasks: tuple[tuple[Task, tuple[tuple[int, int, int], ...]], ...] = (
        *((task, shapes) for task in _TRAINING),
        ("step", steps),
    )
    precisions: tuple[PrecisionName, ...] = ("bf16",) if quick else ("fp32", "bf16")
    return tuple(
        Problem(
            table="selective",
            task=task,
            model="selective",
            precision=precision,
            batch=batch,
            time=time,
            channels=channels,
            state_size=16,
        )
        for task, of_task in tasks
        for batch, time, channels in of_task
        for precision in precisions
    )


def _layers(quick: bool) -> tuple[Problem, ...]:
    shapes: tuple[_Shape, ...] = (
        (8, 4096, 1024, "bf16"),
        (8, 4096, 1024, "fp32"),
        (16, 1024, 768, "bf16"),
        (1, 65536, 512, "bf16"),
    )
    if quick:
        shapes = ((2, 1024, 256, "bf16"),)
    return tuple(_layer(task, shape) for shape in shapes for task in _TRAINING)


def _classic(quick: bool) -> tuple[Problem, ...]:
    times = (256, 4096) if quick else tuple(2**power for power in range(8, 17))
    # The widths of CUDA_RNN's published table; 128 elements per step are the most for which the CPU target scans in parallel.
    return tuple(
        Problem(table="classic", task="forward", model=model, precision="fp32", batch=1, time=time, channels=128, inputs=64)
        for model in ("min_gru", "min_lstm")
        for time in times
    )


def _scan(task: Task, shape: _Shape) -> Problem:
    batch, time, channels, precision = shape
    return Problem(table="raw", task=task, precision=precision, batch=batch, time=time, channels=channels)


def _layer(task: Task, shape: _Shape) -> Problem:
    batch, time, width, precision = shape
    # min_gru_log, the paper's log-space model: the only form of the layer that its reference code computes.
    return Problem(
        table="layers",
        task=task,
        model="min_gru_log",
        precision=precision,
        batch=batch,
        time=time,
        channels=width,
        inputs=width,
    )
