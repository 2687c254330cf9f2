"""Calls run by a backend: allocation, projections and the runs of each direction, recorded for calls of the same key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projected import Projects, projected_at
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs, with_slots
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import outputs_of_run, runs_of
from minrnn_gen.call.gradients import AnyGradients, RawGradients
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import BackwardResult, ForwardResult, NoResult, Places, SlotGradients, StepResult
from minrnn_gen.gpu import memory
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run.backend import Backend, Recorder
from minrnn_gen.run.cell_run import CellRun
from minrnn_gen.run.cells import run_of
from minrnn_gen.run.dense.direction_choice import DirectionsChoice
from minrnn_gen.run.drafts import Draft
from minrnn_gen.run.ending import in_slots, of_layers
from minrnn_gen.run.expected_time import BackwardOrForward
from minrnn_gen.run.kept import StatesAsked, states_read
from minrnn_gen.run.projection import projection, weight_gradient, x_gradient
from minrnn_gen.run.recording.replay import ByKey, Finished, Trace, TraceCache, without_slots
from minrnn_gen.run.saved import Forward

Result = BackwardResult | SlotGradients
"""What a backward gives: gradients as computed, or those of the call's arrays."""


class RestoredBackward(NamedTuple):
    """A backward of a forward restored from arrays alone; `pick` selects the trace's arrays from these and one more."""

    trace: Trace[Result, Call]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]


