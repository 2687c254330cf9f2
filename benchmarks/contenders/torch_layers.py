"""Layers as people call them in torch: ours against torch.nn's, and the forms in which torch computes minGRU and minLSTM.

A run is one call, by the host's clock until the device is done, or one training step: forward, backward, gradients set to None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from benchmarks.contenders import layers
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.layer_inputs import LayerInputs, gradient_name, results_of
from minrnn_gen.precision import PrecisionName

OURS, TORCH_NN, LOG_SPACE, COMPILED = "minrnn-gen", "torch.nn", "torch.log_space", "torch.compile"
NAMES = (TORCH_NN, LOG_SPACE, COMPILED)
# Precisions whose tolerances the results keep. TF32, torch's default in recurrent layers of fp32, rounds the operands of
# products to as many digits as fp16 has. Torch's ways are compared with as they are: errors stand next to their times.
_FP32_TOLERANCE: PrecisionName = "fp16"
_TORCH_TOLERANCE: PrecisionName = "bf16"
# Fact of a row: the dtype of the results.
RETURNS = "returns"

Layer = Callable[..., Any]
_FORMS: Mapping[str, Layer] = {"min_gru_log": layers.log_space_layer, "min_lstm_log": layers.log_space_lstm}


@dataclass(frozen=True)
class Subject:
    """Layer in use: `call` returns its results by name, for the leaf `x`; `leaves` are x and the parameters by gradient."""

    call: Callable[[], dict[str, Any]]
    x: Any
    leaves: Mapping[str, Any]


# The makers of the subjects by the names of the contenders, the array of a name, and the judge of the results.
_Ways = tuple[Mapping[str, Callable[[], Subject]], Callable[[str], Any], Callable[[Arrays], Mapping[str, float]]]


def contenders(problem: Problem, gpu: Gpu, chosen: Collection[str], refused: Mapping[str, str]) -> list[Contender]:
    """Return our layer, and the chosen ways of torch that compute the same."""
    subjects, array, judge = _scan_ways(problem, gpu) if problem.table == "scans" else _recurrent_ways(problem, gpu)

    def contender(name: str) -> Contender:
        dtypes: list[str] = []
        ours = problem.precision if problem.precision != "fp32" else _FP32_TOLERANCE
        return Contender(
            name,
            lambda: _prepared(problem, gpu, subjects[name](), array, dtypes),
            judge,
            on_host=True,
            facts=lambda: {RETURNS: dtypes[-1]},
            peak_bytes=gpu.peak_bytes,
            refused=refused.get(name),
            precision=ours if name == OURS else _TORCH_TOLERANCE,
            warms_up=True,
        )

    return [contender(name) for name in subjects if name == OURS or name in chosen]


def _recurrent_ways(problem: Problem, gpu: Gpu) -> _Ways:
    inputs = _shared_inputs(_stored(problem), gpu)

    def subject_of(classes: Any, wrap: Callable[[Layer], Layer] = lambda layer: layer) -> Subject:
        module = inputs.module(classes)
        # In training mode cuDNN keeps the reserve space of a backward, recorded or not.
        module.train(problem.task != "forward")
        x, layer, more = _leaf(inputs.array("x"), problem), wrap(module), inputs.arguments()
        gradients = {gradient_name(name): parameter for name, parameter in module.named_parameters()}
        return Subject(lambda: results_of(layer(x, *more), problem.is_cell), x, {"dx": x, **gradients})

    def ours() -> Subject:
        from minrnn_gen.torch import nn

        return subject_of(nn)

    subjects = {OURS: ours, TORCH_NN: lambda: subject_of(gpu.torch.nn)}
    if problem.is_cell:  # torch's layers over time are one operator, which torch.compile leaves as it is
        subjects[COMPILED] = lambda: subject_of(gpu.torch.nn, partial(_compiled, gpu.torch))
    return subjects, inputs.array, inputs.judged


def _scan_ways(problem: Problem, gpu: Gpu) -> _Ways:
    torch = gpu.torch
    inputs = layers.Inputs(problem.model_copy(update={"precision": problem.stored_precision}), gpu)

    def ours() -> Subject:
        from minrnn_gen.torch.layers.named import MinGRULog, MinLSTMLog

        weight, x = inputs.array("weight"), _leaf(inputs.array("x"), problem)
        kinds: dict[str, type[Any]] = {"min_gru_log": MinGRULog, "min_lstm_log": MinLSTMLog}
        layer = kinds[str(problem.model)](
            problem.inputs, problem.channels, bias=False, device=weight.device, dtype=weight.dtype
        )
        with torch.no_grad():
            layer.weight_ih_l0.copy_(weight)
        return Subject(lambda: {"y": layer(x)[0]}, x, {"dx": x, "dweight": layer.weight_ih_l0})

    def form(x: Any, weight: Any) -> Any:
        return _FORMS[str(problem.model)](torch, x, weight)

    def of_form(wrap: Callable[[Layer], Layer] = lambda layer: layer) -> Subject:
        weight, x = torch.nn.Parameter(inputs.array("weight").clone()), _leaf(inputs.array("x"), problem)
        layer = wrap(form)
        return Subject(lambda: {"y": layer(x, weight)}, x, {"dx": x, "dweight": weight})

    subjects = {OURS: ours, LOG_SPACE: of_form, COMPILED: lambda: of_form(partial(_compiled, torch))}
    return subjects, inputs.array, inputs.judged


def _leaf(x: Any, problem: Problem) -> Any:
    """Return x as a leaf, which in training has a gradient, as the output of the layer below has."""
    return x.detach().requires_grad_(problem.task != "forward")


def _compiled(torch: Any, layer: Layer) -> Layer:
    torch._dynamo.reset()  # every shape is compiled for itself
    compiled: Layer = torch.compile(layer, dynamic=False)
    return compiled


def _stored(problem: Problem) -> Problem:
    """Return the problem by which inputs are shared: that of its kinds and tasks with the same arrays."""
    update = {"precision": problem.stored_precision, "task": "forward + backward", "autocast": False, "mark": None}
    return problem.model_copy(update=update)


@lru_cache(maxsize=1)
def _shared_inputs(problem: Problem, gpu: Gpu) -> LayerInputs:
    """Return the inputs of a problem, the same object for problems in a row that share them."""
    return LayerInputs(problem, gpu)


def _prepared(problem: Problem, gpu: Gpu, subject: Subject, array: Callable[[str], Any], dtypes: list[str]) -> Run:
    """Return the run of a subject: one call without gradients, or one training step; `dtypes` gets that of its results."""
    torch, call = gpu.torch, subject.call

    def autocast() -> AbstractContextManager[Any]:
        if not problem.autocast:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(subject.x.device.type, dtype=gpu.dtype(problem.precision))
        return context

    def forward() -> Arrays:
        with torch.no_grad(), autocast():
            results = call()
        gpu.finish()
        return results

    if problem.task == "forward":
        dtypes.append(_dtype_of(forward()))
        return forward
    with autocast():
        y = call()["y"]
    dtypes.append(_dtype_of({"y": y}))
    dy = array("dy").to(y.dtype)

    def step() -> Arrays:
        with autocast():
            results = call()
        results["y"].backward(dy)
        for name, leaf in subject.leaves.items():
            results[name], leaf.grad = leaf.grad, None
        gpu.finish()
        return results

    return step


def _dtype_of(results: Arrays) -> str:
    first = next(iter(results.values()))
    return str(first.dtype).removeprefix("torch.")
