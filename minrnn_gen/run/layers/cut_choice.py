"""How a call of layers is cut: the numbers of lanes and of pieces of time by the cost model's prediction, or no cut.

Kernels are planned for a share of the SMs. Where blocks wait for others anywhere on the GPU, there are no more lanes than
shares, so that concurrent kernels are resident together. Other launches may exceed the GPU; then they take turns. The choice
depends on the specs, the sizes and the GPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minrnn_gen.build.builder import Builder
from minrnn_gen.config.environment import layers_run_beside_each_other
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import Occupied
from minrnn_gen.run.expected_time import (
    GAIN_LEAST,
    HOST_STEP_US,
    PIECE_US,
    BackwardOrForward,
    Expected,
    Products,
    expected_of,
)
from minrnn_gen.run.layers.stack import Cut
from minrnn_gen.run.layers.wavefront import wavefront

# More lanes have too few SMs each, and shorter pieces are mostly prologue: R goes to the SMs anew for each.
LANES_MOST, PIECES, PIECE_STEPS_LEAST = 4, (4, 8, 16), 32


@dataclass(frozen=True)
class CutChoice:
    """A cut, with kernels for one of `shares` equal shares of the GPU, the sizes of its pieces, and its predicted time."""

    kernel_pass: BackwardOrForward
    cut: Cut
    shares: int
    piece: Sizes
    predicted_us: float
    one_by_one_us: float


def is_asked_for() -> bool:
    """Say whether the environment allows cuts."""
    return layers_run_beside_each_other()


def choose_cut(
    kernel_pass: BackwardOrForward, builders: Sequence[Builder], share_of: Callable[[int], Builder], sizes: Sizes
) -> CutChoice | None:
    """Return the fastest cut of a pass over layers, by their builders; None where running the layers in turn is as fast.

    `share_of` gives the builder of all layers' recurrences for one of n equal shares of the GPU.
    """
    layers, gpu = len(builders), builders[-1].target.profile
    has_pieces = sizes.batch and sizes.time >= PIECES[0] * PIECE_STEPS_LEAST and all(map(_has_pieces, builders))
    if layers < 2 or not has_pieces:
        return None
    # Pieces have their products apart, which give other bits.
    if kernel_pass == "backward" and any(builder.joins_products(sizes.batch) for builder in builders):
        return None
    products = [Products.of(builder, kernel_pass, sizes) for builder in builders]
    one_by_one_us = layers * expected_of(builders[-1], kernel_pass, sizes).us
    one_by_one_us += sum(product.us(gpu, is_cut=False) for product in products)
    products_us = sum(product.us(gpu, is_cut=True) for product in products)
    choices: list[CutChoice] = []
    # Kernels of shares run only in pieces; all of them take their steps in one launch.
    for shares in range(2, min(layers, LANES_MOST) + 1):
        for pieces in PIECES:
            piece = Sizes(sizes.batch, -(-sizes.time // pieces))
            # No share takes less time than the whole GPU: most calls are known to gain nothing before one is planned for.
            ramp_us = (pieces + layers - 1) * (expected_of(builders[-1], kernel_pass, piece).us + PIECE_US)
            if piece.time < PIECE_STEPS_LEAST or ramp_us * GAIN_LEAST > one_by_one_us:
                continue
            try:
                expected = expected_of(share_of(shares), kernel_pass, piece)
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


def _total_us(expected: Expected, gpu: GpuProfile, layers: int, cut: Cut, products_first: bool, products_us: float) -> float:
    """Return the predicted time of a cut: the longest of its critical chain, the turns of its lanes, and the host's time.

    Products concurrent with recurrences take longer, in proportion to the share of the GPU that recurrences hold.
    """
    assert expected.occupied is not None
    steps, piece_us = wavefront(layers, cut.pieces, cut.lanes, products_first), expected.us + PIECE_US
    share = expected.occupied.share_of(gpu)
    chain_us, turns_us = max(step.end for step in steps) * piece_us, layers * cut.pieces * piece_us * share
    return float(max(max(chain_us, turns_us) + products_us * min(1.0, cut.lanes * share), len(steps) * HOST_STEP_US))


def _has_pieces(builder: Builder) -> bool:
    """Say whether the kernels of a builder give the same bits on pieces of time as on the whole."""
    spec = builder.spec
    return (
        builder.cell_shape.has_matrix
        and spec.direction == "forward"
        and spec.layout != "BDT"
        and spec.input_size is not None
        and spec.recurrent_gradient_clip is None  # bounds every step's gradient, but gradients between pieces are not clipped
    )
