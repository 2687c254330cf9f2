"""From a spec to compiled kernels: ask the cache, else plan, render, compile and check, candidate after candidate."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from minrnn_gen.build.artifact import BuiltKernel, find_kernel, kernel_digest, put_kernel
from minrnn_gen.build.at_once import Watch, made_at_once, unwatched
from minrnn_gen.build.cell_programs import CellPrograms
from minrnn_gen.build.classes import CellClasses, find_classes, put_classes
from minrnn_gen.build.compiled_once import CompiledOnce
from minrnn_gen.build.joined_choice import JoinedChoice
from minrnn_gen.build.nvrtc import compile_source, toolchain_version
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.promises import choose_compiled, demand_promises
from minrnn_gen.build.recipe import cell_source_of, recipe_of, spec_without_paths
from minrnn_gen.build.store import Store, cache_folder, digest, package_digest
from minrnn_gen.build.target import Target
from minrnn_gen.cell.files import CellSource
from minrnn_gen.config.environment import debug_build_is_asked_for, logs_plans
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import CompileFailed, PromiseBroken, ToolchainMissing
from minrnn_gen.plan.classes import FamilyName, family_of
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import (
    ASSUMED_BATCH,
    ASSUMED_TIME,
    CellShape,
    KernelKey,
    KernelPass,
    Problem,
    Sizes,
    alignment_of,
)
from minrnn_gen.precision import precision_of
from minrnn_gen.program.number import Number

if TYPE_CHECKING:  # imported only where the cache has no answer
    from minrnn_gen.build.tuned_choice import Preferred
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
    from minrnn_gen.plan.size_classes import SizedKernel
    from minrnn_gen.plan.solver import Solution

LOG = logging.getLogger("minrnn_gen")


@dataclass(frozen=True)
class Builder:
    """Builds the kernels of one spec for one GPU; may be used from several threads.

    `waits_are_bounded`: a debug build, if the environment requests one when the builder is made; otherwise the kernels are the
    same. `preferred` opens the source of candidates that were measured as faster; it is read only for kernels missing in the
    cache.
    """

    spec: Spec
    target: Target = field(repr=False)
    store: Store
    waits_are_bounded: bool = field(default_factory=debug_build_is_asked_for)
    preferred: Callable[[], Preferred] | None = None

    @cached_property
    def half(self) -> Self:
        """Builder of kernels for half of the GPU, so that two run concurrently; it ignores measurements."""
        return replace(self, target=self.target.share(2), preferred=None)

    @cached_property
    def cell_source(self) -> CellSource:
        """The cell's text, located but not parsed."""
        return cell_source_of(self.spec)

    @cached_property
    def programs(self) -> CellPrograms:
        """The cell, parsed when it is first needed, and its programs."""
        return CellPrograms(self.spec, self.cell_source)

    @property
    def cell(self) -> Cell:
        """The cell, parsed; raises BadInput for a text that is no cell."""
        return self.programs.cell

    @property
    def lowered(self) -> Lowered:
        """The cell's forward, lowered; raises BadInput for a cell that the spec's scan_arithmetic does not fit."""
        return self.programs.forward

    @property
    def lowered_backward(self) -> LoweredBackward:
        """The cell's backward, lowered."""
        return self.programs.backward

    @property
    def takes_recurrent_bias(self) -> bool:
        """Whether the recurrent product has a bias: as the spec says, else as the cell's file does."""
        asked = self.spec.recurrent_bias
        return self.cell_source.recurrent_bias if asked is None else asked

    @cached_property
    def cell_shape(self) -> CellShape:
        """The shape of the cell in a forward, from the cache, else from the cell's text."""
        cached = self.find_classes("forward", self.hinted_specialization)
        return cached.cell if cached else self.programs.shape("forward")

    @property
    def family(self) -> FamilyName:
        """The kernels that serve the cell."""
        return family_of(self.cell_shape.kind, self.cell_source.has_vectors)

    @property
    def hinted_sizes(self) -> Sizes:
        """The spec's typical sizes."""
        return Sizes(self.spec.batch or ASSUMED_BATCH, self.spec.time or ASSUMED_TIME)

    @property
    def hinted_specialization(self) -> Specialization:
        """The specialization of contiguous arrays of the spec's typical sizes, which is compiled ahead."""
        return self.specialization_at(self.hinted_sizes)

    def specialization_at(self, sizes: Sizes) -> Specialization:
        """Return the specialization of contiguous arrays of these sizes."""
        contiguous_length = self.spec.head_dim if self.spec.layout != "BDT" else sizes.time
        alignment_bytes = alignment_of(contiguous_length * precision_of(self.spec.precision).storage_bytes)
        return Specialization(alignment_bytes, reverse=self.spec.direction == "reverse")

    def key_of(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes | None = None) -> KernelKey:
        """Return the kernel that is planned for exactly these sizes, by default the spec's typical ones."""
        batch, time = self.hinted_sizes if sizes is None else sizes
        return KernelKey(kernel_pass, specialization, Sizes(batch, 1 if kernel_pass == "step" else time))

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel that a call of these sizes runs, one of few for all sizes; raises Infeasible where there is none.

        The choice depends on the arguments, the spec, the GPU and earlier measurements, never on earlier calls. A kernel that
        reads a call's specialization at run time is the hinted specialization's for all calls.
        """
        sized = self._planned(kernel_pass, specialization, sizes)
        hinted = replace(self.hinted_specialization, products_added=specialization.products_added)
        if sized.is_called_in_any_way and (for_any := self._planned(kernel_pass, hinted, sizes)).is_called_in_any_way:
            return self.key_of(kernel_pass, hinted, for_any.sizes)
        return self.key_of(kernel_pass, specialization, sized.sizes)

    def _planned(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> SizedKernel:
        classes = self.classes(kernel_pass, specialization)
        key = self.key_of(kernel_pass, specialization, Sizes(max(1, sizes.batch), max(1, sizes.time)))
        return classes.sizes.choose(self.problem_of(classes.cell, key))

    def classes(self, kernel_pass: KernelPass, specialization: Specialization) -> CellClasses:
        """Return the kernels of a pass and specialization for all sizes, planned once; raises Infeasible where nothing fits."""
        key = (kernel_pass, specialization)
        return self._classes.get(key) or self._classes.setdefault(key, self.find_classes(*key) or self._plan_classes(*key))

    def is_planned(self, kernel_pass: KernelPass, specialization: Specialization) -> bool:
        """Say whether this builder has planned a pass and specialization, so that choosing takes no time."""
        return (kernel_pass, specialization) in self._classes

    def find_classes(self, kernel_pass: KernelPass, specialization: Specialization) -> CellClasses | None:
        """Return the kernels for all sizes from this builder or the cache, None where neither has them."""
        if known := self._classes.get((kernel_pass, specialization)):
            return known
        return find_classes(self.store, self._classes_key(kernel_pass, specialization))

    def _plan_classes(self, kernel_pass: KernelPass, specialization: Specialization) -> CellClasses:
        from minrnn_gen.plan.size_classes import SizedKernel, size_classes

        problem = self.problem(self.key_of(kernel_pass, specialization))
        measured = self._known.measured(problem, self.cell_digest) if self._known else ()
        sized = [SizedKernel(choice.family, choice.variables, sizes, is_measured=True) for sizes, choice in measured]
        classes = CellClasses(problem.cell, size_classes(problem, sized))
        put_classes(self.store, self._classes_key(kernel_pass, specialization), classes)
        return classes

    def _classes_key(self, kernel_pass: KernelPass, specialization: Specialization) -> str:
        return digest(self._common_key, "all sizes", kernel_pass, json.dumps(asdict(specialization), sort_keys=True))

    @cached_property
    def _known(self) -> Preferred | None:
        """The source of candidates that were measured as faster, opened once."""
        return self.preferred() if self.preferred else None

    @cached_property
    def _compiled(self) -> CompiledOnce:
        return CompiledOnce()

    @cached_property
    def _classes(self) -> dict[tuple[KernelPass, Specialization], CellClasses]:
        return {}

    def solutions(self, key: KernelKey) -> Iterator[Solution]:
        """Yield the ranked candidates of each family that serves, the preferred first; raises Infeasible where none does."""
        from minrnn_gen.plan.families import solutions

        return solutions(self.problem(key))

    def solve(self, key: KernelKey) -> Solution:
        """List and rank every candidate of the preferred family; raises Infeasible where there is none."""
        return next(self.solutions(key))

    def build_all(self, wanted: Iterable[KernelKey], watch: Watch = unwatched) -> tuple[BuiltKernel, ...]:
        """Build several kernels in parallel, each as soon as it is known: `wanted` may choose them meanwhile."""
        return made_at_once(self.build, wanted, watch)

    def build(self, key: KernelKey) -> BuiltKernel:
        """Return a kernel, from the cache if it is there.

        Raises Infeasible, BadInput (the cell), or CompileFailed where no candidate keeps its promise.
        """
        if cached := self.find(key):
            return _said(cached)
        request = self.request_key(key)
        with self.store.lock(request):
            return _said(self.find(key) or self._make(request, key))

    def find(self, key: KernelKey) -> BuiltKernel | None:
        """Return a kernel from the cache, or None."""
        return find_kernel(self.store, self.request_key(key), key)

    def build_candidate(self, solution: Solution, rank: int, may_spill: bool = False) -> BuiltKernel:
        """Render, compile and check one candidate, whatever its rank, without the cache.

        `may_spill`: a kernel that spills a few values breaks no promise. Raises PromiseBroken where the compiled kernel takes
        more than its plan promised, CompileFailed where NVRTC refuses it.
        """
        from minrnn_gen.codegen.header import header_lines
        from minrnn_gen.codegen.render import render

        started = time.perf_counter()
        plan = replace(solution.plan(rank), waits_are_bounded=self.waits_are_bounded)
        spec = spec_without_paths(self._kernel_spec, plan.problem.model, plan.problem.gpu)
        header = header_lines(plan, spec, digest(spec, self.cell_source.canonical), solution.constraints)
        text = render(plan, self.lowered_for(solution.problem.kernel_pass), header)
        cubin, resources = None, None
        try:
            how = plan.problem.arch, plan.budget.shared_bytes
            compiled = self._compiled.get(text, how, lambda: compile_source(text, plan))
        except ToolchainMissing:
            pass  # a kernel without a cubin still serves host arrays
        else:
            cubin, resources = compiled.cubin, compiled.kernels
        built = BuiltKernel(
            plan=plan,
            cell=solution.problem.cell,
            source=text,
            digest=kernel_digest(text, plan.problem.arch),
            cubin=cubin,
            resources=resources,
            dropped=(),
            cached=False,
            seconds=time.perf_counter() - started,
            folder=None,
        )
        demand_promises(built, may_spill)
        return built

    def _make(self, request: str, key: KernelKey) -> BuiltKernel:
        started = time.perf_counter()
        if chosen := self._make_preferred(key):
            return self.keep(replace(chosen, seconds=time.perf_counter() - started))
        built = choose_compiled(self.solutions(key), self._build_candidates, key.kernel_pass)
        if reason := built.plan.prediction.passed_over:
            LOG.debug("%s %s is not persistent: %s", self.cell_source.name, key.kernel_pass, reason)
        return put_kernel(self.store, request, replace(built, seconds=time.perf_counter() - started), toolchain_version())

    def keep(self, built: BuiltKernel) -> BuiltKernel:
        """Store `built` in the cache as the kernel of its pass, specialization and sizes; return the stored kernel.

        Its sizes get a new decision at the next request.
        """
        key = KernelKey.of(built.plan)
        self._classes.pop((key.kernel_pass, key.specialization), None)
        self.store.forget_request(self._classes_key(key.kernel_pass, key.specialization))
        return put_kernel(self.store, self.request_key(key), built, toolchain_version())

    @property
    def recipe(self) -> str:
        """The spec as one line of self-contained text."""
        return recipe_of(self.spec, self.cell_source)

    @property
    def cell_digest(self) -> str:
        """Digest of the cell's equations and of how they are composed."""
        return digest(self.cell_source.canonical, self.spec.scan_arithmetic)

    def _make_preferred(self, key: KernelKey) -> BuiltKernel | None:
        """Build the candidate that is known to be faster; None if none is known, or if it does not fit, compile or compute."""
        known = self._known
        choice = known.choice(self.problem(key), self.cell_digest) if known else None
        if not known or not choice:
            return None
        from minrnn_gen.build.tuned_choice import Trial, find_choice

        try:
            ranked = find_choice(choice, self.solutions(key))
            if ranked is None:
                raise CompileFailed("it does not fit")
            built = self.build_candidate(*ranked, may_spill=True)
            if built.cubin and not known.accepts(choice, Trial(self.recipe, built.cell, built.plan, built.cubin)):
                raise CompileFailed("its results are wrong")
        except CompileFailed as why:
            LOG.warning("%s was measured as the fastest, but is not taken: %s", dict(choice.variables), why)
            return None
        return replace(built, chosen=choice.why)

    def _build_candidates(self, solution: Solution, ranks: tuple[int, ...]) -> Iterable[BuiltKernel | PromiseBroken]:
        """Build several candidates in parallel; return each built kernel or broken promise, in the order of `ranks`."""

        def attempt(rank: int) -> BuiltKernel | PromiseBroken:
            try:
                return self.build_candidate(solution, rank, may_spill=True)
            except PromiseBroken as broken:
                return broken

        return [attempt(*ranks)] if len(ranks) == 1 else made_at_once(attempt, ranks)

    def request_key(self, key: KernelKey) -> str:
        """Return the key of a kernel in the cache; builders with another choice override it."""
        return digest(self._common_key, json.dumps([key.kernel_pass, asdict(key.specialization), key.sizes], sort_keys=True))

    @cached_property
    def _common_key(self) -> str:
        return digest(
            self._kernel_spec.canonical(),
            self.cell_source.canonical,
            self.target.profile_bytes,
            package_digest(),
            toolchain_version() or "",
            "debug build" if self.waits_are_bounded else "",
        )

    @cached_property
    def _kernel_spec(self) -> Spec:
        """The spec without keys that no kernel depends on: typical sizes, which only compile ahead, and the projection."""
        return self.spec.model_copy(update={"batch": None, "time": None, "input_size": None})

    def lowered_for(self, kernel_pass: KernelPass) -> Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward:
        """Return the program of a pass as its kernels take it: a step computes what a forward does."""
        return self.programs.of_kernels(kernel_pass)

    @cached_property
    def projection(self) -> ProjectionChoice:
        """The choice of scans that have their projection in the same kernel."""
        return ProjectionChoice()

    @cached_property
    def joined(self) -> JoinedChoice:
        """The choice of backwards whose products share an operand."""
        return JoinedChoice()

    def joins_products(self, batch: Number) -> bool:
        """Say whether a backward of so many sequences joins the operands of its products."""
        return self.joined.serves(self.programs, self.target.profile, batch)

    def problem(self, key: KernelKey) -> Problem:
        """Return the problem to plan for a kernel."""
        return self.problem_of(self.programs.shape(key.kernel_pass, key.specialization.states_out), key)

    def problem_of(self, cell: CellShape, key: KernelKey) -> Problem:
        """Return the problem to plan for a kernel, whose cell has the shape `cell` in its pass."""
        spec = self.spec
        return Problem(
            kernel_pass=key.kernel_pass,
            cell=cell,
            hidden_size=spec.hidden_size,
            precision=precision_of(spec.precision).with_functions(spec.functions),
            layout=spec.layout,
            batch=key.sizes.batch,
            time=key.sizes.time,
            specialization=key.specialization,
            gpu=self.target.profile,
            heads=spec.heads if cell.has_matrix else 1,
            fp32_product=spec.fp32_product,
            state_size=(spec.state_size or 1) if self.cell_source.has_vectors else 0,
            groups=spec.groups or 1,
        )


def builder_of(spec: Spec, target: Target, preferred: Callable[[], Preferred] | None = None) -> Builder:
    """Return the builder of the kernels of `spec` for `target`; `preferred` opens earlier measurements."""
    return Builder(spec, target, Store(cache_folder()), preferred=preferred)


def _said(built: BuiltKernel) -> BuiltKernel:
    """Log which calls a kernel serves, if logging is on, and return the kernel."""
    if logs_plans():
        from minrnn_gen.build.explain import in_one_line

        print(in_one_line(built), file=sys.stderr)
    return built
