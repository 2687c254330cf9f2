"""Layer over a single sequence: the CPU step after step, the CPU by a parallel scan, and the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import minrnn_gen
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Contender, Run
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference import scan_reference
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.config.spec import load_spec
from minrnn_gen.cpu.recurrence import ScanMethod
from minrnn_gen.run.target import target_of

ON_CPU: Mapping[str, ScanMethod] = {"CPU, step by step": "sequential", "CPU, parallel scan": "parallel"}
# Length at which the time is divided over the kernels of a call: long enough that launches do not dominate.
SHARES_AT_TIME = 4096


def contenders(problem: Problem, gpu: Gpu) -> list[Contender]:
    """Return the CPU by both methods, and the GPU."""
    x, weight = host_inputs(problem, gpu.seed + problem.time)
    expected: Callable[[], Any] = cache(lambda: layer_reference(problem, x, weight))

    def judged(results: Arrays) -> dict[str, float]:
        y = results["y"]
        y = y if not isinstance(y, gpu.torch.Tensor) else y.cpu().numpy()
        return {"y": scan_reference.relative_error(y.astype("float64"), expected())}

    def on_gpu() -> Run:
        kernel = minrnn_gen.compile(problem.spec)
        x_gpu, weight_gpu = (gpu.torch.from_numpy(array).cuda() for array in (x, weight))
        return lambda: {"y": kernel(x_gpu, weight=weight_gpu)[0]}

    shares = gpu.kernel_shares if problem.time == SHARES_AT_TIME else None
    return [
        *(
            Contender(name, lambda method=method: cpu_run(problem, x, weight, method), judged, on_host=True)  # type: ignore[misc]
            for name, method in ON_CPU.items()
        ),
        Contender("GPU", on_gpu, judged, shares=shares),
    ]


def host_inputs(problem: Problem, seed: int) -> tuple[Any, Any]:
    """Return x [B, T, I], standard normal, and a weight [G H, I] that keeps its variance, in float32."""
    import numpy

    assert problem.inputs is not None
    generator = numpy.random.default_rng(seed)
    x = generator.standard_normal((problem.batch, problem.time, problem.inputs), dtype=numpy.float32)
    rows = len(scan_reference.CELL_REFERENCES[str(problem.model)].gates) * problem.channels
    weight = generator.standard_normal((rows, problem.inputs), dtype=numpy.float32) / math.sqrt(problem.inputs)
    return x, weight.astype(numpy.float32)


def layer_reference(problem: Problem, x: Any, weight: Any) -> Any:
    """Return y [B, T, H] in float64 of x [B, T, I] and weight [G H, I]."""
    import numpy

    cell = scan_reference.CELL_REFERENCES[str(problem.model)]
    gates = numpy.split(x.astype(numpy.float64) @ weight.astype(numpy.float64).T, len(cell.gates), axis=-1)
    return cell.run(numpy, [gate.swapaxes(0, 1) for gate in gates]).swapaxes(0, 1)


def cpu_run(problem: Problem, x: Any, weight: Any, method: ScanMethod) -> Run:
    """Return the CPU target's layer, its recurrence computed by `method`: y [B, T, H] of x [B, T, I] and weight [G H, I]."""
    import numpy

    from minrnn_gen.cell.lowering import LoweredScan
    from minrnn_gen.cpu.call import ForwardCall
    from minrnn_gen.cpu.scan import project, run_scan

    spec = load_spec(problem.spec)
    lowered = Builder(spec, target_of(spec), Store(cache_folder())).lowered
    assert isinstance(lowered, LoweredScan)
    initial = {name: numpy.zeros((problem.batch, problem.channels), numpy.float32) for name in lowered.states}

    def run() -> Arrays:
        gates = project(x, weight, numpy.float32).reshape(*x.shape[:2], len(lowered.gates), problem.channels)
        y = numpy.empty((*x.shape[:2], problem.channels), numpy.float32)
        call = ForwardCall(
            gates=gates.swapaxes(0, 1), bias=None, parameters={}, initial=initial, arithmetic=numpy.float32, y=y.swapaxes(0, 1)
        )
        run_scan(lowered, call, method=method)
        return {"y": y}

    return run
