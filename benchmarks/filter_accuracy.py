"""Errors of linear recurrences on the GPU by the form of their maps: `python -m benchmarks.filter_accuracy [FILE] [cpu]`.

From the checkout. A row has, for poles and a way to run them, by number of steps the largest error of a state over its
largest value, against extended precision, and in brackets the error allowed: after 32,768 steps twice that of a prototype of
its form, else twice that of the same arithmetic in NumPy. Inputs and maps are float32. NumPy's errors are kept in FILE; with
`cpu` they are judged themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from scipy import signal  # type: ignore[import-untyped]

from benchmarks.reference.tiled_maps import Arithmetic, Form, tiled
from minrnn_gen.plan.problem import Sizes

LIMIT_STEPS = 1 << 15
LENGTHS = (1 << 10, 1 << 12, LIMIT_STEPS, 1 << 17, 1 << 20)
# Results are rounded to float32, of whatever arithmetic.
ROUNDING = 2.0**-24
# How a recurrence runs: its maps given once, or anew at each step.
RUNS = ("filter", "scan", "scan, maps by step", "cell", "cell, maps by step")
# Steps of a thread, as plans for an H200 have them after 32,768 steps; a cell's kernel says its own.
STEPS_OF_CELL, STEPS_OF_SCAN = 16, 4
FORMS: dict[Form, str] = {
    "scalar": "h[t] = {p} * h[t-1] + W.b0",
    "rotation": "h[t] = {p} * h[t-1] - {q} * g[t-1] + W.b0\ng[t] = {q} * h[t-1] + {p} * g[t-1] + W.b1",
    "dual": "g[t] = {p} * g[t-1] + W.b0\nh[t] = {q} * g[t-1] + {p} * h[t-1] + W.b1",
    "full": "h[t] = {p} * h[t-1] + {q} * g[t-1] + W.b0\ng[t] = {r} * h[t-1] + {s} * g[t-1] + W.b1",
}
Values = Any


class Poles(NamedTuple):
    """A map in its form, and the error of its prototype after 32,768 steps where it had one.

    `entries`: of the first column, or of all rows of a full map. `place`: of the state that is compared.
    """

    name: str
    form: Form
    entries: tuple[float, ...]
    limit: float | None = None
    is_filter: bool = False

    @property
    def place(self) -> int:
        return int(self.form == "dual")

    @property
    def given(self) -> Values:
        """The entries as callers give them: two rows of a full map, else the first column."""
        entries = numpy.array(self.entries, numpy.float32)
        return entries.reshape(2, 2) if self.form == "full" else entries

    @property
    def matrix(self) -> Values:
        """The map [m, m]."""
        if self.form in ("scalar", "full"):
            return self.given.reshape(-1, 1 if self.form == "scalar" else 2)
        p, q = self.given
        return numpy.array([[p, -q if self.form == "rotation" else 0], [q, p]], numpy.float32)


def filter_of(name: str, first: complex, second: complex, limit: float | None = None) -> Poles:
    """Return the companion map of two poles, a filter."""
    _, a1, a2 = numpy.poly((first, second)).real
    return Poles(f"full, {name}", "full", (-a1, 1.0, -a2, 0.0), limit, True)


def _turn(radius: float, angle: float) -> tuple[float, float]:
    return radius * float(numpy.cos(angle)), radius * float(numpy.sin(angle))


STIFFNESS = 2 - 2 * float(numpy.cos(0.02))
POLES = (
    filter_of("poles 0.99 e^±0.3i", 0.99 * numpy.exp(0.3j), 0.99 * numpy.exp(-0.3j), 9e-7),
    filter_of("double pole 0.999", 0.999, 0.999, 7e-6),
    filter_of("poles e^±0.02i", numpy.exp(0.02j), numpy.exp(-0.02j), 6e-6),
    Poles("full, these poles, states (h, h[t] - h[t-1])", "full", (1 - STIFFNESS, 1.0, -STIFFNESS, 1.0), 5e-7),
    filter_of("poles 0.5 and -0.9", 0.5, -0.9),
    Poles("rotation, e^0.3i", "rotation", _turn(1.0, 0.3), 1e-4),
    Poles("rotation, 0.99 e^0.3i", "rotation", _turn(0.99, 0.3)),
    Poles("dual, 1 - p = 1e-4", "dual", (1 - 1e-4, 1.0), 2e-5),
    Poles("scalar, 1 - a = 1e-4", "scalar", (1 - 1e-4,)),
)


class Row(NamedTuple):
    """Poles, how they run, and for how many steps."""

    poles: Poles
    run: str
    steps: int

    @property
    def label(self) -> str:
        return f"{self.poles.name}; {self.run}; {self.steps:,}"

    @property
    def b(self) -> Values:
        """Inputs [T, m]; a filter reads the first."""
        b = numpy.random.default_rng(self.steps).standard_normal((self.steps, len(self.poles.matrix)), numpy.float32)
        if self.run == "filter":
            b[:, 1] = 0
        return b

    @property
    def exact(self) -> Values:
        """The compared state [T] in extended precision: the resolvent of the map, a filter, applied to the inputs."""
        matrix, place = self.poles.matrix.astype(numpy.longdouble), self.poles.place
        own = matrix[place, place]
        if len(matrix) == 1:
            return _filtered([1], [1, -own], self.b[:, 0])
        across, other = matrix[place, 1 - place], matrix[1 - place, 1 - place]
        feedback = [1, -(own + other), own * other - across * matrix[1 - place, place]]
        return _filtered([1, -other], feedback, self.b[:, place]) + _filtered([0, across], feedback, self.b[:, 1 - place])

    def arithmetic(self, steps: int) -> tuple[Arithmetic, bool]:
        """Return the arithmetic of a kernel with so many steps of a thread, and whether it composes powers of one map.

        Scans of one map, filters and full maps of `scan` are in float64. Cells compose full maps in float64; numbers and dual
        numbers are coefficients of a scan, which composes them.
        """
        form, is_by_step = self.poles.form, self.run.endswith("by step")
        if not self.run.startswith("cell") and (form == "full" or not is_by_step):
            return Arithmetic(float, float, form), not is_by_step
        maps = float if form == "full" else numpy.float32
        has_powers = not is_by_step and form in ("full", "rotation")
        return Arithmetic(numpy.float32, maps, form, steps), has_powers

    def in_numpy(self, steps: int) -> Values:
        """Return the compared state [T] by the same arithmetic in NumPy."""
        arithmetic, has_powers = self.arithmetic(steps)
        matrix = self.poles.matrix
        maps = matrix if has_powers else numpy.broadcast_to(matrix, (self.steps, *matrix.shape))
        return tiled(maps, self.b, arithmetic)[:, self.poles.place].astype(numpy.float32)

    def limit(self, in_numpy: float) -> float:
        """The largest error allowed."""
        if self.steps == LIMIT_STEPS and self.poles.limit is not None:
            return 2 * self.poles.limit
        return 2 * max(in_numpy, ROUNDING)


class OnGpu:
    """Runs of rows on the GPU, by kernels that stay for rows of the same cell."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, bool], Any] = {}

    def run(self, row: Row) -> tuple[Values, int]:
        """Return the compared state [T], and the steps of a thread."""
        poles, b = row.poles, self._torch.from_numpy(row.b).cuda()
        is_by_step = row.run.endswith("by step")
        if row.run == "filter":
            a = numpy.array([1, -poles.entries[0], -poles.entries[2]], numpy.float32)
            ones = self._torch.ones(1, device="cuda")
            y = self._library.lfilter(b[:, 0].contiguous(), self._torch.from_numpy(a).cuda(), ones)
            return y.cpu().numpy(), STEPS_OF_SCAN
        if row.run.startswith("scan"):
            return self._scanned(poles, b, is_by_step), STEPS_OF_SCAN
        return self._by_cell(poles, b, is_by_step)

    def _scanned(self, poles: Poles, b: Values, is_by_step: bool) -> Values:
        given, steps = self._torch.from_numpy(poles.given).cuda(), len(b)
        if poles.form == "scalar":
            y, _ = self._library.scan(given.expand(1, steps, 1).contiguous(), b[None])
            return y[0, :, 0].cpu().numpy()
        a = given.expand(1, steps, 1, *given.shape).contiguous() if is_by_step else given[None]
        y, _ = self._library.scan(a, b[None, :, None], form=poles.form)
        return y[0, :, 0, poles.place].cpu().numpy()

    def _by_cell(self, poles: Poles, b: Values, is_by_step: bool) -> tuple[Values, int]:
        names = "pqrs"[: len(poles.entries)]
        if (key := (poles.form, is_by_step)) not in self._kernels:
            self._kernels[key] = self._compiled(poles.form, names, is_by_step)
        kernel, given = self._kernels[key], self._torch.from_numpy(poles.given).cuda().flatten()
        rows = dict(zip(names, given, strict=True)) if is_by_step else {}
        rows |= {f"b{place}": b[:, place] for place in range(b.shape[1])}
        x = self._torch.stack([rows[gate].expand(len(b)) for gate in kernel.gates])[None, :, None]
        parameters = None if is_by_step else {name: value[None] for name, value in zip(names, given, strict=True)}
        y, _ = kernel(x, parameters=parameters)
        builder, sizes = kernel.executor.builder, Sizes(1, len(b))
        plan = kernel.plans.get(builder.choose("forward", builder.specialization_at(sizes), sizes))
        own = plan.variables if plan else {}
        return y[0, 0].cpu().numpy(), own.get("steps_per_lane", own.get("stages", STEPS_OF_CELL))

    def _compiled(self, form: Form, names: str, is_by_step: bool) -> Any:
        equations = FORMS[form].format(**{name: f"W.{name}" if is_by_step else name for name in names})
        gates = [f"b{place}" for place in range(1 if form == "scalar" else 2)]
        model: dict[str, Any] = {"name": f"{form}_maps", "equations": equations, "output": "h"}
        model |= {"gates": [*names, *gates]} if is_by_step else {"gates": gates, "parameters": [*names]}
        import minrnn_gen

        return minrnn_gen.compile({"model": model, "hidden_size": 1, "precision": "fp32", "layout": "BDT", "batch": 1})

    @cached_property
    def _torch(self) -> Any:
        import torch

        return torch

    @cached_property
    def _library(self) -> Any:
        import minrnn_gen.torch

        return minrnn_gen.torch


