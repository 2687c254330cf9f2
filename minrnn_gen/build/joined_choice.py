"""The choice of a layer's backward between products apart and products that share an operand: see run/dense/joined.py."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.build.cell_programs import CellPrograms
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.precision import precision_of
from minrnn_gen.program.number import Number

# Values of a state in all sequences from which the steps of a backward wait for memory (docs/lab-notes.md).
STEP_VALUES_LEAST = 1 << 16
# The operands of products that were measured as faster, all of tensor cores.
MEASURED = ("fp16", "bf16", "tf32")
# Values of more bytes are joined for so many units: with more units steps are bound by their products, and the gradients of
# both matrices take as long in one product as in two.
NARROW_BYTES, WIDE_UNITS_MOST = 2, 64


@dataclass(frozen=True)
class JoinedChoice:
    """The choice of one builder: joined where that is expected to be faster or, with `is_everywhere`, wherever it can be."""

    is_everywhere: bool = False

    def serves(self, programs: CellPrograms, gpu: GpuProfile, batch: Number) -> bool:
        """Say whether products of `batch` sequences share an operand.

        They can where every gate has a product with R added, in one head, and rows of time are contiguous.
        """
        spec = programs.spec
        if spec.input_size is None or spec.heads > 1 or spec.layout == "BDT" or not programs.products_are_added:
            return False
        return self.is_everywhere or (_gains(programs, gpu) and bool(batch * spec.hidden_size >= STEP_VALUES_LEAST))


def _gains(programs: CellPrograms, gpu: GpuProfile) -> bool:
    """Say whether memory gains more than the product of x and the weight takes, which is made again."""
    from minrnn_gen.plan.gpu_rates import products_per_s

    spec, storage_bytes = programs.spec, precision_of(programs.spec.precision).storage_bytes
    gates, units, inputs = len(programs.cell.gates), spec.hidden_size, spec.input_size or 0
    dtype = "tf32" if spec.precision == "fp32" and spec.fp32_product == "tf32" else spec.precision
    if dtype not in MEASURED or not (dtype == "fp16" or gpu.has_bf16_arithmetic):
        return False
    if storage_bytes > NARROW_BYTES and units > WIDE_UNITS_MOST:
        return False
    # Of a row, products and their gradients are not moved, nor are gradients read twice; joined rows are written and read.
    values = 3 * gates * units - 2 * units - 3 * inputs
    multiplied_s = gates * units * inputs / products_per_s(gpu, dtype)
    return values * storage_bytes / gpu.bandwidth_bytes_per_s > multiplied_s
