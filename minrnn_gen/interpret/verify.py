"""Kernels of a spec run on the host under several seeds, and held against the CPU target in float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy

from minrnn_gen.build import Target
from minrnn_gen.interpret.findings import Finding, KernelMisbehaved
from minrnn_gen.interpret.kernel import InterpretedKernel, interpreted
from minrnn_gen.interpret.toolchain import cpp_compiler, machine_in
from minrnn_gen.interpret.trial_inputs import Inputs, inputs_of, trials_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import LARGEST_OF_NORM, error_allowed, precision_of, remembered_error
from minrnn_gen.spec import Spec, load_spec
from minrnn_gen.store import Store, cache_folder

# As many as most machines have to spare; a kernel runs in one.
WORKERS = 2

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


@dataclass(frozen=True)
class Verification:
    """A spec to be verified: its chosen kernels and `candidates` others of each pass, each call under `seeds` seeds."""

    spec: Spec
    target: Target
    seeds: int = 2
    candidates: int = 2
    allow_long: bool = False

    def run(self, show: Show = lambda _doing, _share: None) -> Iterator[Verdict]:
        """Yield a verdict for each pass of each candidate; `show` is told what was done, and which share of all."""
        cpp_compiler()
        shares = [number / max(self.candidates, 1) for number in range(self.candidates + 1)]
        with ThreadPoolExecutor(WORKERS) as pool:
            # Takes seconds the first time, and every kernel waits for it.
            pool.submit(machine_in, Store(cache_folder()))
            _ = self._exact
            jobs = [pool.submit(self._candidate, number, share) for number, share in enumerate(shares)]
            for done, job in enumerate(as_completed(jobs), 1):
                verdicts = job.result()
                show(f"candidate {verdicts[0].candidate}", done / len(jobs))
                yield from verdicts

    @cached_property
    def _exact(self) -> Kernel:
        kernel = self._kernel(0.0)
        spec = load_spec(self.spec.model_dump(), precision="fp64", functions=None)
        return Kernel(replace(kernel.builder, spec=spec), kernel.built)

    def _kernel(self, share: float) -> InterpretedKernel:
        return interpreted(self.spec, self.target, allow_long=self.allow_long, share=share)

    def _candidate(self, number: int, share: float) -> list[Verdict]:
        kernel = self._kernel(share)
        contract = kernel.contract
        passes = ["forward", *(["backward"] if self.spec.training else []), *(["step"] if not contract.directions else [])]
        verdicts = []
        for kernel_pass in passes:
            started = time.perf_counter()
            worst, found, done = 0.0, dict[str, Finding](), []
            trials = trials_of(kernel.plan)
            for trial in trials[-1:] if kernel_pass == "step" else trials:
                inputs = inputs_of(contract, trial)
                with numpy.errstate(all="ignore"):
                    expected = results_of(self._exact, kernel_pass, inputs.in_float64())
                for seed in range(self.seeds):
                    try:
                        with kernel.seeded(seed):
                            results = results_of(kernel, kernel_pass, inputs)
                    except KernelMisbehaved as misbehaved:
                        found |= {str(one.lines) + one.kind: one for one in misbehaved.findings}
                        continue
                    worst = float(numpy.max([worst, self._share(results, expected)]))
                done.append(str(trial))
            plan = next((one for (its, _), one in kernel.plans.items() if its == kernel_pass), kernel.plan)
            seconds = time.perf_counter() - started
            verdicts.append(
                Verdict(number, kernel_pass, plan.entry, plan.variables, tuple(done), worst, tuple(found.values()), seconds)
            )
        return verdicts

    def _share(self, results: Arrays, expected: Arrays) -> float:
        precision = precision_of(self.spec.precision).with_functions(self.spec.functions)
        slack = error_allowed(precision) + remembered_error(precision, self.spec.scan_arithmetic)
        # NaN wins over every number, as it does in numpy.max and does not in max.
        return float(numpy.max([share_of(results[name], one, slack) for name, one in expected.items()]))


def results_of(kernel: Kernel, kernel_pass: str, inputs: Inputs) -> dict[str, Any]:
    """Return every array that a pass gives, by name."""
    if kernel_pass == "step":
        y, state = kernel.step(**inputs.step)
        return {"y": y, **state}
    if kernel_pass == "forward":
        y, state = kernel(**inputs.forward)
        return {"y": y, **state}
    _, _, saved = kernel.forward(**inputs.forward)
    return dict(leaves(kernel.backward(saved, inputs.dy, inputs.dstate)))


def share_of(result: Any, expected: Any, slack: float) -> float:
    """Return the error of a result as a share of the `slack` it has: of all of it by norm, or of its worst element."""
    values, expected = result.astype(numpy.float64).reshape(-1), expected.astype(numpy.float64).reshape(-1)
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
