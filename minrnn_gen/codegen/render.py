"""A plan and a lowered cell as one self-contained CUDA file; the only user of Jinja."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jinja2

from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.codegen.cell_names import CellNames
from minrnn_gen.codegen.context import AnyLowered, context_of
from minrnn_gen.codegen.dual_text import DualBackwardText, DualText
from minrnn_gen.codegen.gradients import GRADIENTS, MOVED_AXES, SUMMED_LANES, SUMMED_ROWS
from minrnn_gen.codegen.parameter import initializer_text, member_text, parameter_text
from minrnn_gen.codegen.signature import names_of, signature_context
from minrnn_gen.codegen.vectors_text import VectorsBackwardText, VectorsText
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.plan.kernel_plan import KernelPlan


def literal(value: bool | int) -> str:
    """Return a truth value as C++ writes it."""
    return "true" if value else "false"


@cache
def environment() -> jinja2.Environment:
    """Return the one strict template environment; every undefined name is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(package_folder("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is CUDA; every name in the context is an identifier or passed through `comment`
    )
    made.filters |= {"parameters": parameter_text, "members": member_text, "initializer": initializer_text, "literal": literal}
    return made


def render(plan: KernelPlan, cell: AnyLowered, header: tuple[str, ...]) -> str:
    """Render the plan's template with exactly `plan`, `cell`, `header` and `signature`."""
    signature, text = signature_context(plan, names_of(cell)), _text_of(plan, cell)
    return environment().get_template(plan.template).render(plan=plan, cell=text, header=header, signature=signature)


def _text_of(plan: KernelPlan, cell: AnyLowered) -> CellNames | VectorsText | VectorsBackwardText:
    if plan.is_scan and isinstance(cell, LoweredSteps) and cell.dual:
        return DualText.of(cell, cell.dual)
    if plan.is_scan and isinstance(cell, LoweredStepsBackward) and cell.dual:
        return DualBackwardText.of(cell, cell.dual)
    return context_of(cell, plan.problem.specialization.products_added)


@dataclass(frozen=True)
class Types:
    """The part of a problem that templates without a cell read: the architecture, and the dtypes of arrays and arithmetic."""

    arch: str
    storage_dtype: str
    arithmetic_dtype: str = ""
    has_bf16_convert: bool = True


@dataclass(frozen=True)
class NoSharedMemory:
    """The budget of kernels that have no dynamic shared memory."""

    shared_bytes: int = 0


@dataclass(frozen=True)
class Microbenchmark:
    """A template that measures a GPU instead of computing a cell, as a plan: "every_gpu", "cluster" or "matrix"."""

    entry: str
    problem: Types
    budget: NoSharedMemory = NoSharedMemory()
    waits_are_bounded: bool = False
    has_clusters: bool = True


def render_microbenchmark(ruler: Microbenchmark) -> str:
    """Render the template of a microbenchmark."""
    return (
        environment()
        .get_template(f"microbenchmarks/{ruler.entry}.cu.j2")
        .render(plan=ruler, cell=None, header=(), signature=())
    )


@dataclass(frozen=True)
class RankExchange:
    """Context of the kernel that passes states between the GPUs of one machine.

    The buffer of a rank has `slots` messages of `slot_words` words from each other rank.
    """

    problem: Types
    entry: str = "rank_exchange"
    budget: NoSharedMemory = NoSharedMemory()
    threads: int = 1024
    slots: int = 8
    slot_words: int = 1 << 18


def render_rank_exchange(plan: RankExchange) -> str:
    """Render the kernel that passes states between GPUs."""
    return environment().get_template(f"ranks/{plan.entry}.cu.j2").render(plan=plan)


@dataclass(frozen=True)
class Gradients:
    """Context of the template of gradients outside the recurrence.

    Sums are added up by blocks of `rows` warps, each for `lanes` channels. `moves`: with copies between arrays of different
    widths, along `axes` axes; `slots`: with copies between a pool and rows.
    """

    problem: Types
    entry: str = GRADIENTS
    budget: NoSharedMemory = NoSharedMemory()
    lanes: int = SUMMED_LANES
    rows: int = SUMMED_ROWS
    axes: int = MOVED_AXES
    moves: bool = False
    slots: bool = False


def render_gradients(plan: Gradients) -> str:
    """Render the additional kernels of an exported backward."""
    return environment().get_template("export/cuda_gradients.cu.j2").render(plan=plan)
