"""Mamba's selective scan: minrnn-gen in both layouts, against the functions of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import minrnn_gen
from benchmarks.contenders.baselines import NOT_INSTALLED, composed, is_installed
from benchmarks.contenders.raw_scans import NO_GRADIENTS
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference import scan_reference
from minrnn_gen.precision import precision_of

# y [B, C, T] of u, Δ [B, C, T], A [C, N], B, C [B, N, T], D [C] and z [B, C, T], Δ through softplus.
SelectiveScan = Callable[..., Any]
_GATES = ("dt", "u", "z")
_NO_STEP = "no single step"
_QUADRATIC = "its gradients take time quadratic in the steps"
_LEAVES = ("u", "dt", "A", "B", "C", "D", "z")


@dataclass(frozen=True)
class SelectiveBaseline:
    """Selective scan of another library; `load` imports it, and torch's autograd goes through it if it `has_gradients`.

    A loop over steps that slices whole arrays has gradients of whole arrays at every step: `gradient_steps_max` bounds those.
    `load_step` imports the function of a single step, which updates the state [B, C, N] that it gets first.
    """

    name: str
    distribution: str
    load: Callable[[], SelectiveScan]
    has_gradients: bool = True
    gradient_steps_max: int | None = None
    load_step: Callable[[], SelectiveScan] | None = None


def _mamba_ssm() -> SelectiveScan:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return lambda *arrays: selective_scan_fn(*arrays, delta_softplus=True)


def _mamba_ssm_step() -> SelectiveScan:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    def step(state: Any, u: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, no_bias: Any) -> Any:
        return selective_state_update(state, u, dt, A, B, C, D, z, no_bias, dt_softplus=True)

    return step


def _transformers() -> SelectiveScan:
    from transformers.models.mamba import modeling_mamba

    # What it runs where mamba_ssm is not installed, even where it is.
    loop = inspect.unwrap(modeling_mamba.mamba_selective_scan)
    return lambda *arrays: loop(*arrays, delta_softplus=True)


def _torch_associative_scan() -> SelectiveScan:
    import torch
    from torch._higher_order_ops.associative_scan import associative_scan

    def scan(u: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any) -> Any:
        step = torch.nn.functional.softplus(dt.float())[:, :, None]
        decay = torch.exp(step * A[:, :, None])
        mode = "pointwise" if u.is_cuda else "generic"
        h = associative_scan(composed, (decay, step * u[:, :, None] * B[:, None]), dim=-1, combine_mode=mode)[1]
        y = (h * C[:, None]).sum(2) + D[:, None] * u
        return (y * torch.nn.functional.silu(z.float())).to(u.dtype)

    # Every shape is compiled for itself; what was compiled for others would count against torch's limit.
    torch._dynamo.reset()
    compiled: SelectiveScan = torch.compile(scan, dynamic=False)
    return compiled


BASELINES = (
    SelectiveBaseline("mamba_ssm", "mamba-ssm", _mamba_ssm, load_step=_mamba_ssm_step),
    SelectiveBaseline("transformers", "transformers", _transformers, gradient_steps_max=512),
    SelectiveBaseline("torch.associative_scan", "torch", _torch_associative_scan, has_gradients=False),
)


def refusals(chosen: Collection[str]) -> dict[str, str]:
    """Return {name: reason} of the chosen baselines that are not installed."""
    absent = (baseline for baseline in BASELINES if not is_installed(baseline.distribution))
    return {baseline.name: NOT_INSTALLED for baseline in absent if baseline.name in chosen}


def contenders(
    problem: Problem, gpu: Gpu, baselines: Sequence[SelectiveBaseline], refused: Mapping[str, str]
) -> list[Contender]:
    """Return the copy, ours in both layouts, and the baselines; those of `refused` {name: reason} have its reason as row."""
    assert problem.words is not None
    inputs = Inputs(problem, gpu)
    moved_bytes = problem.words * problem.elements * precision_of(problem.precision).storage_bytes
    if problem.task == "step":
        # The state is read and written, in the type of arithmetic.
        moved_bytes += 2 * problem.elements * (problem.state_size or 1) * precision_of(problem.precision).arithmetic_bytes
        steps = [_their_step(baseline, inputs, refused.get(baseline.name)) for baseline in baselines]
        return [gpu.copy(moved_bytes), _our_step(problem, inputs), *steps]
    entries = [gpu.copy(moved_bytes), *(_ours(layout, problem, inputs) for layout in ("BTD", "BDT"))]
    return entries + [_theirs(baseline, problem, inputs, refused.get(baseline.name)) for baseline in baselines]


class Inputs:
    """Arrays of one problem, made on first use, the gates and dy time first, [T, B, C], and B and C [T, B, N].

    A is -1 to -N in every channel, and Δ is mostly between 0.01 and 0.05, so that values remember 1 to 100 steps. The others
    are standard normal.
    """

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self._problem, self._gpu = problem, gpu
        self.values: Callable[[str], Any] = cache(self._made)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the cell: a = log(-A) [C, N] and d [C], in float32."""
        return {"a": (-self.values("A")).log(), "d": self.values("D")}

    def stacked(self, names: Sequence[str]) -> Any:
        """Return arrays of one shape [T, B, …] as [G, T, B, …]."""
        return self._gpu.torch.stack([self.values(name) for name in names])

    def judge(self, by_time: Callable[[Any], Any]) -> Callable[[Arrays], dict[str, float]]:
        """Return the judge of results; `by_time` puts time first in those of each step."""

        def judged(results: Arrays) -> dict[str, float]:
            expected = self.expected()
            return {
                name: scan_reference.relative_error(
                    (by_time(result.detach()) if name not in ("da", "dA", "dD") else result.detach()).double(), expected[name]
                )
                for name, result in results.items()
            }

        return judged

    def _made(self, name: str) -> Any:
        problem, gpu = self._problem, self._gpu
        assert problem.state_size is not None
        if name == "A":
            return -gpu.torch.ones_like(gpu.normal(problem.channels, problem.state_size)).cumsum(1)
        if name == "D":
            return gpu.normal(problem.channels)
        if name == "h":
            return gpu.normal(problem.batch, problem.channels, problem.state_size)
        last = problem.state_size if name in ("B", "C") else problem.channels
        values = gpu.normal(problem.time, problem.batch, last)
        return (values - 4 if name == "dt" else values).to(gpu.dtype(problem.precision))

    def _expected(self) -> Arrays:
        torch = self._gpu.torch
        inputs = {name: self.values(name).double() for name in _LEAVES}
        if self._problem.task == "step":
            at_step = {name: values if name in ("A", "D") else values[0] for name, values in inputs.items()}
            return scan_reference.selective_step(torch, self.values("h").double(), **at_step)
        y = scan_reference.selective_scan(torch, **inputs)
        if self._problem.task == "forward":
            return {"y": y}
        gradients = scan_reference.selective_scan_gradients(torch, self.values("dy").double(), **inputs)
        return {"y": y, **gradients, "da": gradients["dA"] * inputs["A"]}


