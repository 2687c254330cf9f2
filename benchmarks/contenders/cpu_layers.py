"""Layers on the CPU against those of torch.nn, and scans against a loop in C: ours and theirs in turn."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.contenders.cpu_loop import scan_loop
from benchmarks.report.cpu_record import CpuRow
from minrnn_gen.torch import nn
from minrnn_gen.torch.layers.named import MinGRU, MinLSTM
from minrnn_gen.torch.operators.raw_scan import scan

LAYERS = ("LSTM", "GRU", "RNN")
BATCHES, TIMES, WIDTHS = (1, 4, 16, 64), (1, 32, 256), (32, 128, 256, 512)
QUICK_BATCHES, QUICK_TIMES, QUICK_WIDTHS = (1, 16), (1, 32), (32, 128)
# Batch, time, inputs and units of layers whose recurrence is a scan, against their matrix products alone.
SCAN_LAYERS = {"MinGRU": MinGRU, "MinLSTM": MinLSTM}
SCAN_SIZES = ((16, 1024, 128, 256), (4, 4096, 256, 512))
# Batch, time and channels of scans without a spec.
RAW_SIZES = ((8, 1024, 1536), (1, 16384, 512), (64, 512, 128))
# Layers, batch, time and width of those measured while other processes compute.
BUSY_SIZES = (
    *(("LSTM", *sizes) for sizes in ((1, 32, 128), (16, 32, 128), (16, 128, 128), (32, 128, 256))),
    *((name, 16, 128, 128) for name in ("GRU", "RNN")),
)
# A call that is never interrupted and one that waits for its turn differ a hundredfold: medians need many turns of the others.
BUSY_ROUNDS_MOST, BUSY_SECONDS = 5_000, 3.0
# Other processes end by themselves, should this one not end them.
PROCESS_SECONDS = 600
# Fewest rounds, and for so long at most beyond them: medians of calls that other processes disturb need many. Of calls that
# take seconds there are fewer.
ROUNDS_LEAST, ROUNDS_MOST, SECONDS = 5, 51, 0.2
SLOW_ROUNDS_LEAST, SLOW_SECONDS = 3, 4.0
WARM_UP_RUNS = 2

Pass = Literal["forward", "training"]


def cpu_name() -> str:
    """Return the name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors" if names else platform.processor() or platform.machine()


def rows_of_layers(quick: bool) -> Iterator[CpuRow]:
    """Measure the recurrent layers of torch.nn and ours, size by size."""
    batches, times, widths = (QUICK_BATCHES, QUICK_TIMES, QUICK_WIDTHS) if quick else (BATCHES, TIMES, WIDTHS)
    for name in LAYERS:
        for hidden in widths:
            for batch in batches:
                for steps in times:
                    yield from _rows_of_layer(name, batch, steps, hidden)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` other processes busy, on the processors that this one may run on."""
    text = (
        f"import os, time; end = time.monotonic() + {PROCESS_SECONDS}\n"
        f"while time.monotonic() < end and os.getppid() == {os.getpid()}: sum(range(10_000))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", text]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows_beside_processes(count: int) -> Iterator[CpuRow]:
    """Measure layers while `count` other processes compute; nothing for none."""
    if not count:
        return
    with busy_processes(count):
        for name, batch, steps, hidden in BUSY_SIZES:
            yield from _rows_of_layer(name, batch, steps, hidden, count)


def _rows_of_layer(name: str, batch: int, steps: int, hidden: int, busy: int = 0) -> Iterator[CpuRow]:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(hidden, hidden, batch_first=True)
    ours = getattr(nn, name)(hidden, hidden, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(batch, steps, hidden)
    with torch.no_grad():
        error = float((ours(x)[0] - theirs(x)[0]).abs().max())
    for kernel_pass in ("forward", "training"):
        first, second = (_run_of(layer, x, kernel_pass) for layer in (ours, theirs))
        rounds_most, seconds = (BUSY_ROUNDS_MOST, BUSY_SECONDS) if busy else (ROUNDS_MOST, SECONDS)
        ours_ms, theirs_ms = in_turn(first, second, rounds_most, seconds)
        yield CpuRow(
            layer=name, batch=batch, time=steps, inputs=hidden, hidden=hidden, kernel_pass=kernel_pass, beside="torch.nn",
            ours_ms=ours_ms, theirs_ms=theirs_ms, largest_difference=error, busy=busy,
        )  # fmt: skip


def rows_of_scan_layers(quick: bool) -> Iterator[CpuRow]:
    """Measure layers of scans against the products that they need, which torch computes alone."""
    for name, layer_class in SCAN_LAYERS.items():
        for batch, steps, inputs, hidden in SCAN_SIZES[: 1 if quick else None]:
            torch.manual_seed(0)
            layer = layer_class(inputs, hidden)
            x, weight = torch.randn(batch, steps, inputs), layer.weight_ih_l0
            product = torch.nn.Linear(inputs, weight.shape[0], bias=False)
            for kernel_pass in ("forward", "training"):
                ours_ms, theirs_ms = in_turn(_run_of(layer, x, kernel_pass), _run_of_product(product, x, kernel_pass))
                yield CpuRow(
                    layer=name, batch=batch, time=steps, inputs=inputs, hidden=hidden, kernel_pass=kernel_pass,
                    beside="its products", ours_ms=ours_ms, theirs_ms=theirs_ms,
                )  # fmt: skip


def rows_of_raw_scans(quick: bool) -> Iterator[CpuRow]:
    """Measure scans without a spec against a loop in C."""
    for batch, steps, channels in RAW_SIZES[: 1 if quick else None]:
        torch.manual_seed(0)
        a, b = torch.rand(batch, steps, channels), torch.randn(batch, steps, channels)
        loop = scan_loop(a.numpy(), b.numpy())
        error = float((scan(a, b)[0] - torch.from_numpy(loop())).abs().max())
        ours_ms, theirs_ms = in_turn(partial(scan, a, b), loop)
        yield CpuRow(
            layer="scan", batch=batch, time=steps, inputs=channels, hidden=channels, kernel_pass="forward",
            beside="a loop in C", ours_ms=ours_ms, theirs_ms=theirs_ms, largest_difference=error,
        )  # fmt: skip


def _run_of(layer: Any, x: Any, kernel_pass: Pass) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def training() -> None:
        layer(x)[0].sum().backward()

    return forward if kernel_pass == "forward" else training


def _run_of_product(product: Any, x: Any, kernel_pass: Pass) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            product(x)

    # The gradient that arrives is there before: of a layer it comes from the recurrence.
    arriving = torch.ones(*x.shape[:-1], product.weight.shape[0])

    def training() -> None:
        product(x).backward(arriving)

    return forward if kernel_pass == "forward" else training


def in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], rounds_most: int = ROUNDS_MOST, seconds: float = SECONDS
) -> tuple[float, float]:
    """Return the median times of two runs in milliseconds, one after the other, round after round."""
    for _ in range(WARM_UP_RUNS):
        ours()
        theirs()
    times: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    for count in range(rounds_most):
        taken_s = time.perf_counter() - started
        if (count >= ROUNDS_LEAST and taken_s > seconds) or (count >= SLOW_ROUNDS_LEAST and taken_s > SLOW_SECONDS):
            break
        for run, taken_ms in zip((ours, theirs), times, strict=True):
            begin = time.perf_counter()
            run()
            taken_ms.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])
