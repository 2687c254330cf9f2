"""Kernels without hints against kernels planned for the sizes, on the GPU; from the checkout:

`python -m benchmarks.sizes OUT.json [--seed N]`. Seven chosen problems, and forty that are drawn over cells, precisions
and sizes. Of each pass the device's time of the kernel that the sizes of the call choose, and of the solver's first pick for
exactly these sizes; interleaved, each with a cold L2 cache.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.gpu import Gpu
from minrnn_gen import __version__
from minrnn_gen.build.builder import Builder, builder_of
from minrnn_gen.build.hinted import HintedBuilder
from minrnn_gen.build.nvrtc import nvrtc_version
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.errors import MinrnnError
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import KERNELS_MOST
from minrnn_gen.run.target import target_of

ROUNDS = 15
# Most elements of x of a drawn problem: a call then takes at most a few milliseconds.
ELEMENTS_MOST = 1 << 28
# (cell, heads, hidden size, batch, time, precision)
CHOSEN = (
    ("lstm", 1, 1024, 256, 128, "bf16"),
    ("lstm", 1, 256, 1024, 64, "bf16"),
    ("lstm", 1, 768, 16, 1024, "bf16"),
    ("lstm", 1, 512, 256, 256, "bf16"),
    ("lstm", 1, 512, 16, 1024, "bf16"),
    ("lstm", 1, 128, 4096, 16, "bf16"),
    ("min_gru", 1, 512, 1, 65536, "bf16"),
)
DRAWN = 40
# Calls of random sizes, for how many kernels they need and how long that takes.
COUNTED_CALLS = 200


@dataclass(frozen=True)
class SizedProblem:
    """One cell at one batch and time."""

    model: str
    heads: int
    hidden_size: int
    batch: int
    time: int
    precision: str

    @property
    def spec(self) -> Spec:
        """The spec, without hints."""
        return load_spec(
            {"model": self.model, "heads": self.heads, "hidden_size": self.hidden_size, "precision": self.precision}
        )

    @property
    def label(self) -> str:
        """The problem in words."""
        return f"{self.model} {self.heads}x{self.hidden_size // self.heads} B{self.batch} T{self.time} {self.precision}"


def drawn(seed: int) -> list[SizedProblem]:
    """Return random problems, the same for the same seed."""
    draw, problems = random.Random(seed), list[SizedProblem]()
    while len(problems) < DRAWN:
        model = draw.choice(("lstm", "gru", "elman", "slstm", "min_gru", "min_lstm", "hgrn", "ind_rnn"))
        heads = draw.choice((1, 1, 2, 4)) if model in ("lstm", "gru", "elman", "slstm") else 1
        hidden_size = heads * draw.choice((64, 96, 128, 256, 384, 512, 768, 1024))
        batch, steps = int(2 ** draw.uniform(0, 10)), int(2 ** draw.uniform(0, 12))
        if batch * steps * hidden_size * 4 <= ELEMENTS_MOST:
            problems.append(SizedProblem(model, heads, hidden_size, batch, steps, draw.choice(("bf16", "fp16", "fp32"))))
    return problems


def kernel_with(kind: type[Builder], problem: SizedProblem) -> Kernel:
    """Return a kernel that is planned by a kind of builder, everything compiled that the problem's calls run."""
    spec = load_spec(problem.spec, batch=problem.batch, time=problem.time)
    made = builder_of(spec, target_of(spec))
    builder = kind(spec, made.target, made.store)
    sizes = Sizes(problem.batch, problem.time)
    kernel = Kernel(builder, (builder.build(builder.choose("forward", builder.hinted_specialization, sizes)),))
    kernel.prepare([sizes])
    return kernel