class GpuRun:
    """The kernels of one builder as a backend runs them; may be used from several threads.

    A run is recorded once per key, then replayed without inspecting the call: see `run.recording.replay`.
    """

    def __init__(self, interface: Interface, builder: Builder, backend: Backend, projects: Projects = projected_at) -> None:
        """Run on a backend; `projects` decides which scans multiply x themselves."""
        self._interface, self._builder, self._backend, self._projects = interface, builder, backend, projects
        self.forwards = TraceCache[ForwardResult, Forward]()
        self.steps = TraceCache[StepResult, None]()
        self.drafts = TraceCache[Places, None]()
        self.backwards = TraceCache[Result, Call]()
        self.restored = ByKey[RestoredBackward]()

    def directions_beside(self, kernel_pass: BackwardOrForward, sizes: Sizes) -> DirectionsChoice | None:
        """Return how both directions of a pass of these sizes run concurrently; None where they do not."""
        return self._cells.beside(kernel_pass, sizes)

    @cached_property
    def _cells(self) -> CellRun:
        return run_of(self._interface, self._builder, self._backend, self._projects)

    @property
    def preactivation_axes(self) -> str:
        """The axes of x once it is projected."""
        return self._interface.preactivation_axes

    @property
    def preactivation_dtype(self) -> str:
        """The dtype of x once it is projected."""
        return self._interface.precision.storage_dtype

    def states_dtype(self, states_out: StatesAsked, _saves: bool) -> str | None:
        """The dtype in which a forward writes states, or None where it writes none."""
        precision = self._interface.precision
        if self._interface.has_vectors and states_out == "storage":
            return None  # a backward computes them again
        kept, rounded = precision.arithmetic_dtype, precision.storage_dtype
        return {"none": None, "storage": rounded, "arithmetic": kept, "read": kept}[states_out]

    def states_written(self, states_out: StatesAsked) -> tuple[str, ...]:
        """The names of the states that a forward writes, if it writes any."""
        return states_read(self._builder) if states_out == "read" else self._interface.states

    @staticmethod
    def products_shape(_rows: int, _time: int) -> tuple[int, ...]:
        """Nothing: no products with R are saved."""
        return ()

    def forward(
        self, call: Call, asked: StatesAsked, saves: bool, of_layer: bool = False, into: Sequence[Array] = ()
    ) -> Forward:
        """Run over time; `asked`: which states after every step are written, and in which dtype; `saves`: for a backward.

        `into`: existing arrays for y and these states, written except beyond lengths. `of_layer`: final states may be in the
        dtype of y, with a leading axis of 1 where they have no axis of directions.
        """
        if saves:
            self._cells.expect_backward(call)
        interface, written = self._interface, self.states_written(asked)
        storage, carried = interface.precision.storage_dtype, interface.precision.arithmetic_dtype
        states_out: StatesOut = "arithmetic" if asked == "read" else asked
        if interface.has_vectors:
            states_out = "none" if states_out == "storage" else states_out
        elif storage == carried and states_out != "none":
            states_out = "storage"  # the same kernel by either name
        call = self.with_sequences_beside_x(call)
        # Kernels write nothing beyond a length.
        fill = None if call.sequences.lengths is None else 0
        shape = interface.y_shape(call.rows, call.time)
        kept = [interface.states_shape(name, call.rows, call.time) for name in written]
        states_dtype = self.states_dtype(states_out, saves)
        recorder = self._backend.begin(call.x, call.keyed, (*call.flat(), *into))
        y, *kept_arrays = into or (
            recorder.new_array(shape, storage, fill=fill),
            *(recorder.new_array(states, states_dtype, fill=fill) for states in kept if states_dtype),
        )
        outputs = Outputs(y, tuple(kept_arrays), _new_states(interface, recorder, call.batch))
        on_pool, call = call, self._cells.states_from_pool(recorder, call)
        fused = self._cells.forward_from_inputs(recorder, call, outputs, states_out, saves)
        projected = fused or self._projected(recorder, call, interface.preactivation_axes)
        if call.batch and not fused:
            runs = [(part, outputs_of_run(interface, outputs, run)) for run, part in runs_of(interface, projected)]
            self._cells.forward(recorder, runs, states_out)
        self._cells.states_into_pool(recorder, on_pool, outputs)
        if of_layer:
            outputs = replace(outputs, final=tuple(of_layers(interface, recorder, state) for state in outputs.final))
        forward = Forward(call, projected, outputs)
        finished = recorder.finish(forward.written, forward)
        self.forwards.keep(finished.replay)
        if finished.replay is not None:
            return replace(forward, replay=finished.replay)
        performed = finished.metadata
        # A call whose projection is not kept stays its own projection.
        return replace(performed, projected=performed.call) if projected is call else performed

    def step(self, call: Call) -> StepResult:
        """Run one step."""
        interface = self._interface
        recorder = self._backend.begin(call.x, call.keyed, call.flat())
        y = call.pool.y if call.pool else None
        if y is None:
            y = recorder.new_array(interface.step_shape(call.batch), interface.precision.storage_dtype)
        outputs = Outputs(y, (), () if call.pool else _new_states(interface, recorder, call.batch))
        if call.batch:
            self._cells.step(recorder, self._projected(recorder, call, "bgh"), outputs)
        finished = recorder.finish(StepResult(outputs.y, outputs.final), None)
        self.steps.keep(finished.replay)
        return finished.result

    def move_slots(self, call: Call, clears: bool) -> None:
        """Copy states of a pool between slots, or clear slots, as `CellRun.move_slots` does."""
        if call.batch:
            recorder = self._backend.begin(call.x, None, call.flat())
            self._cells.move_slots(recorder, call, clears)
            recorder.finish(NoResult(), None)

    def rows_of(self, call: Call) -> StepResult:
        """Return the states of a call on a pool, one row per sequence and zeros for padding, without y."""
        recorder = self._backend.begin(call.x, None, call.flat())
        rows = self._cells.states_from_pool(recorder, call).initial
        return recorder.finish(StepResult(None, tuple(row for row in rows if row is not None)), None).result

    def write_rows(self, call: Call, result: StepResult) -> None:
        """Write final states into the pool of a call, and zeros into y of padding."""
        y, *final = (memory.inspect(array, "result") for array in (result.y, *result.final))
        recorder = self._backend.begin(call.x, None, (*call.flat(), y, *final))
        self._cells.states_into_pool(recorder, self.with_sequences_beside_x(call), Outputs(y, (), tuple(final)))
        recorder.finish(NoResult(), None)

    def places(self, draft: Draft, keyed: KeyedArrays | None) -> Places:
        """Return the places of the steps of a draft, and note it, as `CellRun.places` does."""
        if keyed is not None:
            draft = draft.placed(with_slots(draft.flat()))
        recorder = self._backend.begin(draft.drafts, keyed, draft.flat())
        finished = recorder.finish(self._cells.places(recorder, draft), None)
        self.drafts.keep(finished.replay)
        return finished.result

    def run_draft(self, call: Call, draft: Draft, keyed: KeyedArrays | None) -> StepResult:
        """Run a draft, its inputs and states in a cache, after the kept steps of the last draft; new states go to the cache."""
        interface = self._interface
        if keyed is not None:
            call, inputs = call.with_slots(keyed), len(call.flat())
            draft = draft.placed(with_slots(draft.flat(), inputs))
        recorder = self._backend.begin(call.x, keyed, (*call.flat(), *draft.flat()))
        y = recorder.new_array(interface.y_shape(call.rows, call.time), interface.precision.storage_dtype)
        if draft.batch:
            projected = self._projected(recorder, call, interface.preactivation_axes)
            self._cells.run_draft(recorder, projected, Outputs(y, (), ()), draft)
        finished = recorder.finish(StepResult(y, ()), None)
        self.steps.keep(finished.replay)
        return finished.result

    def backward(self, forward: Forward, incoming: IncomingGradient, into: Array | None = None) -> AnyGradients:
        """Run against time, from the gradients of what `forward` returned.

        `into`: an existing array for the gradient of pre-activations, written except beyond lengths.
        """
        return self._added_up(self.perform_backward(forward, incoming, into).result)

    def perform_backward(
        self, forward: Forward, incoming: IncomingGradient, into: Array | None = None
    ) -> Finished[Result, Call]:
        """Run against time as `backward` does, and return the run; its sums may not be added up yet."""
        if incoming.keyed is None:  # arrays have the slots of the forward, if any
            forward, incoming = without_slots((forward, incoming))
        interface, call, projected, outputs = self._interface, forward.call, forward.projected, forward.outputs
        operands = (*call.flat(), projected.x, outputs.y, *outputs.kept, incoming.dy, *incoming.dfinal, into)
        recorder = self._backend.begin(call.x, incoming.keyed, operands)
        fill = None if call.sequences.lengths is None else 0
        gradients = Gradients(
            dx=recorder.new_array(projected.x.shape, call.x.dtype, fill=fill) if into is None else into,
            dinitial=_new_states(interface, recorder, call.batch),
            sums=None,
            dinputs=tuple(recorder.new_array(array.shape, array.dtype, fill=fill) for array in call.inputs),
        )
        wide = self._cells.backward(recorder, forward, incoming, gradients)
        dx, dweight = self._through_projection(recorder, call, gradients.dx, wide.weight)
        of_wide = (wide.sums, dweight, wide.R, wide.vectors, wide.shared)
        computed = BackwardResult(dx, gradients.dinitial, *of_wide, gradients.dinputs)
        result = (None if into is not None else in_slots(interface, recorder, call, computed, incoming.given_only)) or computed
        finished = recorder.finish(result, call)
        self.backwards.keep(finished.replay)
        return finished

    def replay_backward(self, keyed: KeyedArrays | None) -> tuple[Call, AnyGradients] | None:
        """Replay a backward, and return it with a call of the same description; None where none of this key is recorded."""
        replay = self.backwards.replay(keyed)
        return None if replay is None else (replay.trace.metadata, self._added_up(replay.result))

    def replay_restored(self, known: RestoredBackward, flat: KeyedArrays) -> AnyGradients:
        """Replay a backward on arrays of its key."""
        trace, pick = known
        arrays, addresses = [*pick((*flat.arrays, None))], [*pick((*flat.addresses, 0))]
        return self._added_up(trace.replay(KeyedArrays(trace.key, arrays, addresses)).result)

    @staticmethod
    def in_form_of(array: Array, gradient: Any) -> Any:
        """Return a torch tensor or CuPy array in the shape and dtype of `array`."""
        return memory.cast(gradient.reshape(array.shape), array.dtype)

    @staticmethod
    def with_sequences_beside_x(call: Call) -> Call:
        """Return a call whose lengths and ends are int64 on the device of x."""
        lengths, cu_seqlens = (
            None if array is None else memory.int64_beside(call.x, array)
            for array in (call.sequences.lengths, call.sequences.cu_seqlens)
        )
        return replace(call, sequences=replace(call.sequences, lengths=lengths, cu_seqlens=cu_seqlens))

    def _projected(self, recorder: Recorder, call: Call, axes: str) -> Call:
        """Multiply x by the weight, if any; the result has the axes of pre-activations."""
        if call.weight is None:
            return call
        product = recorder.new_array(self._interface.shape(axes, call.rows, call.time), call.x.dtype)
        if call.rows and call.time:
            in_tf32 = self._interface.precision.multiplies_in_tf32
            recorder.multiply(projection(call.x, call.weight, product, axes[-1] == "t", in_tf32))
        return replace(call, x=product, x_axes=axes, weight=None)

    def _through_projection(
        self, recorder: Recorder, call: Call, gradient: Array, dweight: Array | None
    ) -> tuple[Array, Array | None]:
        """Return the gradients of x and of the weight, unless that is known, from the gradient of the pre-activations."""
        if call.weight is None:
            return gradient, None
        time_is_last = call.x_axes[-1] == "t"
        has_rows = bool(call.rows and call.time)
        dx, in_tf32 = recorder.new_array(call.x.shape, call.x.dtype), self._interface.precision.multiplies_in_tf32
        if has_rows:
            recorder.multiply(x_gradient(gradient, call.weight, dx, time_is_last, in_tf32))
        if dweight is not None:
            return dx, dweight
        carried = self._interface.precision.arithmetic_dtype
        dweight = recorder.new_array(call.weight.shape, carried, fill=None if has_rows else 0)
        if has_rows:
            x, lengths = call.x, call.sequences.lengths
            if lengths is not None:
                # Values beyond a length have no gradient, but NaN times zero there would be NaN.
                x = recorder.zeroed_beyond(x, call.x_axes, lengths)
            for product in weight_gradient(gradient, x, dweight, time_is_last, in_tf32, recorder.loop):
                recorder.multiply(product)
        return dx, dweight

    def _added_up(self, result: Result) -> AnyGradients:
        return result if isinstance(result, SlotGradients) else added_up(self._interface, result)


