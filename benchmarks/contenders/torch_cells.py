"""Recurrent layers of torch.nn, which are cuDNN's: every layer has a precision of its own and computes its projection."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import Inputs, ProjectedInputs
from minrnn_gen.precision import PrecisionName

NAME = "torch.nn"
# Their gates are in our order: i, f, g, o and r, z, n.
LAYERS = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN"}
_PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp16", "fp32")


def contenders(problem: Problem, gpu: Gpu, inputs: Inputs, refused: str | None) -> list[Contender]:
    """Return the layer in every precision in the table `cells`, else in the problem's; torch.nn has few cells and one head."""
    if problem.model not in LAYERS or problem.heads != 1:
        return []
    precisions = _PRECISIONS if problem.table == "cells" else (problem.precision,)
    projected = ProjectedInputs(problem, gpu, inputs)
    return [
        Contender(
            f"{NAME} {precision}",
            partial(_prepared, problem, gpu, inputs, projected, precision),
            projected.judged,
            facts=lambda precision=precision: {"precision": precision},  # type: ignore[misc]
            refused=refused,
            precision=precision,
        )
        for precision in precisions
    ]


def _prepared(problem: Problem, gpu: Gpu, inputs: Inputs, projected: ProjectedInputs, precision: PrecisionName) -> Run:
    torch, dtype = gpu.torch, gpu.dtype(precision)
    # Products of fp32 arrays are in fp32, as those of every contender.
    torch.backends.cudnn.allow_tf32 = False
    x, weight, R, dy = (projected.array(name).to(dtype) for name in ("x", "weight", "R", "dy"))
    layer = module_of(torch, LAYERS[str(problem.model)], weight, R, batch_first=True)

    def forward() -> Arrays:
        with torch.no_grad():
            y, last = layer(x)
        states: dict[str, Any] = {"c": last[1][0]} if problem.model == "lstm" else {}
        return {"y": y} | {name: states[name] for name in inputs.states_out}

    if problem.task == "forward":
        return forward
    x = x.detach().requires_grad_()

    def both() -> Arrays:
        y, _ = layer(x)
        dx, _, dR = torch.autograd.grad(y, (x, layer.weight_ih_l0, layer.weight_hh_l0), dy)
        return {"y": y, "dx": dx, "dR": dR.reshape(R.shape)}

    return both


def module_of(torch: Any, kind: str, weight: Any, R: Any, **options: Any) -> Any:
    """Return a layer or a cell of torch.nn with weight [G H, I] and R [G, 1, H, H], in their dtype and without biases."""
    units = R.shape[-1]
    module = getattr(torch.nn, kind)(
        weight.shape[-1], units, bias=False, device=weight.device, dtype=weight.dtype, **options
    )  # fmt: skip
    with torch.no_grad():
        for parameter, ours in zip(module.parameters(), (weight, R.reshape(-1, units)), strict=True):
            parameter.copy_(ours)
    return module