def calls_of(kernel: Kernel, arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return a run of each pass."""
    x, R, dy, parameters = arrays["x"], arrays["R"], arrays["dy"], arrays["parameters"]
    saved = kernel.forward(x, R, parameters=parameters)[2]
    return {
        "forward": lambda: {"y": kernel(x, R, parameters=parameters)[0]},
        "backward": lambda: kernel.backward(saved, dy),
    }


def arrays_of(gpu: Gpu, problem: SizedProblem, kernel: Kernel) -> dict[str, Any]:
    """Return random arrays for the calls of a problem."""
    interface, dtype = kernel.interface, gpu.dtype(problem.precision)
    x = gpu.normal(problem.batch, problem.time, len(kernel.gates), problem.hidden_size).to(dtype)
    R = None
    if interface.recurrent_gates:
        R = (gpu.normal(*interface.R_shape) / interface.head_dim**0.5).to(dtype)
    dy = gpu.normal(problem.batch, problem.time, problem.hidden_size).to(dtype)
    parameters = {name: gpu.uniform(problem.hidden_size).to(dtype) for name in kernel.parameters}
    return {"x": x, "R": R, "dy": dy, "parameters": parameters}


def measured(gpu: Gpu, problem: SizedProblem, kernels: dict[str, Kernel]) -> dict[str, Any]:
    """Return the median times of both kernels in each pass, and which plans they have."""
    entry: dict[str, Any] = {"problem": problem.label}
    arrays = arrays_of(gpu, problem, kernels["sized"])
    runs = {name: calls_of(kernel, arrays) for name, kernel in kernels.items()}
    for kernel_pass in ("forward", "backward"):
        for of_kernel in runs.values():
            of_kernel[kernel_pass]()
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            for name in list(runs) if number % 2 else list(runs)[::-1]:
                times[name].append(gpu.time(runs[name][kernel_pass], on_host=False)[0])
        us = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        entry[kernel_pass] = {**{f"{name}_us": round(value, 2) for name, value in us.items()}, "ratio": us["sized"] / us["own"]}
    return entry


def counted(seed: int) -> dict[str, Any]:
    """Return how many kernels random sizes need, and the seconds to plan and compile them all from nothing."""
    draw = random.Random(seed)
    sizes = [Sizes(int(2 ** draw.uniform(0, 10)), int(2 ** draw.uniform(0, 12))) for _ in range(COUNTED_CALLS)]
    entries = {}
    for model, hidden_size in (("lstm", 256), ("min_gru", 512)):
        spec = load_spec({"model": model, "hidden_size": hidden_size, "precision": "bf16", "functions": "accurate"})
        builder = builder_of(spec, target_of(spec))
        began = time.perf_counter()
        Kernel(builder, (builder.build(builder.choose("forward", builder.hinted_specialization, sizes[0])),)).prepare(sizes)
        seconds = time.perf_counter() - began
        plans = {
            kernel_pass: len({builder.choose(kernel_pass, builder.hinted_specialization, size) for size in sizes})
            for kernel_pass in ("forward", "backward")
        }
        assert max(plans.values()) <= KERNELS_MOST
        entries[f"{model} {hidden_size}"] = {"calls": COUNTED_CALLS, "plans": plans, "seconds": round(seconds, 2)}
    return entries


def main() -> int:
    """Measure, print a table and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    import torch

    gpu = Gpu(torch, arguments.seed)
    problems = [SizedProblem(*chosen) for chosen in CHOSEN] + drawn(arguments.seed)
    counts = counted(arguments.seed)
    kinds: dict[str, type[Builder]] = {"sized": Builder, "own": HintedBuilder}

    def prepared(problem: SizedProblem) -> dict[str, Kernel] | str:
        try:
            return {name: kernel_with(kind, problem) for name, kind in kinds.items()}
        except MinrnnError as reason:
            return str(reason)

    with ThreadPoolExecutor() as pool:
        kernels = list(pool.map(prepared, problems))
    entries: list[dict[str, Any]] = []
    for problem, of_problem in zip(problems, kernels, strict=True):
        if isinstance(of_problem, str):
            entries.append({"problem": problem.label, "refused": of_problem})
            continue
        entries.append(measured(gpu, problem, of_problem))
        forward, backward = entries[-1]["forward"], entries[-1]["backward"]
        sys.stdout.write(
            f"{problem.label:44s} {forward['sized_us']:10.1f} {forward['own_us']:10.1f} {forward['ratio']:6.3f} "
            f"{backward['sized_us']:10.1f} {backward['own_us']:10.1f} {backward['ratio']:6.3f}\n"
        )
        torch.cuda.empty_cache()
    versions = {"minrnn-gen": __version__, "torch": torch.__version__, "nvrtc": nvrtc_version()}
    record = {"gpu": gpu.name, "versions": versions, "seed": arguments.seed, "counted": counts, "problems": entries}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    ratios = [entry[kernel_pass]["ratio"] for entry in entries if "forward" in entry for kernel_pass in ("forward", "backward")]
    over = sum(ratio > 1.05 for ratio in ratios)
    sys.stdout.write(
        f"{len(ratios)} passes, {over} beyond 5 %, worst {max(ratios):.3f}, median {statistics.median(ratios):.3f}\n"
    )
    sys.stdout.write(f"{json.dumps(counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
