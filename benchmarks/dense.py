"""Times dense cells on a GPU, as they are planned and by the alternating path, with errors against the CPU target in fp64.

Usage, with torch: `python benchmarks/dense.py OUT.json`; `python benchmarks/dense.py table OUT.json` prints the record.
Medians with quartiles by device events, new arrays per shape; a first call is timed too, with nothing in the cache. y, dx and
dR are held against the same cell in float64 on the same numbers.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import minrnn_gen
from minrnn_gen.bench.gpu import driver_release, versions
from minrnn_gen.plan import recurrent
from minrnn_gen.precision import precision_of

# (model, heads, head_dim, batch, precision)
SHAPES = (
    ("lstm", 12, 64, 16, "bf16"),
    ("lstm", 6, 128, 16, "bf16"),
    ("lstm", 3, 256, 16, "bf16"),
    ("lstm", 1, 512, 16, "bf16"),
    ("lstm", 1, 768, 16, "bf16"),
    ("slstm", 12, 64, 16, "bf16"),
    ("elman", 12, 64, 16, "bf16"),
    ("gru", 12, 64, 16, "bf16"),
    ("gru", 1, 768, 16, "bf16"),
    ("lstm", 12, 64, 16, "fp32"),
)
TIME = 1024
RUNS = 9
PATHS = ("as planned", "alternating")


def timed_ms(run: Callable[[], Any]) -> dict[str, float]:
    """Return the quartiles of `run` by device events; the host is ahead of the device throughout."""
    times = []
    for _ in range(RUNS):
        torch.cuda._sleep(2_000_000)
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": median, "lower_ms": lower, "upper_ms": upper}


def relative_error(found: Any, expected: Any) -> float:
    exact = torch.from_numpy(expected).cuda()
    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


def measured(model: str, heads: int, size: int, batch: int, precision: str) -> list[dict[str, Any]]:
    """Return a row for each path that there is for a shape."""
    hidden = heads * size
    spec = {"model": model, "hidden_size": hidden, "heads": heads, "precision": precision, "batch": batch, "time": TIME}
    exact = minrnn_gen.compile({**spec, "precision": "fp64"})
    contract, dtype = exact.contract, getattr(torch, precision_of(precision).storage_dtype)
    x = torch.randn(contract.shape(contract.x_axes, batch, TIME), device="cuda").to(dtype)
    R = (torch.randn(contract.R_shape, device="cuda") * size**-0.5).to(dtype)
    dy = torch.randn(contract.y_shape(batch, TIME), device="cuda").to(dtype)
    x64, R64, dy64 = (array.double().cpu().numpy() for array in (x, R, dy))
    y64, _, saved = exact.forward(x64, R64)
    expected = {"y": y64} | {f"d{name}": one for name, one in exact.backward(saved, dy64).items() if name in ("x", "R")}
    rows: list[dict[str, Any]] = []
    for path in PATHS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MINRNN_CACHE_DIR"] = folder
            began = time.perf_counter()
            kernel = minrnn_gen.compile(spec)
            y, _, saved = kernel.forward(x, R)
            gradients = kernel.backward(saved, dy)
            torch.cuda.synchronize()
            first_call_s = time.perf_counter() - began
        found = {"y": y, "dx": gradients["x"], "dR": gradients["R"]}

        def both(kernel: Any = kernel) -> None:
            kernel.backward(kernel.forward(x, R)[2], dy)

        plans = {kernel_pass: plan for (kernel_pass, _), plan in kernel.plans.items()}
        row = {
            **spec,
            "path": path,
            "forward": timed_ms(lambda kernel=kernel: kernel(x, R)),
            "forward + backward": timed_ms(both),
            "errors": {name: relative_error(one, expected[name]) for name, one in found.items()},
            "plans": {name: {"template": plan.template, **plan.variables} for name, plan in plans.items()},
            "first_call_s": first_call_s,
        }
        rows.append(row)
        forward_ms, both_ms = (row[task]["ms"] for task in ("forward", "forward + backward"))
        shown = ", ".join(f"{name} {error:.0e}" for name, error in row["errors"].items())
        print(
            model,
            f"{heads}x{size}",
            batch,
            precision,
            path,
            f"{forward_ms:.3f} {both_ms:.3f} ms",
            shown,
            f"{first_call_s:.1f} s",
        )
        if all(plan.template.startswith("alternating") for plan in plans.values()):
            break  # there is no other path
        recurrent.refusal = lambda _: "the other path is measured"
    return rows


def table(record: dict[str, Any]) -> str:
    """Return the rows of a record as they stand in docs/performance.md."""
    lines = [
        "| cell, heads x head_dim, batch | path | forward | forward + backward | errors of y, dx, dR |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        shape = f"{row['model']} {row['heads']} x {row['hidden_size'] // row['heads']}, {row['batch']}, {row['precision']}"
        path = "persistent" if row["plans"]["forward"]["template"].startswith("recurrent") else "alternating"
        if row["plans"]["backward"]["template"].startswith("alternating") and path == "persistent":
            path = "persistent, then alternating"
        errors = ", ".join(f"{row['errors'][name]:.0e}" for name in ("y", "dx", "dR"))
        lines.append(f"| {shape} | {path} | {row['forward']['ms']:.3g} | {row['forward + backward']['ms']:.3g} | {errors} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1] == "table":
        print(table(json.loads(Path(sys.argv[2]).read_text())))
        return
    record: dict[str, Any] = {
        "command": "python benchmarks/dense.py",
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver_release(),
        "versions": versions(),
        "time": TIME,
        "rows": [],
    }
    refusal = recurrent.refusal
    for shape in SHAPES:
        try:
            record["rows"] += measured(*shape)
        finally:
            recurrent.refusal = refusal
        Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
