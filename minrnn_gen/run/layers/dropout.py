"""Dropout between layers, by its own kernel: kept values are scaled, all others become zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.pieces import Piece, narrowed_in_time
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import Sizes, alignment_of
from minrnn_gen.program.number import bounds, divided_up, divisor_of, least
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.launch import Launch

_NAMES = ArrayNames((), ())


def scale_of(probability: float) -> float:
    """Return the scale of kept values at this probability of dropping one: it preserves the mean."""
    return 1 / (1 - probability) if probability < 1 else 0.0


def plain_dropout(interface: Interface) -> Specialization:
    """Return the specialization of dropout of outputs without gaps, and of pieces of their time."""
    return Specialization(alignment_of(interface.hidden_size * interface.precision.storage_bytes))


@dataclass(frozen=True, slots=True)
class Dropout:
    """Arrays of dropout: `source`, a bool mask of its kept values, and `target`, which may be source.

    All three have the same shape and strides, of three axes whose last two have no gaps: y of a layer, or a piece of its time.
    """

    source: Array
    mask: Array
    target: Array
    probability: float

    def of_gradient(self, gradient: Array) -> Dropout:
        """Return the dropout, in place, that turns the gradient of `target` into that of `source`."""
        return replace(self, source=gradient, target=gradient)

    def piece(self, axes: str, piece: Piece) -> Dropout:
        """Return the dropout of a piece of time; `axes` are the letters of the three axes."""
        source, mask, target = (narrowed_in_time(array, axes, piece) for array in (self.source, self.mask, self.target))
        return replace(self, source=source, mask=mask, target=target)

    def run(self, recorder: Recorder) -> None:
        """Launch the kernel, on whatever lane the run is."""
        if 0 in self.source.shape:
            return
        # Planning depends on the number of values, not on the meaning of the axes.
        key = recorder.choose("dropout", Specialization(self._alignment_bytes), Sizes(*self.source.shape[:2]))
        kernel = recorder.load(key)
        kernel.launch(self._launch(kernel.plan, kernel.resident_blocks()))

    @property
    def _row_length(self) -> int:
        return self.source.shape[1] * self.source.shape[2]

    @property
    def _alignment_bytes(self) -> int:
        """The alignment, in bytes, of a vector of values in all rows; its mask, a byte for each value, is aligned alike."""
        source, itemsize = self.source, self.source.itemsize
        steps = [self._row_length, *(source.strides[:1] if bounds(source.shape[0])[1] > 1 else ())]
        elements = [pointer_divisor(self.mask.pointer), *map(divisor_of, steps)]
        pointers = [pointer_divisor(array.pointer) for array in (source, self.target)]
        offsets = [*pointers, *(itemsize * element for element in elements)]
        return max(alignment_of(*offsets), itemsize)

    def _launch(self, plan: KernelPlan, resident_blocks: int) -> Launch:
        import numpy

        source, rows = self.source, self.source.shape[0]
        vectors = rows * self._row_length * source.itemsize // plan.launch.copy_bytes
        values = {
            "source": source.address,
            "mask": self.mask.address,
            "target": self.target.address,
            "row_stride": source.strides[0],
            "rows": rows,
            "row_length": self._row_length,
            "scale": (numpy.float64 if source.dtype == "float64" else numpy.float32)(scale_of(self.probability)),
        }
        return Launch(least(resident_blocks, divided_up(vectors, plan.launch.threads)), pack(signature(plan, _NAMES), values))
