"""How a call of layers is cut: on how many lanes and into how many pieces of time, as the cost model predicts, or not at all.

Kernels are planned for a share of the SMs. Where blocks wait for others anywhere on the GPU, there are no more lanes than
shares: what runs at once is resident at once. Others may be more than the GPU holds; they take turns then. What is chosen
depends on the specs, the sizes and the GPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.build.builder import Builder
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.gpu_rates import tensor_products
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import Occupied, occupied, predicted_us
from minrnn_gen.run.stack import Cut
from minrnn_gen.run.wavefront import wavefront

BackwardOrForward = Literal["forward", "backward"]

# More lanes have too few SMs each, and shorter pieces are mostly prologue: R goes to the SMs anew for each.
LANES_MOST, PIECES, PIECE_STEPS_LEAST = 4, (4, 8, 16), 32
# Measured on an H200 (docs/lab-notes.md): what a piece takes beside its steps, for the launch, the prologue and an event, and
# what the host takes for each step of a wavefront.
PIECE_US, HOST_STEP_US = 12.0, 24.0
# Of the tensor cores' rate, in 16 bits, what products of all steps at once reach, and of a piece; by an H200's datasheet others
# take so many times as long.
PRODUCT_EFFICIENCY, PIECE_PRODUCT_EFFICIENCY = 0.65, 0.45
TIMES_OF_16_BITS = {"fp16": 1, "bf16": 1, "tf32": 2, "fp32": 16, "fp64": 16}
# What has to be predicted as gained for layers to be cut: predictions for shares were measured to be wrong by up to as much.
GAIN_LEAST = 1.2


@dataclass(frozen=True)
class CutChoice:
    """A cut, with kernels for one of `shares` equal shares of the GPU, the sizes of its pieces, and what is predicted."""

    kernel_pass: BackwardOrForward
    cut: Cut
    shares: int
    piece: Sizes
    predicted_us: float
    one_by_one_us: float


def is_asked_for() -> bool:
    """Say whether calls are cut at all, as the environment has it."""
    return layers_run_beside_each_other()


def choose_cut(
    kernel_pass: BackwardOrForward, builders: Sequence[Builder], share_of: Callable[[int], Builder], sizes: Sizes
) -> CutChoice | None:
    """Return the fastest cut of a pass over layers, by their builders; None where one layer after the other is as fast.

    `share_of` gives the builder of all layers' recurrences for one of so many equal shares of the GPU.
    """
    layers, gpu = len(builders), builders[-1].target.profile
    has_pieces = sizes.batch and sizes.time >= PIECES[0] * PIECE_STEPS_LEAST and all(map(_has_pieces, builders))
    if layers < 2 or not has_pieces:
        return None
    products = [_Products.of(builder, kernel_pass, sizes) for builder in builders]
    one_by_one_us = layers * _expected(builders[-1], kernel_pass, sizes).us
    one_by_one_us += sum(product.us(gpu, is_cut=False) for product in products)
    products_us = sum(product.us(gpu, is_cut=True) for product in products)
    choices: list[CutChoice] = []
    # Kernels of shares run in pieces and in nothing else: whichever of them are built take all steps in one launch.
    for shares in range(2, min(layers, LANES_MOST) + 1):
        for pieces in PIECES:
            piece = Sizes(sizes.batch, -(-sizes.time // pieces))
            # No share takes less time than the whole GPU: most calls are known to gain nothing before one is planned for.
            ramp_us = (pieces + layers - 1) * (_expected(builders[-1], kernel_pass, piece).us + PIECE_US)
            if piece.time < PIECE_STEPS_LEAST or ramp_us * GAIN_LEAST > one_by_one_us:
                continue
            try:
                expected = _expected(share_of(shares), kernel_pass, piece)
            except Infeasible:
                continue
            for lanes in _lanes(layers, shares, gpu, expected.occupied):
                total_us = _total_us(expected, gpu, layers, Cut(lanes, pieces), kernel_pass == "forward", products_us)
                choices.append(CutChoice(kernel_pass, Cut(lanes, pieces), shares, piece, total_us, one_by_one_us))
    best = min(choices, key=lambda choice: choice.predicted_us, default=None)
    return best if best and best.predicted_us * GAIN_LEAST <= one_by_one_us else None


def _lanes(layers: int, shares: int, gpu: GpuProfile, footprint: Occupied | None) -> Iterator[int]:
    """Yield numbers of lanes for kernels of a share.

    Few lanes do not take turns: while one waits for room, the others have nothing to do.
    """
    for lanes in () if footprint is None else range(2, min(layers, LANES_MOST) + 1):
        assert footprint is not None
        if lanes <= shares if footprint.waits_in_grid else lanes == LANES_MOST or lanes * footprint.share_of(gpu) <= 1:
            yield lanes


def _total_us(expected: _Expected, gpu: GpuProfile, layers: int, cut: Cut, products_first: bool, products_us: float) -> float:
    """Return the predicted time of a cut: of its longest chain, or of turns, or of the host.

    Products beside recurrences take longer, by the part of the GPU that these have.
    """
    assert expected.occupied is not None
    steps, piece_us = wavefront(layers, cut.pieces, cut.lanes, products_first), expected.us + PIECE_US
    share = expected.occupied.share_of(gpu)
    chain_us, turns_us = max(step.end for step in steps) * piece_us, layers * cut.pieces * piece_us * share
    return float(max(max(chain_us, turns_us) + products_us * min(1.0, cut.lanes * share), len(steps) * HOST_STEP_US))


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


@dataclass(frozen=True)
class _Expected:
    """A kernel as it is expected: its time in microseconds, and what it takes of the GPU; None where it takes step by step."""

    us: float
    occupied: Occupied | None


def _expected(builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> _Expected:
    """Return the kernel that a call with contiguous arrays of these sizes runs; raises Infeasible where there is none."""
    specialization = builder.specialization_at(sizes)
    classes = builder.classes(kernel_pass, specialization)
    problem = builder.problem_of(classes.cell, builder.key_of(kernel_pass, specialization, sizes))
    kernel = classes.sizes.choose(problem)
    takes_all_steps = kernel.family.startswith(("persistent", "large_batch"))
    return _Expected(predicted_us(problem, kernel), occupied(problem, kernel) if takes_all_steps else None)


@dataclass(frozen=True)
class _Products:
    """Multiply-adds of a layer's products in a pass: with the weight as they are between layers, and all others."""

    between: float
    whole: float
    times_of_16_bits: int

    @classmethod
    def of(cls, builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> _Products:
        """Return those of a call."""
        spec, shape, rows = builder.spec, builder.cell_shape, sizes.batch * sizes.time
        assert spec.input_size is not None
        of_weight = rows * len(shape.gates) * spec.hidden_size * spec.input_size
        of_R = rows * len(shape.recurrent_gates) * spec.hidden_size * spec.head_dim
        # In a backward the gradients of both matrices, and again the products with R.
        in_tf32 = spec.precision == "fp32" and spec.fp32_product == "tf32"
        times = TIMES_OF_16_BITS["tf32" if in_tf32 else spec.precision]
        return cls(of_weight, of_weight + 2 * of_R if kernel_pass == "backward" else 0, times)

    def us(self, gpu: GpuProfile, is_cut: bool) -> float:
        """Return about how long they take with the whole GPU; where the call `is_cut`, those between layers are of pieces."""
        per_us = tensor_products(gpu.compute_capability) * gpu.sm_count * gpu.sm_clock_hz * 1e-6
        efficiency = PIECE_PRODUCT_EFFICIENCY if is_cut else PRODUCT_EFFICIENCY
        return self.times_of_16_bits * (self.between / efficiency + self.whole / PRODUCT_EFFICIENCY) / per_us
