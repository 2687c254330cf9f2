"""Forward scans against a device copy of the same bytes: `python -m benchmarks.scan_forward [--out FOLDER]`.

One run, interleaved: the kernel and the copy take turns, each after the L2 cache was overwritten, timed by events on the
device. The overwriting also keeps the device busy while the host prepares the call, so that the times are the device's.
Prints a table, and writes it with every time and the versions as JSON where `--out` is given.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cupy
import numpy

import minrnn_gen
from minrnn_gen import cuda
from minrnn_gen.arrays import numpy_dtype
from minrnn_gen.precision import precision_of

# (model, batch, time, hidden)
SHAPES = (
    ("min_gru", 8, 4096, 1536),
    ("min_lstm", 8, 4096, 1536),
    ("min_gru", 8, 16384, 1536),
    ("min_gru", 64, 512, 1024),
    ("min_gru", 3, 7001, 640),
    ("hgrn", 32, 1024, 768),
    ("qrnn", 8, 4096, 1536),
)
REPEATS = 21
# Several times the L2 cache of any GPU here, and longer to write than a call takes to prepare.
FLUSH_BYTES = 1 << 29


def elapsed_ms(flush: Any, run: Any) -> float:
    """Time one asynchronous call on the device, with a cold L2 cache."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    flush.fill(0)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop))


def measure(model: str, batch: int, time: int, hidden: int, precision: str, layout: str) -> dict[str, Any]:
    """Measure one problem; the error is that of the last timed run against the fp64 kernel on the same inputs."""
    kernel = minrnn_gen.compile(
        {"model": model, "hidden_size": hidden, "precision": precision, "layout": layout, "batch": batch, "time": time}
    )
    exact = minrnn_gen.compile({"model": model, "hidden_size": hidden, "precision": "fp64", "layout": layout})
    sizes = {"B": batch, "T": time, "G": len(kernel.gates), "D": hidden}
    shape = {"BTD": "BTGD", "TBD": "TBGD", "BDT": "BGDT"}[layout]
    dtype = numpy_dtype(precision_of(precision).storage_dtype)
    inputs = [
        cupy.random.standard_normal(tuple(sizes[axis] for axis in shape), dtype=numpy.float32).astype(dtype) for _ in range(3)
    ]
    moved_bytes = inputs[0].nbytes * (sizes["G"] + 1) // sizes["G"]
    source, target = (cupy.ones(moved_bytes // 2, numpy.uint8) for _ in range(2))
    flush = cupy.empty(FLUSH_BYTES, numpy.uint8)
    kernel_ms, copy_ms = [], []
    for turn in range(REPEATS + 3):
        results: list[Any] = []
        # What the pool hands out next is NaN: an element that is not written shows in the error.
        stale = cupy.full(inputs[0].size // sizes["G"], numpy.nan, numpy.float32).astype(dtype)
        del stale
        kernel_ms.append(elapsed_ms(flush, lambda: results.append(kernel(inputs[turn % 3])[0])))  # noqa: B023
        copy_ms.append(elapsed_ms(flush, lambda: cupy.copyto(target, source)))
        y = results.pop()
    reference, _ = exact(inputs[(REPEATS + 2) % 3].astype(numpy.float64))
    error = float(cupy.abs(y.astype(numpy.float64) - reference).max() / cupy.abs(reference).max())
    kernel_ms, copy_ms = kernel_ms[3:], copy_ms[3:]
    median, copy = statistics.median(kernel_ms), statistics.median(copy_ms)
    return {
        "model": model, "batch": batch, "time": time, "hidden": hidden, "precision": precision, "layout": layout,
        "kernel_ms": median, "kernel_ms_spread": [min(kernel_ms), max(kernel_ms)], "copy_ms": copy,
        "kernel_gb_per_s": moved_bytes / median / 1e6, "copy_gb_per_s": moved_bytes / copy / 1e6,
        "share_of_copy": copy / median,
        "max_relative_error": error, "error_allowed": 2 * precision_of(precision).storage_roundoff + 2.0**-18,
        "plan": dict(kernel.plan.variables), "predicted_us": kernel.plan.predicted_total_us,
    }  # fmt: skip


def row(result: dict[str, Any]) -> str:
    """One line of the table; an error out of tolerance takes the place of the time."""
    wrong = not result["max_relative_error"] <= result["error_allowed"] or math.isnan(result["max_relative_error"])
    time = f"error {result['max_relative_error']:.1e}" if wrong else f"{result['kernel_ms']:.4f}"
    sizes = " x ".join(str(result[name]) for name in ("batch", "time", "hidden"))
    return (
        f"| {result['model']} {sizes} {result['precision']} {result['layout']} "
        f"| {time} | {result['copy_ms']:.4f} | {result['kernel_gb_per_s']:.0f} | {result['copy_gb_per_s']:.0f} "
        f"| {100 * result['share_of_copy']:.0f} % | {result['max_relative_error']:.1e} |"
    )


def write_record(folder: Path, benchmark: str, live: cuda.LiveDevice, results: list[dict[str, Any]]) -> None:
    """Write the results with what made them to `folder`."""
    versions = {name: version(name) for name in ("cupy-cuda13x", "numpy")} | {"minrnn_gen": minrnn_gen.__version__}
    driver = cupy.cuda.runtime.driverGetVersion()
    record = {
        "command": f"python benchmarks/{benchmark}.py --out benchmarks/results",
        "gpu": live.name,
        "versions": versions | {"cuda_driver": driver, "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion()))},
        "results": results,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{benchmark}_{live.profile.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the JSON file")
    folder = parser.parse_args().out
    live = cuda.live_device()
    assert live is not None, "no CUDA device"
    print(
        "| model B x T x H | ms | copy ms | GB/s | copy GB/s | share of copy | max error / max |\n|---|---|---|---|---|---|---|"
    )
    results = []
    for model, batch, time, hidden in SHAPES:
        for precision in ("fp32", "bf16"):
            for layout in ("BTD", "BDT"):
                results.append(measure(model, batch, time, hidden, precision, layout))
                print(row(results[-1]), flush=True)
                cupy.get_default_memory_pool().free_all_blocks()
    if folder is not None:
        write_record(folder, "scan_forward", live, results)


if __name__ == "__main__":
    main()
