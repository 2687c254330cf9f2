"""Decoding token by token: steps of a kernel, with a CUDA graph and eager, against the cells and layers of torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import minrnn_gen
from benchmarks.contenders import fused_cells, torch_cells
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import Inputs, ProjectedInputs
from benchmarks.reference.dense_reference import DENSE_REFERENCES
from minrnn_gen.precision import PrecisionName

# (y_t [B, H], the state after) of the input of a step and the state before, None before the first one.
Step = Callable[[Any, Any], tuple[Any, Any]]
# (name, suffix of the class, precision) of torch.nn: its cell, which is a step, and its layer over one step. A cell copies no
# weights, whatever their dtype.
_OF_TORCH: tuple[tuple[str, str, PrecisionName], ...] = (
    ("cell", "Cell", "bf16"),
    ("layer", "", "bf16"),
    ("layer", "", "fp16"),
)


def contenders(problem: Problem, gpu: Gpu, baselines: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    """Return ours in a graph and eager; for dense cells also ours projected, and torch.nn's where there is one head."""
    if problem.model not in DENSE_REFERENCES:
        scanned = fused_cells.Inputs(problem, gpu)
        return _ours(problem, gpu, lambda: ((), scanned.array("x", "BTD")), scanned.judge("BTD"))
    inputs = Inputs(problem, gpu)
    projected = ProjectedInputs(problem, gpu, inputs)
    entries = _ours(problem, gpu, lambda: ((inputs.array("R"),), inputs.array("x")), inputs.judged)
    entries.append(_in_graph("minrnn-gen projected", gpu, lambda: _projected(problem, projected), projected.judged))
    if torch_cells.NAME in baselines and problem.heads == 1 and problem.model in torch_cells.LAYERS:
        for kind, suffix, precision in _OF_TORCH:
            name = f"{torch_cells.NAME} {kind} {precision}"
            steps = partial(_of_torch, problem, gpu, projected, suffix, precision)
            entries.append(_in_graph(name, gpu, steps, projected.judged, precision, refused.get(torch_cells.NAME)))
    return entries


def decoded(step: Step, inputs: Sequence[Any]) -> Run:
    """Return the run of the steps in sequence; its results are y_t by the number of the step."""

    def run() -> Arrays:
        outputs, state = {}, None
        for number, x_t in enumerate(inputs):
            outputs[f"y {number}"], state = step(x_t, state)
        return outputs

    return run


def _ours(
    problem: Problem, gpu: Gpu, arrays: Callable[[], tuple[tuple[Any, ...], Any]], judge: Callable[[Arrays], Any]
) -> list[Contender]:
    """Return the kernel in a graph and eager; `arrays` returns R where the cell has it, and x [B, T, G, H]."""

    def steps() -> Run:
        R, x = arrays()
        kernel = minrnn_gen.compile(problem.spec)
        return decoded(lambda x_t, state: kernel.step(x_t, *R, state=state), _by_step(x))

    def eager() -> Run:
        run = steps()

        def finished() -> Arrays:
            results = run()
            gpu.finish()
            return results

        return finished

    return [
        _in_graph("minrnn-gen", gpu, steps, judge),
        Contender("minrnn-gen eager", eager, judge_of_steps(gpu, judge), on_host=True),
    ]


def _projected(problem: Problem, projected: ProjectedInputs) -> Run:
    """Steps of the kernel from x [B, T, I]."""
    x, weight, R = (projected.array(name) for name in ("x", "weight", "R"))
    kernel = minrnn_gen.compile({**problem.spec, "input_size": x.shape[-1]})
    return decoded(lambda x_t, state: kernel.step(x_t, R, weight=weight, state=state), _by_step(x))


def _of_torch(problem: Problem, gpu: Gpu, projected: ProjectedInputs, suffix: str, precision: PrecisionName) -> Run:
    """Steps of a cell or a layer of torch.nn from x [B, T, I]."""
    torch = gpu.torch
    x, weight, R = (projected.array(name).to(gpu.dtype(precision)) for name in ("x", "weight", "R"))
    module = torch_cells.module_of(torch, f"{torch_cells.LAYERS[str(problem.model)]}{suffix}", weight, R).eval()

    def of_cell(x_t: Any, state: Any) -> tuple[Any, Any]:
        state = module(x_t, state)
        return (state[0] if isinstance(state, tuple) else state), state

    def of_layer(x_t: Any, state: Any) -> tuple[Any, Any]:
        y, state = module(x_t[None], state)
        return y[0], state

    run = decoded(of_cell if suffix else of_layer, _by_step(x))

    def unrecorded() -> Arrays:
        with torch.no_grad():
            return run()

    return unrecorded


def _in_graph(
    name: str,
    gpu: Gpu,
    steps: Callable[[], Run],
    judge: Callable[[Arrays], Any],
    precision: PrecisionName | None = None,
    refused: str | None = None,
) -> Contender:
    return Contender(name, lambda: gpu.graph_of(steps()), judge_of_steps(gpu, judge), refused=refused, precision=precision)


def judge_of_steps(gpu: Gpu, judge: Callable[[Arrays], Any]) -> Callable[[Arrays], Any]:
    """Return the judge of the y_t of all steps, joined to y [B, T, H]."""
    return lambda results: judge({"y": gpu.torch.stack(tuple(results.values())).transpose(0, 1)})


def _by_step(x: Any) -> list[Any]:
    """Return the contiguous inputs of the steps, in their order."""
    return [x[:, step].contiguous() for step in range(x.shape[1])]
