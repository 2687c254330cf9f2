"""Linear filters and cells of coupled states on the GPU: `python -m benchmarks.filters [N]`, the first N filters, else all.

From the checkout, in microseconds by events with a cold L2. A row has, for a number of signals, their steps and the filter's
order, a copy of the signals, `minrnn_gen.torch.lfilter` and what is installed of philtorch, torchlpc and torchaudio, all in
turn; then the gradients of signals and coefficients by ours and by the others' autograd. In brackets: the error of the first
signal against scipy's filter in float64, over its norm. A cell's row has a copy of its bytes and its forward.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy
import torch
from scipy import signal  # type: ignore[import-untyped]

import minrnn_gen.torch
from benchmarks.harness.turns import milliseconds

PROBLEMS = ((64, 1 << 19, 2), (64, 1 << 19, 1), (64, 1 << 19, 4), (16, 1 << 16, 2), (256, 1 << 14, 2), (1, 1 << 20, 2))
POLES = (0.99 * numpy.exp(0.3j), 0.99 * numpy.exp(-0.3j), 0.9, 0.8)

Filter = Callable[[Any, Any, Any], Any]


def _philtorch(x: Any, a: Any, b: Any) -> Any:
    return importlib.import_module("philtorch.lti").lfilter(b, a[1:], x)


def _torchlpc(x: Any, a: Any, b: Any) -> Any:
    """The feedback by torchlpc, the rest by torch's convolution."""
    order = len(a) - 1
    padded = torch.nn.functional.pad(x[:, None], (order, 0))
    direct = torch.nn.functional.conv1d(padded, b.flip(0)[None, None])[:, 0]
    coefficients = a[1:].expand(*x.shape, order).contiguous()
    return importlib.import_module("torchlpc").sample_wise_lpc(direct, coefficients)


def _torchaudio(x: Any, a: Any, b: Any) -> Any:
    return importlib.import_module("torchaudio.functional").lfilter(x, a, b, clamp=False)


# Cells, their sequences, steps and channels, and what keeps their states bounded.
CELLS: tuple[tuple[str, tuple[int, int, int], str, dict[str, float]], ...] = (
    ("biquad", (64, 1 << 19, 1), "BDT", {"b0": 0.1, "b1": 0.1, "b2": 0.1, "a1": -1.89, "a2": 0.98}),
    ("complex_lru", (8, 1 << 14, 1024), "BTD", {"nu": -2.0, "theta": 0.3, "gamma": 0.5, "c": 1.0, "d": 0.5}),
)
PEERS: Mapping[str, Filter] = {"philtorch": _philtorch, "torchlpc": _torchlpc, "torchaudio": _torchaudio}


def measure(rows: int, steps: int, order: int, peers: Mapping[str, Filter]) -> None:
    """Print the row of a problem."""
    a = numpy.poly(POLES[:order] if order > 1 else (0.99,)).real
    b = numpy.full(order + 1, 0.1)
    x, dy = (torch.randn(rows, steps, device="cuda") for _ in range(2))
    expected = signal.lfilter(b, a, x[0].double().cpu().numpy())
    copied = torch.empty_like(x)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: copied.copy_(x)}
    backwards: dict[str, Callable[[], Any]] = {}
    errors = {}
    for name, run in {"minrnn_gen": minrnn_gen.torch.lfilter, **peers}.items():
        dtype = torch.float64 if name == "minrnn_gen" else x.dtype
        coefficients = [torch.tensor(values, device="cuda", dtype=dtype, requires_grad=True) for values in (a, b)]
        leaves = [x.clone().requires_grad_(), *coefficients]
        try:
            with torch.no_grad():
                found = run(*leaves)[0].double().cpu().numpy()
            errors[name] = float(numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected))
            runs[name] = partial(torch.no_grad()(run), *leaves)
            y = run(*leaves)
            torch.autograd.grad(y, leaves, dy, retain_graph=True)
            backwards[name] = partial(torch.autograd.grad, y, leaves, dy, retain_graph=True)
        except Exception as error:  # of a library that is absent, or that does not take the problem
            print(f"{name}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
    print(f"{rows} x {steps:,}, order {order}", end="", flush=True)
    for title, measured in (("forward", milliseconds(runs)), ("backward", milliseconds(backwards))):
        noted = errors if title == "forward" else {}
        cells = (f"{name} {1e3 * ms:.1f}" + (f" ({noted[name]:.0e})" if name in noted else "") for name, ms in measured.items())
        print(f"; {title}: {', '.join(cells)}", end="", flush=True)
    print(flush=True)


def measure_cell(model: str, sizes: tuple[int, int, int], layout: Any, values: Mapping[str, float]) -> None:
    """Print the row of a cell."""
    batch, steps, channels = sizes
    spec = {"model": model, "hidden_size": channels, "layout": layout, "precision": "fp32", "batch": batch, "time": steps}
    kernel = minrnn_gen.compile(spec | {"training": False})
    gates = len(kernel.gates)
    x = torch.randn((batch, gates, channels, steps) if layout == "BDT" else (batch, steps, gates, channels), device="cuda")
    parameters = {name: torch.full((channels,), value, device="cuda") for name, value in values.items()}
    # A copy reads half of the bytes and writes half: x is read, y written.
    source, copied = (torch.empty(x.numel() * (gates + 1) // (2 * gates), device="cuda") for _ in range(2))
    times = milliseconds({"copy": lambda: copied.copy_(source), "minrnn_gen": lambda: kernel(x, parameters=parameters)})
    cells = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in times.items())
    print(
        f"{model} {batch} x {steps:,} x {channels}: {cells} ({times['copy'] / times['minrnn_gen']:.2f} of a copy)", flush=True
    )


if __name__ == "__main__":
    for problem in PROBLEMS[: int(sys.argv[1]) if sys.argv[1:] else None]:
        measure(*problem, PEERS)
    for cell in CELLS:
        measure_cell(*cell)
