"""Whether both directions of a dense cell run concurrently, by kernels for half of the GPU each, as the model predicts.

Both halves are resident at once, even where blocks of a kernel wait for others anywhere on the GPU. The choice depends on the
spec, the sizes and the GPU alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.build.builder import Builder
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.plan.size_classes import Occupied
from minrnn_gen.run.expected_time import (
    GAIN_LEAST,
    HOST_STEP_US,
    PIECE_US,
    BackwardOrForward,
    Products,
    expected_of,
)

DIRECTIONS = 2


@dataclass(frozen=True)
class DirectionsChoice:
    """Two concurrent directions, each by kernels for `sm_count` SMs, and the predicted times in microseconds."""

    sm_count: int
    predicted_us: float
    one_by_one_us: float

    @property
    def in_words(self) -> str:
        """The choice, and its reason."""
        return (
            f"both directions at once: by kernels for {self.sm_count} SMs each, {self.predicted_us:.0f} us "
            f"predicted; one direction after the other {self.one_by_one_us:.0f} us"
        )


def choose_directions(builder: Builder, kernel_pass: BackwardOrForward, sizes: Sizes) -> DirectionsChoice | None:
    """Return how both directions of a pass run concurrently; None where running them in turn is as fast."""
    if not (sizes.batch and sizes.time):
        return None
    gpu, half = builder.target.profile, builder.half
    # Products take the same time either way: in turn on the whole GPU, or concurrently on halves.
    products_us = DIRECTIONS * Products.of(builder, kernel_pass, sizes).us(gpu, is_cut=False)
    whole_us = expected_of(builder, kernel_pass, sizes).us
    one_by_one_us = DIRECTIONS * whole_us + products_us

    def beside_us(direction_us: float) -> float:
        return max(direction_us + PIECE_US + products_us, DIRECTIONS * HOST_STEP_US)

    # Half of the GPU takes no less time than all of it: short calls are known to gain nothing before one is planned for it.
    if beside_us(whole_us) * GAIN_LEAST > one_by_one_us:
        return None
    try:
        expected = expected_of(half, kernel_pass, sizes)
    except Infeasible:
        return None
    if expected.occupied is None or not _both_are_resident(gpu, half.target.profile, expected.occupied):
        return None
    predicted_us = beside_us(expected.us)
    choice = DirectionsChoice(half.target.profile.sm_count, predicted_us, one_by_one_us)
    return choice if predicted_us * GAIN_LEAST <= one_by_one_us else None


def _both_are_resident(gpu: GpuProfile, half: GpuProfile, occupied: Occupied) -> bool:
    """Say whether the blocks of both halves are resident at once; needed only where blocks wait for others across the GPU."""
    at_once = [clusters_at_once(profile, occupied.cluster_blocks, 1) for profile in (half, gpu)]
    return not occupied.waits_in_grid or DIRECTIONS * at_once[0] <= at_once[1]
