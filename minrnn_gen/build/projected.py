"""Which calls of a spec multiply x by its weight in the kernel of the scan."""

from __future__ import annotations

from minrnn_gen.build.builder import Builder
from minrnn_gen.errors import CompileFailed
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Sizes


def projected_at(builder: Builder, sizes: Sizes) -> Specialization | None:
    """Return the specialization of plain calls of these sizes whose scan has its projection in it, built; None without one."""
    spec = builder.spec
    if not spec.input_size or spec.direction != "forward" or not builder.cell_shape.is_scan:
        return None
    specialization = Specialization(WIDEST_COPY_BYTES, input_size=spec.input_size)
    problem = builder.problem_of(builder.cell_shape, builder.key_of("forward", specialization, sizes))
    if specialization in builder.projection.broken or not builder.projection.serves(problem):
        return None
    try:
        builder.build(builder.choose("forward", specialization, sizes))
    except CompileFailed:  # registers of a cell with more functions than most
        builder.projection.broken.add(specialization)
        return None
    return specialization
