"""Products of a backward that share an operand: rows of x and of the output before each step, next to each other.

One product of these rows with the weight and R gives the sums of pre-activations and products that a backward reads, and one of
their gradients with the same rows gives the gradients of the weight and of R. Where the products are apart, a backward reads
pre-activations and products and writes the gradients of both, which are equal, and each matrix's gradient reads them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.gpu.cublas import Matrix, Product, factor
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Sizes, alignment_of
from minrnn_gen.precision import Precision
from minrnn_gen.program.number import divided_up, divisor_of, least
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.dense.launch import row_strides_of
from minrnn_gen.run.launch import Launch, address_or_null, stride_values

_NAMES = ArrayNames((), ())
_ROW_LANES = 8  # see templates/joined.cu.j2


class _Rows(NamedTuple):
    """Rows of an array over batch and time, or of a matrix over `time`: the strides between them, and their values."""

    array: Array
    strides: dict[str, int]
    size: int

    @classmethod
    def over_time(cls, array: Array, axes: str) -> _Rows:
        """Return the rows of an array with these axes, the last of which is a row's."""
        return cls(array, dict(zip(axes, array.strides, strict=True)), array.shape[-1])

    @classmethod
    def of_gates(cls, array: Array, axes: str) -> _Rows:
        """Return the rows of pre-activations of one direction, whose gates lie next to each other."""
        strides = dict(zip(axes, array.strides, strict=True))
        return cls(array, strides, math.prod(size for axis, size in zip(axes, array.shape, strict=True) if axis not in "bt"))

    @classmethod
    def of_matrix(cls, matrix: Array) -> _Rows:
        """Return the rows of a matrix."""
        return cls(matrix, {"b": 0, "t": matrix.strides[0]}, matrix.shape[1])

    def values(self, name: str, unit_bytes: int) -> dict[str, int]:
        """Return the arguments of the kernel, with sizes in units of so many bytes."""
        times = self.array.itemsize // unit_bytes
        strides = {axis: times * self.strides[axis] for axis in "bt"}
        return {name: self.array.address, **stride_values(name, "bt", strides), f"{name}_size": times * self.size}