def _ours(layout: str, problem: Problem, inputs: Inputs) -> Contender:
    # From gates [G, T, B, C] and the axis of gates there; groups have the same axis in B and C.
    order, axis = {"BTD": ((2, 1, 0, 3), 2), "BDT": ((2, 0, 3, 1), 1)}[layout]

    def prepare() -> Run:
        kernel = minrnn_gen.compile({**problem.spec, "layout": layout})

        def in_layout(names: Sequence[str]) -> Any:
            return inputs.stacked(names).permute(*order).contiguous()

        x, shared = in_layout(_GATES), {"b": in_layout("B"), "c": in_layout("C")}
        parameters = inputs.parameters
        if problem.task == "forward":
            return lambda: {"y": kernel(x, parameters=parameters, shared=shared)[0]}
        dy = in_layout(["dy"]).select(axis, 0).contiguous()

        def run() -> Arrays:
            y, _, saved = kernel.forward(x, parameters=parameters, shared=shared)
            gradients = kernel.backward(saved, dy)
            of_gates = {f"d{name}": gradients["x"].select(axis, gate) for gate, name in enumerate(_GATES)}
            of_steps = {f"d{name.upper()}": gradients["shared"][name].select(axis, 0) for name in shared}
            return {"y": y, **of_gates, **of_steps, "da": gradients["parameters"]["a"], "dD": gradients["parameters"]["d"]}

        return run

    by_time = (1, 0, 2) if layout == "BTD" else (2, 0, 1)
    return Contender(f"minrnn-gen {layout}", prepare, inputs.judge(lambda array: array.permute(*by_time)))


def _our_step(problem: Problem, inputs: Inputs) -> Contender:
    def prepare() -> Run:
        kernel = minrnn_gen.compile(problem.spec)
        x = inputs.stacked(_GATES)[:, 0].permute(1, 0, 2).contiguous()
        shared = {"b": inputs.values("B")[0][:, None], "c": inputs.values("C")[0][:, None]}
        parameters, state = inputs.parameters, {"h": inputs.values("h")}

        def run() -> Arrays:
            y, after = kernel.step(x, parameters=parameters, shared=shared, state=state)
            return {"y": y, "h": after["h"]}

        return run

    return Contender("minrnn-gen BTD", prepare, inputs.judge(lambda array: array))


def _their_step(baseline: SelectiveBaseline, inputs: Inputs, refused: str | None) -> Contender:
    load = baseline.load_step

    def prepare() -> Run:
        assert load is not None
        step = load()
        u, dt, B, C, z = (inputs.values(name)[0] for name in ("u", "dt", "B", "C", "z"))
        state = inputs.values("h").clone()
        D = inputs.values("D")
        # Its kernel cannot do without the bias of Δ.
        arrays = (u, dt, inputs.values("A"), B, C, D, z, 0 * D)

        def run() -> Arrays:
            # Of a state that decays and is driven by the same inputs at every run: y is of no step that the reference knows.
            step(state, *arrays)
            return {}

        return run

    return Contender(baseline.name, prepare, refused=refused or (_NO_STEP if load is None else None))


def _theirs(baseline: SelectiveBaseline, problem: Problem, inputs: Inputs, refused: str | None) -> Contender:
    if refused is None and problem.task != "forward":
        if not baseline.has_gradients:
            refused = NO_GRADIENTS
        elif baseline.gradient_steps_max is not None and problem.time > baseline.gradient_steps_max:
            refused = _QUADRATIC

    def prepare() -> Run:
        def last_in_time(name: str) -> Any:
            array = inputs.values(name)
            return array if name in ("A", "D") else array.permute(1, 2, 0).contiguous()

        scan = baseline.load()
        arrays = [last_in_time(name) for name in _LEAVES]
        if problem.task == "forward":
            return lambda: {"y": scan(*arrays)}
        import torch

        leaves, dy = [array.detach().requires_grad_() for array in arrays], last_in_time("dy")

        def run() -> Arrays:
            y = scan(*leaves)
            gradients = torch.autograd.grad(y, leaves, dy)
            return {"y": y, **{f"d{name}": gradient for name, gradient in zip(_LEAVES, gradients, strict=True)}}

        return run

    return Contender(baseline.name, prepare, inputs.judge(lambda array: array.permute(2, 0, 1)), refused=refused)
