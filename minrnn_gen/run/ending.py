"""The end of a run on a GPU: computed gradients are converted to the shapes and dtypes of the call's arrays.

Two small kernels within the run add up sums and change dtypes. Array libraries take several calls each for that, and for small
layers the host takes longer to launch these than the GPU to run them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.results import BackwardResult, SlotGradients
from minrnn_gen.program.data import AddUp, At, Store
from minrnn_gen.run.backend import Recorder


def in_slots(
    interface: Interface, recorder: Recorder, call: Call, wide: BackwardResult, given_only: bool = False
) -> SlotGradients | None:
    """Note the conversion of computed gradients to those of a call's arrays; None where that is left to the arrays' library.

    `given_only`: without gradients of default initial states.
    """
    precision, vectors = interface.precision, [call.bias, call.recurrent_bias, *call.parameters]
    known = (precision.storage_dtype, precision.arithmetic_dtype)
    are_known = all(vector is None or vector.dtype in known for vector in vectors)
    if not (recorder.ends_in_slots and are_known and call.rows and call.time and call.batch) or call.shared or call.inputs:
        return None
    has_sums = any(vector is not None for vector in vectors)
    is_stored = (call.R and not _is_like(call.R, wide.R, interface.heads)) or (
        call.weight and not _is_like(call.weight, wide.weight)
    )
    # Another order of summation changes bits, so sums wait for their kernel; stores give the same bits as a library.
    if (has_sums or is_stored) and not recorder.can_store(waits=has_sums):
        return None
    end = _End(interface, recorder)
    bias, recurrent_bias, *parameters = end.of_vectors(vectors, wide)
    square = interface.head_dim**2
    R = end.stored(call.R, wide.R, interface.heads, len(interface.recurrent_gates), square) if call.R else None
    weight = end.stored(call.weight, wide.weight, 1, 1, math.prod(call.weight.shape)) if call.weight else None
    pairs = zip(call.initial, wide.initial, strict=True)
    initial = (None if given_only and state is None else gradient for state, gradient in pairs)
    x = recorder.in_shape(wide.x, _shape(call.x))
    return SlotGradients((x, R, weight, bias, recurrent_bias, None, None, None, *parameters, *initial))


class _End:
    """Records the end of a backward."""

    def __init__(self, interface: Interface, recorder: Recorder) -> None:
        self._interface, self._recorder = interface, recorder

    def of_vectors(self, vectors: Sequence[Array | None], wide: BackwardResult) -> list[Array | None]:
        """Return the gradients of bias, recurrent bias and parameters, None for those that are absent."""
        interface = self._interface
        gates, recurrent_gates = len(interface.gates), len(interface.recurrent_gates)
        names = ("", "", *interface.parameters)
        rows = {name: row for row, name in enumerate(interface.summed_parameters, gates + recurrent_gates)}
        of_names = dict(zip(interface.vector_parameters, wide.vectors, strict=True))
        # Parameters may be absent as a whole.
        spans = [(0, gates), (gates, recurrent_gates), *((rows.get(name, 0), 1) for name in interface.parameters)]
        return [
            None if vector is None else self._added_up(vector, of_names.get(name), wide.sums, span)
            for vector, name, span in zip(vectors, names, spans, strict=False)
        ]

    def _added_up(self, vector: Array, own: Array | None, sums: Array, span: tuple[int, int]) -> Array:
        """Add up rows of `sums`, or the sums of a parameter with the axis n that are its `own`."""
        target = self._recorder.new_array(_shape(vector), vector.dtype)
        if own is None:
            _, parts, rows, batch, width = sums.shape
            source, (first, count) = sums, span
        else:
            _, batch, *channels = own.shape
            source, parts, rows, width, first, count = own, 1, 1, math.prod(channels), 0, 1
        self._recorder.note(AddUp(_at(source), _at(target), parts, rows, batch, width, first, count))
        return target

    def stored(self, array: Array, wide: Array, heads: int, gates: int, square: int) -> Array:
        """Return the gradient of a matrix, with its gates before its heads, in the storage dtype."""
        if _is_like(array, wide, heads):
            return self._recorder.in_shape(wide, _shape(array))
        target = self._recorder.new_array(_shape(array), array.dtype)
        self._recorder.note(Store(_at(wide), _at(target), math.prod(array.shape), heads, gates, square))
        return target


def of_layers(interface: Interface, recorder: Recorder, state: Array) -> Array:
    """Return a final state [layers or directions, sequences, H], in the storage dtype if kernels for that are loaded."""
    storage, count = interface.precision.storage_dtype, math.prod(state.shape)
    # A library converts them to the same bits.
    if state.dtype != storage and count and recorder.can_store(waits=False):
        wide, state = state, recorder.new_array(state.shape, storage)
        recorder.note(Store(_at(wide), _at(state), count, 1, 1, count))
    return state if interface.directions else recorder.in_shape(state, (1, *state.shape))


def _is_like(array: Array, wide: Array, heads: int = 1) -> bool:
    """Say whether the gradient of a matrix differs from that of its array in shape alone."""
    return heads == 1 and wide.dtype == array.dtype


def _shape(array: Array) -> tuple[int, ...]:
    """Return the shape of the caller's array: a call describes some arrays with more axes."""
    return tuple(array.owner.shape)


def _at(array: Array) -> At:
    return At(array.address.slot, 0)
