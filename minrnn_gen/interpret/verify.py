"""Kernels of a spec run on the host, and held against the CPU target in float64."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import numpy

from minrnn_gen.build.builder import Target
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.interpret.cases import SLOW, Inputs, Trial, inputs_of, trials_of
from minrnn_gen.interpret.findings import Finding, KernelMisbehaved
from minrnn_gen.interpret.kernel import SECONDS_MOST, InterpretedKernel, interpreted, seconds_of
from minrnn_gen.interpret.toolchain import cpp_compiler, machine_in
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import ASSUMED_TIME, Sizes
from minrnn_gen.precision import LARGEST_OF_NORM, error_allowed, precision_of, remembered_error

# Results that are larger hide the errors of small ones; the largest number of float16 is 16 times as large.
LARGEST_RESULT = 4096.0

Arrays = Mapping[str, Any]
Show = Callable[[str, float], None]


@dataclass(frozen=True)
class Verdict:
    """What came of one pass of one candidate: its plan's variables, the calls, the worst error, and what was found.

    `share` is the largest error as a share of what is allowed; NaN where a result is none.
    """

    candidate: int
    kernel_pass: str
    entry: str
    variables: Mapping[str, int]
    trials: tuple[str, ...]
    share: float
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether nothing was found and every result keeps its tolerance."""
        return not self.findings and self.share <= 1

    def with_other(self, other: Verdict) -> Verdict:
        """Return the verdict of both about a pass."""
        found = {str(one.lines) + one.kind: one for one in (*self.findings, *other.findings)}
        trials = tuple(dict.fromkeys((*self.trials, *other.trials)))
        worst, seconds = float(numpy.max([self.share, other.share])), self.seconds + other.seconds
        return replace(self, trials=trials, share=worst, findings=tuple(found.values()), seconds=seconds)


