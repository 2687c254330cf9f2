"""Fused cells in both layouts, against a copy of the bytes that they have to move."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import minrnn_gen
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference import scan_reference
from benchmarks.report.plan_facts import facts_of
from minrnn_gen.precision import precision_of

# Values that are compared at once: a gigabyte of each array in float64.
VALUES_AT_ONCE = 1 << 27
# From [B, T, G, C] and [B, T, C] to each layout, and from y in a layout back to [T, B, C].
_X_ORDER = {"BTD": (0, 1, 2, 3), "BDT": (0, 2, 3, 1)}
_Y_ORDER = {"BTD": (0, 1, 2), "BDT": (0, 2, 1)}
_BY_TIME = {"BTD": (1, 0, 2), "BDT": (2, 0, 1)}


def contenders(problem: Problem, gpu: Gpu) -> list[Contender]:
    """Return the copy and the cell in both layouts."""
    assert problem.words is not None
    inputs = Inputs(problem, gpu)
    moved_bytes = problem.words * problem.elements * precision_of(problem.precision).storage_bytes
    return [gpu.copy(moved_bytes), *(_cell(problem, inputs, layout) for layout in _X_ORDER)]


class Inputs:
    """Standard normal pre-activations x and incoming gradients dy, and their results in float64."""

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self._cell = scan_reference.CELL_REFERENCES[str(problem.model)]
        self._values: Callable[[str], Any] = cache(self._made)

    def array(self, name: str, layout: str) -> Any:
        """Return x or dy in `layout`, contiguous."""
        return self._values(name).permute((_X_ORDER if name == "x" else _Y_ORDER)[layout]).contiguous()

    def judge(self, layout: str) -> Callable[[Arrays], dict[str, float]]:
        """Return the judge of y, or of dx, in `layout`."""
        problem, torch = self._problem, self._gpu.torch
        width = max(1, VALUES_AT_ONCE // (problem.batch * problem.time))

        def judged(results: Arrays) -> dict[str, float]:
            (name, result), *_ = results.items()
            gates = [result] if name == "y" else [result.select(_X_ORDER[layout].index(2), g) for g in range(self._gates)]
            difference = total = 0.0
            for begin in range(0, problem.channels, width):
                part = slice(begin, begin + width)
                expected = self._expected(part)
                by_time = torch.stack([gate.permute(_BY_TIME[layout])[..., part].double() for gate in gates])
                difference += float(((by_time - expected) ** 2).sum())
                total += float((expected**2).sum())
            return {name: math.sqrt(difference / total)}

        return judged

    @property
    def _gates(self) -> int:
        return len(self._cell.gates)

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        channels = (self._gates, problem.channels) if name == "x" else (problem.channels,)
        return gpu.normal(problem.batch, problem.time, *channels).to(gpu.dtype(problem.precision))

    def _expected(self, part: slice) -> Any:
        """Return y as [1, T, B, C], or dx as [G, T, B, C], of a part of the channels."""
        torch = self._gpu.torch
        gates = [self._values("x")[:, :, gate, part].transpose(0, 1).double() for gate in range(self._gates)]
        if self._problem.task == "forward":
            return self._cell.run(torch, gates)[None]
        return torch.stack(self._cell.gradients(torch, gates, self._values("dy")[..., part].transpose(0, 1).double()))


def _cell(problem: Problem, inputs: Inputs, layout: str) -> Contender:
    kernels: list[minrnn_gen.Kernel] = []

    def prepare() -> Run:
        kernel = minrnn_gen.compile({**problem.spec, "layout": layout})
        kernels.append(kernel)
        x = inputs.array("x", layout)
        if problem.task == "forward":
            return lambda: {"y": kernel(x)[0]}
        dy = inputs.array("dy", layout)
        _, _, saved = kernel.forward(x)
        return lambda: {"dx": kernel.backward(saved, dy)["x"]}

    def facts() -> dict[str, int | float | str]:
        plans = [plan for key, plan in kernels[-1].plans.items() if key.kernel_pass == problem.task]
        return facts_of(plans[-1])

    return Contender(layout, prepare, inputs.judge(layout), facts=facts)
