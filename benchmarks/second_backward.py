"""First and second backwards of a recurrence, and the bytes they cannot avoid: `python -m benchmarks.second_backward`.

On a GPU the microseconds of all kernels of a pass; on a CPU, with `--device cpu`, those of the clock, of fewer steps. A first
backward reads x, y, dy and states other than y, and writes the gradient of x. A second one, whose tangent is that of x, runs
forward once, from x, its tangent and y to the tangent of y, and backward once, from these, dy and states to the gradient of x.
A loop of torch over a share of the steps, whose times are multiplied, is measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROUNDS, WARM = 7, 3
# The loop takes this share of the steps, and runs once: its steps are alike, and each takes milliseconds.
LOOP_SHARE = 16


@dataclass(frozen=True)
class Problem:
    """A call of a cell of the library, whose gradients are those of x, or of R too."""

    cell: str
    batch: int
    time: int
    hidden_size: int
    precision: str
    moves_R: bool = False

    def floors(self, gates: int, other_states: int) -> tuple[int, int]:
        """Return the bytes that a first and a second backward read and write at least."""
        elements = self.batch * self.time * self.hidden_size
        storage, state = {"bf16": (2, 4), "fp32": (4, 4)}[self.precision]
        of_states = other_states * state
        first = (2 * gates + 2) * storage + of_states
        forward = (2 * gates + 2) * storage + 3 * of_states
        backward = (3 * gates + 3) * storage + 2 * of_states
        return first * elements, (forward + backward) * elements


PROBLEMS = (
    Problem("lstm", 16, 1024, 512, "bf16"),
    Problem("lstm", 16, 1024, 512, "bf16", moves_R=True),
    Problem("min_gru", 8, 4096, 1536, "bf16"),
)
ON_CPU = (
    Problem("lstm", 16, 128, 256, "fp32"),
    Problem("lstm", 16, 128, 256, "fp32", moves_R=True),
    Problem("min_gru", 8, 512, 256, "fp32"),
)


def microseconds(run: Callable[[], Any], device: str) -> float:
    """Return the median microseconds of a run: of its kernels on a GPU, by the clock on a CPU."""
    import torch

    for _ in range(WARM):
        run()
    if device == "cpu":
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            run()
            times.append(1e6 * (time.perf_counter() - began))
        return statistics.median(times)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(ROUNDS):
            run()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profile.key_averages())) / ROUNDS


def loop_of(cell: str, x: Any, matrix: Any) -> Any:
    """Return y of a cell by a loop of torch over the steps of x [B, T, G, H], with R [G, 1, H, H] where it has one."""
    import torch

    state = carried = torch.zeros_like(x[:, 0, 0])
    outputs = []
    for t in range(x.shape[1]):
        gates = x[:, t]
        if cell == "min_gru":
            z = gates[:, 0].sigmoid()
            state = state + z * (gates[:, 1] - state)
        else:
            i, f, g, o = (gates + (state @ matrix.flatten(0, 2).T).reshape(gates.shape)).unbind(1)
            carried = f.sigmoid() * carried + i.sigmoid() * g.tanh()
            state = o.sigmoid() * carried.tanh()
        outputs.append(state)
    return torch.stack(outputs, 1)


def loop_line_of(problem: Problem, device: str) -> str:
    """Measure the loop of torch of a problem by the clock, and return its line."""
    import torch

    dtype, steps = {"bf16": torch.bfloat16, "fp32": torch.float32}[problem.precision], problem.time // LOOP_SHARE
    gates = {"min_gru": 2, "lstm": 4}[problem.cell]
    x = torch.randn((problem.batch, steps, gates, problem.hidden_size), dtype=dtype, device=device, requires_grad=True)
    matrix = torch.randn((gates, 1, problem.hidden_size, problem.hidden_size), dtype=dtype, device=device)
    matrix = (matrix * problem.hidden_size**-0.5).requires_grad_()
    leaves = [x, matrix] if problem.cell == "lstm" else [x]
    moved = leaves if problem.moves_R else leaves[:1]
    dy = torch.randn((problem.batch, steps, problem.hidden_size), dtype=dtype, device=device, requires_grad=True)

    def seconds(run: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    y = loop_of(problem.cell, x, matrix)
    times = [seconds(lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True))]
    first = torch.autograd.grad(y, moved, dy, create_graph=True)
    along = [torch.randn_like(gradient) for gradient in first]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    times.append(seconds(lambda: torch.autograd.grad(first, [*leaves, dy], along)))
    peak = (torch.cuda.max_memory_allocated() - before) * LOOP_SHARE / 2**20 if device == "cuda" else 0.0
    spent = "".join(f"{LOOP_SHARE * spent * 1e6:11.0f} us {'':12}" for spent in times)
    return f"{'  a loop of torch, ' + str(steps) + ' steps':46}{spent}  ratio {times[1] / times[0]:5.2f}{peak:21.0f} MiB"


def line_of(problem: Problem, device: str) -> str:
    """Measure a problem, and return its line."""
    import torch

    import minrnn_gen
    from minrnn_gen.torch import recurrence

    kernel = minrnn_gen.compile({"model": problem.cell, "hidden_size": problem.hidden_size, "precision": problem.precision})
    interface, generator = kernel.interface, torch.Generator(device).manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[problem.precision]

    def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Any:
        return scale * torch.randn(shape, dtype=dtype, device=device, generator=generator)

    leaves = [drawn(interface.shape(interface.x_axes, problem.batch, problem.time)).requires_grad_()]
    if interface.recurrent_gates:
        leaves.append(drawn(interface.R_shape, interface.head_dim**-0.5).requires_grad_())
    y, _ = recurrence(kernel, *leaves)
    dy = drawn(y.shape).requires_grad_()
    moved = leaves if problem.moves_R else leaves[:1]
    first = torch.autograd.grad(y, moved, dy, create_graph=True)
    along = [drawn(gradient.shape) for gradient in first]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    times = [
        microseconds(lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True), device),
        microseconds(lambda: torch.autograd.grad(first, [*leaves, dy], along, retain_graph=True), device),
    ]
    peak = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:8.0f} MiB" if device == "cuda" else ""
    floors = problem.floors(len(interface.gates), len(interface.states) - 1)
    sizes = " x ".join(map(str, (problem.batch, problem.time, problem.hidden_size)))
    said = f"{problem.cell:8} {sizes:18} {problem.precision} {'x, R' if problem.moves_R else 'x':5}"
    spent = "".join(f"{spent:11.0f} us ({size / 1e6:6.0f} MB)" for spent, size in zip(times, floors, strict=True))
    return f"{said}{spent}  ratio {times[1] / times[0]:5.2f} (bytes {floors[1] / floors[0]:.2f}){peak}"


def main(arguments: list[str]) -> int:
    """Print a line for each problem: first and second backward with the bytes they cannot avoid, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_backward")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args(arguments).device
    for problem in ON_CPU if device == "cpu" else PROBLEMS:
        sys.stdout.write(f"{line_of(problem, device)}\n{loop_line_of(problem, device)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
