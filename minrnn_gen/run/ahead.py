"""Compilation ahead of calls: the kernels for contiguous arrays of some sizes, gradients included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.at_once import Watch, made_at_once
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import projected_at
from minrnn_gen.build.recipe import check_sizes_of_vectors
from minrnn_gen.call.interface import RUNS_REVERSED
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes, alignment_of, step_sequences_max
from minrnn_gen.precision import precision_of
from minrnn_gen.run.backend import Backend
from minrnn_gen.run.dense.joined import joined_specialization
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.run.gpu import GpuRun

_Request = tuple[KernelPass, Specialization, Sizes]


def step_specialization(builder: Builder) -> Specialization:
    """Return the specialization of a step, with the alignment of whole rows of a dense cell's state."""
    if not builder.cell_shape.has_matrix:
        return builder.hinted_specialization
    storage_bytes = precision_of(builder.spec.precision).storage_bytes
    return Specialization(alignment_of(builder.spec.head_dim * storage_bytes))


def plain_specialization(builder: Builder, kernel_pass: KernelPass, sizes: Sizes) -> Specialization:
    """Return the specialization of plain calls of one pass; raises BadInput for a pass that the spec lacks."""
    spec = builder.spec
    if kernel_pass == "step":
        if len(RUNS_REVERSED[spec.direction]) > 1:
            raise BadInput(f"a step needs one direction, but the spec is {spec.direction}; allowed for it: pass forward")
        return step_specialization(builder)
    if kernel_pass == "backward" and not spec.training:
        raise BadInput("a backward needs training: true, but the spec says false; allowed for it: pass forward")
    if kernel_pass == "forward" and (projected := projected_at(builder, sizes)):
        return projected
    joins = kernel_pass == "backward" and builder.joins_products(sizes.batch)
    return replace(builder.specialization_at(sizes), reverse=RUNS_REVERSED[spec.direction][0], products_added=joins)


def build_plain(builder: Builder, kernel_pass: KernelPass, sizes: Sizes | None = None) -> BuiltKernel:
    """Build the kernel of one pass of plain calls of these sizes, by default the typical ones.

    Raises BadInput for a pass that the spec lacks.
    """
    sizes = sizes or builder.hinted_sizes
    return builder.build(builder.choose(kernel_pass, plain_specialization(builder, kernel_pass, sizes), sizes))


def build_ahead(builder: Builder) -> tuple[BuiltKernel, ...]:
    """Build the kernels of plain calls of the typical sizes, the forward first; raises BadInput for invalid sizes."""
    check_sizes_of_vectors(builder.spec, builder.cell_source)  # before anything is compiled
    return builder.build_all(_plain_keys(builder))


def _plain_keys(builder: Builder) -> Iterator[KernelKey]:
    specialization, sizes = builder.hinted_specialization, builder.hinted_sizes
    if builder.cell_shape.has_matrix:
        # One kernel runs in either direction, and a single step too.
        yield builder.choose("forward", specialization, sizes)
        return
    projected = projected_at(builder, sizes)
    directions = RUNS_REVERSED[builder.spec.direction]
    for run in [projected] if projected else [replace(specialization, reverse=reverse) for reverse in directions]:
        yield builder.choose("forward", run, sizes)
    if projected or len(directions) == 1:
        yield builder.choose("step", specialization, sizes)


def passes_of(
    builder: Builder, sizes: Sizes, resets: bool = False, whole: Builder | None = None
) -> tuple[tuple[KernelPass, Specialization], ...]:
    """Return the passes and specializations of calls with contiguous arrays of these sizes, and of their gradients.

    `resets`: the calls have resets. `whole`: the builder for the whole GPU, where `builder` is for a share of it.
    """
    spec, specialization = builder.spec, replace(builder.specialization_at(sizes), resets=resets)
    has_matrix = builder.cell_shape.has_matrix
    # A forward that saves for a backward is another kernel.
    keeps = spec.training and not builder.cell_source.has_vectors and bool(builder.lowered_backward.needs_saved_states)
    precision = precision_of(spec.precision)
    # A recurrent product takes outputs before rounding; where nothing is rounded, both dtypes are the same.
    kept: StatesOut = "arithmetic" if has_matrix and precision.storage_dtype != precision.arithmetic_dtype else "storage"
    specializations = [specialization, *([replace(specialization, states_out=kept)] if keeps else [])]
    passes: list[tuple[KernelPass, Specialization]] = []
    joins = spec.training and (whole or builder).joins_products(sizes.batch)
    if not resets and (projected := projected_at(builder, sizes)):
        passes.append(("forward", projected))
    for reverse in RUNS_REVERSED[spec.direction]:
        passes += [("forward", replace(variant, reverse=reverse)) for variant in specializations]
        passes += [("backward", replace(specialization, reverse=reverse, products_added=joins))] if spec.training else []
    if joins:
        passes.append(("joined", joined_specialization(spec.input_size or 0, spec.hidden_size, precision)))
    if spec.training and builder.cell_shape.makes_again:
        passes.append(("arguments", builder.hinted_specialization))
    if not has_matrix and len(RUNS_REVERSED[spec.direction]) == 1:
        passes.append(("step", replace(specialization, resets=False)))
    return tuple(passes)


