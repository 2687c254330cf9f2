"""Backward scans against a device copy of the same bytes: `python benchmarks/scan_backward.py [--out FOLDER]`.

As `scan_forward.py` does: in turn, with a cold L2 cache, NaN where the result will lie. A backward reads the gates, dy and y
and writes dx; its error is that against the backward of the fp64 kernel on the same inputs, norm by norm.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import cupy
import numpy
from scan_forward import FLUSH_BYTES, REPEATS, elapsed_ms, write_record

import minrnn_gen
from minrnn_gen import cuda
from minrnn_gen.arrays import numpy_dtype
from minrnn_gen.precision import precision_of

# (model, batch, time, hidden)
SHAPES = (("min_gru", 8, 4096, 1536), ("min_lstm", 8, 4096, 1536), ("min_gru", 8, 16384, 1536), ("min_gru", 64, 512, 1024))


def measure(model: str, batch: int, time: int, hidden: int, precision: str, layout: str) -> dict[str, Any]:
    """Measure one problem."""
    spec = {"model": model, "hidden_size": hidden, "layout": layout, "batch": batch, "time": time}
    kernel = minrnn_gen.compile(spec | {"precision": precision})
    exact = minrnn_gen.compile(spec | {"precision": "fp64"})
    sizes = {"B": batch, "T": time, "G": len(kernel.gates), "D": hidden}
    dtype = numpy_dtype(precision_of(precision).storage_dtype)

    def random(axes: str) -> Any:
        return cupy.random.standard_normal(tuple(sizes[axis] for axis in axes), dtype=numpy.float32).astype(dtype)

    x = random({"BTD": "BTGD", "TBD": "TBGD", "BDT": "BGDT"}[layout])
    y, _, saved = kernel.forward(x)
    dy = random({"BTD": "BTD", "TBD": "TBD", "BDT": "BDT"}[layout])
    moved_bytes = 2 * x.nbytes + y.nbytes + dy.nbytes
    source, target = (cupy.ones(moved_bytes // 2, numpy.uint8) for _ in range(2))
    flush = cupy.empty(FLUSH_BYTES, numpy.uint8)
    kernel_ms, copy_ms = [], []
    for _ in range(REPEATS + 3):
        stale = cupy.full(x.size, numpy.nan, numpy.float32).astype(dtype)
        del stale
        results: list[Any] = []
        kernel_ms.append(elapsed_ms(flush, lambda: results.append(kernel.backward(saved, dy)["x"])))  # noqa: B023
        copy_ms.append(elapsed_ms(flush, lambda: cupy.copyto(target, source)))
        dx = results.pop()
    _, _, exact_saved = exact.forward(x.astype(numpy.float64))
    reference = exact.backward(exact_saved, dy.astype(numpy.float64))["x"]
    error = float(cupy.linalg.norm((dx.astype(numpy.float64) - reference).ravel()) / cupy.linalg.norm(reference.ravel()))
    median, copy = statistics.median(kernel_ms[3:]), statistics.median(copy_ms[3:])
    plan = next(plan for (kernel_pass, _), plan in kernel.plans.items() if kernel_pass == "backward")
    return {
        "model": model, "batch": batch, "time": time, "hidden": hidden, "precision": precision, "layout": layout,
        "kernel_ms": median, "kernel_ms_spread": [min(kernel_ms[3:]), max(kernel_ms[3:])], "copy_ms": copy,
        "share_of_copy": copy / median, "relative_error": error, "plan": dict(plan.variables),
        "predicted_us": plan.predicted_total_us,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the JSON file")
    folder = parser.parse_args().out
    live = cuda.live_device()
    assert live is not None, "no CUDA device"
    print("| model B x T x H | ms | copy ms | share of copy | relative error of dx |\n|---|---|---|---|---|")
    results = []
    for model, batch, time, hidden in SHAPES:
        for precision in ("fp32", "bf16"):
            for layout in ("BTD", "BDT"):
                result = measure(model, batch, time, hidden, precision, layout)
                results.append(result)
                # Where y stands for the state before a step, its rounding to storage is part of the gradient.
                allowed = 8 * precision_of(precision).storage_roundoff + 2.0**-18
                shown = f"{result['kernel_ms']:.4f}" if result["relative_error"] <= allowed else "wrong"
                print(
                    f"| {model} {batch} x {time} x {hidden} {precision} {layout} | {shown} | {result['copy_ms']:.4f} "
                    f"| {100 * result['share_of_copy']:.0f} % | {result['relative_error']:.1e} |",
                    flush=True,
                )
                cupy.get_default_memory_pool().free_all_blocks()
    if folder is not None:
        write_record(folder, "scan_backward", live, results)


if __name__ == "__main__":
    main()
