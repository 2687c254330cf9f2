"""Layers of one dense cell on top of each other as one run, which runs pieces of their time concurrently.

A wavefront writes the same values as the layers in sequence, into the same whole arrays; a step works on a piece of them. The
pieces of a layer pass states, and their gradients, to each other. Products of all steps at once stay whole.

The order of a call: x, resets, then for each layer R, weight, bias, recurrent_bias and the cell's own vectors, then the initial
states of all layers, all or none, then with dropout the masks of all layers but the last; None where absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, CallArguments, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.gradients import in_forms_of, wide_by_slot
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import keyed
from minrnn_gen.call.pieces import Piece, narrowed_in_time, piece_of_call, piece_of_outputs, pieces_of
from minrnn_gen.call.results import BackwardResult
from minrnn_gen.call.slots import BackwardSlots, StackSlots
from minrnn_gen.call.validate import check_call
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.ranges import mark_ranges
from minrnn_gen.run.backend import Backend, Recorder
from minrnn_gen.run.dense.runs import DenseRun
from minrnn_gen.run.gpu import added_up
from minrnn_gen.run.kept import states_read
from minrnn_gen.run.layers.dropout import Dropout
from minrnn_gen.run.layers.layer_backward import LayerBackward
from minrnn_gen.run.layers.wavefront import wavefront
from minrnn_gen.run.projection import projection_of_piece
from minrnn_gen.run.recording.replay import TraceCache


class Cut(NamedTuple):
    """How a call is cut: `pieces` of time, and as many layers as `lanes` run steps concurrently."""

    lanes: int
    pieces: int


class StackResult(NamedTuple):
    """The arrays of a run, in the run's own order."""

    arrays: tuple[Any, ...]

    def mapped(self, change: Any) -> StackResult:
        """Return the arrays, each changed; None stays None."""
        return StackResult(tuple(None if array is None else change(array) for array in self.arrays))


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of a call: its arrays with x not yet projected, the dropout that writes x, and the pre-activations."""

    call: Call
    outputs: Outputs
    projected: Call
    dropout: Dropout | None


class StackRun:
    """Layers that differ in their input size alone, by the kernels of one builder; may be used from several threads."""

    def __init__(self, interfaces: Sequence[Interface], builder: Builder, backend: Backend) -> None:
        self._interfaces, self._backend = tuple(interfaces), backend
        self._dense = DenseRun(interfaces[0], builder, backend)
        self._forwards = TraceCache[StackResult, None]()
        self._backwards = TraceCache[StackResult, None]()
        layers = f"{len(self._interfaces)} layers of {builder.cell_source.name}"
        mark_ranges(self, layers, ("forward", "backward"))

    def forward(self, tensors: Sequence[Any], cut: Cut, saves: bool, dropout: float = 0.0) -> list[Any]:
        """Return y, the final states of all layers, and where it `saves` the arrays for a backward.

        These are each layer's states after every step and pre-activations, then the outputs of all layers but the last before
        dropout. `dropout` is the probability with which the masks were drawn, 0 without masks.
        """
        call_key = keyed(("layers", cut, saves, dropout), [*tensors])
        replay = self._forwards.replay(call_key)
        if replay is not None:
            return [*replay.result.arrays]
        arrays = _described(tensors, call_key is not None)
        recorder = self._backend.begin(_present(arrays[0]), call_key, arrays)
        finished = recorder.finish(self._run(recorder, arrays, cut, saves, dropout), None)
        self._forwards.keep(finished.replay)
        return [*finished.result.arrays]

    def backward(
        self, tensors: Sequence[Any], results: Sequence[Any], incoming: Sequence[Any], cut: Cut, dropout: float = 0.0
    ) -> list[Any]:
        """Return the gradients of `tensors`, None for those without one.

        `results`: y, and the arrays saved for a backward; `incoming`: the gradients of y and of the final states, None for
        zeros; `dropout` as in the forward.
        """
        flat = [*tensors, *results, *incoming]
        call_key = keyed(("layers back", cut, dropout), flat)
        replay = self._backwards.replay(call_key)
        if replay is not None:
            return self._gradients(tensors, replay.result.arrays)
        arrays = _described(flat, call_key is not None)
        recorder = self._backend.begin(_present(arrays[0]), call_key, arrays)
        slots = BackwardSlots.of(len(tensors), len(results), len(incoming) - 1)
        result = self._run_back(recorder, arrays[slots.inputs], arrays[slots.results], arrays[slots.incoming], cut, dropout)
        finished = recorder.finish(result, None)
        self._backwards.keep(finished.replay)
        return self._gradients(tensors, finished.result.arrays)

    def _slots(self, arrays: Sequence[Any]) -> StackSlots:
        """Return the slots of a call, whose only arrays of sequences are resets; with dropout it has masks."""
        interface, layers = self._interfaces[0], len(self._interfaces)
        slots = StackSlots.of(1, layers, len(interface.parameters), len(interface.states), 0)
        return slots._replace(masks=slice(slots.masks.start, len(arrays)))

    def _call(self, arrays: Sequence[Any], layer: int, x: Array) -> Call:
        """Return the checked call of a layer."""
        interface = self._interfaces[layer]
        slots = self._slots(arrays)
        initial = [None if state is None else state.selected(0, layer) for state in arrays[slots.states]]
        flat = slots.call(arrays, layer, x, (*arrays[slots.sequences], None, None), initial)
        return check_call(interface, _named, lambda _: None, CallArguments.from_flat(interface, flat))

    def _dropout(
        self, recorder: Recorder, arrays: Sequence[Array | None], layer: int, below: Array, probability: float
    ) -> Dropout | None:
        """Return the dropout that writes the input of a layer, None where the input is the array `below`."""
        masks = arrays[self._slots(arrays).masks]
        if not (layer and masks):
            return None
        target = recorder.new_array(below.shape, below.dtype)
        return Dropout(below, _present(masks[layer - 1]), target, probability)

    def _states_of_all(self, recorder: Recorder, batch: int) -> tuple[Array, ...]:
        """Allocate states of all layers, or their gradients."""
        interface = self._interfaces[0]
        shape = (len(self._interfaces), *interface.state_shape(batch))
        return tuple(recorder.new_array(shape, interface.precision.arithmetic_dtype) for _ in interface.states)

    def _handed_on(self, recorder: Recorder, batch: int, pieces: int) -> list[tuple[Array, ...]]:
        """Allocate the states that one piece of a layer passes to the next, or their gradients."""
        interface = self._interfaces[0]
        shape, dtype = interface.state_shape(batch), interface.precision.arithmetic_dtype
        return [tuple(recorder.new_array(shape, dtype) for _ in interface.states) for _ in range(pieces - 1)]

    def _run(
        self, recorder: Recorder, arrays: Sequence[Array | None], cut: Cut, saves: bool, probability: float
    ) -> StackResult:
        x, count, interface = _present(arrays[0]), len(self._interfaces), self._interfaces[0]
        precision, axes = interface.precision, interface.preactivation_axes
        batch, time = self._batch(x), x.shape[interface.x_axes.index("t")]
        final = self._states_of_all(recorder, batch)
        kept = states_read(self._dense.builder) if saves else ()
        layers: list[_Layer] = []
        for layer in range(count):
            below = layers[-1].outputs.y if layers else x
            dropout = self._dropout(recorder, arrays, layer, below, probability)
            call = self._call(arrays, layer, dropout.target if dropout else below)
            y_shape = interface.y_shape(batch, time)
            outputs = Outputs(
                recorder.new_array(y_shape, precision.storage_dtype),
                tuple(recorder.new_array(y_shape, precision.arithmetic_dtype) for _ in kept),
                tuple(state.selected(0, layer) for state in final),
            )
            projected = recorder.new_array(interface.shape(axes, batch, time), precision.storage_dtype)
            layers.append(_Layer(call, outputs, replace(call, x=projected, x_axes=axes, weight=None), dropout))
        pieces = pieces_of(time, cut.pieces)
        handed_on = [self._handed_on(recorder, batch, len(pieces)) for _ in layers]
        with recorder.lanes(cut.lanes + 1) as lanes:
            for step in wavefront(count, len(pieces), cut.lanes, products_first=True):
                of_layer, piece = layers[step.layer], pieces[step.piece]
                with lanes.step(step.lane, step.waits):
                    if step.kind == "product":
                        self._project(recorder, of_layer, piece)
                        continue
                    ends = [*handed_on[step.layer], of_layer.outputs.final]
                    initial = ends[step.piece - 1] if piece.has_earlier else of_layer.call.initial
                    part = piece_of_call(self._interfaces[step.layer], of_layer.projected, piece, initial)
                    self._dense.run_forward(
                        recorder, part, piece_of_outputs(interface, of_layer.outputs, piece, ends[step.piece])
                    )
        saved = [array for layer in layers for array in (*layer.outputs.kept, layer.projected.x)]
        inner = [layer.outputs.y for layer in layers[:-1]]
        return StackResult((layers[-1].outputs.y, *final, *((*saved, *inner) if saves else ())))

    def _project(self, recorder: Recorder, layer: _Layer, piece: Piece) -> None:
        call, projected = layer.call, layer.projected
        if layer.dropout:
            layer.dropout.piece(call.x_axes, piece).run(recorder)
        x, result = (narrowed_in_time(whole.x, whole.x_axes, piece) for whole in (call, projected))
        in_tf32 = self._interfaces[0].precision.multiplies_in_tf32
        recorder.multiply(projection_of_piece(x, _present(call.weight), result, in_tf32))

    def _run_back(
        self,
        recorder: Recorder,
        arrays: Sequence[Array | None],
        results: Sequence[Array | None],
        incoming: Sequence[Array | None],
        cut: Cut,
        probability: float,
    ) -> StackResult:
        count, x, batch = len(self._interfaces), _present(arrays[0]), self._batch(_present(arrays[0]))
        dinitial = self._states_of_all(recorder, batch)
        layers = self._layers_back(recorder, arrays, results, incoming, dinitial, probability)
        pieces = pieces_of(x.shape[self._interfaces[0].x_axes.index("t")], cut.pieces)
        handed_on = [self._handed_on(recorder, batch, len(pieces)) for _ in layers]
        # A layer's products of all steps run on another lane: no step waits for another layer's.
        of_whole = cut.lanes + 1
        with recorder.lanes(cut.lanes + 2) as lanes:
            begun = []
            for layer in layers:
                with lanes.step(of_whole, ()):
                    begun.append(layer.begin(recorder, self._dense))
            ends = [0] * count
            for number, step in enumerate(wavefront(count, len(pieces), cut.lanes, products_first=False), count):
                layer, piece = layers[step.layer], len(pieces) - 1 - step.piece
                begins = step.kind == "recurrence" and step.piece == 0
                waits = [count + place for place in step.waits]
                with lanes.step(step.lane, [step.layer, *waits] if begins else waits):
                    if step.kind == "product":
                        layer.multiply_on(recorder, pieces[piece])
                        continue
                    between = [layer.dinitial, *handed_on[step.layer], layer.incoming.dfinal]
                    layer.run(recorder, self._dense, begun[step.layer], pieces[piece], between[piece + 1], between[piece])
                    ends[step.layer] = number
            for layer, backward, end in zip(layers, begun, ends, strict=True):
                with lanes.step(of_whole, [end]):
                    layer.finish(recorder, self._dense, backward)
        of_layers = [array for layer in reversed(layers) for array in (layer.sums, layer.dweight, layer.dR)]
        return StackResult((layers[-1].dx, *dinitial, *of_layers))

    def _layers_back(
        self,
        recorder: Recorder,
        arrays: Sequence[Array | None],
        results: Sequence[Array | None],
        incoming: Sequence[Array | None],
        dinitial: tuple[Array, ...],
        probability: float,
    ) -> list[LayerBackward]:
        """Return the arrays that the backward of each layer reads and writes, from the last layer down."""
        count, interface = len(self._interfaces), self._interfaces[0]
        y, *saved = map(_present, results)
        dy, *dfinal = incoming
        of_layer = (len(saved) - count + 1) // count
        outputs = [*saved[count * of_layer :], y]
        output = interface.states.index(str(self._dense.builder.lowered_backward.output_state))
        initial = arrays[self._slots(arrays).states][output]
        # The operand of the first products.
        first = None if initial is None else recorder.cast(initial, interface.precision.storage_dtype)
        layers: list[LayerBackward] = []
        for layer in reversed(range(count)):
            below = outputs[layer - 1] if layer else _present(arrays[0])
            dropout = self._dropout(recorder, arrays, layer, below, probability)
            call = self._call(arrays, layer, dropout.target if dropout else below)
            *kept, preactivations = saved[layer * of_layer : (layer + 1) * of_layer]
            layers.append(
                LayerBackward.of(
                    recorder,
                    interface,
                    replace(call, x=preactivations, x_axes=interface.preactivation_axes, weight=None),
                    call,
                    Outputs(outputs[layer], tuple(kept), ()),
                    IncomingGradient(
                        layers[-1].dx if layers else _present(dy),
                        tuple(None if state is None else state.selected(0, layer) for state in dfinal),
                    ),
                    tuple(state.selected(0, layer) for state in dinitial),
                    None if first is None else first.selected(0, layer),
                    dropout,
                )
            )
        return layers

    def _batch(self, x: Array) -> int:
        return x.shape[self._interfaces[0].x_axes.index("b")]

    def _gradients(self, tensors: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """Return the gradients of a call's tensors from the arrays of a run."""
        slots, states = self._slots(tensors), len(self._interfaces[0].states)
        dx, dinitial, sums_of_layers = arrays[0], arrays[1 : 1 + states], arrays[1 + states :]
        of_layers: list[Any] = []
        for layer, interface in enumerate(self._interfaces):
            sums, dweight, dR = sums_of_layers[3 * layer : 3 * layer + 3]
            raw = added_up(interface, BackwardResult(None, (), sums, dweight, dR))
            call = slots.call(tensors, layer, None, (None, None, None), ())
            of_layers += slots.own_of(wide_by_slot(interface, call, raw), interface.slots.parameters)
        pairs = zip(tensors[slots.states], dinitial, strict=True)
        of_states = [None if state is None else gradient for state, gradient in pairs]
        masks = [None for _ in tensors[slots.masks]]
        return [dx, None, *in_forms_of(tensors[slots.own], of_layers), *of_states, *masks]


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def _named(array: Array, name: str) -> Array:
    return replace(array, name=name)


def _described(tensors: Sequence[Any], have_slots: bool) -> list[Array | None]:
    """Describe the arrays of a call, each in its slot where the arrays have a key."""
    arrays = [None if tensor is None else memory.inspect(tensor, "a tensor of the layers") for tensor in tensors]
    if not have_slots:
        return arrays
    return [None if array is None else array.with_slot(slot) for slot, array in enumerate(arrays)]
