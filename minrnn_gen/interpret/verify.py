"""Verification of a spec: its kernels emulated, and compared with the CPU target in float64."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import numpy

from minrnn_gen.build.projected import projected_at
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.call.comparable import why_not_comparable
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.errors import BadInput, MinrnnError
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.cases import SLOW, SMALL, Case, Inputs, cases_of, inputs_of
from minrnn_gen.interpret.findings import Finding, KernelMisbehaved
from minrnn_gen.interpret.kernel import SECONDS_MOST, InterpretedKernel, interpreted, seconds_of
from minrnn_gen.interpret.toolchain import cpp_compiler, machine_in
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import ASSUMED_TIME, Sizes
from minrnn_gen.plan.scan.projected import TILE_STEPS
from minrnn_gen.precision import LARGEST_OF_NORM, Precision, error_allowed, precision_of, remembered_error

# Results that are larger hide the errors of small ones; the largest number of float16 is 16 times as large.
LARGEST_RESULT = 4096.0
# A call of whole tiles of a scan after its projection, of which some wait for others.
PROJECTED = Case(2, 2 * TILE_STEPS)

Arrays = Mapping[str, Any]
Show = Callable[[str, float], None]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one pass of one candidate: its plan's variables, the calls, the worst error, and the findings.

    `share`: the largest error as a fraction of the tolerance; NaN where a result is NaN.
    """

    candidate: int
    kernel_pass: str
    entry: str
    variables: Mapping[str, int]
    cases: tuple[str, ...]
    share: float
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether there are no findings and every result is within tolerance."""
        return not self.findings and self.share <= 1

    def with_other(self, other: Verdict) -> Verdict:
        """Return the verdict of both on a pass."""
        findings = {str(finding.lines) + finding.kind: finding for finding in (*self.findings, *other.findings)}
        cases = tuple(dict.fromkeys((*self.cases, *other.cases)))
        worst, seconds = float(numpy.max([self.share, other.share])), self.seconds + other.seconds
        return replace(self, cases=cases, share=worst, findings=tuple(findings.values()), seconds=seconds)


@dataclass(frozen=True)
class Verification:
    """A spec to be verified: its chosen kernels and `candidates` others of each pass, each call under `seeds` seeds.

    The chosen kernels run a call of plain sequences, and a call with resets and lengths; each of the others, which are for few
    and long sequences, runs one call of both. Each backward follows a forward, which is judged, too. Only the chosen kernels
    run single steps, except for dense cells.
    """

    spec: Spec
    target: Target
    # Every launch has its own order of threads: of 108 mutants of templates that findings killed, the first seed killed 106.
    seeds: int = 1
    candidates: int = 3
    allow_long: bool = False

    def run(self, show: Show = lambda _doing, _share: None) -> Iterator[Verdict]:
        """Yield a verdict for each pass of each candidate; `show` gets the progress: its subject, and the fraction done.

        Raises BadInput for a run that would take very long, unless that is allowed.
        """
        cpp_compiler()
        with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:  # a worker may wait for a kernel that another compiles
            # Takes seconds the first time, and every kernel waits for it.
            pool.submit(machine_in, Store(cache_folder()))
            kernels = [self._kernel(number) for number in range(self.candidates + 1)]
            cases = [self._cases(kernel, number) for number, kernel in enumerate(kernels)]
            if self.candidates and (projecting := self.projecting()):
                kernels.append(projecting)
                cases.append((PROJECTED,))
            self._refuse_long(kernels[0], [case for of_kernel in cases for case in of_kernel])
            exact = self._exact(kernels[0])
            jobs = {
                pool.submit(self._verdicts, number, kernels[number], exact, case, case is of_kernel[-1]): number
                for number, of_kernel in enumerate(cases)
                for case in of_kernel
            }
            left = {number: len(of_kernel) for number, of_kernel in enumerate(cases)}
            verdicts: dict[tuple[int, str], Verdict] = {}
            for done, job in enumerate(as_completed(jobs), 1):
                for verdict in job.result():
                    key = (verdict.candidate, verdict.kernel_pass)
                    verdicts[key] = verdicts[key].with_other(verdict) if key in verdicts else verdict
                number = jobs[job]
                left[number] -= 1
                show(f"candidate {number}", done / len(jobs))
                if not left[number]:
                    yield from (verdict for (candidate, _), verdict in verdicts.items() if candidate == number)

    def _kernel(self, number: int) -> InterpretedKernel:
        """Return a candidate for the spec's own sizes, or for sizes at which time is split over many blocks."""
        sizes = Sizes(1, ASSUMED_TIME) if number else None
        return interpreted(self.spec, self.target, allow_long=True, other=number, sizes=sizes)

    def projecting(self) -> InterpretedKernel | None:
        """Return a kernel that multiplies x by its weight in the scan of plain calls; None where no scan does."""
        builder = EmulatedBuilder(self.spec, self.target, Store(cache_folder()), projects=True)
        if projected_at(builder, Sizes(PROJECTED.batch, PROJECTED.time)) is None:
            return None
        forward = builder.build(builder.choose("forward", builder.hinted_specialization, builder.hinted_sizes))
        return InterpretedKernel(builder, (forward,), allow_long=True)

    def _exact(self, kernel: InterpretedKernel) -> Kernel:
        spec = load_spec(self.spec.model_dump(), precision="fp64", functions=None)
        return Kernel(replace(kernel.builder, spec=spec), kernel.built)

    def _cases(self, kernel: InterpretedKernel, number: int) -> tuple[Case, ...]:
        plans = [kernel.plan]
        if self.spec.training:
            builder, specialization = kernel.builder, replace(kernel.plan.problem.specialization, resets=number > 0)
            plans.append(builder.build(builder.choose("backward", specialization, builder.hinted_sizes)).plan)
        return cases_of(plans, at_once=number > 0)

    def _refuse_long(self, kernel: InterpretedKernel, cases: list[Case]) -> None:
        calls = self.seeds * (3 if self.spec.training else 1)  # a backward takes as long as two forwards
        seconds = calls * sum(seconds_of(kernel.interface, case.batch, case.time) for case in cases)
        if seconds > SECONDS_MOST and not self.allow_long:
            raise BadInput(
                f"hidden_size is {self.spec.hidden_size}, whose kernels would take about {seconds / 60:.0f} minutes here; "
                f"give a smaller one, or fewer --seeds or --candidates, or --yes-really"
            )

    def _verdicts(self, number: int, candidate: InterpretedKernel, exact: Kernel, case: Case, has_step: bool) -> list[Verdict]:
        """Run every pass of a call of a candidate."""
        # Where the threads of a step do not cooperate, all candidates have the same step.
        has_step &= not candidate.interface.directions and bool(not number or candidate.interface.recurrent_gates)
        # A kernel for this call alone, as its seeds are.
        kernel = InterpretedKernel(candidate.builder, candidate.built[:1], allow_long=True)
        inputs, expected = self._inputs(exact, case)
        verdicts: dict[str, Verdict] = {}

        def judge(kernel_pass: str, run: Callable[[], tuple[Arrays, Any]]) -> Any:
            """Run a pass and keep its verdict; return the next pass's input, None after a finding."""
            started, share, findings, left = time.perf_counter(), 0.0, tuple[Finding, ...](), None
            try:
                results, left = run()
                share = self._share(results, expected[kernel_pass], kernel.interface.precision)
            except KernelMisbehaved as misbehaved:
                findings = misbehaved.findings
            # The plan that was built last is this call's; a step without one is a forward of one step.
            plan = (_plans_of(kernel, kernel_pass) or _plans_of(kernel, "forward"))[-1]
            seconds = time.perf_counter() - started
            verdict = Verdict(number, kernel_pass, plan.entry, plan.variables, (str(case),), share, findings, seconds)
            earlier = verdicts.get(kernel_pass)
            verdicts[kernel_pass] = earlier.with_other(verdict) if earlier else verdict
            return left

        for seed in range(self.seeds):
            with kernel.seeded(seed):
                if self.spec.training:
                    saved = judge("forward", lambda: forward_of(kernel, inputs))
                    if saved:
                        judge("backward", lambda saved=saved: (backward_of(kernel, inputs, saved), None))  # type: ignore[misc]
                # A forward that keeps states for its backward may be another kernel than one that does not.
                keeps = any(key.specialization.states_out != "none" for key in kernel.plans)
                if not self.spec.training or (keeps and not number):
                    judge("forward", lambda: (inference_of(kernel, inputs), None))
                if has_step:
                    judge("step", lambda: (step_of(kernel, inputs), None))
        return list(verdicts.values())

    def _inputs(self, exact: Kernel, case: Case) -> tuple[Inputs, dict[str, Arrays]]:
        """Return the inputs of a call and its expected results by pass.

        Gates are slow where results stay moderate; parameters, such as a filter's poles, are small where they otherwise do not.
        """
        interface = replace(exact.interface, precision=precision_of(self.spec.precision))
        # Few steps of a dense cell keep every state, and large gates would hide its products.
        for slow, scale in ((0.0, 1.0),) if interface.recurrent_gates else ((SLOW, 1.0), (0.0, 1.0), (0.0, SMALL)):
            inputs = inputs_of(interface, case, slow, scale)
            with numpy.errstate(all="ignore"):
                expected = results_of(exact, inputs.in_float64(), self.spec.training)
            # NaN is not less.
            if all(
                numpy.abs(array).max(initial=0) < LARGEST_RESULT for of_pass in expected.values() for array in of_pass.values()
            ):
                break
        for kernel_pass, results in expected.items():
            if why := why_not_comparable(results, kernel_pass):
                raise MinrnnError(f"{self.spec.where}: {why}; correct the equations")
        return inputs, expected

    def _share(self, results: Arrays, expected: Arrays, precision: Precision) -> float:
        precision = precision.with_functions(self.spec.functions)
        slack = error_allowed(precision) + remembered_error(precision, self.spec.scan_arithmetic)
        # NaN wins over every number, as it does in numpy.max and does not in max.
        return float(numpy.max([share_of(results[name], exact, slack) for name, exact in expected.items()]))


