"""Arrays of a recurrent layer or cell of torch.nn, its parameters among them, and their results in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.scan_reference import relative_error

# Their gates, parameters and results are named alike in every contender.
CLASSES = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN"}


class LayerInputs:
    """Normal x [B, T, I] and dy [B, T, D H], of a cell x [B, I] and states [B, H], and parameters of the variance of torch's.

    They have the stored precision of the problem, so that problems that differ in task and autocast alone can share them.
    Results are named as in `results_of`, and the gradients of training as in `gradient_name`.
    """

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self.array: Callable[[str], Any] = cache(self._made)
        self.parameters: Callable[[], Mapping[str, Any]] = cache(self._parameters)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of y and dx, and the largest of the last states and of the parameters' gradients."""
        expected = self.expected()
        errors: dict[str, list[float]] = {}
        for name, array in results.items():
            errors.setdefault(_group(name), []).append(relative_error(array.detach().double(), expected[name]))
        return {group: largest(values) for group, values in errors.items()}

    def module(self, classes: Any, **options: Any) -> Any:
        """Return the problem's module of `classes`, torch.nn or one with the same names, with these parameters."""
        problem = self._problem
        x = self.array("x")
        options = {"device": x.device, "dtype": x.dtype, **options}
        kind = CLASSES[str(problem.model)]
        sizes = problem.inputs, problem.channels
        if problem.is_cell:
            module = getattr(classes, f"{kind}Cell")(*sizes, **options)
        else:
            options |= {"batch_first": True, "bidirectional": problem.bidirectional}
            module = getattr(classes, kind)(*sizes, problem.layers, **options)
        with self._gpu.torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(self.parameters()[name])
        return module

    def arguments(self, dtype: Any = None) -> tuple[Any, ...]:
        """Return what a module is called with after x: of a single step the states before, else nothing."""
        if self._problem.time != 1:
            return ()
        states = [self.array(name) for name in self._states]
        states = [state if self._problem.is_cell else state.expand(self._directions, *state.shape) for state in states]
        states = [state.contiguous() if dtype is None else state.to(dtype).contiguous() for state in states]
        return (tuple(states) if len(states) > 1 else states[0],)

    @property
    def _states(self) -> tuple[str, ...]:
        return ("h", "c") if self._problem.model == "lstm" else ("h",)

    @property
    def _directions(self) -> int:
        return (self._problem.layers or 1) * (2 if self._problem.bidirectional else 1)

    def _made(self, name: str) -> Any:
        problem, normal = self._problem, self._gpu.normal
        inputs = problem.inputs or problem.channels
        match name:
            case "x":
                values = normal(problem.batch, inputs) if problem.is_cell else normal(problem.batch, problem.time, inputs)
            case "dy":
                values = normal(problem.batch, problem.time, problem.channels * (2 if problem.bidirectional else 1))
            case "h" | "c":
                values = normal(problem.batch, problem.channels) * 0.5
            case _:
                raise KeyError(name)
        return values.to(self._gpu.dtype(problem.stored_precision))

    def _parameters(self) -> Mapping[str, Any]:
        problem, gpu = self._problem, self._gpu
        kind = CLASSES[str(problem.model)]
        sizes = problem.inputs, problem.channels
        # Without memory: it says the names and shapes alone.
        if problem.is_cell:
            module = getattr(gpu.torch.nn, f"{kind}Cell")(*sizes, device="meta")
        else:
            module = getattr(gpu.torch.nn, kind)(*sizes, problem.layers, bidirectional=problem.bidirectional, device="meta")
        deviation = (3 * problem.channels) ** -0.5
        dtype = gpu.dtype(problem.stored_precision)
        return {name: (gpu.normal(*p.shape) * deviation).to(dtype) for name, p in module.named_parameters()}

    def _expected(self) -> Arrays:
        """Return the results of torch's module in float64, composed of its products and sums instead of by cuDNN."""
        torch = self._gpu.torch
        with _without_cudnn(torch):
            module = self.module(torch.nn, dtype=torch.float64)
            x = self.array("x").double()
            if self._problem.is_cell:
                with torch.no_grad():
                    return results_of(module(x, *self.arguments(torch.float64)), is_cell=True)
            x.requires_grad_()
            results = results_of(module(x, *self.arguments(torch.float64)), is_cell=False)
            results["y"].backward(self.array("dy").double())
        gradients = {gradient_name(name): parameter.grad for name, parameter in module.named_parameters()}
        return {name: array.detach() for name, array in {**results, "dx": x.grad, **gradients}.items()}


def results_of(output: Any, is_cell: bool) -> dict[str, Any]:
    """Return what a module of torch.nn returned by name: y of a layer, and the last states h and c."""
    y, states = (None, output) if is_cell else output
    states = states if isinstance(states, tuple) else (states,)
    named = dict(zip(("h", "c"), states, strict=False))
    return named if y is None else {"y": y, **named}


def gradient_name(parameter: str) -> str:
    """Return the name of the gradient of a parameter among the results."""
    return f"d{parameter}"


def largest(errors: Sequence[float]) -> float:
    """Return the largest of some errors, NaN where any is NaN."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _group(name: str) -> str:
    if name in ("y", "dx"):
        return name
    return "states" if name in ("h", "c") else "dweights"


@contextmanager
def _without_cudnn(torch: Any) -> Iterator[None]:
    library = torch.backends.cudnn
    was_enabled = library.enabled
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = was_enabled