@dataclass(frozen=True)
class JoinedProducts:
    """The products of a call of one direction before and after its steps run back.

    `call`: with x not projected, and the weight and R of this direction. `projected`: the same with x projected. `y`: its
    outputs. `first`: the initial output in the storage dtype, None for zeros. `dweight` [outputs, I]: the gradient of the
    weight, in the arithmetic dtype.
    """

    interface: Interface
    call: Call
    projected: Call
    y: Array
    first: Array | None
    dweight: Array

    def operand(self, recorder: Recorder) -> Array:
        """Return rows of x and of the output before each step, zero before the first one and beyond the end of a sequence."""
        call, layout = self.call, self.interface.layout
        rows = recorder.new_array((call.rows * call.time, call.x.shape[-1] + self.interface.hidden_size), call.x.dtype)
        left, right = _Rows.over_time(call.x, call.x_axes), _Rows.over_time(self.y, Y_AXES[layout])
        self._join(recorder, left, right, rows, self._row_strides, call)
        return rows

    def sums(self, recorder: Recorder, operand: Array) -> Array:
        """Return the sums of pre-activations and products of all steps, in the shape of pre-activations.

        At a reset they are the pre-activations, whatever R holds: 0 times NaN would be NaN.
        """
        (rows, width), weight, R, projected = operand.shape, self._weight, self.call.R, self.projected
        assert R is not None
        joined = recorder.new_array((weight.shape[0], width), operand.dtype)
        self._copy(recorder, weight, _as_matrix(R, weight.shape[0]), joined)
        sums = recorder.new_array(projected.x.shape, operand.dtype)
        left, right, result = factor(operand, width), factor(joined, width, transposed=True), factor(sums, weight.shape[0])
        recorder.multiply(Product(rows, weight.shape[0], width, left, right, result, in_tf32=self._in_tf32))
        if projected.sequences.resets is not None:
            of_gates = _Rows.of_gates(projected.x, projected.x_axes)
            self._join(recorder, of_gates, None, sums, self._row_strides, projected, resets_only=True)
        return sums

    def write_gradients(self, recorder: Recorder, operand: Array, dx: Array, dR: Array) -> None:
        """Write the gradients of the weight, and of R into `dR` [1, gates, D, D], in the arithmetic dtype.

        dx: the gradient of the sums, of one direction in the layout of pre-activations; rows without a step are zero.
        """
        (rows, width), (outputs, inputs) = operand.shape, self.dweight.shape
        total = recorder.new_array((outputs, width), dR.dtype)
        left, right = Matrix(dx.pointer, dx.dtype, dx.strides[1], transposed=True), factor(operand, width)
        recorder.multiply(Product(outputs, width, rows, left, right, factor(total, width), in_tf32=self._in_tf32))
        self._copy(recorder, total.narrowed(1, 0, inputs), None, self.dweight)
        self._copy(recorder, total.narrowed(1, inputs, width - inputs), None, _as_matrix(dR, outputs))

    @property
    def _row_strides(self) -> dict[str, int]:
        return dict(zip("bt", row_strides_of(self.call, self.interface.layout), strict=True))

    @property
    def _weight(self) -> Array:
        assert self.call.weight is not None
        return self.call.weight

    @property
    def _in_tf32(self) -> bool:
        return self.interface.precision.multiplies_in_tf32

    def _copy(self, recorder: Recorder, left: Array, right: Array | None, to: Array) -> None:
        """Write the rows of a matrix, or of two matrices next to each other."""
        self._join(recorder, _Rows.of_matrix(left), _Rows.of_matrix(right) if right else None, to, {"b": 0, "t": 1})

    def _join(
        self,
        recorder: Recorder,
        left: _Rows,
        right: _Rows | None,
        to: Array,
        row: dict[str, int],
        steps: Call | None = None,
        *,
        resets_only: bool = False,
    ) -> None:
        """Write joined rows; of the `steps` of a call, those of the right are of the step before.

        `resets_only`: rows of steps without a reset stay as they are.
        """
        unit_bytes = self.interface.precision.storage_bytes
        rows, time = (steps.rows, steps.time) if steps else (1, left.array.shape[0])
        sequences = steps.sequences if steps else None
        resets = sequences.resets if sequences else None
        key = recorder.choose("joined", self._specialization, Sizes(rows, time))
        kernel = recorder.load(key)
        none = {"right": 0, **stride_values("right", "bt", {"b": 0, "t": 0}), "right_size": 0}
        values = {
            **left.values("left", unit_bytes),
            **(right.values("right", unit_bytes) if right else none),
            "first_right": address_or_null(self.first if steps else None),
            "resets": address_or_null(resets),
            **stride_values("resets", "bt", dict(zip("bt", resets.strides if resets else (0, 0), strict=True))),
            "begins": address_or_null(sequences.cu_seqlens if sequences else None),
            "ends": address_or_null(sequences.lengths if sequences else None),
            "target": to.address,
            **stride_values("row", "bt", row),
            "resets_only": int(resets_only),
            "shift": (-1 if steps.reverse else 1) if steps else 0,
            "batch": rows,
            "time": time,
            "sequences": steps.batch if steps else 0,
        }
        blocks = divided_up(rows * time, kernel.plan.launch.threads // _ROW_LANES)
        kernel.launch(Launch(least(kernel.resident_blocks(), blocks), pack(signature(kernel.plan, _NAMES), values)))

    @cached_property
    def _specialization(self) -> Specialization:
        """Of the widest copies that all rows allow; what a run allocates starts at multiples of them."""
        arrays = (self.call.x, self.projected.x, self.y, self._weight, self.call.R, self.first)
        offsets = [pointer_divisor(array.pointer) for array in arrays if array]
        steps = [self.call.x.shape[-1], self.interface.hidden_size, *self.y.strides[:-1]]
        offsets += [divisor_of(step) * self.y.itemsize for step in steps]
        return Specialization(max(alignment_of(*offsets), self.y.itemsize))


def joined_specialization(inputs: int, units: int, precision: Precision) -> Specialization:
    """Return the specialization of joined rows of x and of the output, in arrays without gaps."""
    return Specialization(alignment_of(*(size * precision.storage_bytes for size in (inputs, units))))


def _as_matrix(R: Array, rows: int) -> Array:
    """View R, or its gradient, of one head as a matrix with the rows of all gates."""
    units = R.shape[-1]
    return replace(R, shape=(rows, units), strides=(units, 1))
