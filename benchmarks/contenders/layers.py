"""minGRU layer, projection included: minrnn-gen against the paper's own form in torch, eager and compiled."""

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

Layer = Callable[[Any, Any], Any]


def contenders(problem: Problem, gpu: Gpu) -> list[Contender]:
    """Return the projection alone, torch eager and compiled, and the kernel."""
    inputs, torch = Inputs(problem, gpu), gpu.torch

    def eager(x: Any, weight: Any) -> Any:
        return log_space_layer(torch, x, weight)

    def compiled() -> Layer:
        torch._dynamo.reset()  # every shape is compiled for itself
        layer: Layer = torch.compile(eager, dynamic=False)
        return layer

    return [
        Contender("projection alone", lambda: _projection(problem, inputs)),
        Contender("torch, log-space", lambda: _autograd(problem, inputs, eager), inputs.judged),
        Contender("torch.compile of it", lambda: _autograd(problem, inputs, compiled()), inputs.judged),
        Contender("minrnn-gen", lambda: _kernel(problem, inputs), inputs.judged),
    ]


def log_space_layer(torch: Any, x: Any, weight: Any) -> Any:
    """minGRU of arXiv 2410.01201, appendix B: log-space model and log-space arithmetic, from a state of 0.

    x [B, T, I], weight [2 H, I] with the rows of z before those of h; returns [B, T, H] in the dtype of x. log(1 - z) and log z
    are -softplus(W.z) and -softplus(-W.z); h[t] = exp(A[t] + logcumsumexp(log z + log g(W.h) - A)[t]) with A the cumulative
    sum of log(1 - z). In float32 whatever x is: in 16 bits the sums would have no digits left.
    """
    functional = torch.nn.functional
    z, h = functional.linear(x, weight).float().chunk(2, dim=-1)
    return _log_space_scan(torch, -functional.softplus(z), -functional.softplus(-z), h).to(x.dtype)


def log_space_lstm(torch: Any, x: Any, weight: Any) -> Any:
    """minLSTM of arXiv 2410.01201, appendix B, as `log_space_layer` is its minGRU; weight [3 H, I] with rows of f, i and h.

    log f' and log i' of the normalised gates are -softplus(d) and -softplus(-d) with d = softplus(-W.f) - softplus(-W.i).
    """
    functional = torch.nn.functional
    f, i, h = functional.linear(x, weight).float().chunk(3, dim=-1)
    difference = functional.softplus(-f) - functional.softplus(-i)
    return _log_space_scan(torch, -functional.softplus(difference), -functional.softplus(-difference), h).to(x.dtype)


def _log_space_scan(torch: Any, log_coefficients: Any, log_shares: Any, h: Any) -> Any:
    """Return the states [B, T, H] from the logarithms of the coefficients of state and candidate, and W.h."""
    functional = torch.nn.functional
    log_candidate = torch.where(h >= 0, (functional.relu(h) + 0.5).log(), -functional.softplus(-h))
    log_values = log_shares + log_candidate
    decay = log_coefficients.cumsum(dim=1)
    return (decay + (log_values - decay).logcumsumexp(dim=1)).exp()


class Inputs:
    """Normal x and dy, a weight that keeps the variance of x, and their results in float64.

    The cell has a kink at W.h = 0, where a rounding changes the gradient without any error. So x and weight are small multiples
    of a power of two: their products and all sums of these are exact in float32, in any order. x has odd multiples; weight has
    even multiples except in its first column, so that no sum is 0.
    """

    # A value has 7 bits after its sign then, the digits of bfloat16; 1,024 products of two of them have 24.
    STEP = 2.0**-4
    LARGEST = 4.0

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self._cell = scan_reference.CELL_REFERENCES[str(problem.model)]
        self.array: Callable[[str], Any] = cache(self._made)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of the results among y [B, T, H], dx [B, T, I] and dweight [G H, I]."""
        expected = self.expected()
        return {name: scan_reference.relative_error(array.detach().double(), expected[name]) for name, array in results.items()}

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        assert problem.inputs is not None
        dtype = gpu.dtype(problem.precision)
        if name == "weight":
            weight = self._even(gpu.normal(len(self._cell.gates) * problem.channels, problem.inputs))
            weight[:, 0] += self.STEP
            # A power of two, so that multiples stay multiples.
            return (weight * 2.0 ** -round(math.log2(problem.inputs) / 2)).to(dtype)
        if name == "x":
            return (self._even(gpu.normal(problem.batch, problem.time, problem.inputs)) + self.STEP).to(dtype)
        return gpu.normal(problem.batch, problem.time, problem.channels).to(dtype)

    def _even(self, values: Any) -> Any:
        """Return the nearest even multiples of `STEP`."""
        return ((values / (2 * self.STEP)).round() * (2 * self.STEP)).clip(-self.LARGEST, self.LARGEST)

    def _expected(self) -> Arrays:
        torch = self._gpu.torch
        x, weight = (self.array(name).double() for name in ("x", "weight"))
        gates = (x @ weight.T).transpose(0, 1).chunk(len(self._cell.gates), dim=-1)
        y = self._cell.run(torch, gates).transpose(0, 1)
        if self._problem.task == "forward":
            return {"y": y}
        slopes = self._cell.gradients(torch, gates, self.array("dy").double().transpose(0, 1))
        projected = torch.cat(slopes, dim=-1).transpose(0, 1)
        return {"y": y, "dx": projected @ weight, "dweight": projected.flatten(0, 1).T @ x.flatten(0, 1)}


def _projection(problem: Problem, inputs: Inputs) -> Run:
    """Matrix products of the layer alone: one in the forward, three with gradients."""
    x, weight = inputs.array("x"), inputs.array("weight")
    if problem.task == "forward":
        return lambda: {"gates": x @ weight.T}
    projected = x @ weight.T
    return lambda: {
        "gates": x @ weight.T,
        "dx": projected @ weight,
        "dweight": projected.flatten(0, 1).T @ x.flatten(0, 1),
    }


def _autograd(problem: Problem, inputs: Inputs, layer: Layer) -> Run:
    """Run of `layer`, with its gradients by torch's autograd where the task has them."""
    import torch

    x, weight, dy = (inputs.array(name) for name in ("x", "weight", "dy"))
    if problem.task == "forward":
        return lambda: {"y": layer(x, weight)}
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()

    def run() -> Arrays:
        y = layer(x, weight)
        dx, dweight = torch.autograd.grad(y, (x, weight), dy)
        return {"y": y, "dx": dx, "dweight": dweight}

    return run


def _kernel(problem: Problem, inputs: Inputs) -> Run:
    kernel = minrnn_gen.compile(problem.spec)
    x, weight, dy = (inputs.array(name) for name in ("x", "weight", "dy"))
    if problem.task == "forward":
        return lambda: {"y": kernel(x, weight=weight)[0]}

    def run() -> Arrays:
        y, _, saved = kernel.forward(x, weight=weight)
        gradients = kernel.backward(saved, dy)
        return {"y": y, "dx": gradients["x"], "dweight": gradients["weight"]}

    return run
