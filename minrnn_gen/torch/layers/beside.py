"""Layers that run concurrently on pieces of time, where that is predicted to be faster than in sequence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from minrnn_gen.build.at_once import Watch
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, kernel_of_share
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.run.layers.cut_choice import CutChoice, choose_cut, is_asked_for
from minrnn_gen.run.layers.dropout import plain_dropout
from minrnn_gen.run.layers.stack import StackRun

# Sizes of calls whose choices are remembered.
_CHOICES_HELD, _RUNS_HELD = 1024, 256


@dataclass(frozen=True)
class Beside:
    """Concurrent layers: how they are cut, their run, and the kernel of a lane."""

    choice: CutChoice
    run: StackRun
    kernel: Kernel

    def expect(self) -> None:
        """Begin to build the kernels of a concurrent run."""
        specialization = self.kernel.builder.hinted_specialization
        self.kernel.executor.backend.build_ahead(self.choice.kernel_pass, specialization, self.choice.piece)

    def prepare(self, drops: bool, watch: Watch) -> None:
        """Compile the kernels of a concurrent run, with the dropout kernel where it `drops`."""
        kernel, piece = self.kernel, self.choice.piece
        kernel.prepare([piece], watch)
        if drops:
            kernel.executor.backend.plan(kernel.builder.choose("dropout", plain_dropout(kernel.interface), piece))

    @property
    def in_words(self) -> str:
        """The choice, and its reason."""
        choice, (lanes, pieces) = self.choice, self.choice.cut
        return (
            f"{pieces} pieces of about {choice.piece.time} steps on {lanes} lanes, by kernels for "
            f"{self.kernel.builder.target.profile.sm_count} SMs, {choice.predicted_us:.0f} us predicted; "
            f"one layer after the other {choice.one_by_one_us:.0f} us"
        )


def beside_each_other(recipes: Sequence[str], kernel_pass: BackwardOrForward, batch: int, time: int) -> Beside | None:
    """Return how layers run concurrently in a pass of these sizes; None where running in sequence is as fast."""
    if not is_asked_for():
        return None
    return _chosen(tuple(recipes), kernel_pass, batch, time)


@functools.lru_cache(_CHOICES_HELD)
def _chosen(recipes: tuple[str, ...], kernel_pass: BackwardOrForward, batch: int, time: int) -> Beside | None:
    builders = [kernel_by(recipe).builder for recipe in recipes]

    def share_of(shares: int) -> Kernel:
        # All layers but the first share a recipe; the first differs in nothing that recurrence kernels depend on.
        return kernel_of_share(recipes[-1], shares)

    choice = choose_cut(kernel_pass, builders, lambda shares: share_of(shares).builder, Sizes(batch, time))
    return None if choice is None else Beside(choice, _run_of(recipes, choice.shares), share_of(choice.shares))


@functools.lru_cache(_RUNS_HELD)
def _run_of(recipes: tuple[str, ...], shares: int) -> StackRun:
    kernel = kernel_of_share(recipes[-1], shares)
    return StackRun([kernel_by(recipe).interface for recipe in recipes], kernel.builder, kernel.executor.backend)
