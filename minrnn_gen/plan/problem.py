"""The problem to plan: a cell's shape, the sizes and the GPU, without any mathematics or text of the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.classes import CellKind, FamilyName, family_of
from minrnn_gen.plan.kernel_plan import KernelPlan, PlannedProblem, Specialization
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.precision import Fp32Product, Precision

# "arguments" are what products of a dense cell multiply instead of its output, made again for a backward; "joined" are rows of
# two matrices next to each other, the operand of several products at once; "dropout" is between layers, whatever their cell,
# "slots" moves states between a pool and rows, and "drafts" says where drafted steps have theirs.
# "filter" is a linear filter, whose recursion is the cell, "filter_backward" its gradients.
KernelPass = Literal[
    "forward", "backward", "step", "arguments", "joined", "dropout", "slots", "drafts", "filter", "filter_backward"
]
Layout = Literal["BTD", "TBD", "BDT"]
# How a kernel multiplies by R: tensor cores in 16 bits, three of their products in tf32, one of them, or fused multiply-adds.
MatrixProduct = Literal["mma_16bit", "tf32x3", "tf32", "fma"]

# The widest copy a thread can issue (cp.async and ld.global both stop at 16 bytes).
WIDEST_COPY_BYTES = 16
REGISTER_BYTES = 4
# Sizes assumed where the spec gives no hint: a mini-batch of a sequence model.
ASSUMED_BATCH = 8
ASSUMED_TIME = 2048


class Sizes(NamedTuple):
    """The sizes of a call: `batch` sequences of about `time` steps."""

    batch: int
    time: int

    def distance(self, other: Sizes) -> float:
        """Return how far apart two sizes are: the powers of two between them, of batch and time together."""
        return sum(abs(math.log2(max(size, 1) / max(there, 1))) for size, there in zip(self, other, strict=True))


class KernelKey(NamedTuple):
    """The identity of a kernel within a spec: its operation, and the sizes that it is planned for."""

    kernel_pass: KernelPass
    specialization: Specialization
    sizes: Sizes

    @classmethod
    def of(cls, plan: KernelPlan) -> KernelKey:
        """Return the identity of the kernel that has this plan."""
        return cls(
            cast(KernelPass, plan.problem.kernel_pass),
            plan.problem.specialization,
            Sizes(plan.problem.batch, plan.problem.time),
        )


class PhaseShape(NamedTuple):
    """Coupled states that a kernel composes over time at once: form and size of their map, and its operations."""

    form: str
    size: int
    operation_count: int
    is_constant: bool = False


@dataclass(frozen=True)
class CellShape:
    """Facts about a cell in one pass that planning needs: its class, names and counts.

    The counts are per channel and time step: `read_count` and `written_count` of values moved, `operation_count` and
    `transcendental_count` of the operations on them. `saved_values` names the values of its forward that a backward reads,
    `recomputed_values` the values that it recomputes. `proof` says why the cell is of its class, for people; nothing is planned
    by it. In a cell with the axis n, `vector_states`, `vector_parameters` and the inputs `shared` have it; `wide` counts are
    for each of n values, with `sum_count` sums over them. `prepared_count` values of a channel are computed before the steps
    that read them. Time may be divided where `divides_time`: the end of a part is affine in its begin. `rounds`: the gates
    whose products multiply other values than the previous output, in the order of a step. `means`: how many levels of means
    over units the programs of a step have, how many means one of them takes at most, and one level; all 0 without.
    `means_over_all`: some are over all heads. `waits`: for each exchange of means of a step in parts, how many means arrive at
    once, and how many values of a unit they average; `held_count` values of a unit are kept between parts. A backward reads
    `mean_rows` rows of means of its forward. `inputs`: the inputs X.*, which are read in addition to the gates.
    `block_diagonal`: the recurrent gates with block-diagonal matrices, each with its number of equal blocks. Means over a head
    are over one of its `norm_parts` equal parts; with more than one, `waits_within_parts` of the waits are for such means.
    `phases`: coupled states in the order of their scans; `varying_counts` are operations and special functions of a step
    without values of parameters alone. Compilers keep such values over all steps where it `keeps_constants`; they compute
    functions with branches, sines and cosines, again for each tile. `is_dual`: states are pairs, each a scan
    over dual numbers.
    """

    name: str
    kind: CellKind
    gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    carried_count: int
    read_count: int
    written_count: int
    operation_count: int
    transcendental_count: int
    saved_values: tuple[str, ...] = ()
    recomputed_values: tuple[str, ...] = ()
    proof: str = ""
    vector_states: tuple[str, ...] = ()
    vector_parameters: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    wide_operation_count: int = 0
    wide_transcendental_count: int = 0
    sum_count: int = 0
    prepared_count: int = 0
    divides_time: bool = False
    rounds: tuple[tuple[str, ...], ...] = ()
    means: tuple[int, int, int] = (0, 0, 0)
    means_over_all: bool = False
    waits: tuple[tuple[int, int], ...] = ()
    held_count: int = 0
    mean_rows: int = 0
    phases: tuple[PhaseShape, ...] = ()
    varying_counts: tuple[int, int] = (0, 0)
    keeps_constants: bool = False
    is_dual: bool = False

    @property
    def has_means(self) -> bool:
        """Whether a step needs means over units."""
        return any(self.means)

    inputs: tuple[str, ...] = ()
    block_diagonal: tuple[tuple[str, int], ...] = ()
    norm_parts: int = 1
    waits_within_parts: int = 0

    @property
    def step_values(self) -> int:
        """Values per channel that are known before a step: gates and inputs X.*."""
        return len(self.gates) + len(self.inputs)

    @property
    def has_matrix(self) -> bool:
        """Whether the cell multiplies its previous output by a matrix R, so that its channels go together."""
        return bool(self.recurrent_gates)

    @property
    def round_products(self) -> tuple[int, ...]:
        """Number of recurrent products in each exchange of a step: of the previous output, then of each further round."""
        of_rounds = tuple(map(len, self.rounds))
        return (len(self.recurrent_gates) - sum(of_rounds), *of_rounds)

    @property
    def makes_again(self) -> bool:
        """Whether a backward recomputes values of the forward by a kernel: the arguments of rounds, or means over units."""
        return bool(self.rounds or self.waits)

    @property
    def is_scan(self) -> bool:
        """Whether its steps are affine maps of each state, which are composed in any grouping."""
        return self.kind == "affine-diagonal"


@dataclass(frozen=True)
class Problem:
    """One kernel to plan; `batch` and `time` are typical sizes, the kernel must be valid for all.

    `heads` are the blocks of a recurrent matrix, which divide `hidden_size`; 1 where there is none. `fp32_product` is how
    products of fp32 are made. `state_size` is n, 0 without the axis; `groups` of channels have inputs S.* of their own.
    """

    kernel_pass: KernelPass
    cell: CellShape
    hidden_size: int
    precision: Precision
    layout: Layout
    batch: int
    time: int
    specialization: Specialization
    gpu: GpuProfile
    heads: int = 1
    fp32_product: Fp32Product = "tf32x3"
    state_size: int = 0
    groups: int = 1

    @property
    def family(self) -> FamilyName:
        """The kernels that serve the cell."""
        return family_of(self.cell.kind, self.state_size > 0)

    @property
    def matrix_product(self) -> MatrixProduct:
        """How a kernel with R on the chip multiplies by it."""
        if self.precision.storage_bytes == 2:
            return "mma_16bit"
        return self.fp32_product if self.precision.name == "fp32" else "fma"

    @property
    def head_dim(self) -> int:
        """Units of a head, the rows and columns of a block of R."""
        return self.hidden_size // self.heads

    @property
    def registers_per_value(self) -> int:
        """Registers of a thread that one value of the arithmetic takes."""
        return self.precision.arithmetic_bytes // REGISTER_BYTES

    @property
    def products_moved(self) -> int:
        """Values of products with R that a backward reads for a cell and step, and as many gradients that it writes."""
        return 0 if self.specialization.products_added else len(self.cell.recurrent_gates)

    @property
    def element_count(self) -> int:
        """Elements of y at the typical sizes."""
        return self.batch * self.time * self.hidden_size

    @property
    def traffic_bytes(self) -> int:
        """Bytes that must cross the memory bus at the typical sizes, every value once."""
        return self.element_count * (self.cell.read_count + self.cell.written_count) * self.precision.storage_bytes

    @property
    def state_value_bytes(self) -> int:
        """Bytes of a value of a state in memory: in a pool it may be in 16 bits."""
        is_narrow = self.specialization.pool == "storage"
        return self.precision.storage_bytes if is_narrow else self.precision.arithmetic_bytes

    @property
    def sizes(self) -> Sizes:
        """The typical sizes."""
        return Sizes(self.batch, self.time)

    def at(self, batch: Amount, time: Amount) -> Problem:
        """Return the same problem at other sizes, or at many: arrays, for which the cost models then give arrays."""
        return replace(self, batch=batch, time=1 if self.kernel_pass == "step" else time)

    def in_plan(self, arch: str) -> PlannedProblem:
        """Return the problem as a plan keeps it; `arch` is the target of the compiler."""
        return PlannedProblem(
            kernel_pass=self.kernel_pass,
            model=self.cell.name,
            hidden_size=self.hidden_size,
            heads=self.heads,
            layout=self.layout,
            batch=self.batch,
            time=self.time,
            precision=self.precision.name,
            storage_dtype=self.precision.storage_dtype,
            storage_bytes=self.precision.storage_bytes,
            arithmetic_dtype=self.precision.arithmetic_dtype,
            arithmetic_bytes=self.precision.arithmetic_bytes,
            functions=self.precision.functions,
            matrix_product=self.matrix_product if self.cell.has_matrix else "",
            state_count=len(self.cell.states),
            saved_values=self.cell.saved_values,
            recomputed_values=self.cell.recomputed_values,
            specialization=self.specialization,
            gpu=self.gpu.name,
            arch=arch,
            has_bf16_convert=self.gpu.has_bf16_arithmetic,
        )


def alignment_of(*offsets_bytes: int) -> int:
    """Return the largest power of two, at most `WIDEST_COPY_BYTES`, that divides all the given offsets."""
    combined = WIDEST_COPY_BYTES
    for offset in offsets_bytes:
        combined |= offset
    return combined & -combined


# Up to where a step of a dense cell has a kernel of its own. A forward of one step of an LSTM with one head of 512 units was
# measured to take 8 us with one sequence and 15 us with 16, of which few are products: with no more than this for its
# products, a kernel that multiplies by fused multiply-adds is faster. Of the 128 of an SM and cycle (CUDA C++ Programming
# Guide, arithmetic instruction throughput, 8.6 to 10.0) half are expected.
STEP_PRODUCTS_US = 5.0
MULTIPLY_ADDS_PER_SM_CYCLE = 64
# With small heads a forward of one step is short too, and with this many sequences it has work for all SMs.
STEP_SEQUENCES_MAX = 128


def step_sequences_max(gpu: GpuProfile, matrix_elements: int) -> int:
    """Return the most sequences for which a step of a dense cell has its own kernel; `matrix_elements` counts R's elements."""
    multiply_adds = STEP_PRODUCTS_US * 1e-6 * gpu.sm_count * gpu.sm_clock_hz * MULTIPLY_ADDS_PER_SM_CYCLE
    return min(STEP_SEQUENCES_MAX, int(multiply_adds / matrix_elements))
