"""Kernels for every size: few plans of a pass that serve all batches and lengths, none much slower than the best for them.

The sizes of a call do not decide which kernels can run, only which is fastest. So the cost model ranks all candidates over a
grid of sizes, and keeps as many winners as the grid needs: each size has one that is as fast as its own best, or nearly. A call
then gets the fastest of these for its exact sizes, whatever ran before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.families import FAMILIES, MOVING, families_of
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import Problem, Sizes
from minrnn_gen.plan.solver import Candidate, Family, solve

if TYPE_CHECKING:
    import numpy as np

# The most kernels of one pass and alignment. A call compiles only its own, and most programs have calls of a few sizes.
KERNELS_MOST = 24
# The share that a place of the grid may lose to its own best. Candidates that are predicted to be so close were measured to be
# up to a third apart (docs/lab-notes.md): the model is best where it was fitted, at the fastest of a place.
LOSS_MOST = 0.01
# Powers of two, of the batch also one and a half times those, since rounds of blocks end between them.
BATCHES = tuple(sorted({size << power for power in range(13) for size in (1, 3)}))
TIMES = tuple(1 << power for power in range(21))
# More than the memory of any GPU: no call has such sizes.
CALL_BYTES_MOST = 1 << 37
# A measurement counts for sizes up to this factor away, batch and time taken together, as a power of two.
MEASURED_DISTANCE = 1.0


@dataclass(frozen=True)
class SizedKernel:
    """One of the kernels of a pass: a candidate, and the sizes that it is planned for; `is_measured`: it was fastest there."""

    family: str
    variables: Mapping[str, int]
    sizes: Sizes
    is_measured: bool = False

    @property
    def is_called_in_any_way(self) -> bool:
        """Whether the kernel reads at run time how it is called, whatever its specialization: a kernel for one step of many."""
        return _FAMILIES[self.family].strategy == "stepwise"


@dataclass(frozen=True)
class SizeClasses:
    """The kernels of a pass; `predicted_loss` is the largest loss of a size on the grid relative to its own best."""

    kernels: tuple[SizedKernel, ...]
    predicted_loss: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        kernels = [{**vars(kernel), "variables": dict(kernel.variables)} for kernel in self.kernels]
        return {"kernels": kernels, "predicted_loss": self.predicted_loss}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SizeClasses:
        """Read back what `to_json` gave; raises TypeError or KeyError for anything else."""
        kernels = tuple(SizedKernel(**{**kernel, "sizes": Sizes(*kernel["sizes"])}) for kernel in data["kernels"])
        return cls(kernels, data["predicted_loss"])

    def choose(self, problem: Problem) -> SizedKernel:
        """Return the kernel for the sizes of `problem`: one measured near them, else the fastest as predicted."""
        measured = [kernel for kernel in self.kernels if kernel.is_measured]
        nearest = min(measured, key=lambda kernel: problem.sizes.distance(kernel.sizes), default=None)
        if nearest and problem.sizes.distance(nearest.sizes) <= MEASURED_DISTANCE:
            return nearest
        if len(self.kernels) == 1:
            return self.kernels[0]
        return min(self.kernels, key=lambda kernel: predicted_us(problem, kernel))


def predicted_us(problem: Problem, kernel: SizedKernel) -> float:
    """Return the predicted time of a kernel for the sizes of `problem`, in microseconds."""
    return float(total_us(_FAMILIES[kernel.family].predicted_us(problem, kernel.variables)))


@dataclass(frozen=True)
class Occupied:
    """Demand of a dense call on a GPU: `blocks`, in clusters of `cluster_blocks`, which may wait for others anywhere."""

    blocks: int
    cluster_blocks: int
    waits_in_grid: bool

    def share_of(self, gpu: GpuProfile) -> float:
        """Return the share of the GPU that it takes with a block per SM; above 1 its blocks take turns."""
        return self.blocks / self.cluster_blocks / clusters_at_once(gpu, self.cluster_blocks, 1)


def occupied(problem: Problem, kernel: SizedKernel) -> Occupied | None:
    """Return a kernel's demand on a GPU for the sizes of `problem`; None unless it takes all steps of a dense cell."""
    family, variables = _FAMILIES[kernel.family], kernel.variables
    if family.strategy != "persistent":
        return None
    of_grid = family.resources(problem, variables).partition.get("grid_blocks")
    cluster_blocks, grid_blocks = variables["cluster_blocks"], of_grid or variables.get("grid_blocks", 1)
    tiles = -(-problem.batch // (variables["batch_tile"] * variables.get("column_groups", 1)))
    return Occupied(problem.heads * tiles * max(cluster_blocks, grid_blocks), cluster_blocks, grid_blocks > 1)


@dataclass(frozen=True)
class Grid:
    """Every candidate of a problem's families over the grid of sizes: `times_us[candidate, place]`."""

    candidates: tuple[tuple[Family, Candidate], ...]
    places: tuple[Sizes, ...]
    times_us: np.ndarray[Any, Any]


def rows_in_memory(problem: Problem) -> float:
    """Return the most steps of all sequences together that a call can have, at least one."""
    return max(CALL_BYTES_MOST / problem.at(1, 1).traffic_bytes, 1.0)


def grid_of(problem: Problem) -> Grid:
    """Return the predicted times of all candidates over the grid; raises Infeasible where no family has any."""
    import numpy as np

    times = TIMES[:1] if problem.kernel_pass == "step" else TIMES
    rows_most = rows_in_memory(problem)
    places = tuple(Sizes(batch, time) for batch in BATCHES for time in times if batch * time <= rows_most)
    # Floating-point numbers: products of sizes exceed 64 bits.
    batch, time = np.array(places, dtype=np.float64).T
    everywhere = problem.at(batch, time)
    candidates: list[tuple[Family, Candidate]] = []
    rows: list[np.ndarray[Any, Any]] = []
    refusal = ""  # in words: an error that is kept keeps the arrays of the call that met it
    for family in families_of(problem):
        try:
            solution = solve(problem, family)
        except Infeasible as why:
            refusal = str(why)
            continue
        candidates += [(family, candidate) for candidate in solution.candidates]
        rows.append(_times_us(everywhere, family, solution.candidates, len(places)))
    if not candidates:
        raise Infeasible(refusal)
    return Grid(tuple(candidates), places, np.concatenate(rows))


def _times_us(everywhere: Problem, family: Family, candidates: Sequence[Candidate], places: int) -> np.ndarray[Any, Any]:
    """Return the predicted times of a family's candidates over a grid: `times_us[candidate, place]`."""
    import numpy as np

    times_us = np.empty((len(candidates), places))
    if family.predicted_us_of_all:
        for numbers, terms in family.predicted_us_of_all(everywhere, candidates):
            times_us[numbers] = total_us(terms)
    else:
        for number, candidate in enumerate(candidates):
            times_us[number] = total_us(family.predicted_us(everywhere, candidate))
    return times_us


def size_classes(problem: Problem, measured: Sequence[SizedKernel] = ()) -> SizeClasses:
    """Return the kernels of a pass for all sizes, those `measured` first; the sizes of `problem` do not matter.

    Raises Infeasible where no candidate fits.
    """
    grid = grid_of(problem)
    best_us, fastest = grid.times_us.min(axis=0), grid.times_us.argmin(axis=0)
    winners = sorted(set(fastest.tolist()))
    losses = grid.times_us[winners] / best_us - 1
    picks = _cover(losses, KERNELS_MOST - min(len(measured), KERNELS_MOST - 1))
    kernels = list(measured[: KERNELS_MOST - 1])
    for pick in picks:
        family, candidate = grid.candidates[winners[pick]]
        kernels.append(SizedKernel(family.name, dict(candidate), _middle(grid.places, fastest == winners[pick])))
    return SizeClasses(tuple(kernels), float(losses[picks].min(axis=0).max()))


def _cover(losses: np.ndarray[Any, Any], most: int) -> list[int]:
    """Return the rows of a table, `most` at most, that lose least in all columns together, chosen greedily.

    Fewer where no column loses more than `LOSS_MOST`.
    """
    import numpy as np

    picks = [int(losses.sum(axis=1).argmin())]
    left = losses[picks[0]]
    while len(picks) < most and left.max() > LOSS_MOST:
        picks.append(int(np.minimum(left, losses).sum(axis=1).argmin()))
        left = np.minimum(left, losses[picks[-1]])
    return picks


def _middle(places: Sequence[Sizes], belongs: np.ndarray[Any, Any]) -> Sizes:
    """Return the size nearest to the middle of the sizes that belong, on a logarithmic scale."""
    import numpy as np

    own = np.array(places)[belongs]
    scaled = np.log2(own)
    batch, time = own[((scaled - scaled.mean(axis=0)) ** 2).sum(axis=1).argmin()].tolist()
    return Sizes(batch, time)


_FAMILIES = {family.name: family for family in (*FAMILIES, *MOVING)}
