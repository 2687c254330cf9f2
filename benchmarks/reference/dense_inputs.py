"""Arrays of a dense problem and their results in float64: from pre-activations, and through a projection."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference import scan_reference
from benchmarks.reference.dense_reference import DENSE_REFERENCES

# Forget gates of this mean are so near 1 that a state remembers for a hundred steps, and its rounding to 16 bits shows.
REMEMBERING_MEAN = 3.0


class Inputs:
    """Pre-activations x [B, T, G, H], R [Gr, N, D, D] that keeps their variance, and dy [B, T, H], made on first use.

    All are normal; in the table `accuracy` the forget gates have the mean `REMEMBERING_MEAN`.
    """

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self.cell = DENSE_REFERENCES[str(problem.model)]
        self.array: Callable[[str], Any] = cache(self._made)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    @property
    def states_out(self) -> tuple[str, ...]:
        """The states that are results in addition to y: in the table `accuracy` the states that are sums over time."""
        return tuple(name for name in self.cell.states if name in ("c", "n")) if self._problem.table == "accuracy" else ()

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of results that are named and shaped as those of `computed`."""
        return judged(results, self.expected())

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        batch, time, channels, units = problem.batch, problem.time, problem.channels, problem.head_dim
        match name:
            case "x":
                values = gpu.normal(batch, time, len(self.cell.gates), channels)
                if problem.table == "accuracy":
                    values[:, :, self.cell.gates.index("f")] += REMEMBERING_MEAN
            case "R":
                values = gpu.normal(len(self.cell.gates), channels // units, units, units) * units**-0.5
            case "dy":
                values = gpu.normal(batch, time, channels)
            case _:
                raise KeyError(name)
        return values.to(gpu.dtype(problem.precision))

    def _expected(self) -> Arrays:
        return self.computed(self.array("x").double())

    def computed(self, gates: Any) -> dict[str, Any]:
        """Return float64 results of pre-activations [B, T, G, H]: y [B, T, H] and the states kept [B, H], or y, dx and dR."""
        problem, torch = self._problem, self._gpu.torch
        batch, time, count, channels = gates.shape
        heads, units = problem.heads or 1, problem.head_dim
        R = self.array("R").double()
        x = gates.reshape(batch, time, count, heads, units).permute(1, 2, 3, 0, 4).contiguous()
        forward = self.cell.run(torch, x, R)
        results = {"y": forward.y.permute(2, 0, 1, 3).reshape(batch, time, channels)}
        results |= {name: forward.states[name].permute(1, 0, 2).reshape(batch, channels) for name in self.states_out}
        if problem.task != "forward":
            dy = self.array("dy").double().reshape(batch, time, heads, units).permute(1, 2, 0, 3).contiguous()
            dx, dR = self.cell.gradients(torch, forward, R, dy)
            results |= {"dx": dx.permute(3, 0, 1, 2, 4).reshape(batch, time, count, channels), "dR": dR}
        return results


class ProjectedInputs:
    """Inputs x [B, T, I] and a weight [G H, I] that makes the pre-activations, in addition to the R and dy of `Inputs`.

    In the table `accuracy` x is the pre-activations and the weight the identity, so that all contenders have the same
    pre-activations; elsewhere I is H.
    """

    def __init__(self, problem: Problem, gpu: Gpu, inputs: Inputs) -> None:
        self._problem, self._gpu, self._inputs = problem, gpu, inputs
        self.array: Callable[[str], Any] = cache(self._made)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of y [B, T, H], dx [B, T, I] and dR [G, 1, H, H], or of y and the states kept."""
        return judged(results, self.expected())

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        rows, width = len(self._inputs.cell.gates) * problem.channels, problem.channels
        dtype = gpu.dtype(problem.precision)
        if problem.table == "accuracy" and name == "x":
            return self._inputs.array("x").reshape(problem.batch, problem.time, rows)
        if problem.table == "accuracy" and name == "weight":
            return gpu.torch.eye(rows, dtype=dtype, device=self.array("x").device)
        if name == "x":
            return gpu.normal(problem.batch, problem.time, width).to(dtype)
        if name == "weight":
            return (gpu.normal(rows, width) * width**-0.5).to(dtype)
        return self._inputs.array(name)

    def _expected(self) -> Arrays:
        if self._problem.table == "accuracy":
            return self._inputs.expected()
        x, weight = (self.array(name).double() for name in ("x", "weight"))
        batch, time, _ = x.shape
        results = self._inputs.computed((x @ weight.T).reshape(batch, time, -1, self._problem.channels))
        if "dx" in results:
            results["dx"] = results["dx"].reshape(batch, time, -1) @ weight
        return results


def judged(results: Arrays, expected: Arrays) -> dict[str, float]:
    """Return the relative errors of the results, by name."""
    return {name: scan_reference.relative_error(array.detach().double(), expected[name]) for name, array in results.items()}
