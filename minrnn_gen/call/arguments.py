"""The arrays of one call: as a caller gives them, checked, and those that a forward or a backward writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import Reading
from minrnn_gen.call.sequences import Sequences


class Given(NamedTuple):
    """What a caller gave, not checked yet; None where nothing was given."""

    x: Any
    R: Any = None
    weight: Any = None
    bias: Any = None
    recurrent_bias: Any = None
    parameters: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    resets: Any = None
    lengths: Any = None
    cu_seqlens: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """The checked arrays of one call.

    `x` has the axes `x_axes`, of which the projection may still be due (`weight`); `rows` and `time` are the sizes of its batch
    and time axes. Absent arrays are None; `parameters` and `initial` follow the cell's order. `reverse`, of a call of one
    direction: time runs from the last step of each sequence to its first. `reading`: how these arrays were read, which then
    have the numbers that they have there. A dense cell, and no other, has `R`, and a `recurrent_bias` where one was given.
    """

    x: Array
    x_axes: str
    rows: int
    time: int
    weight: Array | None
    bias: Array | None
    parameters: tuple[Array, ...]
    initial: tuple[Array | None, ...]
    sequences: Sequences
    reverse: bool = False
    reading: Reading | None = None
    R: Array | None = None
    recurrent_bias: Array | None = None

    @property
    def batch(self) -> int:
        """How many sequences there are, which states have one row each for."""
        return self.sequences.count


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward writes: y, the states after every step where they are `kept` (else empty), and the final states."""

    y: Array
    kept: tuple[Array, ...]
    final: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class IncomingGradient:
    """The gradients that a backward starts from: of y, and of the final states in the cell's order, None for zeros.

    `reading`: how they and the arrays of the forward were read.
    """

    dy: Array
    dfinal: tuple[Array | None, ...]
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward of one direction writes: the gradients of x and of the initial states, and, where asked for, `sums`.

    The sum of `sums` [parts, gates + recurrent gates + parameters, batch, H] over parts and batch is the gradient of bias,
    recurrent bias and parameters.
    """

    dx: Array
    dinitial: tuple[Array, ...]
    sums: Array | None
