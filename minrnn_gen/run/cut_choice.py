"""How a call of layers is cut: on how many lanes and into how many pieces of time, as the cost model predicts, or not at all.

Each lane has a share of the SMs, and kernels planned for it: what runs at once is resident at once, so that blocks of a grid
may wait for each other. What is chosen depends on the specs, the sizes and the GPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.build.builder import Builder
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.gpu_rates import tensor_products
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import SizedKernel, predicted_us
from minrnn_gen.run.stack import Cut
from minrnn_gen.run.wavefront import wavefront

BackwardOrForward = Literal["forward", "backward"]

# More lanes have too few SMs each, and shorter pieces are mostly prologue: R goes to the SMs anew for each.
LANES_MOST, PIECES, PIECE_STEPS_LEAST = 4, (4, 8, 16, 32), 16
# Of every piece: two launches, the prologue, and an event.
PIECE_US = 12.0
# What a product beside recurrences reaches of the tensor cores' rate, in 16 bits; others take as many times as long.
PRODUCT_EFFICIENCY = 0.4
TIMES_OF_16_BITS = {"fp16": 1, "bf16": 1, "fp32": 16, "fp64": 32}
# Products of a pass with matrices of the size of the weight, and of the size of R, for all steps at once.
PRODUCTS_OF_WEIGHT = {"forward": 1, "backward": 2}
# What has to be gained for more lanes than one.
GAIN_LEAST = 1.1


@dataclass(frozen=True)
class CutChoice:
    """A cut, the sizes of its pieces, and what is predicted of it and of one layer after the other."""

    kernel_pass: BackwardOrForward
    cut: Cut
    piece: Sizes
    predicted_us: float
    one_by_one_us: float


def cuts_are_allowed() -> bool:
    """Say whether calls may be cut at all, as the environment has it now."""
    return layers_run_beside_each_other()


def choose_cut(
    kernel_pass: BackwardOrForward, builders: Sequence[Builder], share_of: Callable[[int], Builder], sizes: Sizes
) -> CutChoice | None:
    """Return the fastest cut of a pass over layers, by their builders; None where one layer after the other is as fast.

    `share_of` gives the builder of all layers' recurrences for one of so many equal shares of the GPU.
    """
    layers, (batch, time) = len(builders), sizes
    if layers < 2 or not batch or not all(map(_has_pieces, builders)):
        return None
    products_us = sum(_products_us(builder, kernel_pass, batch * time) for builder in builders)
    one_by_one_us = layers * _expected(builders[-1], kernel_pass, sizes)[1] + products_us
    found: list[CutChoice] = []
    for lanes in range(2, min(layers, LANES_MOST) + 1):
        for pieces in PIECES:
            piece = Sizes(batch, -(-time // pieces))
            if piece.time < PIECE_STEPS_LEAST:
                continue
            try:
                kernel, recurrence_us = _expected(share_of(lanes), kernel_pass, piece)
            except Infeasible:
                continue
            if not kernel.family.startswith(("persistent", "large_batch")):
                continue
            steps = wavefront(layers, pieces, lanes, products_first=kernel_pass == "forward")
            total_us = max(step.end for step in steps) * (recurrence_us + PIECE_US)
            found.append(CutChoice(kernel_pass, Cut(lanes, pieces), piece, total_us, one_by_one_us))
    best = min(found, key=lambda choice: choice.predicted_us, default=None)
    return best if best and best.predicted_us * GAIN_LEAST <= one_by_one_us else None


def _has_pieces(builder: Builder) -> bool:
    """Say whether the kernels of a builder run on pieces of time with the bits of a whole."""
    spec = builder.spec
    return (
        builder.kind == "dense"
        and spec.direction == "forward"
        and spec.layout != "BDT"
        and spec.input_size is not None
        and spec.recurrent_gradient_clip is None  # which is of every step's gradient, and none is clipped between pieces
    )


def _expected(builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> tuple[SizedKernel, float]:
    """Return the kernel that a call with contiguous arrays of these sizes runs, and its predicted time in microseconds.

    Raises Infeasible where there is none.
    """
    specialization = builder.specialization_at(sizes)
    classes = builder.classes(kernel_pass, specialization)
    problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, sizes))
    kernel = classes.sizes.choose(problem)
    return kernel, predicted_us(problem, kernel)


def _products_us(builder: Builder, kernel_pass: BackwardOrForward, rows: int) -> float:
    """Return about how long the products of a layer for all steps at once take."""
    spec, shape = builder.spec, builder.cell_shape
    assert spec.input_size is not None
    of_weight = PRODUCTS_OF_WEIGHT[kernel_pass] * len(shape.gates) * spec.hidden_size * spec.input_size
    of_R = (2 if kernel_pass == "backward" else 0) * len(shape.recurrent_gates) * spec.hidden_size * spec.head_dim
    return rows * (of_weight + of_R) * TIMES_OF_16_BITS[spec.precision] / _products_per_us(builder.target.profile)


def _products_per_us(gpu: GpuProfile) -> float:
    per_cycle = PRODUCT_EFFICIENCY * tensor_products(gpu.compute_capability) * gpu.sm_count
    return float(per_cycle * gpu.sm_clock_hz * 1e-6)
