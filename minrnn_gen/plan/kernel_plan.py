"""The decision: everything the templates need besides the mathematics, and nothing of their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from minrnn_gen.precision import FunctionAccuracy

SEQUENTIAL_TERMS = frozenset({
    "fill_and_drain", "step", "products", "pointwise", "cells", "exchange", "shared_matrix", "add_up", "look_ahead", "launch",
})  # fmt: skip
# Terms that overlap perfectly would combine by their maximum, the infinite norm; 3 fits measured scans best.
OVERLAP_NORM = 3

StatesOut = Literal["none", "storage", "arithmetic"]


@dataclass(frozen=True)
class Specialization:
    """The properties of a call that a compiled kernel depends on; a call in another specialization gets a kernel of its own.

    `alignment_bytes`: every contiguous run of x and y starts at a multiple of it (a power of two, at most 16). `reverse`: time
    runs from the last step to the first. `resets`: the call has some. `states_out`: in which dtype the states after every step
    are written, if they are. `underfills_gpu`: batch and hidden size alone do not fill the GPU: time may be split over any
    blocks. `short`: the sequences are, so that a tile may hold a whole one.
    """

    alignment_bytes: int
    reverse: bool = False
    resets: bool = False
    states_out: StatesOut = "none"
    underfills_gpu: bool = False
    short: bool = False


@dataclass(frozen=True)
class Margin:
    """How close the plan is to one constraint: `used` of `limit`, in `unit`."""

    constraint: str
    used: float
    limit: float
    unit: str


@dataclass(frozen=True)
class Alternative:
    """A feasible candidate that was not taken, with its predicted time."""

    variables: Mapping[str, int]
    predicted_us: float


@dataclass(frozen=True)
class KernelPlan:
    """One kernel, decided; immutable, without CUDA text, and the same on every machine.

    `variables` are the searched choices; `registers_per_thread`, `shared_bytes` and `blocks_per_sm` are promises that the
    compiled kernel is held against; `predicted_us` names the cost model's terms in microseconds, for `batch` and `time`,
    the typical sizes that were planned for (the kernel is valid for all). A block walks `tile_steps` steps at once; where
    time is split over any blocks, `group_tiles` of its tiles share one handed-on state, otherwise it is 0. The GPU holds
    `resident_blocks` at once. `heads` are the blocks of a recurrent matrix, 1 where there is none; `matrix_product` is how
    a kernel that keeps it on the chip multiplies by it: "narrow", "tf32x3" or "fma", empty where there is none.
    `saved_values` names what a backward reads of its forward, `recomputed_values` what it computes again; both are empty in
    other passes. `passed_over` is why a preferred family of kernels does not serve, one sentence, empty where there is
    none. In a debug build `waits_are_bounded`: whoever waits in vain says so and ends the kernel. `assumed_rates` names the
    numbers of the GPU that nobody measured, for which the prediction takes those of datasheets.
    """

    kernel_pass: str
    template: str
    entry: str
    gpu: str
    arch: str
    model: str
    hidden_size: int
    heads: int
    layout: str
    batch: int
    time: int
    precision: str
    storage_dtype: str
    storage_bytes: int
    arithmetic_dtype: str
    arithmetic_bytes: int
    functions: FunctionAccuracy
    matrix_product: str
    state_count: int
    saved_values: tuple[str, ...]
    recomputed_values: tuple[str, ...]
    specialization: Specialization
    variables: Mapping[str, int]
    threads: int
    channels_per_block: int
    copy_bytes: int
    copies_are_asynchronous: bool
    has_bf16_convert: bool
    registers_per_thread: int
    registers_estimated: int
    shared_bytes: int
    shared_map: Mapping[str, int]
    blocks_per_sm: int
    tile_steps: int
    group_tiles: int
    resident_blocks: int
    predicted_us: Mapping[str, float]
    margins: tuple[Margin, ...]
    candidate_count: int
    rejected: Mapping[str, int]
    passed_over: str
    runners_up: tuple[Alternative, ...]
    waits_are_bounded: bool = False
    assumed_rates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("variables", "shared_map", "predicted_us", "rejected"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def is_persistent(self) -> bool:
        """Whether one launch takes all steps of a dense cell, with its matrix on the chip."""
        return self.entry.startswith("persistent_")

    @property
    def packets_per_tile(self) -> int:
        """Compositions that a tile hands on where time is split over any blocks: one per state and channel of a column."""
        return self.state_count * (1 if self.layout == "BDT" else self.channels_per_block)

    @property
    def predicted_total_us(self) -> float:
        """Predicted time at the typical sizes, in microseconds."""
        return total_us(self.predicted_us)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back to an equal plan."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelPlan:
        """Read back what `to_json` gave; raises TypeError where keys are missing or unknown."""
        values = dict(data)
        values["specialization"] = Specialization(**values["specialization"])
        for name in ("saved_values", "recomputed_values", "assumed_rates"):
            values[name] = tuple(values.get(name, ()))
        values["margins"] = tuple(Margin(**margin) for margin in values["margins"])
        values["runners_up"] = tuple(
            Alternative(MappingProxyType(other["variables"]), other["predicted_us"]) for other in values["runners_up"]
        )
        return cls(**values)


def total_us(terms: Mapping[str, float]) -> float:
    """Combine a cost model's terms: the sequential ones add up, the others overlap, though the slowest is never quite alone."""
    overlapping = sequential = 0.0
    for name, us in terms.items():  # asked for every candidate
        if name in SEQUENTIAL_TERMS:
            sequential += us
        else:
            overlapping += us**OVERLAP_NORM
    return float(overlapping ** (1 / OVERLAP_NORM)) + sequential


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