def added_up(interface: Interface, result: BackwardResult) -> RawGradients:
    """Return gradients with sums added up, and R with its gates before its heads."""
    dx, dinitial, sums, dweight, dR, vectors, shared, dinputs = result
    total = None if sums is None else _total(sums)
    # With one head both orders are the same.
    dR = dR if dR is None or dR.shape[1] == 1 else dR.swapaxes(1, 2)
    of_vectors = {name: array.sum(1) for name, array in zip(interface.vector_parameters, vectors, strict=True)}
    storage = interface.precision.storage_dtype
    dshared = [memory.cast(parts[0] if len(parts) == 1 else parts.sum(0), storage) for parts in shared]
    return RawGradients(dx, dweight, dinitial, total, dR, of_vectors, dshared, dinputs)


def _total(sums: Any) -> Any:
    """Add up sums [runs, parts, rows, batch, hidden] over parts and sequences."""
    runs, parts, rows, batch, hidden = sums.shape
    if parts == batch == 1:
        return sums.reshape(runs, rows, hidden)
    # Few values are left to add; libraries add them in a fixed order.
    return sums.sum((1, 3))


def _new_states(interface: Interface, recorder: Recorder, sequences: int) -> tuple[Array, ...]:
    """Allocate states of sequences, or their gradients."""
    shapes = (interface.shape_of_state(name, sequences) for name in interface.states)
    return tuple(recorder.new_array(shape, interface.precision.arithmetic_dtype) for shape in shapes)
