"""Which calls of a spec multiply x by its weight in the kernel of the scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minrnn_gen.build.builder import Builder
from minrnn_gen.errors import CompileFailed
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Sizes
from minrnn_gen.program.number import Number, symbol, value

Projects = Callable[[Builder, Sizes], Specialization | None]
"""Returns the specialization of plain calls of some sizes whose scan multiplies x itself; None where two kernels run them."""


def projected_at(builder: Builder, sizes: Sizes) -> Specialization | None:
    """Return the specialization of plain calls of these sizes whose scan has its projection in it, built; None without one."""
    first = first_projected(builder, (sizes,))
    return None if first is None else first[1]


def first_projected(builder: Builder, wanted: Iterable[Sizes]) -> tuple[Sizes, Specialization] | None:
    """Return the first of the sizes `wanted` whose calls have such a specialization, and the specialization; or None."""
    spec = builder.spec
    if not spec.input_size or spec.direction != "forward" or not builder.cell_shape.is_scan or builder.cell_shape.inputs:
        return None
    specialization = Specialization(WIDEST_COPY_BYTES, input_size=spec.input_size)
    if specialization in builder.projection.broken:
        return None
    is_served = condition(builder, specialization)
    sizes = next((sizes for sizes in wanted if value(is_served, sizes._asdict())), None)
    if sizes is None:
        return None
    try:
        builder.build(builder.choose("forward", specialization, sizes))
    except CompileFailed:  # registers of a cell with more functions than most
        builder.projection.broken.add(specialization)
        return None
    return sizes, specialization


def condition(builder: Builder, specialization: Specialization) -> Number:
    """Return the condition on the symbols `batch` and `time` for such a kernel to exist and to be faster than two."""
    key = builder.key_of("forward", specialization, Sizes(symbol("batch", 1), symbol("time")))
    return builder.projection.serves(builder.problem_of(builder.cell_shape, key))