def runs_of(poles: Poles) -> Iterator[str]:
    """Yield the ways to run poles: companion maps alone are filters, and a number for `scan` has a value at each step."""
    for run in RUNS:
        if poles.is_filter if run == "filter" else (run, poles.form) != ("scan", "scalar"):
            yield run


def error_of(found: Values, exact: Values) -> float:
    """Return the largest error over the largest value."""
    return float(numpy.abs(found - exact).max() / numpy.abs(exact).max())


def _filtered(b: Values, a: Values, x: Values) -> Values:
    return signal.lfilter(*(numpy.asarray(values, numpy.longdouble) for values in (b, a, x)))


def main(arguments: list[str]) -> int:
    """Print the table, and how many results err too much; return 1 where any does."""
    with_gpu = "cpu" not in arguments
    kept = next((Path(argument) for argument in arguments if argument != "cpu"), None)
    errors: dict[str, float] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    print(f"| map | run | {' | '.join(f'{steps:,}' for steps in LENGTHS)} | verdict |\n|---|---|{'---|' * len(LENGTHS)}---|")
    shares, gpu = dict[str, float](), OnGpu()
    for poles in POLES:
        for run in runs_of(poles):
            cells, used = [], []
            for row in (Row(poles, run, steps) for steps in LENGTHS):
                exact, steps = row.exact, STEPS_OF_CELL if run.startswith("cell") else STEPS_OF_SCAN
                if with_gpu:
                    found, steps = gpu.run(row)
                label = f"{row.label}; {steps}"
                if label not in errors:
                    errors[label] = error_of(row.in_numpy(steps), exact)
                error, limit = error_of(found, exact) if with_gpu else errors[label], row.limit(errors[label])
                cells.append(f"{error:.1e} ({limit:.1e})")
                used.append(error / limit if error == error else float("inf"))
                shares[row.label] = used[-1]
            verdict = "within" if max(used) <= 1 else f"{100 * max(used):.0f} %"
            print(f"| {poles.name} | {run} | {' | '.join(cells)} | {verdict} |", flush=True)
    if kept:
        kept.write_text(json.dumps(errors, indent=0))
    beyond, worst = sum(share > 1 for share in shares.values()), max(shares, key=shares.__getitem__)
    print(f"{len(shares)} results, {beyond} beyond what is allowed; the worst uses {100 * shares[worst]:.0f} %: {worst}")
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