def results_of(kernel: Kernel, inputs: Inputs, training: bool) -> dict[str, Arrays]:
    """Return every array that each pass returns, by pass and name."""
    results: dict[str, Arrays] = {}
    if training:
        results["forward"], saved = forward_of(kernel, inputs)
        results["backward"] = backward_of(kernel, inputs, saved)
    else:
        results["forward"] = inference_of(kernel, inputs)
    if not kernel.interface.directions:
        results["step"] = step_of(kernel, inputs)
    return results


def forward_of(kernel: Kernel, inputs: Inputs) -> tuple[Arrays, Any]:
    """Return the results of a forward, by name, and what its backward needs."""
    y, state, saved = kernel.forward(**inputs.forward)
    return {"y": y, **state}, saved


def inference_of(kernel: Kernel, inputs: Inputs) -> Arrays:
    """Return the results of a forward without a backward, by name."""
    y, state = kernel(**inputs.forward)
    return {"y": y, **state}


def backward_of(kernel: Kernel, inputs: Inputs, saved: Any) -> Arrays:
    """Return every gradient, by the names that lead to it."""
    return dict(leaves(kernel.backward(saved, inputs.dy, inputs.dstate)))


def _plans_of(kernel: Kernel, kernel_pass: str) -> list[KernelPlan]:
    return [plan for key, plan in kernel.plans.items() if key.kernel_pass == kernel_pass]