@dataclass(frozen=True)
class Verification:
    """A spec to be verified: its chosen kernels and `candidates` others of each pass, each call under `seeds` seeds.

    The chosen ones take a call of plain sequences, and one of sequences that begin anew and end early; each of the others,
    which are for few and long sequences, one call of both. A backward goes with the forward before it, which is judged, too.
    Only the chosen ones take single steps, but of dense cells.
    """

    spec: Spec
    target: Target
    # Every launch has an order of its own, and of 108 mutants of templates that findings told the first seed told 106.
    seeds: int = 1
    candidates: int = 2
    allow_long: bool = False

    def run(self, show: Show = lambda _doing, _share: None) -> Iterator[Verdict]:
        """Yield a verdict for each pass of each candidate; `show` is told what was done, and which share of all.

        Raises BadInput where it would take very long, if that is not allowed.
        """
        cpp_compiler()
        with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:  # some wait for a kernel that others compile
            # Takes seconds the first time, and every kernel waits for it.
            pool.submit(machine_in, Store(cache_folder()))
            kernels = [self._kernel(number) for number in range(self.candidates + 1)]
            trials = [self._trials(kernel, number) for number, kernel in enumerate(kernels)]
            self._refuse_long(kernels[0], [one for its in trials for one in its])
            exact = self._exact(kernels[0])
            jobs = {
                pool.submit(self._verdicts, number, kernels[number], exact, trial, trial is its[-1]): number
                for number, its in enumerate(trials)
                for trial in its
            }
            left = {number: len(its) for number, its in enumerate(trials)}
            verdicts: dict[tuple[int, str], Verdict] = {}
            for done, job in enumerate(as_completed(jobs), 1):
                for one in job.result():
                    key = (one.candidate, one.kernel_pass)
                    verdicts[key] = verdicts[key].with_other(one) if key in verdicts else one
                number = jobs[job]
                left[number] -= 1
                show(f"candidate {number}", done / len(jobs))
                if not left[number]:
                    yield from (one for (its, _), one in verdicts.items() if its == number)

    def _kernel(self, number: int) -> InterpretedKernel:
        """Return a candidate of the spec's own sizes, or of those for which time may be split over any blocks."""
        kernel = interpreted(self.spec, self.target, allow_long=True, other=number, sizes=Sizes(1, ASSUMED_TIME))
        if number:
            return kernel
        return interpreted(self.spec, self.target, allow_long=True, sizes=kernel.builder.hinted_sizes)

    def _exact(self, kernel: InterpretedKernel) -> Kernel:
        spec = load_spec(self.spec.model_dump(), precision="fp64", functions=None)
        return Kernel(replace(kernel.builder, spec=spec), kernel.built)

    def _trials(self, kernel: InterpretedKernel, number: int) -> tuple[Trial, ...]:
        plans = [kernel.plan]
        if self.spec.training:
            plans.append(kernel.builder.build("backward", replace(kernel.plan.specialization, resets=number > 0)).plan)
        return trials_of(plans, at_once=number > 0)

    def _refuse_long(self, kernel: InterpretedKernel, trials: list[Trial]) -> None:
        calls = self.seeds * (3 if self.spec.training else 1)  # a backward takes as long as two forwards
        seconds = calls * sum(seconds_of(kernel.interface, one.batch, one.time) for one in trials)
        if seconds > SECONDS_MOST and not self.allow_long:
            raise BadInput(
                f"hidden_size is {self.spec.hidden_size}, whose kernels would take about {seconds / 60:.0f} minutes here; "
                f"give a smaller one, or fewer --seeds or --candidates, or --yes-really"
            )

    def _verdicts(
        self, number: int, candidate: InterpretedKernel, exact: Kernel, trial: Trial, has_step: bool
    ) -> list[Verdict]:
        """Run a call of a candidate, every pass of it."""
        # Of steps whose threads do not work together one candidate is like the other.
        has_step &= not candidate.interface.directions and bool(not number or candidate.interface.recurrent_gates)
        # Of this call alone, as its seeds are.
        kernel = InterpretedKernel(candidate.builder, candidate.built[:1], allow_long=True)
        inputs, expected = self._inputs(exact, trial)
        found: dict[str, Verdict] = {}

        def judge(kernel_pass: str, run: Callable[[], tuple[Arrays, Any]]) -> Any:
            """Run a pass and note what came of it; return what it leaves to the next, None where something was found."""
            started, share, findings, left = time.perf_counter(), 0.0, tuple[Finding, ...](), None
            try:
                results, left = run()
                share = self._share(results, expected[kernel_pass])
            except KernelMisbehaved as misbehaved:
                findings = misbehaved.findings
            # The plan that was built last is of this very call.
            plan = [one for (its, _), one in kernel.plans.items() if its == kernel_pass][-1]
            seconds = time.perf_counter() - started
            one = Verdict(number, kernel_pass, plan.entry, plan.variables, (str(trial),), share, findings, seconds)
            found[kernel_pass] = found[kernel_pass].with_other(one) if kernel_pass in found else one
            return left

        for seed in range(self.seeds):
            with kernel.seeded(seed):
                if self.spec.training:
                    saved = judge("forward", lambda: forward_of(kernel, inputs))
                    if saved:
                        judge("backward", lambda saved=saved: (backward_of(kernel, inputs, saved), None))  # type: ignore[misc]
                # What keeps states for a backward is another kernel than what does not; others have one for both.
                keeps = any(specialization.states_out != "none" for _, specialization in kernel.plans)
                if not self.spec.training or (keeps and not number):
                    judge("forward", lambda: (inference_of(kernel, inputs), None))
                if has_step:
                    judge("step", lambda: (step_of(kernel, inputs), None))
        return list(found.values())

    def _inputs(self, exact: Kernel, trial: Trial) -> tuple[Inputs, dict[str, Arrays]]:
        """Return what a call is given, and what it is to return, by pass; gates are slow where results stay moderate."""
        interface = replace(exact.interface, precision=precision_of(self.spec.precision))
        # Few steps of a dense cell hand everything on, and its products are what large gates would hide.
        for slow in (0.0,) if interface.recurrent_gates else (SLOW, 0.0):
            inputs = inputs_of(interface, trial, slow)
            with numpy.errstate(all="ignore"):
                expected = results_of(exact, inputs.in_float64(), self.spec.training)
            # NaN is not less.
            if all(numpy.abs(array).max(initial=0) < LARGEST_RESULT for its in expected.values() for array in its.values()):
                break
        return inputs, expected

    def _share(self, results: Arrays, expected: Arrays) -> float:
        precision = precision_of(self.spec.precision).with_functions(self.spec.functions)
        slack = error_allowed(precision) + remembered_error(precision, self.spec.scan_arithmetic)
        # NaN wins over every number, as it does in numpy.max and does not in max.
        return float(numpy.max([share_of(results[name], one, slack) for name, one in expected.items()]))


def results_of(kernel: Kernel, inputs: Inputs, training: bool) -> dict[str, Arrays]:
    """Return every array that each pass gives, by pass and name."""
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
    """Return what a forward gives, by name, and what its backward needs."""
    y, state, saved = kernel.forward(**inputs.forward)
    return {"y": y, **state}, saved


def inference_of(kernel: Kernel, inputs: Inputs) -> Arrays:
    """Return what a forward without a backward gives, by name."""
    y, state = kernel(**inputs.forward)
    return {"y": y, **state}


def backward_of(kernel: Kernel, inputs: Inputs, saved: Any) -> Arrays:
    """Return every gradient, by the names that lead to it."""
    return dict(leaves(kernel.backward(saved, inputs.dy, inputs.dstate)))


def step_of(kernel: Kernel, inputs: Inputs) -> Arrays:
    """Return what a single step gives, by name."""
    y, state = kernel.step(**inputs.step)
    return {"y": y, **state}


def share_of(result: Any, expected: Any, slack: float) -> float:
    """Return the error of a result as a share of the `slack` it has: of all of it by norm, or of its worst element."""
    wide = numpy.complex128 if numpy.iscomplexobj(expected) else numpy.float64
    values, expected = result.astype(wide).reshape(-1), expected.astype(wide).reshape(-1)
    if not values.size:
        return 0.0
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
