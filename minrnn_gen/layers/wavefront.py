"""Whether layers run beside each other: on how many lanes and pieces of time, as the cost model predicts.

Each lane has a share of the SMs, and kernels planned for it: what runs at once is resident at once, so that blocks of a grid
may wait for each other. What is chosen depends on the recipes, the sizes and the GPU alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.assemble import builder_of, target_of
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.recipe import spec_from
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.plan.gpu_rates import tensor_products
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import SizedKernel, predicted_us
from minrnn_gen.run.stack import Cut, StackRun
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
class Beside:
    """Layers beside each other: the run, how it is cut, and what is predicted of it and of one layer after the other."""

    run: StackRun
    kernel: Kernel
    kernel_pass: BackwardOrForward
    cut: Cut
    piece: Sizes
    predicted_us: float
    one_by_one_us: float

    def expect(self) -> None:
        """Begin to build the kernels that it takes."""
        specialization = self.kernel.builder.hinted_specialization
        self.kernel.executor.backend.build_ahead(self.kernel_pass, specialization, self.piece)

    @property
    def in_words(self) -> str:
        """What was chosen, and why, as one sentence."""
        lanes, pieces = self.cut
        return (
            f"{self.kernel_pass}: {pieces} pieces of about {self.piece.time} steps on {lanes} lanes of "
            f"{self.kernel.builder.target.profile.sm_count} SMs, {self.predicted_us:.0f} us predicted; "
            f"one layer after the other {self.one_by_one_us:.0f} us"
        )


def beside_each_other(recipes: Sequence[str], kernel_pass: BackwardOrForward, batch: int, time: int) -> Beside | None:
    """Return how layers run beside each other in a pass of these sizes; None where one after the other is as fast."""
    if not layers_run_beside_each_other():
        return None
    return _chosen(tuple(recipes), kernel_pass, batch, time)


@functools.lru_cache(maxsize=1024)
def _chosen(recipes: tuple[str, ...], kernel_pass: BackwardOrForward, batch: int, time: int) -> Beside | None:
    first, last = kernel_by(recipes[0]), kernel_by(recipes[-1])
    layers, builder = len(recipes), last.builder
    if layers < 2 or not batch or time < PIECES[0] * PIECE_STEPS_LEAST or not _is_for(builder):
        return None
    products_us = [_products_us(kernel_by(recipe).builder, kernel_pass, batch * time) for recipe in recipes]
    one_by_one_us = layers * _expected(builder, kernel_pass, Sizes(batch, time))[1] + sum(products_us)
    found: list[tuple[float, Cut]] = []
    for lanes in range(2, min(layers, LANES_MOST) + 1):
        for pieces in PIECES:
            piece = Sizes(batch, -(-time // pieces))
            if piece.time < PIECE_STEPS_LEAST:
                continue
            try:
                sized, recurrence_us = _expected(_share(recipes[-1], lanes).builder, kernel_pass, piece)
            except Infeasible:
                continue
            if not sized.family.startswith(("persistent", "large_batch")):
                continue
            steps = wavefront(layers, pieces, lanes, products_first=kernel_pass == "forward")
            found.append((max(step.end for step in steps) * (recurrence_us + PIECE_US), Cut(lanes, pieces)))
    if not found:
        return None
    beside_us, cut = min(found)
    if beside_us * GAIN_LEAST > one_by_one_us:
        return None
    interfaces = (first.interface, *(last.interface for _ in recipes[1:]))
    kernel = _share(recipes[-1], cut.lanes)
    return Beside(
        _run_of(interfaces, recipes[-1], cut.lanes),
        kernel,
        kernel_pass,
        cut,
        Sizes(batch, -(-time // cut.pieces)),
        beside_us,
        one_by_one_us,
    )


def _is_for(builder: Builder) -> bool:
    """Say whether the kernels of a builder run on pieces of time with the bits of a whole."""
    spec = builder.spec
    return (
        builder.kind == "dense"
        and spec.direction == "forward"
        and spec.layout != "BDT"
        and spec.input_size is not None
        and spec.recurrent_gradient_clip is None  # which is of every step's gradient, and none is clipped between pieces
    )


@functools.lru_cache(maxsize=256)
def _share(recipe: str, lanes: int) -> Kernel:
    """Return the kernel of a recipe for one of so many equal shares of the GPU."""
    spec = spec_from(recipe)
    return Kernel(builder_of(spec, target_of(spec).share(lanes)))


@functools.lru_cache(maxsize=256)
def _run_of(interfaces: tuple[object, ...], recipe: str, lanes: int) -> StackRun:
    kernel = _share(recipe, lanes)
    return StackRun(interfaces, kernel.builder, kernel.executor.backend)  # type: ignore[arg-type]


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
    return per_cycle * gpu.sm_clock_hz * 1e-6
