"""Raw scans: minrnn-gen in both layouts, against the scans of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import minrnn_gen
from benchmarks.contenders.baselines import Baseline, Layout, load
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference import scan_reference
from minrnn_gen.precision import precision_of

OURS: dict[str, Layout] = {"minrnn-gen B,T,C": "B,T,C", "minrnn-gen B,C,T": "B,C,T"}
# Elements of y that are compared with float64: 2 GiB for each array of the reference.
CHECKED_ELEMENTS = 1 << 28
NO_GRADIENTS = "no gradients"
OVERWRITES = "overwrites its inputs"


def contenders(problem: Problem, gpu: Gpu, baselines: Sequence[Baseline], refused: Mapping[str, str]) -> list[Contender]:
    """Return the copy, ours in both layouts, and the baselines; those of `refused` {name: reason} have its reason as row."""
    inputs = Inputs(problem, gpu)
    assert problem.words is not None
    moved_bytes = problem.words * problem.elements * precision_of(problem.precision).storage_bytes
    entries = [gpu.copy(moved_bytes)]
    entries += [_ours(name, layout, problem, inputs) for name, layout in OURS.items()]
    entries += [_theirs(baseline, problem, inputs, refused.get(baseline.name)) for baseline in baselines]
    return entries


class Inputs:
    """Arrays of one problem, made on first use; every layout holds the same values.

    a is sigmoid(N(0, 1)) in even channels and between 0.99 and 1 in odd channels, where a state is remembered for hundreds of
    steps and a lost carry shows. b and dy are standard normal.
    """

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self._copies: dict[str, Any] = {}
        self.array: Callable[[str, Layout], Any] = cache(self._array)
        self._values: Callable[[str], Any] = cache(self._made)
        self.expected: Callable[[bool], Arrays] = cache(self._expected)

    @property
    def channels(self) -> slice:
        """The channels that are checked, at an odd stride, so that they fall on every lane of a warp."""
        step = -(-self._problem.elements // CHECKED_ELEMENTS)
        return slice(None, None, step | 1)

    def by_time(self, array: Any, layout: Layout) -> Any:
        """Return the checked channels of an array in `layout` as [T, B, C] in float64."""
        if layout == "B,T,C":
            return array[:, :, self.channels].transpose(0, 1).double()
        return array[:, self.channels].permute(2, 0, 1).double()

    def repaired(self) -> bool:
        """Restore the shared arrays with time last; return whether a library had overwritten any of them."""
        overwritten = False
        for name, copy in self._copies.items():
            expected = self._values(name).transpose(1, 2)
            if not self._gpu.torch.equal(copy, expected):
                copy[...] = expected
                overwritten = True
        return overwritten

    def judge(self, layout: Layout, takes_log_a: bool) -> Callable[[Arrays], dict[str, float]]:
        """Return the judge of results in `layout`, whose reference takes the a (or log a) that they were computed from."""

        def judged(results: Arrays) -> dict[str, float]:
            expected = self.expected(takes_log_a)
            return {
                name: scan_reference.relative_error(self.by_time(result.detach(), layout), expected[name])
                for name, result in results.items()
            }

        return judged

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        shape = (problem.batch, problem.time, problem.channels)
        if name in ("b", "dy"):
            return gpu.normal(*shape).to(gpu.dtype(problem.precision))
        if name == "exact a":
            a = gpu.normal(*shape).sigmoid_()
            a[:, :, 1::2] = 1 - 0.01 * gpu.uniform(*a[:, :, 1::2].shape)
            return a
        exact = self._values("exact a")
        return (exact if name == "a" else exact.log()).to(gpu.dtype(problem.precision))

    def _array(self, name: str, layout: Layout) -> Any:
        values = self._values(name)
        if layout == "B,T,C":
            return values
        copy = values.transpose(1, 2).contiguous()
        self._copies[name] = copy
        return copy

    def _expected(self, takes_log_a: bool) -> Arrays:
        torch = self._gpu.torch
        a = self.by_time(self._values("log a" if takes_log_a else "a"), "B,T,C")
        a = a.exp() if takes_log_a else a
        y = scan_reference.scan(torch, a, self.by_time(self._values("b"), "B,T,C"))
        if self._problem.task == "forward":
            return {"y": y}
        da, db = scan_reference.scan_gradients(torch, a, y, self.by_time(self._values("dy"), "B,T,C"))
        return {"y": y, "da": da * a if takes_log_a else da, "db": db}


def _ours(name: str, layout: Layout, problem: Problem, inputs: Inputs) -> Contender:
    axis = {"B,T,C": 1, "B,C,T": 2}[layout]

    def prepare() -> Run:
        a, b = (inputs.array(operand, layout) for operand in ("a", "b"))
        if problem.task == "forward":
            return lambda: {"y": minrnn_gen.scan(a, b, axis=axis)[0]}
        dy = inputs.array("dy", layout)

        def run() -> Arrays:
            y, _ = minrnn_gen.scan(a, b, axis=axis)
            da, db, _ = minrnn_gen.scan_backward(a, y, dy, axis=axis)
            return {"y": y, "da": da, "db": db}

        return run

    return Contender(name, prepare, inputs.judge(layout, takes_log_a=False))


def _theirs(baseline: Baseline, problem: Problem, inputs: Inputs, refused: str | None) -> Contender:
    if refused is None and problem.task != "forward" and not baseline.has_gradients:
        refused = NO_GRADIENTS

    def prepare() -> Run:
        operands = ("log a" if baseline.takes_log_a else "a", "b")
        a, b = (inputs.array(operand, baseline.layout) for operand in operands)
        scan = load(baseline)
        if problem.task == "forward":
            return checked(lambda: {"y": scan(a, b)})
        import torch

        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        dy = inputs.array("dy", baseline.layout)

        def run() -> Arrays:
            y = scan(a, b)
            da, db = torch.autograd.grad(y, (a, b), dy)
            return {"y": y, "da": da, "db": db}

        return checked(run)

    def checked(run: Run) -> Run:
        run()
        if inputs.repaired():
            raise ValueError(OVERWRITES)
        return run

    return Contender(
        baseline.name, prepare, inputs.judge(baseline.layout, baseline.takes_log_a), on_host=baseline.on_host, refused=refused
    )
