"""Cells with several products or norms in a step: ours, the loop that people write in torch, and TorchRL's kernel."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import minrnn_gen
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.harness.stand_ins import standing_in
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import judged
from benchmarks.reference.waiting_steps import RMS_EPSILON, WAITING_STEPS, run_loop

EAGER, GRAPH, COMPILED, PEER = "eager loop", "eager loop, CUDA graph", "torch.compile", "TorchRL"
NAMES = (EAGER, GRAPH, COMPILED, PEER)
# z of DreamerV3's block GRU is sigmoid(R.z(k) - 1).
UPDATE_BIAS = -1.0
# Loops that the peer's kernels unroll; Triton 3.6 takes tl.cdiv of constants for no constant. BLOCK_K divides these sizes.
WITH_CONSTANTS = re.compile(r"tl\.cdiv\((\w+), BLOCK_K\)")
# (x, R by gate, parameters) -> y
Call = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]


class Inputs:
    """Arrays of a problem and its results in float64, made on first use: pre-activations x, and dy.

    The x of block_gru is `input` [B, T, H] times `weight` [H, H], since TorchRL's kernel multiplies them itself. R keeps the
    variance of what it multiplies; parameters are about 1.
    """

    def __init__(self, problem: Problem, gpu: Gpu) -> None:
        self.problem, self._gpu = problem, gpu
        self.cell = WAITING_STEPS[str(problem.model)]
        self.kernel = cache(lambda: minrnn_gen.compile(problem.spec))
        self.array: Callable[[str], Any] = cache(self._made)
        self.R: Callable[[], dict[str, Any]] = cache(self._matrices)
        self.parameters: Callable[[], dict[str, Any]] = cache(self._parameters)
        self.expected: Callable[[], Arrays] = cache(self._expected)

    @property
    def dtype(self) -> Any:
        """The storage dtype of the problem."""
        return self._gpu.dtype(self.problem.precision)

    def judged(self, results: Arrays) -> dict[str, float]:
        """Return the relative errors of y [B, T, units] and of the gradients dx or dinput among `results`."""
        return judged(results, self.expected())

    def initial(self, dtype: Any) -> tuple[Any, ...]:
        """Return zeros of every state."""
        problem = self.problem
        units = dict.fromkeys(self.cell.projected, problem.projection_size)
        shapes = ((problem.batch, units.get(name) or problem.channels) for name in self.cell.states)
        return tuple(self._gpu.torch.zeros(shape, dtype=dtype, device=self.array("x").device) for shape in shapes)

    def _made(self, name: str) -> Any:
        problem, gpu = self.problem, self._gpu
        rows, width = (problem.batch, problem.time), problem.channels
        match name:
            case "input":
                values = gpu.normal(*rows, width)
            case "weight":
                values = gpu.normal(width, width) * width**-0.5
            case "x" if problem.model == "block_gru":
                values = (self.array("input").double() @ self.array("weight").double().T)[:, :, None]
            case "x":
                values = gpu.normal(*rows, len(self.cell.gates), width)
            case "dy":
                values = gpu.normal(*rows, (problem.projection_size if self.cell.projected else None) or width)
            case _:
                raise KeyError(name)
        return values.to(self.dtype)

    def _matrices(self) -> dict[str, Any]:
        interface = self.kernel().interface
        shapes = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
        return {gate: (self._gpu.normal(*shape) * shape.of**-0.5).to(self.dtype) for gate, shape in shapes}

    def _parameters(self) -> dict[str, Any]:
        interface = self.kernel().interface
        shapes = {name: interface.shape_of_parameter(name) for name in interface.parameters}
        return {name: (1 + 0.1 * self._gpu.normal(*shape)).to(self.dtype) for name, shape in shapes.items()}

    def _expected(self) -> Arrays:
        torch = self._gpu.torch
        x = self.array("x").double().requires_grad_(self.problem.task != "forward")
        R, parameters = ({name: array.double() for name, array in given.items()} for given in (self.R(), self.parameters()))
        y = run_loop(torch, self.cell.step, x, R, self.initial(torch.float64), parameters)
        if self.problem.task == "forward":
            return {"y": y}
        (dx,) = torch.autograd.grad(y, (x,), self.array("dy").double())
        return {"y": y.detach(), "dx": dx} | (
            {"dinput": dx[:, :, 0] @ self.array("weight").double()} if self.problem.model == "block_gru" else {}
        )


def contenders(
    problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str], peer: str | None
) -> list[Contender]:
    """Return ours and the chosen baselines; `peer` is the path of TorchRL's file, None to leave its kernel out."""
    inputs = Inputs(problem, gpu)
    loops = {EAGER: _eager, GRAPH: lambda given, of: of.graph_of(_eager(given, of)), COMPILED: _compiled}
    entries = [Contender("minrnn-gen", lambda: gpu.graph_of(_ours(inputs, gpu)), inputs.judged)]
    entries += [
        Contender(name, partial(prepare, inputs, gpu), inputs.judged, refused=refused.get(name))
        for name, prepare in loops.items()
        if name in chosen
    ]
    if problem.model == "block_gru" and peer is not None and PEER in chosen:
        run = partial(_of_peer, inputs, gpu, peer)
        entries.append(Contender(PEER, lambda: gpu.graph_of(run()), inputs.judged, refused=refused.get(PEER)))
    return entries


