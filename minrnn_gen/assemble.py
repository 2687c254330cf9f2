"""A spec and a GPU to a `Kernel`: what is planned, compiled and put together ahead of the first call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from minrnn_gen.build.builder import Builder, Target
from minrnn_gen.build.projected import projected_at
from minrnn_gen.build.recipe import check_sizes_of_vectors
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.interface import RUNS_REVERSED
from minrnn_gen.config.spec import Spec
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.target import target_of as target_of  # chosen here by all above

if TYPE_CHECKING:
    from minrnn_gen.build.tuned_choice import Preferred


def builder_of(spec: Spec, target: Target, preferred: Callable[[], Preferred] | None = None) -> Builder:
    """Return the builder of the kernels of `spec` for `target`; `preferred` opens what was measured before."""
    return Builder(spec, target, Store(cache_folder()), preferred=preferred)


def kernel_from(builder: Builder) -> Kernel:
    """Compile the spec of `builder`: the kernels of plain calls, ahead of the first one."""
    check_sizes_of_vectors(builder.spec, builder.cell_source)  # before anything is compiled
    spec, specialization, sizes = builder.spec, builder.hinted_specialization, builder.hinted_sizes
    if builder.kind == "dense":
        # One kernel runs in either direction, and a single step too.
        return Kernel(builder, builder.build_all([builder.choose("forward", specialization, sizes)]))
    runs = [replace(specialization, reverse=reverse) for reverse in RUNS_REVERSED[spec.direction]]
    if projected := projected_at(builder, sizes):
        runs = [projected]
    wanted = [builder.choose("forward", run, sizes) for run in runs]
    if len(wanted) == 1:
        wanted.append(builder.choose("step", specialization, sizes))
    return Kernel(builder, builder.build_all(wanted))
