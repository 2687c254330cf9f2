"""The decision: everything the templates need besides the mathematics, and nothing of their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from minrnn_gen.plan.classes import FamilyName, Strategy
from minrnn_gen.plan.exchange import Exchange, exchange_of
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.plan.summary import html_table, limit_in_words
from minrnn_gen.precision import FunctionAccuracy

SEQUENTIAL_TERMS = frozenset({"fill_and_drain", "step", "products", "pointwise", "cells", "exchange", "shared_matrix",
                              "reduce_split_k", "rounds", "means", "prefetch", "launch"})  # fmt: skip
# Terms that overlap perfectly would combine by their maximum, the infinite norm; 3 fits measured scans best.
OVERLAP_NORM = 3
# The tile counter at the head of a look-back's workspace, alone on its cache line.
WORKSPACE_HEAD_BYTES = 128

StatesOut = Literal["none", "storage", "arithmetic"]

_Readers = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Specialization:
    """The properties of a call that a compiled kernel depends on; a call in another specialization gets a kernel of its own.

    `alignment_bytes`: every contiguous run of x and y starts at a multiple of it (a power of two, at most 16). `reverse`: time
    runs from the last step to the first. `states_out`: the dtype of the states after every step, if they are written. `packed`:
    sequences are concatenated, and their tiles not known before the launch. `input_size`: the input size of x if the kernel
    projects it. `pool`: the dtype of the states of a pool, whose slots a step reads and writes in place, if it does. `replays`:
    the kept steps of a draft run again before its new steps. `products_added`: the pre-activations that a backward reads
    include the products with R; it neither reads these nor writes their gradients.
    """

    alignment_bytes: int
    reverse: bool = False
    resets: bool = False
    states_out: StatesOut = "none"
    packed: bool = False
    input_size: int = 0
    pool: StatesOut = "none"
    replays: bool = False
    products_added: bool = False


@dataclass(frozen=True)
class Margin:
    """Slack of the plan in one constraint: `used` of `limit`, in `unit`."""

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
class PlannedProblem:
    """The problem as the plan keeps it: a cell in one pass with its sizes and precision, the calls served, and the GPU.

    `batch` and `time` are the typical sizes that were planned for; the kernel is valid for all. `heads` are the blocks of a
    recurrent matrix, 1 where there is none. `matrix_product` is how a kernel that keeps it on the chip multiplies by it:
    "mma_16bit", "tf32x3", "tf32" or "fma", empty where there is none. `saved_values` names the values of its forward that a
    backward reads, `recomputed_values` the values that it recomputes; both are empty in other passes.
    """

    kernel_pass: str
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
    gpu: str
    arch: str
    has_bf16_convert: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedProblem:
        """Read back the problem in the result of a plan's `to_json`."""
        read: _Readers = {
            "saved_values": tuple,
            "recomputed_values": tuple,
            "specialization": lambda values: Specialization(**values),
        }
        return cls(**_read(data, read))

    @property
    def has_matrix(self) -> bool:
        """Whether the cell multiplies its previous output by a matrix R."""
        return bool(self.matrix_product)

    @property
    def has_pool(self) -> bool:
        """Whether states are in slots of a pool."""
        return self.specialization.pool != "none"


@dataclass(frozen=True)
class LaunchShape:
    """The shape of a launch: what a block has, how it copies, and how many blocks the GPU holds at once.

    A block processes `tile_steps` steps at once; where time is split over any blocks, `group_tiles` of its tiles share one
    state that is passed on, otherwise it is 0. `partition` says how warps and lanes divide R and the cells if R is on the chip,
    or the n values of a channel; else it is empty.
    """

    threads: int
    channels_per_block: int
    tile_steps: int
    group_tiles: int
    copy_bytes: int
    copies_are_asynchronous: bool
    resident_blocks: int
    partition: Mapping[str, int]

    def __post_init__(self) -> None:
        _freeze(self, "partition")


@dataclass(frozen=True)
class Budget:
    """The resources of a block, as promises that the compiled kernel is held against."""

    registers_per_thread: int
    registers_estimated: int
    shared_bytes: int
    shared_map: Mapping[str, int]
    blocks_per_sm: int

    def __post_init__(self) -> None:
        _freeze(self, "shared_map")