def prepare(
    builder: Builder,
    backend: Backend,
    run: GpuRun,
    wanted: Iterable[Sizes],
    watch: Watch,
    resets: bool = False,
    slots: bool = False,
) -> None:
    """Plan and compile, in parallel, the kernels that calls of the sizes `wanted` run on a GPU.

    `resets`: the calls have resets. `slots`: also single steps on slots, and drafts. Raises the errors of building a kernel,
    and BadInput for slots where the spec is bidirectional.
    """
    wanted = tuple(wanted)
    if slots and len(RUNS_REVERSED[builder.spec.direction]) > 1:
        raise BadInput("slots were given to prepare, but the spec is bidirectional and has no calls on slots; leave them out")
    _prepare(builder, backend.plan, wanted, watch, resets, slots)
    if builder.spec.training:
        backend.prepare_gradients()
    passes: tuple[BackwardOrForward, ...] = ("forward", "backward") if builder.spec.training else ("forward",)
    beside = tuple(size for size in wanted if any(run.directions_beside(kernel_pass, size) for kernel_pass in passes))
    if beside:
        _prepare(builder.half, backend.half.plan, beside, watch, resets, whole=builder)


def _prepare(
    builder: Builder,
    plan: Callable[[KernelKey], KernelPlan],
    wanted: tuple[Sizes, ...],
    watch: Watch,
    resets: bool,
    slots: bool = False,
    whole: Builder | None = None,
) -> None:
    """Build the kernels of one builder, as `passes_of` has them; `plan` builds one and returns its plan.

    A dense cell's calls are first planned with the hinted specialization: calls that run stepwise need no other kernels.
    """
    first: dict[_Request, None] = {}
    others: dict[_Request, _Request] = {}
    for sizes in wanted:
        for kernel_pass, specialization in passes_of(builder, sizes, resets, whole):
            asked = specialization
            if builder.cell_shape.has_matrix and kernel_pass in ("forward", "backward"):
                asked = replace(builder.hinted_specialization, products_added=specialization.products_added)
            first[kernel_pass, asked, sizes] = None
            others[kernel_pass, specialization, sizes] = kernel_pass, asked, sizes
        for kernel_pass, specialization in (*_steps_of(builder, sizes), *(_on_slots(builder, sizes) if slots else ())):
            first[kernel_pass, specialization, Sizes(sizes.batch, 1)] = None
    keys = dict[_Request, KernelKey]()

    def chosen() -> Iterator[KernelKey]:
        for request in first:
            keys[request] = builder.choose(*request)
            yield keys[request]

    plans = _built(plan, chosen(), {}, watch)
    left = (builder.choose(*request) for request, asked in others.items() if _has_others(plans[keys[asked]]))
    _built(plan, left, plans, watch)


def sizes_from(wanted: Iterable[Sequence[int]]) -> tuple[Sizes, ...]:
    """Return pairs (batch, time) as sizes; raises BadInput for anything else."""
    sizes = []
    for pair in wanted:
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == len(Sizes._fields)
        if not is_pair or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in pair):
            raise BadInput(f"sizes has {shown(pair)}; pairs (batch, time) of positive integers are expected")
        sizes.append(Sizes(*pair))
    return tuple(sizes)


def _steps_of(builder: Builder, sizes: Sizes) -> Iterable[tuple[KernelPass, Specialization]]:
    """The single-step kernel of a dense cell, if batches of this size have one, and the forward that may serve instead."""
    spec = builder.spec
    if builder.cell_shape.has_matrix and len(RUNS_REVERSED[spec.direction]) == 1:
        if builder.cell_shape.makes_again:
            yield "forward", builder.hinted_specialization
        matrix_elements = math.prod((len(builder.cell.recurrent_gates), spec.hidden_size, spec.head_dim))
        if sizes.batch <= step_sequences_max(builder.target.profile, matrix_elements):
            yield "step", step_specialization(builder)


def _on_slots(builder: Builder, sizes: Sizes) -> Iterable[tuple[KernelPass, Specialization]]:
    """The kernels of single steps on slots, for each dtype that states may have, of drafts, and of copies."""
    precision, hinted = precision_of(builder.spec.precision), builder.hinted_specialization
    narrow: tuple[StatesOut, ...] = ("storage",) if precision.storage_dtype != precision.arithmetic_dtype else ()
    of_rows = _steps_of(builder, sizes) if builder.cell_shape.has_matrix else (("step", hinted),)
    steps = [specialization for kernel_pass, specialization in of_rows if kernel_pass == "step"]
    for pool in ("arithmetic", *narrow):
        yield "slots", replace(hinted, pool=pool)
        for step in steps:
            yield "step", replace(step, pool=pool)
        if builder.cell_source.has_vectors:
            yield "step", replace(hinted, pool=pool, replays=True)
    yield "drafts", replace(hinted, pool="arithmetic")


def _has_others(plan: KernelPlan) -> bool:
    return not plan.problem.has_matrix or plan.is_persistent


def _built(
    plan: Callable[[KernelKey], KernelPlan],
    wanted: Iterable[KernelKey],
    known: Mapping[KernelKey, KernelPlan],
    watch: Watch,
) -> dict[KernelKey, KernelPlan]:
    """Build each of the kernels `wanted` once, except the `known` ones."""
    keys = dict[KernelKey, None]()

    def new() -> Iterator[KernelKey]:
        for key in wanted:
            if key not in known and key not in keys:
                keys[key] = None
                yield key

    plans = made_at_once(plan, new(), watch)
    return dict(zip(keys, plans, strict=True))