def step_of(kernel: Kernel, inputs: Inputs) -> Arrays:
    """Return the results of a single step, by name."""
    y, state = kernel.step(**inputs.step)
    return {"y": y, **state}


def share_of(result: Any, expected: Any, slack: float) -> float:
    """Return the error of a result as a fraction of its `slack`: that of its norm, or of its worst element if larger."""
    wide = numpy.complex128 if numpy.iscomplexobj(expected) else numpy.float64
    values, expected = result.astype(wide).reshape(-1), expected.astype(wide).reshape(-1)
    if not values.size:
        return 0.0
    with numpy.errstate(invalid="ignore"):  # equal infinities
        error = numpy.where(values == expected, 0.0, numpy.abs(values - expected))
    finite = numpy.where(numpy.isfinite(expected), expected, 0.0)
    size, largest = float(numpy.linalg.norm(finite)), float(numpy.abs(finite).max())
    if not size:
        return float(numpy.where(error == 0, 0.0, numpy.inf).max())
    return float(numpy.max([numpy.linalg.norm(error) / size, error.max() / (LARGEST_OF_NORM * largest)])) / slack


def leaves(arrays: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of gradients within gradients, with the names that lead to it."""
    for key, value in arrays.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}{key} ")
        elif value is not None:
            yield f"{name}{key}", value
