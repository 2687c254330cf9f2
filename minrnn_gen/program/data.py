"""A call as data: the buffers that it allocates, and its launches, products and copies on them, in order.

Buffers and the arrays of the call have slots. Sizes, offsets and grids are numbers: integers, or expressions of sizes that are
not known yet. With expressions a program stands for every call with the same arrays present.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from minrnn_gen.program.number import Number, value


class At(NamedTuple):
    """A place in the buffer in a slot; without a slot the offset is an address of an array outside the program."""

    slot: int | None
    offset_bytes: Number


class Gap(NamedTuple):
    """A stride between two buffers: the number of elements from one place to another."""

    first: At
    second: At
    itemsize: int


Source = Any
"""An argument of a launch: a number, a number of NumPy, a place, or a gap."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A contiguous array that the call allocates; `fill` is the byte that fills it, None if it is uninitialised."""

    slot: int
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    dtype: str
    fill: int | None


@dataclass(frozen=True, slots=True)
class Cast:
    """An array of the call in another dtype: the slot of the result, and that of its `source`."""

    slot: int
    source: int
    dtype: str


class KernelRef(NamedTuple):
    """A kernel; `part` is the end of its name where its plan has several, `half` says whether it is for half of the GPU."""

    key: Hashable
    part: str = ""
    half: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel."""

    kernel: KernelRef
    blocks: Number
    threads: int
    arguments: tuple[Source, ...]


class Matrix(NamedTuple):
    """A matrix as `gpu.cublas.Matrix`, at a place."""

    at: At
    dtype: str
    row: Number
    stride: Number
    transposed: bool


@dataclass(frozen=True, slots=True)
class Multiply:
    """A product as `gpu.cublas.Product`; without a `workspace` the library has its own."""

    m: Number
    n: Number
    k: Number
    left: Matrix
    right: Matrix
    result: Matrix
    batch: Number
    adds: bool
    in_tf32: bool
    workspace: At | None


@dataclass(frozen=True, slots=True)
class CopyHeadsFirst:
    """A copy of a contiguous R [gates, heads, D, D] to [heads, gates, D, D]."""

    shape: tuple[int, ...]
    dtype: str
    source: At
    target: At


@dataclass(frozen=True, slots=True)
class ZeroBeyond:
    """A copy, with zeros beyond each sequence's length, of an array whose axes have the letters `axes`."""

    source: At
    target: At
    lengths: At
    axes: str
    shape: tuple[Number, ...]


class Mask(NamedTuple):
    """Which vectors are float32, bit by bit, where all biases are present."""

    bits: int


@dataclass(frozen=True, slots=True)
class Called:
    """A function of an export's own C, by its name; that C defines its effect."""

    function: str
    arguments: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """A copy of [.., heads, gates, square] to [.., gates, heads, square] in the storage dtype; `count` elements in all."""

    source: At
    target: At
    count: Number
    heads: int
    gates: int
    square: Number


@dataclass(frozen=True, slots=True)
class AddUp:
    """Sums [runs, parts, rows, batch, width] added up over parts and batch: `count` rows from `first` on."""

    source: At
    target: At
    parts: Number
    rows: int
    batch: Number
    width: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Action:
    """Runs once, in Python only: its function takes a function that returns the address of a pointer of the run."""

    run: Callable[[Callable[[Any], Any]], None]


@dataclass(frozen=True, slots=True)
class Computed:
    """Computation that the arrays' library does: each source is a slot, or an array outside the program.

    `compute` returns the array in `slot`; without a slot it writes into its last source.
    """

    slot: int | None
    sources: tuple[Any, ...]
    compute: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Loop:
    """Operations repeated for each value of the symbol `index` from `start` to `stop`."""

    index: str
    start: Number
    stop: Number
    step: Number
    body: tuple[Any, ...]


class Step(NamedTuple):
    """Operations on a lane, after the steps of other lanes that they wait for, by number."""

    lane: int
    waits: tuple[int, ...]
    body: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OnLanes:
    """Steps on lanes, which run next to each other, numbered from 0 in this order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A call: slots up to `inputs` are its arrays, then come its buffers.

    `results` names slots; `metadata` describes the arrays, with places as pointers.
    """

    inputs: int
    buffers: tuple[Buffer, ...]
    casts: tuple[Cast, ...]
    operations: tuple[Any, ...]
    results: Any
    metadata: Any


def unrolled(operations: tuple[Any, ...], sizes: Mapping[str, int] | None = None) -> Iterator[Any]:
    """Yield operations without loops, whose symbols have the values `sizes`."""
    for operation in operations:
        if isinstance(operation, Loop):
            known = sizes or {}
            ends = (int(value(end, known)) for end in (operation.start, operation.stop, operation.step))
            for index in range(*ends):
                yield from unrolled(operation.body, {**known, operation.index: index})
        elif isinstance(operation, OnLanes):
            steps = (step._replace(body=tuple(unrolled(step.body, sizes))) for step in operation.steps)
            yield OnLanes(tuple(steps))
        else:
            yield operation if sizes is None else bound(operation, sizes)


def bound(part: Any, sizes: Mapping[str, int]) -> Any:
    """Return data without loops where symbols have the values `sizes`."""
    return changed(part, lambda inner: bound(inner, sizes)) if has_members(part) else value(part, sizes)


def has_members(part: Any) -> bool:
    """Say whether a part of a program has members of its own."""
    return isinstance(part, tuple) or (is_dataclass(part) and type(part).__module__ == __name__)


def members_of(part: Any) -> tuple[Any, ...]:
    """Return the members of a part of a program."""
    return part if isinstance(part, tuple) else tuple(getattr(part, member.name) for member in fields(part))


def changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """Return a part of a program with its members changed."""
    values = map(change, members_of(part))
    return type(part)(*values) if not isinstance(part, tuple) or hasattr(part, "_fields") else tuple(values)
