"""Expected time of a pass over a dense layer: its recurrence by one kernel, and its products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minrnn_gen.build.builder import Builder
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.gpu_rates import PRODUCT_EFFICIENCY, TIMES_OF_16_BITS, bytes_per_s, tensor_products
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelKey, Sizes
from minrnn_gen.plan.size_classes import Occupied, SizedKernel, occupied, predicted_us

BackwardOrForward = Literal["forward", "backward"]

# Measured on an H200 (docs/lab-notes.md): a piece's overhead in addition to its steps, for the launch, the prologue and an
# event, and the host's time for each step on a lane.
PIECE_US, HOST_STEP_US = 12.0, 24.0
# The fraction of the tensor cores' 16-bit rate that products of a piece reach.
PIECE_PRODUCT_EFFICIENCY = 0.45
# The least predicted gain for kernels of shares: measurements differ from predictions by up to as much.
GAIN_LEAST = 1.2


@dataclass(frozen=True)
class Expected:
    """A kernel's expected time in microseconds, and its demand on the GPU, None where it runs step by step."""

    us: float
    occupied: Occupied | None


def expected_of(builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> Expected:
    """Return the expectation for a call with contiguous arrays of these sizes; raises Infeasible where no kernel fits."""
    specialization = builder.specialization_at(sizes)
    classes = builder.classes(kernel_pass, specialization)
    problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, sizes))
    kernel = classes.sizes.choose(problem)
    return Expected(predicted_us(problem, kernel), occupied(problem, kernel))


def single_step_us(builder: Builder, plan: KernelPlan, batch: int) -> float:
    """Return the expected time of a step of `batch` sequences by a kernel for steps, or by one that takes all steps.

    A kernel that takes all steps reads R once for all of them. Its cost model leaves this out, but in a single step it counts.
    Where R is streamed, the kernel also writes it in another order, and reads that.
    """
    key = KernelKey.of(plan)._replace(sizes=Sizes(batch, 1))
    problem = builder.problem(key)
    us = predicted_us(problem, SizedKernel(plan.name, plan.variables, key.sizes))
    if not plan.is_persistent:
        return us
    matrix_bytes = len(problem.cell.recurrent_gates) * problem.hidden_size * problem.head_dim * problem.precision.storage_bytes
    times = 3 if plan.packed_bytes else 1
    return us + times * matrix_bytes / bytes_per_s(problem.gpu, matrix_bytes) * 1e6


@dataclass(frozen=True)
class Products:
    """Multiply-adds of a layer's products in a pass: products with the weight, as between layers, and all others."""

    between: float
    whole: float
    times_of_16_bits: int

    @classmethod
    def of(cls, builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> Products:
        """Return the multiply-adds of a call."""
        spec, shape, rows = builder.spec, builder.cell_shape, sizes.batch * sizes.time
        of_weight = rows * len(shape.gates) * spec.hidden_size * (spec.input_size or 0)
        of_R = rows * len(shape.recurrent_gates) * spec.hidden_size * spec.head_dim
        # In a backward the gradients of both matrices, and again the products with R.
        in_tf32 = spec.precision == "fp32" and spec.fp32_product == "tf32"
        times = TIMES_OF_16_BITS["tf32" if in_tf32 else spec.precision]
        return cls(of_weight, of_weight + 2 * of_R if kernel_pass == "backward" else 0, times)

    def us(self, gpu: GpuProfile, is_cut: bool) -> float:
        """Return the products' approximate time on the whole GPU; if the call `is_cut`, those between layers are cut, too."""
        per_us = tensor_products(gpu.compute_capability) * gpu.sm_count * gpu.sm_clock_hz * 1e-6
        efficiency = PIECE_PRODUCT_EFFICIENCY if is_cut else PRODUCT_EFFICIENCY
        return self.times_of_16_bits * (self.between / efficiency + self.whole / PRODUCT_EFFICIENCY) / per_us