def _run_of(inputs: Inputs, gpu: Gpu, call: Call, given: str = "x") -> Run:
    """Return the run of `call(x, R, parameters)`, with the gradients of everything where the task has them."""
    x, R, parameters, dy = inputs.array(given), inputs.R(), inputs.parameters(), inputs.array("dy")
    if inputs.problem.task == "forward":

        def forward() -> Arrays:
            with gpu.torch.no_grad():
                return {"y": call(x, R, parameters)}

        return forward
    x, R, parameters = (
        x.detach().requires_grad_(),
        *({name: array.detach().requires_grad_() for name, array in named.items()} for named in (R, parameters)),
    )

    def both() -> Arrays:
        y = call(x, R, parameters)
        dx, *_ = gpu.torch.autograd.grad(y, (x, *R.values(), *parameters.values()), dy)
        return {"y": y.detach(), f"d{given}": dx}

    return both


def _ours(inputs: Inputs, gpu: Gpu) -> Run:
    from minrnn_gen.torch import recurrence

    kernel = inputs.kernel()
    unequal = kernel.interface.has_unequal_products

    def call(x: Any, R: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        matrices = R if unequal else gpu.torch.stack([*R.values()])
        named: dict[str, Any] = {"parameters": parameters} if parameters else {}
        return recurrence(kernel, x, matrices, **named)[0]

    return _run_of(inputs, gpu, call)


def _eager(inputs: Inputs, gpu: Gpu) -> Run:
    def call(x: Any, R: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        return run_loop(gpu.torch, inputs.cell.step, x, R, inputs.initial(inputs.dtype), parameters)

    return _run_of(inputs, gpu, call)


def _compiled(inputs: Inputs, gpu: Gpu) -> Run:
    """Return the loop over a compiled step: a compiler takes minutes for a program of hundreds of steps."""
    gpu.torch._dynamo.reset()
    step = gpu.torch.compile(inputs.cell.step, dynamic=False)

    def call(x: Any, R: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        return run_loop(gpu.torch, step, x, R, inputs.initial(inputs.dtype), parameters)

    return _run_of(inputs, gpu, call)


def _of_peer(inputs: Inputs, gpu: Gpu, path: str) -> Run:
    torch, problem, module = gpu.torch, inputs.problem, module_of_peer(path)
    heads, units = problem.heads or 1, problem.head_dim
    zeros = partial(torch.zeros, dtype=torch.float32, device=inputs.array("input").device)
    is_init = zeros(problem.batch, problem.time).bool()
    # Of block n: rows of its own units, of the input and of a, to its units; ours are transposed.
    of_input = inputs.array("weight").reshape(heads, units, -1).transpose(1, 2)

    def call(x: Any, R: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        across = R["e"][0].reshape(heads, units, -1).transpose(1, 2)
        first = torch.cat((R["d"].transpose(1, 2), of_input, across), 1)
        gates = torch.cat([R[gate].transpose(1, 2) for gate in "rnz"], 2)
        y, _ = module.dreamer_v3_block_gru_triton(
            x, inputs.initial(inputs.dtype)[0], is_init, R["a"][0], zeros(len(R["a"][0])), parameters["s"].float(),
            [first, zeros(problem.channels), parameters["w"].float()], gates, zeros(heads * 3 * units),
            torch.nn.SiLU(), RMS_EPSILON, UPDATE_BIAS, heads, 1,
        )  # fmt: skip
        return y

    return _run_of(inputs, gpu, call, "input")


def module_of_peer(path: str) -> Any:
    """Return the module of TorchRL's file, which asks TorchRL for nothing but Triton's version, so that it does without."""
    found = [int(word) for word in metadata.version("triton").split(".")[:2]]
    stands_in = ModuleType("torchrl._utils")
    stands_in._triton_version_at_least = lambda least: found >= [*map(int, least.split("."))]  # type: ignore[attr-defined]
    # Triton's compiler reads functions from their file.
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False, encoding="utf-8") as file:
        file.write(WITH_CONSTANTS.sub(r"(\1 // BLOCK_K)", Path(path).read_text(encoding="utf-8")))
    spec = importlib.util.spec_from_file_location("torchrl_block_gru", file.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with standing_in({"torchrl": ModuleType("torchrl"), "torchrl._utils": stands_in}):
        spec.loader.exec_module(module)
    return module
