"""A layer's backward over pieces of time: products of all steps before and after the pieces, and the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.pieces import Piece, narrowed_in_time
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.dense.backward import Backward
from minrnn_gen.run.dense.runs import DenseRun
from minrnn_gen.run.layers.dropout import Dropout
from minrnn_gen.run.projection import weight_gradient, x_gradient_of_piece


@dataclass(frozen=True, slots=True)
class LayerBackward:
    """A layer of a backward; `dx` is the gradient of its input, or with `dropout` of the dropout's source.

    With `dropout`, `finish` recomputes the input.
    """

    interface: Interface
    projected: Call
    call: Call
    outputs: Outputs
    incoming: IncomingGradient
    dinitial: tuple[Array, ...]
    first: Array | None
    dpreactivations: Array
    dx: Array
    sums: Array | None
    dweight: Array
    dR: Array
    dropout: Dropout | None

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        interface: Interface,
        projected: Call,
        call: Call,
        outputs: Outputs,
        incoming: IncomingGradient,
        dinitial: tuple[Array, ...],
        first: Array | None,
        dropout: Dropout | None,
    ) -> LayerBackward:
        """Allocate the outputs of a layer's backward."""
        carried, weight, sums = interface.precision.arithmetic_dtype, call.weight, None
        assert weight is not None
        if call.bias is not None or call.recurrent_bias is not None or call.parameters:
            sums = recorder.new_array((1, 1, interface.summed_count, call.batch, interface.hidden_size), carried)
        square = (interface.heads, len(interface.recurrent_gates), interface.head_dim, interface.head_dim)
        return cls(
            interface,
            projected,
            call,
            outputs,
            incoming,
            dinitial,
            first,
            recorder.new_array(projected.x.shape, projected.x.dtype),
            recorder.new_array(call.x.shape, call.x.dtype),
            sums,
            recorder.new_array(weight.shape, carried),
            recorder.new_array((1, *square), carried, fill=0),
            dropout,
        )

    def begin(self, recorder: Recorder, dense: DenseRun) -> Backward:
        """Multiply all outputs by R."""
        sums = None if self.sums is None else self.sums.selected(0, 0)
        gradients = Gradients(self.dpreactivations, self.dinitial, sums)
        return dense.begin_back(
            recorder, self.projected, self.outputs, self.incoming, gradients, first=self.first, is_persistent=True
        )

    def run(
        self,
        recorder: Recorder,
        dense: DenseRun,
        backward: Backward,
        piece: Piece,
        dfinal: Sequence[Array | None],
        dinitial: Sequence[Array | None],
    ) -> None:
        """Run a piece against time."""
        written = tuple(array for array in dinitial if array is not None)
        dense.run_back(recorder, backward.piece(self.interface, piece, dfinal, written))

    def multiply_on(self, recorder: Recorder, piece: Piece) -> None:
        """Multiply the gradients of a piece's pre-activations by the weight, which gives the gradients of the input."""
        weight, call = self.call.weight, self.call
        assert weight is not None
        gradient = narrowed_in_time(self.dpreactivations, self.projected.x_axes, piece)
        dx = narrowed_in_time(self.dx, call.x_axes, piece)
        recorder.multiply(x_gradient_of_piece(gradient, weight, dx, self.interface.precision.multiplies_in_tf32))
        if self.dropout:
            self.dropout.of_gradient(self.dx).piece(call.x_axes, piece).run(recorder)

    def finish(self, recorder: Recorder, dense: DenseRun, backward: Backward) -> None:
        """Add up the gradients of R and of the weight."""
        dense.finish_back(recorder, backward, self.dR.selected(0, 0))
        in_tf32 = self.interface.precision.multiplies_in_tf32
        if self.dropout:
            self.dropout.run(recorder)
        for product in weight_gradient(self.dpreactivations, self.call.x, self.dweight, False, in_tf32, recorder.loop):
            recorder.multiply(product)
