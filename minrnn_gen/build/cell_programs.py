"""The cell of a spec, parsed, with its programs and shapes in every pass, each made on first use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minrnn_gen.build.cell_shape import backward_shape, forward_shape, vectors_shape, words_of_states
from minrnn_gen.cell.files import CellSource
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import CellShape, KernelPass
from minrnn_gen.precision import precision_of

if TYPE_CHECKING:  # imported only where the cache has no answer
    from minrnn_gen.cell.analysis import Recurrence
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.cell.lowering_blocks import LoweredBlocks, LoweredBlocksBackward
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward


@dataclass(frozen=True)
class CellPrograms:
    """The programs of the cell of one spec, whose text is `source`."""

    spec: Spec
    source: CellSource

    @cached_property
    def cell(self) -> Cell:
        """The cell, parsed; raises BadInput for a text that is no cell."""
        from minrnn_gen.cell.language import parse_cell

        return parse_cell(self.source)

    @cached_property
    def recurrence(self) -> Recurrence:
        """The class of the cell, with its proof."""
        from minrnn_gen.cell.analysis import classify

        return classify(self.cell)

    @cached_property
    def forward(self) -> Lowered:
        """The cell's forward, lowered; raises BadInput for a cell that the spec's scan_arithmetic does not fit."""
        from minrnn_gen.cell.lowering import lower_scan
        from minrnn_gen.cell.lowering_dual import lower_dual
        from minrnn_gen.cell.lowering_steps import lower_steps

        cell, recurrence = self.cell, self.recurrence
        if not recurrence.is_scan:
            if self.spec.scan_arithmetic == "log":
                without = "whose states have no scan each" if recurrence.blocks else "which has no scan"
                why = f"'log' is given, but {cell.name} is a {recurrence.kind} cell, {without}; allowed: linear"
                raise self.spec.error("scan_arithmetic", why)
            return replace(self.blocks.steps, dual=lower_dual(cell)) if self.blocks else lower_steps(cell)
        try:
            return lower_scan(cell, recurrence, self.spec.scan_arithmetic)
        except BadInput as refused:
            raise self.spec.error("scan_arithmetic", str(refused)) from None

    @cached_property
    def backward(self) -> LoweredBackward:
        """The cell's backward, lowered."""
        from minrnn_gen.cell.lowering import lower_scan_backward
        from minrnn_gen.cell.lowering_dual import lower_dual_backward
        from minrnn_gen.cell.lowering_steps import lower_steps_backward

        cell, recurrence = self.cell, self.recurrence
        if recurrence.is_scan:
            return lower_scan_backward(cell, recurrence)
        steps = lower_steps_backward(cell)
        return replace(steps, dual=lower_dual_backward(cell, steps)) if recurrence.blocks else steps

    @cached_property
    def products_are_added(self) -> bool:
        """Whether each gate adds a product with R, so that a backward needs only the sum."""
        from minrnn_gen.cell.lowering_steps import LoweredStepsBackward

        return isinstance(self.backward, LoweredStepsBackward) and self.backward.products_are_added

    @cached_property
    def blocks(self) -> LoweredBlocks | None:
        """The cell as maps of its blocks; None of another class, and with the axis n."""
        from minrnn_gen.cell.lowering_blocks import lower_blocks

        blocks = () if self.source.has_vectors else self.recurrence.blocks
        return lower_blocks(self.cell, blocks) if blocks else None

    @cached_property
    def blocks_backward(self) -> LoweredBlocksBackward | None:
        """The backward by blocks of any cell whose channels are apart; None where it has none."""
        from minrnn_gen.cell.lowering_blocks import lower_blocks_backward

        cell = self.cell
        is_here = not (self.recurrence.is_scan or cell.recurrent_gates or cell.norms or self.source.has_vectors)
        return lower_blocks_backward(cell) if is_here else None

    @cached_property
    def vectors(self) -> LoweredVectors:
        """A step of a cell with the axis n, in stages; raises BadInput as `forward` does."""
        from minrnn_gen.cell.lowering_vectors import lower_vectors

        if self.spec.scan_arithmetic == "log":
            why = f"'log' is given, but {self.cell.name} has n values per channel, which are not logarithms; allowed: linear"
            raise self.spec.error("scan_arithmetic", why)
        return lower_vectors(self.cell, self.recurrence)

    @cached_property
    def vectors_backward(self) -> LoweredVectorsBackward:
        """The vector-Jacobian product of a step of a cell with the axis n, in stages."""
        from minrnn_gen.cell.lowering_vectors import lower_vectors_backward

        return lower_vectors_backward(self.cell, self.recurrence)

    def of_kernels(self, kernel_pass: KernelPass) -> Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward:
        """Return the program of a pass as GPU kernels take it: a step computes what a forward does.

        A backward recomputes the arguments of products.
        """
        if self.source.has_products and not self.cell.projection.is_plain:
            why = f"{self.cell.name} has products of several shapes, for which kernels of another cell are built"
            raise BadInput(f"{why}; compile its spec by minrnn_gen.compile")
        if self.source.has_vectors:
            return self.vectors_backward if kernel_pass == "backward" else self.vectors
        return self.backward if kernel_pass in ("backward", "arguments") else self.forward

    def shape(self, kernel_pass: KernelPass, states_out: StatesOut = "none") -> CellShape:
        """Return the shape of the cell in a pass whose states after every step are written as `states_out` says."""
        cell, recurrence = self.cell, self.recurrence
        words = words_of_states(states_out, precision_of(self.spec.precision))
        if self.source.has_vectors:
            lowered = self.vectors_backward if kernel_pass == "backward" else self.vectors
            return vectors_shape(cell, recurrence, lowered, words, self.spec.state_size or 1)
        if kernel_pass in ("backward", "arguments"):
            return backward_shape(cell, recurrence, self.forward, self.backward)
        return forward_shape(cell, recurrence, self.forward, words)
