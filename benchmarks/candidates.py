"""Times candidates of a problem beside a copy of the same bytes: what the cost model was fitted to, and its regret.

Usage, on a GPU and with torch: `python benchmarks/candidates.py OUT.json [MODEL ...]`. Of each problem the best predicted
candidates and as many drawn from the others; medians of runs with a cold L2, no errors taken (the tests hold every kernel
against fp64).
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import minrnn_gen
from minrnn_gen.api import target_of
from minrnn_gen.build import Builder
from minrnn_gen.built import BuiltKernel
from minrnn_gen.contract import X_AXES
from minrnn_gen.errors import PromiseBroken
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution
from minrnn_gen.precision import precision_of
from minrnn_gen.store import Store, cache_folder

# (model, batch, time, hidden_size, precision)
PROBLEMS = (
    ("min_gru", 8, 16384, 1536, "fp32"),
    ("min_gru", 8, 16384, 1536, "bf16"),
    ("min_gru", 1, 65536, 512, "fp32"),
    ("min_gru", 1, 65536, 512, "bf16"),
    ("min_gru", 64, 512, 1024, "fp32"),
    ("min_gru", 8, 4096, 1024, "bf16"),
    ("min_lstm", 8, 16384, 1536, "bf16"),
    ("min_lstm", 1, 65536, 512, "fp32"),
    ("scan", 8, 16384, 1536, "fp32"),
    ("scan", 8, 16384, 1536, "bf16"),
    ("scan", 1, 65536, 512, "fp32"),
    ("min_gru", 16, 1024, 768, "bf16"),
    ("min_lstm", 8, 16384, 1536, "fp32"),
    ("min_lstm", 1, 65536, 512, "bf16"),
    ("scan", 64, 512, 1024, "fp32"),
    ("scan", 8, 1024, 1536, "fp32"),
)
# (model, batch, time, hidden_size, precision, heads)
DENSE_PROBLEMS = (
    ("lstm", 16, 1024, 768, "bf16", 12),
    ("lstm", 16, 1024, 768, "bf16", 6),
    ("lstm", 16, 1024, 768, "bf16", 3),
    ("lstm", 16, 1024, 512, "bf16", 1),
    ("gru", 16, 1024, 768, "bf16", 12),
    ("gru", 16, 1024, 256, "bf16", 1),
    ("lstm", 16, 1024, 768, "bf16", 1),
    ("gru", 16, 1024, 768, "bf16", 1),
    ("elman", 16, 1024, 768, "bf16", 12),
    ("elman", 16, 1024, 768, "bf16", 1),
    ("slstm", 16, 1024, 768, "bf16", 12),
    ("slstm", 16, 1024, 768, "bf16", 1),
    ("lstm", 8, 1024, 1024, "bf16", 1),
    ("lstm", 64, 1024, 768, "bf16", 6),
    ("elman", 16, 1024, 2048, "bf16", 1),
    ("lstm", 16, 1024, 768, "fp32", 12),
    ("lstm", 16, 1024, 256, "fp32", 1),
)
# What is no built-in cell: the raw scan, as `minrnn_gen.scan` has it.
CELLS: dict[str, dict[str, object]] = {
    "scan": {"name": "scan", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]},
}
LAYOUTS = ("BTD", "BDT")
PASSES: tuple[KernelPass, ...] = ("forward", "backward")
BEST, OTHERS = 20, 12
RUNS = 5
# More than twice any L2, so often that the host has prepared a call before the device gets to it.
FLUSHED_BYTES, FLUSHES = 1 << 30, 6
COMPILERS = 16


def cold_ms(run: Callable[[], Any], flushed: torch.Tensor) -> float:
    """Return the median time of `run` by device events, memory written over before each."""
    events = []
    run()
    for _ in range(RUNS):
        for _ in range(FLUSHES):
            flushed.fill_(1)
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        run()
        ended.record()
        events.append((began, ended))
    torch.cuda.synchronize()
    return statistics.median(began.elapsed_time(ended) for began, ended in events)


def built(builder: Builder, solution: Solution, ranks: list[int]) -> dict[int, BuiltKernel]:
    """Compile the candidates at `ranks`; those that break their promise are left out."""

    def one(rank: int) -> BuiltKernel | None:
        try:
            return builder.build_candidate(solution, rank)
        except PromiseBroken:
            return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        return {rank: kernel for rank, kernel in zip(ranks, pool.map(one, ranks), strict=True) if kernel}


def measured(
    model: str, batch: int, time: int, hidden_size: int, precision: str, layout: str, flushed: torch.Tensor, heads: int = 1
) -> Any:
    """Yield, for each pass of a problem, the times of its candidates in the order of the cost model, and that of the copy."""
    spec: dict[str, Any] = {"model": model, "hidden_size": hidden_size, "precision": precision, "layout": layout}
    spec |= {"batch": batch, "time": time, "heads": heads}
    kernel = minrnn_gen.compile(spec, model=CELLS.get(model, model))
    builder = Builder(kernel.spec, target_of(kernel.spec), Store(cache_folder()))
    sizes = {"b": batch, "t": time, "g": len(kernel.gates), "h": hidden_size}
    # Between 0 and 1: of a raw scan these are the coefficients themselves.
    dtype = getattr(torch, precision_of(precision).storage_dtype)
    given = [torch.rand([sizes[axis] for axis in X_AXES[layout]], device="cuda").to(dtype)]
    if kernel.contract.recurrent_gates:
        given.append((torch.randn(kernel.contract.R_shape, device="cuda") * kernel.contract.head_dim**-0.5).to(dtype))
    dy = torch.randn_like(kernel(*given)[0])
    for kernel_pass in PASSES:
        solution = builder.solve(kernel_pass, kernel.plan.regime)
        count = len(solution.candidates)
        drawn = random.Random(0).sample(range(count), min(OTHERS, count))
        halves = torch.empty((2, solution.problem.traffic_bytes // 2), dtype=torch.uint8, device="cuda")
        rows = []
        for rank, one in built(builder, solution, sorted({*range(min(BEST, count)), *drawn})).items():
            candidate = Kernel(builder, (one,) if kernel_pass == "forward" else (kernel.built[0], one))
            if kernel_pass == "forward":
                ms = cold_ms(lambda: candidate(*given), flushed)  # noqa: B023
            else:
                _, _, saved = candidate.forward(*given)
                ms = cold_ms(lambda: candidate.backward(saved, dy), flushed)  # noqa: B023
            rows.append({"rank": rank, "variables": dict(one.plan.variables), "ms": ms})
        copy_ms = cold_ms(lambda: halves[0].copy_(halves[1]), flushed)  # noqa: B023
        yield {**spec, "pass": kernel_pass, "copy_ms": copy_ms, "feasible": count, "candidates": rows}


def main() -> None:
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    scans = [(*problem, 1, layout) for problem in PROBLEMS for layout in LAYOUTS]
    dense = [(*problem, "BTD") for problem in DENSE_PROBLEMS]
    found: list[Any] = []
    for model, *sizes, heads, layout in (*scans, *dense):
        if sys.argv[2:] and model not in sys.argv[2:]:
            continue
        for one in measured(model, *sizes, layout, flushed, heads):
            found.append(one)
            picked, best = one["candidates"][0]["ms"], min(row["ms"] for row in one["candidates"])
            times = f"pick {picked:.3f}, best {best:.3f}, copy {one['copy_ms']:.3f} ms"
            print(model, *sizes, heads, layout, one["pass"], times)
            Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
