"""From a spec to compiled kernels: ask the cache, else plan, render, compile and check, candidate after candidate."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minrnn_gen.build.artifact import BuiltKernel, find_kernel, kernel_digest, put_kernel
from minrnn_gen.build.nvrtc import broken_promises, compile_source, toolchain_version
from minrnn_gen.build.recipe import cell_source_of, recipe_of
from minrnn_gen.build.store import Store, digest, package_digest
from minrnn_gen.cell.files import CellSource
from minrnn_gen.config.environment import debug_build_is_asked_for
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput, CompileFailed, PromiseBroken, ToolchainMissing
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import (
    ASSUMED_BATCH,
    ASSUMED_TIME,
    CellKind,
    CellShape,
    KernelPass,
    Problem,
    Sizes,
    alignment_of,
    typical_sizes,
)
from minrnn_gen.precision import precision_of

if TYPE_CHECKING:  # sympy and the solver are imported only where the cache has no answer
    from minrnn_gen.build.tuned_choice import Preferred
    from minrnn_gen.cell.analysis import Recurrence
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.plan.solver import Solution

LOG = logging.getLogger("minrnn_gen")
# A candidate that breaks its promise is rare; when this many do in a row, the register estimate of the family is wrong.
ATTEMPTS = 16


@dataclass(frozen=True)
class Target:
    """The GPU that is compiled for; `origin` says who chose it: "spec", "device" (the live GPU) or "default"."""

    profile: GpuProfile
    profile_bytes: bytes
    origin: str


@dataclass(frozen=True)
class Builder:
    """Builds the kernels of one spec for one GPU; may be used from several threads.

    `waits_are_bounded`: a debug build, as the environment asks for when the builder is made; the same kernels otherwise.
    `preferred` opens the source of candidates that were measured as faster; it is read only for what the cache does not have.
    """

    spec: Spec
    target: Target
    store: Store
    waits_are_bounded: bool = field(default_factory=debug_build_is_asked_for)
    preferred: Callable[[], Preferred] | None = None

    @cached_property
    def cell_source(self) -> CellSource:
        """The cell's text, found but not parsed."""
        return cell_source_of(self.spec)

    @cached_property
    def cell(self) -> Cell:
        """The cell, parsed; raises BadInput for a text that is no cell."""
        from minrnn_gen.cell.language import parse_cell

        return parse_cell(self.cell_source)

    @cached_property
    def recurrence(self) -> Recurrence:
        """The class of the cell, with its proof."""
        from minrnn_gen.cell.analysis import classify

        return classify(self.cell)

    @cached_property
    def lowered(self) -> Lowered:
        """The cell's forward, lowered; raises BadInput for a cell that the spec's scan_arithmetic does not fit."""
        from minrnn_gen.cell.lowering import lower_scan
        from minrnn_gen.cell.lowering_steps import lower_steps

        cell, recurrence = self.cell, self.recurrence
        if recurrence.kind != "affine-diagonal":
            if self.spec.scan_arithmetic == "log":
                why = f"'log' is given, but {cell.name} is a {recurrence.kind} cell, which has no scan; allowed: linear"
                raise self.spec.error("scan_arithmetic", why)
            return lower_steps(cell)
        try:
            return lower_scan(cell, recurrence, self.spec.scan_arithmetic)
        except BadInput as refused:
            raise self.spec.error("scan_arithmetic", str(refused)) from None

    @cached_property
    def lowered_backward(self) -> LoweredBackward:
        """The cell's backward, lowered."""
        from minrnn_gen.cell.lowering import lower_scan_backward
        from minrnn_gen.cell.lowering_steps import lower_steps_backward

        cell, recurrence = self.cell, self.recurrence
        return lower_scan_backward(cell, recurrence) if recurrence.kind == "affine-diagonal" else lower_steps_backward(cell)

    @property
    def takes_recurrent_bias(self) -> bool:
        """Whether the recurrent product has a bias: as the spec says, else as the cell's file does."""
        asked = self.spec.recurrent_bias
        return self.cell_source.recurrent_bias if asked is None else asked

    @property
    def kind(self) -> CellKind:
        """The class of the cell."""
        cached = self.find("forward", self.hinted_specialization)
        return cached.cell.kind if cached else self.recurrence.kind

    @property
    def hinted_sizes(self) -> Sizes:
        """The spec's typical sizes."""
        return Sizes(self.spec.batch or ASSUMED_BATCH, self.spec.time or ASSUMED_TIME)

    @property
    def hinted_step_specialization(self) -> Specialization:
        """The specialization of a step of the spec's typical batch: as whole rows of a dense cell's state are aligned."""
        if self.kind != "dense":
            return self.hinted_specialization
        alignment_bytes = alignment_of(self.spec.head_dim * precision_of(self.spec.precision).storage_bytes)
        return self.specialization_of(Sizes(self.hinted_sizes.batch, 1), alignment_bytes)

    @property
    def hinted_specialization(self) -> Specialization:
        """The specialization of contiguous arrays of the spec's typical sizes, the one that is compiled ahead."""
        spec, sizes = self.spec, self.hinted_sizes
        contiguous_length = spec.head_dim if spec.layout != "BDT" else sizes.time
        alignment_bytes = alignment_of(contiguous_length * precision_of(spec.precision).storage_bytes)
        return self.specialization_of(sizes, alignment_bytes, reverse=spec.direction == "reverse")

    def specialization_of(
        self,
        sizes: Sizes,
        alignment_bytes: int,
        reverse: bool = False,
        resets: bool = False,
        states_out: StatesOut = "none",
        packed: bool = False,
    ) -> Specialization:
        """Return the specialization of a call. Of these there are few: four by the sizes, whatever they are.

        Where sequences are `packed` their tiles are not known before the launch, so that time is not split over any blocks.
        """
        underfills_gpu = not packed and sizes.underfill(self.spec.hidden_size, self.target.profile)
        return Specialization(alignment_bytes, reverse, resets, states_out, underfills_gpu, sizes.are_short)

    def solutions(self, kernel_pass: KernelPass, specialization: Specialization) -> Iterator[Solution]:
        """Yield the ranked candidates of each family that serves, the preferred first; raises Infeasible where none does."""
        from minrnn_gen.plan.families import solutions

        return solutions(self.problem(kernel_pass, specialization))

    def solve(self, kernel_pass: KernelPass, specialization: Specialization) -> Solution:
        """List and rank every candidate of the preferred family; raises Infeasible where there is none."""
        return next(self.solutions(kernel_pass, specialization))

    def build_all(self, wanted: Sequence[tuple[KernelPass, Specialization]]) -> tuple[BuiltKernel, ...]:
        """Build several kernels, compiling in parallel (NVRTC releases the interpreter's lock)."""
        cached = [built for request in wanted if (built := self.find(*request))]
        if len(cached) == len(wanted):
            return tuple(cached)
        _ = self.lowered  # before the threads, so that it is made once
        with ThreadPoolExecutor(len(wanted)) as pool:
            return tuple(pool.map(lambda request: self.build(*request), wanted))

    def build(self, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel:
        """Return the kernel for `kernel_pass` and `specialization`, from the cache where it is there.

        Raises Infeasible, BadInput (the cell), or CompileFailed where no candidate keeps its promise.
        """
        if cached := self.find(kernel_pass, specialization):
            return cached
        key = self.request_key(kernel_pass, specialization)
        with self.store.lock(key):
            return self.find(kernel_pass, specialization) or self._make(key, kernel_pass, specialization)

    def find(self, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel | None:
        """Return the kernel as the cache has it, None where it does not."""
        return find_kernel(self.store, self.request_key(kernel_pass, specialization), kernel_pass, specialization)

    def build_candidate(self, solution: Solution, rank: int) -> BuiltKernel:
        """Render, compile and check one candidate, whatever its rank, without the cache.

        Raises PromiseBroken where the compiled kernel takes more than its plan promised, CompileFailed where NVRTC refuses it.
        """
        from minrnn_gen.codegen.header import header_lines
        from minrnn_gen.codegen.render import render

        started = time.perf_counter()
        plan = replace(solution.plan(rank), waits_are_bounded=self.waits_are_bounded)
        spec = self._spec_without_paths(plan)
        header = header_lines(plan, spec, digest(spec, self.cell_source.canonical), solution.constraints)
        text = render(plan, self.lowered_for(solution.problem.kernel_pass), header)
        cubin, resources = None, None
        try:
            compiled = compile_source(text, plan)
        except ToolchainMissing:
            pass  # a kernel without a cubin still serves host arrays
        else:
            cubin, resources = compiled.cubin, compiled.kernels
            if broken := broken_promises(plan, resources):
                raise PromiseBroken(f"{dict(plan.variables)}: {', '.join(broken)}")
        return BuiltKernel(
            plan=plan,
            cell=solution.problem.cell,
            source=text,
            digest=kernel_digest(text, plan.arch),
            cubin=cubin,
            resources=resources,
            dropped=(),
            cached=False,
            seconds=time.perf_counter() - started,
            folder=None,
        )

    def _spec_without_paths(self, plan: KernelPlan) -> str:
        """Return the spec in clear for a file's header: cell and GPU by their names, since paths differ between machines."""
        named = json.loads(self.spec.canonical()) | {"gpu": plan.gpu}
        if isinstance(self.spec.model, str):
            named["model"] = plan.model
        return json.dumps(named, sort_keys=True, separators=(",", ":"))

    def _make(self, key: str, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel:
        started = time.perf_counter()
        if chosen := self._make_preferred(kernel_pass, specialization):
            return self.keep(kernel_pass, replace(chosen, seconds=time.perf_counter() - started))
        dropped: list[str] = []
        for solution in self.solutions(kernel_pass, specialization):
            for ranks in solution.attempts(ATTEMPTS):
                for built in self._build_candidates(solution, ranks):
                    if isinstance(built, PromiseBroken):
                        dropped.append(str(built))
                        continue
                    if built.plan.passed_over:
                        LOG.debug("%s %s is not persistent: %s", self.cell_source.name, kernel_pass, built.plan.passed_over)
                    built = replace(built, dropped=tuple(dropped), seconds=time.perf_counter() - started)
                    return put_kernel(self.store, key, built, toolchain_version())
        raise CompileFailed(
            f"none of the {len(dropped)} best candidates for {kernel_pass} kept its promise; of the first, {dropped[0]}"
        )

    def keep(self, kernel_pass: KernelPass, built: BuiltKernel) -> BuiltKernel:
        """Make `built` what is found in the cache for its pass and specialization from now on, and return it as it is there."""
        return put_kernel(self.store, self.request_key(kernel_pass, built.plan.specialization), built, toolchain_version())

    @property
    def recipe(self) -> str:
        """The spec as one line of text that stands by itself."""
        return recipe_of(self.spec, self.cell_source)

    @property
    def cell_digest(self) -> str:
        """Digest of the cell's equations and of how they are composed."""
        return digest(self.cell_source.canonical, self.spec.scan_arithmetic)

    def _make_preferred(self, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel | None:
        """Build the candidate that is known to be faster; None where none is known, or it does not fit, compile or compute."""
        known = self.preferred() if self.preferred else None
        choice = known.choice(self.problem(kernel_pass, specialization), self.cell_digest) if known else None
        if not known or not choice:
            return None
        from minrnn_gen.build.tuned_choice import Trial, find_choice

        try:
            ranked = find_choice(choice, self.solutions(kernel_pass, specialization))
            if ranked is None:
                raise CompileFailed("it does not fit")
            built = self.build_candidate(*ranked)
            if built.cubin and not known.accepts(Trial(self.recipe, built.cell, built.plan, built.cubin)):
                raise CompileFailed("its results are wrong")
        except CompileFailed as why:
            LOG.warning("%s was measured as the fastest, but is not taken: %s", dict(choice.variables), why)
            return None
        return replace(built, chosen=choice.why)

    def _build_candidates(self, solution: Solution, ranks: tuple[int, ...]) -> Iterable[BuiltKernel | PromiseBroken]:
        """Build several candidates at once; gives what was built or broke its promise, in the order of `ranks`."""

        def attempt(rank: int) -> BuiltKernel | PromiseBroken:
            try:
                return self.build_candidate(solution, rank)
            except PromiseBroken as broken:
                return broken

        if len(ranks) == 1:
            return [attempt(*ranks)]
        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(attempt, ranks))

    def request_key(self, kernel_pass: KernelPass, specialization: Specialization) -> str:
        """Return the key of a kernel in the cache; a builder that chooses otherwise gives its own."""
        return digest(self._common_key, kernel_pass, json.dumps(asdict(specialization), sort_keys=True))

    @cached_property
    def _common_key(self) -> str:
        return digest(
            self.spec.canonical(),
            self.cell_source.canonical,
            self.target.profile_bytes,
            package_digest(),
            toolchain_version() or "",
            "debug build" if self.waits_are_bounded else "",
        )

    def lowered_for(self, kernel_pass: KernelPass) -> Lowered | LoweredBackward:
        """Return the program of a pass: a step computes what a forward does."""
        return self.lowered_backward if kernel_pass == "backward" else self.lowered

    def problem(self, kernel_pass: KernelPass, specialization: Specialization) -> Problem:
        """Return the problem to plan for a pass and a specialization, at sizes that are typical of it."""
        spec, lowered, program = self.spec, self.lowered, self.lowered_for(kernel_pass)
        kind = self.recurrence.kind
        gates, precision = len(lowered.gates), precision_of(spec.precision).with_functions(spec.functions)
        words = {
            "none": 0,
            "storage": 1,
            "arithmetic": precision.arithmetic_bytes // precision.storage_bytes,
        }[specialization.states_out]
        read_count, written_count = gates, 1 + words * len(lowered.states)
        saved_values: tuple[str, ...] = ()
        recomputed_values: tuple[str, ...] = ()
        if kernel_pass == "backward":
            # Gates, dy and states; the gradients of all gates.
            backward = self.lowered_backward
            states_read = len(backward.previous_states) + len(backward.current_states)
            read_count, written_count = len(backward.read_gates) + 1 + states_read, gates
            saved_values, recomputed_values = backward.saved_values, backward.recomputed_values
        sizes = typical_sizes(specialization, self.hinted_sizes, spec.hidden_size, self.target.profile)
        return Problem(
            kernel_pass=kernel_pass,
            cell=CellShape(
                name=lowered.name,
                kind=kind,
                gates=lowered.gates,
                recurrent_gates=self.cell.recurrent_gates,
                states=lowered.states,
                parameters=lowered.parameters,
                carried_count=len(lowered.carried),
                read_count=read_count,
                written_count=written_count,
                operation_count=program.operation_count,
                transcendental_count=program.transcendental_count,
                saved_values=saved_values,
                recomputed_values=recomputed_values,
            ),
            hidden_size=spec.hidden_size,
            precision=precision,
            layout=spec.layout,
            batch=sizes.batch,
            time=1 if kernel_pass == "step" else sizes.time,
            specialization=specialization,
            gpu=self.target.profile,
            heads=spec.heads if kind == "dense" else 1,
            fp32_product=spec.fp32_product,
        )
