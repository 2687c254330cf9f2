"""Errors of every scan cell against the fp64 oracle, on the GPU: `python -m benchmarks.scan_accuracy`, from the checkout.

A row has, for a cell and a precision, the largest error of y relative to the largest value. Its second number is the largest
share of the running error bound that an element used; more than 100 % is a wrong result. Shapes are from one element to
(8, 4097, 1536).
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import cupy
import numpy

import minrnn_gen
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import precision_of
from tests.support.oracle import CELLS, RAW_CELL, oracle

PROCESSES = 8
SHAPES = ((1, 1, 1), (2, 3, 5), (3, 31, 40), (5, 64, 33), (2, 1025, 72), (4, 333, 1001), (8, 4097, 1536))


def worst(cell: str, precision: str) -> tuple[float, float]:
    """Return (largest error over largest value, largest share of the bound) over all shapes, in the layout BTD."""
    relative = share = 0.0
    generator = numpy.random.default_rng(2024)
    row = precision_of(precision)
    storage = numpy_dtype(row.storage_dtype)
    for batch, time, hidden in SHAPES:
        model = RAW_CELL if cell == "raw" else cell
        kernel = minrnn_gen.compile({"model": model, "hidden_size": hidden, "precision": precision})
        gates = cupy.asarray(generator.standard_normal((batch, time, len(kernel.gates), hidden), dtype=numpy.float32))
        if cell == "raw":
            gates[:, :, 0] = cupy.tanh(gates[:, :, 0])
        x = gates.astype(storage)
        initial = {
            name: cupy.asarray(generator.standard_normal((batch, hidden)).astype(row.arithmetic_dtype))
            for name in kernel.states
        }
        parameters = {name: cupy.asarray(generator.standard_normal(hidden).astype(storage)) for name in CELLS[cell].parameters}
        y, _ = kernel(x, state=initial, parameters=parameters)
        exact = x.astype(numpy.float64).transpose(1, 0, 2, 3)
        expected = oracle(
            cupy, cell, {name: exact[:, :, index] for index, name in enumerate(kernel.gates)}, initial, parameters, row
        )
        error = cupy.abs(y.astype(numpy.float64).transpose(1, 0, 2) - expected.y)
        relative = max(relative, float(error.max() / cupy.abs(expected.y).max()))
        used = error / expected.y_bound
        share = max(share, float("inf") if bool(cupy.isnan(used).any()) else float(used.max()))
        cupy.get_default_memory_pool().free_all_blocks()
    return relative, share


def main() -> None:
    print("| cell | precision | max error / max value | largest share of the bound |\n|---|---|---|---|")
    cases = [(cell, precision) for cell in CELLS for precision in ("fp32", "bf16", "fp16", "fp64")]
    # The oracle is many small operations: processes share the GPU well. CUDA does not survive a fork.
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (cell, precision), (relative, share) in zip(cases, pool.map(worst, *zip(*cases, strict=True)), strict=True):
            print(f"| {cell} | {precision} | {relative:.1e} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
