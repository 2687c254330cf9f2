"""Tuning on the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from minrnn_gen.build.builder import Builder
from minrnn_gen.errors import BadInput
from minrnn_gen.tune.device import open_measurer
from minrnn_gen.tune.history import open_history
from minrnn_gen.tune.tuner import DEFAULT_LIMITS, Limits, Progress, TunedKernel, tune


def tune_here(
    builder: Builder,
    limits: Limits = DEFAULT_LIMITS,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Iterator[TunedKernel]:
    """Tune the kernels of the builder's spec on the GPU here, and yield each result; see `tune`.

    Raises ToolchainMissing where there is no GPU to measure on, BadInput where it is not the builder's.
    """
    with closing(open_measurer()) as opened:
        if opened.gpu != builder.target.profile.name:
            raise BadInput(
                f"{builder.spec.where}: the spec is for {builder.target.profile.name}, but the GPU here is {opened.gpu} "
                f"({opened.device}); tune it there, or leave the GPU out"
            )
        yield from tune(builder, opened, open_history(builder.store), limits, watch)