@dataclass(frozen=True)
class Prediction:
    """The prediction that ranked the candidate, and the candidates it was ranked among.

    `predicted_us` names the cost model's terms in microseconds, for the typical sizes. `passed_over` is why a preferred family
    of kernels does not serve, one sentence, empty where there is none. `assumed_rates` names the numbers of the GPU that were
    never measured, for which the prediction takes those of datasheets.
    """

    predicted_us: Mapping[str, float]
    margins: tuple[Margin, ...]
    candidate_count: int
    rejected: Mapping[str, int]
    passed_over: str
    runners_up: tuple[Alternative, ...]
    assumed_rates: tuple[str, ...]

    def __post_init__(self) -> None:
        _freeze(self, "predicted_us", "rejected")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prediction:
        """Read back the prediction in the result of a plan's `to_json`."""
        read: _Readers = {
            "margins": lambda margins: tuple(Margin(**margin) for margin in margins),
            "runners_up": lambda others: tuple(
                Alternative(MappingProxyType(other["variables"]), other["predicted_us"]) for other in others
            ),
            "assumed_rates": tuple,
        }
        return cls(**_read(data, read))


@dataclass(frozen=True, repr=False)
class KernelPlan:
    """One kernel, decided; immutable, without CUDA text, and the same on every machine.

    `name` is the name of its template and of its search space, `entry` determines its parameters. `family` is the class of
    cells it serves, `strategy` how it takes their steps. `variables` are the searched choices. In a debug build
    `waits_are_bounded`: a wait that takes seconds reports its purpose and ends the kernel.
    """

    name: str
    entry: str
    family: FamilyName
    strategy: Strategy
    problem: PlannedProblem
    variables: Mapping[str, int]
    launch: LaunchShape
    budget: Budget
    prediction: Prediction
    waits_are_bounded: bool = False

    def __post_init__(self) -> None:
        _freeze(self, "variables")

    def __repr__(self) -> str:
        """Return one line; `to_json` has the whole."""
        return f"KernelPlan({self.title}, for {self.problem.gpu}: {self._chosen})"

    def _repr_html_(self) -> str:
        return html_table(self.summary)

    @property
    def title(self) -> str:
        """The kernel, its cell, size and precision in one phrase."""
        problem = self.problem
        return f"{self.entry} of {problem.model}, hidden_size {problem.hidden_size}, {problem.precision}"

    @property
    def symbol(self) -> str:
        """The name of the kernel in its text, which profilers show: its cell, and what it does."""
        return f"cell_{self.problem.model}_{self.entry}"

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The decision in a few labelled phrases."""
        memory = f"{self.budget.shared_bytes:,} bytes of shared memory"
        block = f"{self.launch.threads} threads, {memory}; {self.budget.blocks_per_sm} blocks per SM"
        return [
            ("kernel", f"{self.title}, layout {self.problem.layout}"),
            ("gpu", f"{self.problem.gpu} ({self.problem.arch})"),
            ("chosen", self._chosen),
            ("block", block),
            ("predicted", f"{self.predicted_total_us:,.1f} us for batch {self.problem.batch}, time {self.problem.time}"),
            ("limit", self.limit),
        ]

    @property
    def limit(self) -> str:
        """The largest term of the predicted time, in words."""
        return limit_in_words(self.prediction.predicted_us, self.predicted_total_us)

    @property
    def _chosen(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.variables.items())

    @property
    def has_clusters(self) -> bool:
        """Whether the GPU has clusters, and waits that suspend a thread: from compute capability 9.0 on."""
        return int("".join(filter(str.isdigit, self.problem.arch))) >= 90

    @property
    def workspace_head_bytes(self) -> int:
        """Bytes before the tile states in the workspace of a look-back."""
        return WORKSPACE_HEAD_BYTES

    @property
    def template(self) -> str:
        """The file of the template."""
        return template_of(self.name)

    @property
    def is_scan(self) -> bool:
        """Whether it composes steps as maps of each state, or of each dual number, over time."""
        return self.entry in ("scan_forward", "scan_backward")

    @property
    def is_persistent(self) -> bool:
        """Whether one launch takes all steps of a dense cell, with its matrix on the chip."""
        return self.strategy == "persistent"

    @property
    def exchange(self) -> Exchange:
        """How the blocks of a persistent kernel pass on the results of a step."""
        return exchange_of(self.problem.kernel_pass, {"cluster_blocks": 1, "grid_blocks": self.grid_blocks, **self.variables})

    @property
    def is_cooperative(self) -> bool:
        """Whether blocks wait for others whatever their order, so that all blocks of a launch have to be resident."""
        return self.strategy in ("cooperative", "coupled", "projected") or self.group_exchange_bytes > 0

    @property
    def grid_blocks(self) -> int:
        """Blocks anywhere on the GPU that share a head and wait for each other; 1 where none do."""
        return self.launch.partition.get("grid_blocks") or self.variables.get("grid_blocks", 1)

    @property
    def group_sequences(self) -> int:
        """Sequences of such blocks, or of a cluster or a block alone."""
        return self.variables["batch_tile"] * self.variables.get("column_groups", 1)

    @property
    def group_exchange_bytes(self) -> int:
        """Bytes of memory through which such blocks pass outputs, 0 where none do."""
        if "exchange_bytes" in self.launch.partition:
            return self.launch.partition["exchange_bytes"] * self.variables.get("column_groups", 1)
        # Two operands, of even and of odd steps, each word of 4 bytes with its step; and means over units likewise.
        means_bytes = self.launch.partition.get("means_exchange_bytes", 0)
        return 2 * self.budget.shared_map["operand"] + means_bytes if self.grid_blocks > 1 else 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of memory with a head of R in the order in which blocks stream it, after exchanges; 0 where none do."""
        return self.launch.partition.get("packed_bytes", 0)

    @property
    def head_dim(self) -> int:
        """Units of a head."""
        return self.problem.hidden_size // self.problem.heads

    @property
    def sums_of_lane(self) -> range:
        """Sums that a lane has of a warpgroup's product of 64 rows: half as many as columns."""
        return range(self.variables.get("batch_tile", self.launch.tile_steps) // 2)

    @property
    def packets_per_tile(self) -> int:
        """Tile states of a tile in a look-back: one per state and channel of a column."""
        return self.problem.state_count * (1 if self.problem.layout == "BDT" else self.launch.channels_per_block)

    @property
    def packet_bytes(self) -> int:
        """Bytes of one map that blocks pass on: of m states, m x m + m numbers; of one, two."""
        return self.launch.partition.get("map_bytes", 2 * self.problem.arithmetic_bytes)

    @property
    def predicted_total_us(self) -> float:
        """Predicted time at the typical sizes, in microseconds."""
        return float(total_us(self.prediction.predicted_us))

    def to_json(self) -> dict[str, Any]:
        """Return plain data, part by part, that `from_json` reads back to an equal plan."""
        return dict(_plain(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelPlan.from_json, (self.to_json(),)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelPlan:
        """Read back what `to_json` gave; raises TypeError where keys are missing or unknown."""
        read: _Readers = {
            "problem": PlannedProblem.from_json,
            "launch": lambda values: LaunchShape(**values),
            "budget": lambda values: Budget(**values),
            "prediction": Prediction.from_json,
        }
        return cls(**_read(data, read))


def template_of(name: str) -> str:
    """Return the file of the template of this name."""
    return f"{name}.cu.j2"


def total_us(terms: Mapping[str, Amount]) -> Amount:
    """Combine a cost model's terms: the sequential ones add up, the others overlap, though the slowest is never quite alone."""
    overlapping: Amount = 0.0
    sequential: Amount = 0.0
    for name, us in terms.items():  # asked for every candidate
        if name in SEQUENTIAL_TERMS:
            sequential = sequential + us  # not in place: arrays are shared
        else:
            overlapping = overlapping + us**OVERLAP_NORM
    total: Amount = overlapping ** (1 / OVERLAP_NORM) + sequential
    return total


def _freeze(part: object, *names: str) -> None:
    """Replace mappings of a frozen dataclass by copies that cannot be changed."""
    for name in names:
        object.__setattr__(part, name, MappingProxyType(dict(getattr(part, name))))


def _read(data: Mapping[str, Any], read: _Readers) -> dict[str, Any]:
    """Return the values of a JSON object, with `read` applied to values that are not plain."""
    return {name: read[name](value) if name in read else value for name, value in data.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
