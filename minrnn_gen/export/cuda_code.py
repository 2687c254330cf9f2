"""Contents of NAME.c for GPUs: kernels compiled for several GPUs and sizes, and the dispatch of calls to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.render import Gradients
from minrnn_gen.codegen.signature import suffixes_of
from minrnn_gen.export.emit_c import Functions, called_in
from minrnn_gen.export.source import MOVES_SLOTS_ARGUMENTS
from minrnn_gen.export.widened import MOVE_SLOTS
from minrnn_gen.plan.kernel_plan import KernelPlan, StatesOut
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.plan.size_classes import BATCHES, TIMES
from minrnn_gen.program.number import ROOT_STEPS
from minrnn_gen.run.cuda import STRIDING_BLOCKS


@dataclass(frozen=True)
class Dispatch:
    """The calls of one variant on one GPU: the numbers of their programs, and the program for each place of the grid of sizes.

    `kernels`: the numbers of each program's kernels.
    """

    programs: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class ExportedKernel:
    """A compiled kernel in NAME.c: `image` is the number of its cubin."""

    built: BuiltKernel
    image: int

    @property
    def plan(self) -> KernelPlan:
        """The plan."""
        return self.built.plan

    @property
    def is_stepwise(self) -> bool:
        """Whether steps are launched one by one, after a launch that begins."""
        return self.plan.strategy == "stepwise"

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its launches in the cubin."""
        return tuple(f"{self.plan.symbol}{suffix}" for suffix in suffixes_of(self.plan.entry))

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return self.plan.variables.get("cluster_blocks", 1)

    @property
    def launch_numbers(self) -> tuple[int, ...]:
        """Threads, shared bytes, blocks of a cluster, whether all blocks have to be resident, and the most resident blocks."""
        plan = self.plan
        numbers = plan.launch.threads, plan.budget.shared_bytes, self.cluster_blocks, int(plan.is_cooperative)
        return (*numbers, plan.launch.resident_blocks)


@dataclass(frozen=True)
class ExportedGpu:
    """A GPU that kernels were compiled for: kernels from `first` on are its own.

    `dispatch`: of forwards by packing, resets and states, of backwards by packing and resets, of a step. `is_exact`: some
    kernels have instructions of one architecture alone. `gradients`: the number of the cubin with the kernels of gradients
    outside the recurrence, where there are gradients. `needs_cublas`: a forward takes steps one by one.
    """

    target: Target
    first: int
    count: int
    dispatch: list[Dispatch]
    is_exact: bool
    gradients: int | None
    needs_cublas: bool

    @property
    def capability(self) -> int:
        """The compute capability, as 90."""
        return int(self.target.profile.compute_capability.replace(".", ""))


@dataclass(frozen=True)
class CudaCode:
    """Context of the template of NAME.c for GPUs in addition to the interface.

    `programs`: indices of functions, each with its row of numbers. `states_out`: the types in which a forward writes the states
    after every step, first "none"; `saved_states` is the index in it of the type that a backward needs. `output_state` is the
    state that R multiplies. `has_packed`: packed sequences have kernels of their own. `moves`: arrays are copied into wider
    ones. `has_steps`: there are single steps.
    """

    gpus: tuple[ExportedGpu, ...]
    kernels: tuple[ExportedKernel, ...]
    images: tuple[bytes, ...]
    programs: tuple[tuple[int, tuple[int, ...]], ...]
    functions: Functions
    states_out: tuple[StatesOut, ...]
    saved_states: int
    output_state: str | None
    has_packed: bool
    moves: bool = False
    has_steps: bool = False
    striding_threads: int = 256
    striding_blocks: int = 4 * STRIDING_BLOCKS
    root_steps: int = ROOT_STEPS
    widest_copy_bytes: int = WIDEST_COPY_BYTES
    summed_lanes: int = Gradients.lanes
    summed_rows: int = Gradients.rows
    batches: tuple[int, ...] = BATCHES
    times: tuple[int, ...] = TIMES

    @property
    def has_stepwise(self) -> bool:
        """Whether there are kernels that take steps one by one."""
        return any(kernel.is_stepwise for kernel in self.kernels)

    @property
    def slots_most(self) -> int:
        """The most arguments that a kernel has, those of gradients outside the recurrence included."""
        others = (MOVE_SLOTS if self.moves else 8, MOVES_SLOTS_ARGUMENTS if self.has_steps else 0)
        return max(self.functions.slots_most, *others)

    @property
    def programs_most(self) -> int:
        """The most programs that a variant has."""
        return max(len(dispatch.programs) for gpu in self.gpus for dispatch in gpu.dispatch)

    @property
    def calls(self) -> frozenset[str]:
        """Functions that the programs' functions call."""
        return called_in(self.functions.texts)

    @staticmethod
    def words(image: bytes) -> list[str]:
        """Return a cubin as rows of 8-byte numbers, padded with zeros."""
        padded = image + bytes(-len(image) % 8)
        numbers = [f"0x{int.from_bytes(padded[at : at + 8], 'little'):x}" for at in range(0, len(padded), 8)]
        return [",".join(numbers[at : at + 8]) for at in range(0, len(numbers), 8)]


def manifest_of(code: CudaCode) -> dict[str, Any]:
    """Return the kernels' part of NAME.json."""
    kernels = [
        {
            "gpu": kernel.plan.problem.gpu,
            "arch": kernel.plan.problem.arch,
            "pass": kernel.plan.problem.kernel_pass,
            "entry": kernel.plan.symbol,
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
