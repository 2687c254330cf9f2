"""What NAME.c for GPUs is made of: kernels compiled for several GPUs and sizes, and which of them serves which call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.render import Gradients
from minrnn_gen.codegen.signature import suffixes_of
from minrnn_gen.plan.kernel_plan import KernelPlan, StatesOut
from minrnn_gen.plan.size_classes import BATCHES, TIMES
from minrnn_gen.run.cuda import STRIDING_BLOCKS
from minrnn_gen.run.dense.launch import CALL_BYTES
from minrnn_gen.run.vectors.launch import part_bytes_of


@dataclass(frozen=True)
class Dispatch:
    """One pass of one variant on one GPU: its kernels' numbers, and for each place of the grid of sizes which of them."""

    kernels: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class ExportedKernel:
    """A compiled kernel as NAME.c has it: `image` is the number of its cubin.

    `forms` are the numbers of its lists of arguments: of one that takes steps one by one that of the launch before them, and
    that of a step.

    A launch has ceil(ceil(batch / sequences) * units / units_per_block) * cluster_blocks * time_parts blocks, where `units` are
    columns, channels or heads of a sequence, or of several.
    """

    built: BuiltKernel
    image: int
    forms: tuple[int, ...]
    units: int
    units_per_block: int
    sequences: int

    @property
    def plan(self) -> KernelPlan:
        """The plan."""
        return self.built.plan

    def is_launched_as(self, other: ExportedKernel) -> bool:
        """Whether both are the same cubin, launched alike."""
        return replace(self, built=other.built) == other

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its launches in the cubin."""
        return tuple(f"{self.plan.entry}{suffix}" for suffix in suffixes_of(self.plan.entry))

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return self.plan.variables.get("cluster_blocks", 1)

    @property
    def time_parts(self) -> int:
        """Parts of time with blocks of their own, of a cell with n values per channel."""
        return self.plan.variables.get("time_parts", 1)

    @property
    def lookback(self) -> int:
        """Whether any blocks take tiles of a sequence."""
        return int(bool(self.plan.variables.get("lookback")))

    @property
    def is_cooperative(self) -> int:
        """Whether all blocks of a launch have to be resident."""
        return int(self.plan.is_cooperative)

    @property
    def tile_state_bytes(self) -> int:
        """Bytes of a tile's state in the workspace of a look-back, or of a scan all of whose blocks are resident."""
        hands_on = self.lookback or self.plan.strategy == "cooperative"
        return 2 * self.plan.problem.arithmetic_bytes * self.plan.packets_per_tile if hands_on else 0

    @property
    def alignment(self) -> int:
        """Bytes at whose multiples every run of elements begins that is copied at once."""
        copies_runs = self.plan.strategy != "stepwise" and (
            self.plan.problem.kernel_pass != "step" or self.plan.family == "dense"
        )
        return self.plan.problem.specialization.alignment_bytes if copies_runs else 1

    @property
    def parts(self) -> int:
        """Parts of time with sums of their own, where it is not divided into tiles; of S.* of n values, parts of channels."""
        if self.plan.family == "vectors":
            return self.plan.launch.partition["group_blocks"]
        return 1 if self.plan.family == "dense" else self.cluster_blocks

    @property
    def checkpoint_values(self) -> int:
        """Values of the states at the begin of a tile, of a backward of a cell with n values per channel."""
        plan = self.plan
        if plan.family != "vectors" or plan.problem.kernel_pass != "backward":
            return 0
        return plan.launch.partition["state_rows"] * plan.problem.hidden_size * plan.variables["lanes"]

    @property
    def part_values(self) -> int:
        """Values of the ends of the parts of a sequence, of a backward of a cell with n values per channel."""
        plan = self.plan
        if plan.family != "vectors" or plan.problem.kernel_pass != "backward":
            return 0
        return (
            plan.launch.partition["blocks_per_sequence"] * plan.launch.partition["part_values"] * plan.variables["time_parts"]
        )

    @property
    def exchange_bytes(self) -> int:
        """Bytes through which the blocks of a group, or the parts of time of a block's channels, hand states on."""
        if self.plan.family == "vectors":
            return part_bytes_of(self.plan) if self.plan.problem.kernel_pass == "forward" else 0
        return self.plan.group_exchange_bytes if self.plan.is_persistent else 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of all heads of R, behind those, in the order in which the blocks stream it."""
        return self.plan.problem.heads * self.plan.packed_bytes

    @property
    def grid_blocks(self) -> int:
        """Blocks of such a group."""
        return self.plan.grid_blocks if self.plan.is_persistent and self.exchange_bytes else 0


@dataclass(frozen=True)
class ExportedGpu:
    """A GPU that kernels were compiled for: those from `first` on are its own.

    `dispatch`: of forwards by packing, resets, states and direction, of backwards by packing, resets and direction, of a step.
    `is_exact`: some have instructions of one architecture alone. A step of more than `step_sequences_most` is a forward of one.
    `gradients`: the number of the cubin with the kernels of gradients outside the recurrence, where there are gradients.
    `needs_cublas`: a forward takes steps one by one.
    """

    target: Target
    first: int
    count: int
    dispatch: tuple[Dispatch, ...]
    is_exact: bool
    step_sequences_most: str
    gradients: int | None
    needs_cublas: bool

    @property
    def capability(self) -> int:
        """The compute capability, as 90."""
        return int(self.target.profile.compute_capability.replace(".", ""))


@dataclass(frozen=True)
class CudaCode:
    """What the template of NAME.c for GPUs reads beside the interface.

    `states_out`: the types in which a forward writes the states after every step, first "none"; `saved_states` is the place in
    it of what a backward needs. `output_state` is what is multiplied by R. `has_packed`: packed sequences have kernels of their
    own.
    """

    gpus: tuple[ExportedGpu, ...]
    kernels: tuple[ExportedKernel, ...]
    images: tuple[bytes, ...]
    forms: tuple[tuple[str, ...], ...]
    states_out: tuple[StatesOut, ...]
    saved_states: int
    output_state: str | None
    has_packed: bool
    begin_blocks: int = STRIDING_BLOCKS
    call_bytes: int = CALL_BYTES
    striding_threads: int = 256
    striding_blocks: int = 4 * STRIDING_BLOCKS
    summed_lanes: int = Gradients.lanes
    summed_rows: int = Gradients.rows
    batches: tuple[int, ...] = BATCHES
    times: tuple[int, ...] = TIMES

    @property
    def has_stepwise(self) -> bool:
        """Whether there are kernels that take steps one by one."""
        return any(len(kernel.forms) > 1 for kernel in self.kernels)

    @property
    def slots_most(self) -> int:
        """The most arguments that a kernel has."""
        return max(map(len, self.forms))

    @staticmethod
    def words(image: bytes) -> list[str]:
        """Return a cubin as rows of numbers of 8 bytes, zeros behind its end."""
        padded = image + bytes(-len(image) % 8)
        numbers = [f"0x{int.from_bytes(padded[at : at + 8], 'little'):x}" for at in range(0, len(padded), 8)]
        return [",".join(numbers[at : at + 8]) for at in range(0, len(numbers), 8)]


def manifest_of(code: CudaCode) -> dict[str, Any]:
    """Return what NAME.json says of the kernels."""
    kernels = [
        {
            "gpu": kernel.plan.problem.gpu,
            "arch": kernel.plan.problem.arch,
            "pass": kernel.plan.problem.kernel_pass,
            "entry": kernel.plan.entry,
            "sizes": [kernel.plan.problem.batch, kernel.plan.problem.time],
            "specialization": vars(kernel.plan.problem.specialization),
            "variables": dict(kernel.plan.variables),
            "shared_bytes": kernel.plan.budget.shared_bytes,
            "digest": kernel.built.digest,
            "cubin_bytes": len(kernel.built.cubin or b""),
        }
        for kernel in code.kernels
    ]
    return {"gpus": [gpu.target.profile.name for gpu in code.gpus], "kernels": kernels}
