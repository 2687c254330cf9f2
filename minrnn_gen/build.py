"""From a spec to compiled kernels: ask the cache, else plan, render, compile and check, candidate after candidate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minrnn_gen.cell.files import CellSource, find_cell
from minrnn_gen.compiler import OPTIONS, KernelResources, broken_promises, compile_source, toolchain_version
from minrnn_gen.errors import CompileFailed, NotGenerated, ToolchainMissing
from minrnn_gen.gpu_profile import GpuProfile
from minrnn_gen.plan.kernel_plan import KernelPlan, Regime
from minrnn_gen.plan.problem import ASSUMED_BATCH, ASSUMED_TIME, CellShape, KernelPass, Problem, hinted_regime
from minrnn_gen.precision import precision_of
from minrnn_gen.spec import Spec
from minrnn_gen.store import Store, digest, package_digest

if TYPE_CHECKING:  # sympy and the solver are imported only where the cache has no answer
    from minrnn_gen.cell.lowering import LoweredScan
    from minrnn_gen.plan.solver import Solution

# A candidate that breaks its promise is rare; when this many do in a row, the register estimate of the family is wrong.
ATTEMPTS = 16


@dataclass(frozen=True)
class Target:
    """The GPU that is compiled for; `origin` says who chose it: "spec", "device" (the live GPU) or "default"."""

    profile: GpuProfile
    profile_bytes: bytes
    origin: str


@dataclass(frozen=True)
class BuiltKernel:
    """One kernel as it came from the compiler or the cache.

    `cubin` and `resources` are None where no NVRTC is installed. `dropped` lists the candidates that broke their promise.
    """

    plan: KernelPlan
    cell: CellShape
    source: str
    digest: str
    cubin: bytes | None
    resources: tuple[KernelResources, ...] | None
    dropped: tuple[str, ...]
    cached: bool
    seconds: float
    folder: Path | None


@dataclass(frozen=True)
class Builder:
    """Builds the kernels of one spec for one GPU; may be used from several threads."""

    spec: Spec
    target: Target
    store: Store

    @cached_property
    def cell_source(self) -> CellSource:
        """The cell's text, found but not parsed."""
        model = self.spec.model
        return find_cell(model, self.spec.folder, self.spec.where)

    @cached_property
    def lowered(self) -> LoweredScan:
        """The cell, parsed, classified and lowered; raises NotGenerated for a class without kernels."""
        from minrnn_gen.cell.analysis import classify
        from minrnn_gen.cell.language import parse_cell
        from minrnn_gen.cell.lowering import lower_scan

        cell = parse_cell(self.cell_source)
        recurrence = classify(cell)
        if recurrence.kind != "affine-diagonal":
            raise NotGenerated(
                f"{self.spec.where}: model: {cell.name} is a {recurrence.kind} cell, for which no kernel is generated yet; "
                f"affine-diagonal cells are, see 'minrnn-gen cells'"
            )
        return lower_scan(cell, recurrence)

    @property
    def hinted_regime(self) -> Regime:
        """The regime of contiguous arrays of the spec's typical sizes."""
        spec = self.spec
        return hinted_regime(spec.layout, precision_of(spec.precision), spec.hidden_size, spec.time)

    def solve(self, kernel_pass: KernelPass, regime: Regime) -> Solution:
        """List and rank every candidate; raises Infeasible where there is none."""
        from minrnn_gen.plan.families import family_of
        from minrnn_gen.plan.solver import solve

        problem = self._problem(kernel_pass, regime)
        return solve(problem, family_of(problem))

    def build_all(self, wanted: Sequence[tuple[KernelPass, Regime]]) -> tuple[BuiltKernel, ...]:
        """Build several kernels, compiling in parallel (NVRTC releases the interpreter's lock)."""
        found = [self._find(*one) for one in wanted]
        if all(found):
            return tuple(one for one in found if one)
        _ = self.lowered  # before the threads, so that it is made once
        with ThreadPoolExecutor(len(wanted)) as pool:
            return tuple(pool.map(lambda one: self.build(*one), wanted))

    def build(self, kernel_pass: KernelPass, regime: Regime) -> BuiltKernel:
        """Return the kernel for `kernel_pass` and `regime`, from the cache where it is there.

        Raises Infeasible, NotGenerated, BadInput (the cell), or CompileFailed where no candidate keeps its promise.
        """
        if found := self._find(kernel_pass, regime):
            return found
        key = self._request_key(kernel_pass, regime)
        with self.store.lock(key):
            return self._find(kernel_pass, regime) or self._make(key, kernel_pass, regime)

    def _find(self, kernel_pass: KernelPass, regime: Regime) -> BuiltKernel | None:
        started = time.perf_counter()
        request = self.store.find_request(self._request_key(kernel_pass, regime))
        entry = self.store.find(request["content"]) if request else None
        if not request or not entry:
            return None
        plan = KernelPlan.from_json(request["plan"])
        resources = tuple(KernelResources(**kernel) for kernel in entry.manifest["resources"])
        return BuiltKernel(
            plan=plan,
            cell=_cell_shape_from(request["cell"]),
            source=entry.files[f"{plan.entry}.cu"].decode(),
            digest=entry.key,
            cubin=entry.files[f"{plan.entry}.cubin"],
            resources=resources,
            dropped=tuple(request["dropped"]),
            cached=True,
            seconds=time.perf_counter() - started,
            folder=entry.folder,
        )

    def _make(self, key: str, kernel_pass: KernelPass, regime: Regime) -> BuiltKernel:
        from minrnn_gen.source import header_lines, render

        started = time.perf_counter()
        solution = self.solve(kernel_pass, regime)
        cell = solution.problem.cell
        spec_json = self.spec.canonical()
        spec_digest = digest(spec_json, self.cell_source.canonical)
        toolchain = toolchain_version()
        dropped: list[str] = []
        for rank in range(min(ATTEMPTS, len(solution.candidates))):
            plan = solution.plan(rank)
            text = render(plan, self.lowered, header_lines(plan, spec_json, spec_digest, solution.constraints))
            content = digest(text, " ".join(OPTIONS), plan.arch, toolchain or "")

            def built(
                cubin: bytes | None,
                resources: tuple[KernelResources, ...] | None,
                folder: Path | None,
                plan: KernelPlan = plan,
                text: str = text,
                content: str = content,
            ) -> BuiltKernel:
                seconds = time.perf_counter() - started
                return BuiltKernel(plan, cell, text, content, cubin, resources, tuple(dropped), False, seconds, folder)

            try:
                compiled = compile_source(text, plan)
            except ToolchainMissing:
                return built(None, None, None)
            broken = broken_promises(plan, compiled.kernels)
            if broken:
                dropped.append(f"{dict(plan.variables)}: {', '.join(broken)}")
                continue
            files = {f"{plan.entry}.cu": text.encode(), f"{plan.entry}.cubin": compiled.cubin}
            manifest = {"resources": [asdict(kernel) for kernel in compiled.kernels], "toolchain": toolchain}
            entry = self.store.put(content, files, manifest)
            request = {"content": content, "plan": plan.to_json(), "cell": asdict(cell), "dropped": dropped}
            self.store.put_request(key, request)
            return built(compiled.cubin, compiled.kernels, entry.folder)
        raise CompileFailed(f"no candidate of {kernel_pass} kept its promise: {'; '.join(dropped)}")

    def _request_key(self, kernel_pass: KernelPass, regime: Regime) -> str:
        return digest(self._common_key, kernel_pass, str(regime.alignment_bytes))

    @cached_property
    def _common_key(self) -> str:
        return digest(
            self.spec.canonical(),
            self.cell_source.canonical,
            self.target.profile_bytes,
            package_digest(),
            toolchain_version() or "",
        )

    def _problem(self, kernel_pass: KernelPass, regime: Regime) -> Problem:
        spec, lowered = self.spec, self.lowered
        return Problem(
            kernel_pass=kernel_pass,
            cell=CellShape(
                name=lowered.name,
                gates=lowered.gates,
                states=lowered.states,
                parameters=lowered.parameters,
                carried_count=len(lowered.carried),
                operation_count=lowered.operation_count,
                transcendental_count=lowered.transcendental_count,
            ),
            hidden_size=spec.hidden_size,
            precision=precision_of(spec.precision),
            layout=spec.layout,
            batch=spec.batch or ASSUMED_BATCH,
            time=spec.time or ASSUMED_TIME,
            regime=regime,
            gpu=self.target.profile,
        )


def _cell_shape_from(data: Mapping[str, Any]) -> CellShape:
    names = ("gates", "states", "parameters")
    return CellShape(**{**data, **{name: tuple(data[name]) for name in names}})
