"""Errors of linear recurrences of coupled states by the form of their maps, from the checkout:

`python -m benchmarks.filter_accuracy [cpu]`. A row has, for a map and a number of steps, the largest error over the largest
value, against extended precision, on the GPU and on the CPU. Inputs are float32. `limit`: twice the error of a prototype after
32,768 steps. `worst`: the larger of the GPU's shares of the limit and of twice the CPU's error. Filters
run the same arithmetic on both; numbers, rotations and dual numbers run step by step on the CPU, so that their shares say what
composing powers in float32 costs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from scipy import signal  # type: ignore[import-untyped]

import minrnn_gen.torch

LIMIT_STEPS = 1 << 15
LENGTHS = (1 << 10, 1 << 12, LIMIT_STEPS, 1 << 17, 1 << 20)
# Results are rounded to float32, of whatever arithmetic.
ROUNDING = 2.0**-24
Values = Any


class Row(NamedTuple):
    """A map, its error in a prototype after 32,768 steps, and its run on inputs [2, T]: here, and in extended precision."""

    name: str
    limit: float | None
    run: Callable[[Any], Any]
    exact: Callable[[Values], Values]


def _filtered(a: Values, x: Values) -> Values:
    """Return the all-pole filter of x in extended precision."""
    wide = numpy.clongdouble if numpy.iscomplexobj(a) else numpy.longdouble
    return signal.lfilter(numpy.ones(1, wide), numpy.asarray(a, wide), numpy.asarray(x, wide))


def companion(name: str, poles: tuple[complex, complex], limit: float | None = None) -> Row:
    """Return the row of a filter with two poles."""
    a = numpy.poly(poles).real
    return Row(
        name,
        limit,
        lambda x: minrnn_gen.torch.lfilter(x[0], torch.from_numpy(a).to(x.device), torch.ones(1, device=x.device)),
        lambda x: _filtered(a, x[0]),
    )


def rotation(name: str, turn: complex, limit: float | None = None) -> Row:
    """Return the row of a rotation, a complex number."""
    turn = complex(numpy.complex64(turn))

    def run(x: Any) -> Any:
        a = torch.tensor([[turn.real, turn.imag]], device=x.device)
        return minrnn_gen.torch.scan(a, x.T.reshape(1, -1, 1, 2).contiguous(), form="rotation")[0][0, :, 0].T

    def exact(x: Values) -> Values:
        y = _filtered(numpy.array([1, -turn]), x[0].astype(numpy.clongdouble) + 1j * x[1])
        return numpy.stack([y.real, y.imag])

    return Row(name, limit, run, exact)


def dual(name: str, p: float, q: float, limit: float | None = None) -> Row:
    """Return the row of a dual number, two scans in sequence."""
    p, q = float(numpy.float32(p)), float(numpy.float32(q))

    def run(x: Any) -> Any:
        a = torch.tensor([[p, q]], device=x.device)
        return minrnn_gen.torch.scan(a, x.T.reshape(1, -1, 1, 2).contiguous(), form="dual")[0][0, :, 0].T

    def exact(x: Values) -> Values:
        first = _filtered(numpy.array([1, -p]), x[0])
        before = numpy.concatenate([numpy.zeros(1, first.dtype), first[:-1]])
        return numpy.stack([first, _filtered(numpy.array([1, -p]), x[1] + q * before)])

    return Row(name, limit, run, exact)


def scalar(name: str, a: float, limit: float | None = None) -> Row:
    """Return the row of a number."""
    a = float(numpy.float32(a))

    def run(x: Any) -> Any:
        return minrnn_gen.torch.scan(torch.full((1, x.shape[1], 1), a, device=x.device), x[:1, :, None])[0][0, :, 0]

    return Row(name, limit, run, lambda x: _filtered(numpy.array([1, -a]), x[0]))


ROWS = (
    companion("full, poles 0.99 e^±0.3i", (0.99 * numpy.exp(0.3j), 0.99 * numpy.exp(-0.3j)), 9e-7),
    companion("full, double pole 0.999", (0.999, 0.999), 7e-6),
    companion("full, poles e^±0.02i", (numpy.exp(0.02j), numpy.exp(-0.02j)), 6e-6),
    companion("full, poles 0.5 and -0.9", (0.5, -0.9)),
    rotation("rotation, modulus 1", complex(numpy.exp(0.3j)), 1e-4),
    rotation("rotation, 0.99 e^0.3i", complex(0.99 * numpy.exp(0.3j))),
    dual("dual, 1 - p = 1e-4", 1 - 1e-4, 1.0, 2e-5),
    scalar("scalar, 1 - a = 1e-4", 1 - 1e-4),
)


def main(devices: list[str]) -> None:
    """Print the table."""
    print(f"| map | steps | {' | '.join(devices)} | limit | worst |\n|---|---|{'---|' * len(devices)}---|---|")
    for row in ROWS:
        for steps in LENGTHS:
            x = torch.randn(2, steps, generator=torch.Generator().manual_seed(steps))
            expected = row.exact(x.numpy())
            largest = float(numpy.abs(expected).max())
            errors = {
                device: float(numpy.abs(row.run(x.to(device)).cpu().numpy() - expected).max()) / largest for device in devices
            }
            shares = [errors[devices[0]] / (2 * max(errors["cpu"], ROUNDING))]
            limit = ""
            if steps == LIMIT_STEPS and row.limit is not None:
                shares.append(errors[devices[0]] / (2 * row.limit))
                limit = f"{2 * row.limit:.1e}"
            found = " | ".join(f"{errors[device]:.1e}" for device in devices)
            print(f"| {row.name} | {steps:,} | {found} | {limit} | {100 * max(shares):.0f} % |", flush=True)


if __name__ == "__main__":
    main(["cpu"] if "cpu" in sys.argv[1:] else ["cuda", "cpu"])
