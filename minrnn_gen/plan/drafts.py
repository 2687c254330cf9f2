"""How a cache reverts drafted steps: from their states in places, or by running their kept inputs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.vectors.cost import STEPS_OF_DRAFT

# Steps that run in all for each step of a draft, half of which are kept and run again; terms that they take the time of, and
# so many steps are as long as what does not grow with a draft.
STEPS_OF_ONE, TERMS_OF_STEPS, STEPS_AROUND = 1.5, ("issue", "transcendental", "chain"), 5


@dataclass(frozen=True)
class DraftPlan:
    """The bytes of a sequence and the predicted time of a draft of `steps`, either way."""

    steps: int
    batch: int
    snapshots_bytes: int
    replay_bytes: int
    snapshots_us: float
    replay_us: float
    has_kernel: bool

    @property
    def replays(self) -> bool:
        """Whether kept steps are run again."""
        return self.has_kernel and self.replay_us < self.snapshots_us

    @property
    def in_words(self) -> str:
        """The decision in a sentence."""
        chosen = "kept steps run again from their inputs" if self.replays else "a state is kept after each step"
        text = (
            f"drafts of {self.steps} steps on a GPU: {chosen}; states after each move {self.snapshots_bytes:,} bytes a sequence"
        )
        if not self.has_kernel:
            return f"{text}, and only cells with n values per channel have a kernel that runs steps again"
        times = f"{self.snapshots_us:.3g} and {self.replay_us:.3g} us for batch {self.batch}"
        return f"{text}, steps that run again {self.replay_bytes:,}: {times}"


def again_us(predicted_us: Mapping[str, float], steps: int) -> float:
    """Return the time of a draft of `steps` by a kernel that runs steps again, from its terms as planned."""
    scale = (STEPS_OF_ONE * steps + STEPS_AROUND) / (STEPS_OF_DRAFT + STEPS_AROUND)
    terms = {name: us * (scale if name in TERMS_OF_STEPS else 1.0) for name, us in predicted_us.items()}
    return float(total_us(terms))


def draft_plan(problem: Problem, steps: int, predicted_us: tuple[float, float] | None = None) -> DraftPlan:
    """Return how drafts of `steps` are reverted, for the problem of a single step on a pool.

    `predicted_us`: the times of a single step on slots, and of a kernel that runs steps again, if there is one. With states in
    places every step is a launch that reads a state and writes one. A kernel that runs steps again reads and writes one state
    in all, and moves the inputs of a draft three times: new inputs are read and kept, kept inputs are read.
    """
    cell, precision, channels = problem.cell, problem.precision, problem.hidden_size
    wide = len(cell.vector_states)
    values = channels * (wide * max(1, problem.state_size) + len(cell.states) - wide)
    state, y = values * problem.state_value_bytes, channels * precision.storage_bytes
    shared = len(cell.shared) * problem.groups * problem.state_size
    inputs = (len(cell.gates) * channels + shared) * precision.storage_bytes
    moved = (steps * (2 * state + inputs + y), 2 * state + steps * (3 * inputs + y))
    launch, (step_us, again_us) = launch_us(problem.gpu), predicted_us or (0.0, 0.0)
    return DraftPlan(
        steps, problem.batch, *moved, launch + steps * step_us, launch + again_us, has_kernel=predicted_us is not None
    )
