"""Host time of a call of a layer, until Python goes on while the device works: `minrnn_gen.torch` against torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from benchmarks.contenders import torch_cells
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import CALLS_IN_A_ROW, Problem
from minrnn_gen.precision import PrecisionName

# A layer of torch.nn has one head, whatever the problem has: its call costs the host the same. In bf16 flatten_parameters() may
# do nothing, and every call copies the weights; in fp16 no call does.
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp16")
FLAT = "flat weights"
# Runs before the first that counts: compiled, prepared, the allocator's blocks of all sizes there.
WARM_UP_RUNS = 3


def contenders(problem: Problem, gpu: Gpu, baselines: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    """Return our layer, and that of torch.nn of the same width where torch.nn has the cell."""
    entries = [Contender("minrnn-gen", lambda: _run_of(problem, gpu, problem.precision, _ours(problem)), on_host=True)]
    if torch_cells.NAME in baselines and problem.model in torch_cells.LAYERS:
        entries += [_theirs(problem, gpu, precision, refused.get(torch_cells.NAME)) for precision in PRECISIONS]
    return entries


def _ours(problem: Problem) -> Callable[..., Any]:
    from minrnn_gen.torch.layers.layer import RNN

    return partial(RNN, str(problem.model), heads=problem.heads or 1)


def _theirs(problem: Problem, gpu: Gpu, precision: PrecisionName, refused: str | None) -> Contender:
    layers: list[Any] = []

    def made(*sizes: Any, **options: Any) -> Any:
        layer = getattr(gpu.torch.nn, torch_cells.LAYERS[str(problem.model)])(*sizes, batch_first=True, **options)
        layer.flatten_parameters()
        layers.append(layer)
        return layer

    def facts() -> dict[str, int | float | str]:
        memory = {parameter.untyped_storage().data_ptr() for parameter in layers[-1].parameters()}
        return {FLAT: "yes" if len(memory) == 1 else "no"}

    prepare = partial(_run_of, problem, gpu, precision, made)
    name = f"{torch_cells.NAME} {precision}"
    return Contender(name, prepare, on_host=True, facts=facts, refused=refused, precision=precision)


def _run_of(problem: Problem, gpu: Gpu, precision: PrecisionName, made: Callable[..., Any]) -> Run:
    """Return the run of calls in a row of a layer, `made` of (inputs, channels, device=, dtype=), for the problem's task."""
    torch, dtype = gpu.torch, gpu.dtype(precision)
    x = gpu.normal(problem.batch, problem.time, problem.inputs or problem.channels).to(dtype)
    dy = gpu.normal(problem.batch, problem.time, problem.channels).to(dtype)
    layer = made(x.shape[-1], problem.channels, device=x.device, dtype=dtype)
    # In training mode cuDNN keeps the reserve space of a backward, recorded or not.
    layer.train(problem.task != "forward")
    if problem.task != "forward":
        x.requires_grad_()  # as the output of the layer below
    differentiated = (x, *layer.parameters())

    def forward() -> Arrays:
        with torch.no_grad():
            return {"y": layer(x)[0]}

    def recorded() -> Arrays:
        return {"y": layer(x)[0]}

    def both() -> Arrays:
        y = layer(x)[0]
        return {"y": y, "dx": torch.autograd.grad(y, differentiated, dy)[0]}

    call = {"forward": forward, "forward, recorded": recorded}.get(problem.task, both)

    def run() -> Arrays:
        for _ in range(CALLS_IN_A_ROW - 1):
            call()
        return call()

    for _ in range(WARM_UP_RUNS):
        run()
    gpu.finish()
    return run
