"""Calls on host arrays by native code: buffers, products by the caller's library, and the runs of each direction."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.cpu_kernel import CpuKernel
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.results import BackwardResult, ForwardResult, StepResult
from minrnn_gen.run.cpu import products as library
from minrnn_gen.run.cpu.arguments import ProductGradients, backward_arguments, forward_arguments, products_shape
from minrnn_gen.run.cpu.native import NativeKernels, plain, prepared
from minrnn_gen.run.cpu.threads import IS_PACKED, Schedule
from minrnn_gen.run.cpu.trace import NativeRecorder
from minrnn_gen.run.recording.replay import TraceCache
from minrnn_gen.run.saved import Forward

# Pre-activations of so many bytes stay in the cache of all cores until the recurrence has read them, with a weight as large: a
# larger one is read too often for that. In pieces of 2^19, which one core's cache holds, switching between the two takes a
# tenth to a quarter of an LSTM's time (64 sequences of 256 steps, 32 and 128 units).
PIECE_BYTES = 1 << 22


class NativeRun:
    """The native code of one builder, run; may be used from several threads."""

    def __init__(self, interface: Interface, builder: Builder) -> None:
        self._interface, self._store = interface, builder.store
        self.kernels = NativeKernels(interface, builder)
        self.forwards = TraceCache[ForwardResult, None]()
        self.steps = TraceCache[StepResult, None]()
        self.backwards = TraceCache[BackwardResult, None]()

    def products_shape(self, rows: int, time: int) -> tuple[int, ...]:
        """The shape of the additional array that a forward saves: products with R, or some states of n values; or nothing."""
        is_saved = self.kernels.writes_checkpoints or self.kernels.writes_products
        return products_shape(self._interface, rows, time) if is_saved else ()

    def forward(self, kernel: CpuKernel, call: Call, writes_states: bool, saves: bool) -> Forward:
        """Run over time."""
        interface, precision = self._interface, self._interface.precision
        arithmetic = precision.arithmetic_dtype
        products_shape = self.products_shape(call.rows, call.time) if saves else ()
        recorder = NativeRecorder(self._store, call.x, call.keyed)
        kept = [interface.states_shape(name, call.rows, call.time) for name in interface.states] if writes_states else []
        outputs = Outputs(
            y=recorder.new_array(interface.y_shape(call.rows, call.time), precision.storage_dtype),
            kept=tuple(recorder.new_array(shape, arithmetic) for shape in kept),
            final=self._new_states(recorder, call.batch),
            products=recorder.new_array(products_shape, arithmetic) if products_shape else None,
        )
        projected = call
        if not saves and (count := self._steps_at_once(recorder, call)):
            self._run_in_pieces(recorder, kernel, prepared(recorder, interface, call), outputs, count)
        else:
            projected = self._projected(recorder, call)
            for run, part in runs_of(interface, prepared(recorder, interface, projected)):
                self._run_forward(recorder, kernel, part, outputs_of_run(interface, outputs, run))
        replay = recorder.run(self.forwards, Forward(call, projected, outputs).written)
        if projected is not call:
            projected = replace(projected, x=replay.bound(projected.x))
        kept_arrays, final = (tuple(map(replay.bound, arrays)) for arrays in (outputs.kept, outputs.final))
        products = None if outputs.products is None else replay.bound(outputs.products)
        return Forward(call, projected, Outputs(replay.bound(outputs.y), kept_arrays, final, products))

    def _run_forward(
        self, recorder: NativeRecorder, kernel: CpuKernel, call: Call, outputs: Outputs, plan: Schedule | None = None
    ) -> None:
        """Run a call of one direction, or with a `plan` a piece of a call."""
        steps = recorder.steps_of(call)
        plan = plan or self.kernels.schedule("forward", call, steps.longest)
        recorder.run_kernel(kernel, forward_arguments(self._interface, call, outputs, steps, plan))

    def _new_states(self, recorder: NativeRecorder, sequences: int) -> tuple[Array, ...]:
        """Allocate states of sequences, or their gradients."""
        shapes = (self._interface.shape_of_state(name, sequences) for name in self._interface.states)
        return tuple(recorder.new_array(shape, self._interface.precision.arithmetic_dtype) for shape in shapes)

    def _steps_at_once(self, recorder: NativeRecorder, call: Call) -> int:
        """Return how many steps are projected at once where pre-activations are not saved; 0 for all steps of a call."""
        interface, sequences, weight = self._interface, call.sequences, call.weight
        has_sequences = any(array is not None for array in (sequences.resets, sequences.lengths, sequences.cu_seqlens))
        if not recorder.is_kept or weight is None or has_sequences or interface.directions or call.x_axes[-1] != "i":
            return 0
        if call.x.dtype != interface.precision.arithmetic_dtype or math.prod(weight.shape) * weight.itemsize > PIECE_BYTES:
            return 0
        step_bytes = call.rows * weight.shape[0] * call.x.itemsize
        count = max(1, PIECE_BYTES // step_bytes)
        return 0 if count * 2 > call.time else count

    def _run_in_pieces(self, recorder: NativeRecorder, kernel: CpuKernel, call: Call, outputs: Outputs, count: int) -> None:
        """Project and run a few steps at a time, so that pre-activations stay in cache; a piece starts from the last states."""
        interface, weight = self._interface, call.weight
        assert weight is not None
        axes = call.x_axes.replace("i", "") + interface.gate_axes
        axis, y_axis = call.x_axes.index("t"), Y_AXES[interface.layout].index("t")
        room = recorder.new_array(interface.shape(axes, call.rows, count), call.x.dtype)
        (reverse,) = interface.runs_reversed
        plan = self.kernels.schedule("forward", call, call.time)
        firsts = range(0, call.time, count)
        part = replace(call, reverse=reverse, weight=None, x_axes=axes)
        for first in reversed(firsts) if reverse else firsts:
            steps = min(count, call.time - first)
            project_steps = partial(library.project_steps, axis=axis, first=first, count=steps)
            recorder.compute_into(room, project_steps, (call.x, weight))
            shape = interface.shape(axes, call.rows, steps)
            part = replace(part, x=replace(room, shape=shape, strides=contiguous_strides(shape)), time=steps)
            y = outputs.y.narrowed(y_axis, first, steps)
            pairs = zip(interface.states, outputs.kept, strict=False)
            kept = tuple(states.narrowed(interface.states_axes(name).index("t"), first, steps) for name, states in pairs)
            shared_axis = interface.shared_axes.index("t")
            part = replace(part, shared=tuple(array.narrowed(shared_axis, first, steps) for array in call.shared))
            part = replace(part, inputs=tuple(array.narrowed(y_axis, first, steps) for array in call.inputs))
            self._run_forward(recorder, kernel, part, replace(outputs, y=y, kept=kept), plan)
            part = replace(part, initial=outputs.final)
            plan = plan._replace(packs=IS_PACKED if plan.packs else 0)

    def step(self, kernel: CpuKernel, call: Call) -> StepResult:
        """Run one step, as a sequence of one."""
        interface, precision = self._interface, self._interface.precision
        recorder = NativeRecorder(self._store, call.x, call.keyed)
        y = recorder.new_array(interface.step_shape(call.batch), precision.storage_dtype)
        final = self._new_states(recorder, call.batch)
        y_shape = interface.y_shape(call.batch, 1)
        sequence = replace(y, shape=y_shape, strides=contiguous_strides(y_shape))
        part = prepared(recorder, interface, self._projected(recorder, call))
        self._run_forward(recorder, kernel, part, Outputs(sequence, (), final))
        return recorder.run(self.steps, StepResult(y, final)).result

    def backward(
        self,
        kernel: CpuKernel,
        forward: Forward,
        incoming: IncomingGradient,
        reads_x: bool = True,
        reads_initial: bool = True,
    ) -> RawGradients:
        """Run against time; computes the gradients of x and of initial states where `reads_x` and `reads_initial` say so.

        Where `incoming` has a key, the arrays of `forward` have their slots too.
        """
        interface, call, projected = self._interface, forward.call, forward.projected
        arithmetic = interface.precision.arithmetic_dtype
        recorder = NativeRecorder(self._store, call.x, incoming.keyed)
        dx = recorder.new_array(projected.x.shape, projected.x.dtype)
        dinitial = self._new_states(recorder, call.batch) if reads_initial else ()
        has_sums = bool(call.bias is not None or call.recurrent_bias is not None or call.parameters)
        runs, hidden = len(interface.runs_reversed), interface.hidden_size
        summed_dtype = "float64" if interface.precision.parts == 1 else "complex128"
        sums = recorder.new_array((runs, interface.summed_count, hidden), summed_dtype) if has_sums else None
        dshared = tuple(recorder.new_array(array.shape, array.dtype) for array in call.shared)
        dinputs = tuple(recorder.new_array(array.shape, array.dtype) for array in call.inputs)
        of_vectors = (runs, hidden, interface.state_size)
        vectors = tuple(recorder.new_array(of_vectors, "float64") for _ in interface.vector_parameters)
        gradients = Gradients(dx, dinitial, sums, dshared, vectors, dinputs)
        incoming = replace(incoming, dfinal=plain(recorder, incoming.dfinal))
        dR: list[Array] = []
        for run, part in runs_of(interface, prepared(recorder, interface, projected)):
            of_run = gradients_of_run(interface, projected.x_axes, gradients, run)
            extra = None if call.R is None else self._product_gradients(recorder, kernel, part)
            written, entering = outputs_of_run(interface, forward.outputs, run), incoming_of_run(interface, incoming, run)
            steps = recorder.steps_of(part)
            plan = self.kernels.schedule("backward", part, steps.longest)
            arguments = backward_arguments(
                interface, kernel.plan, part, written, entering, of_run, extra, self.kernels.clip, steps, plan
            )
            recorder.run_kernel(kernel, arguments)
            if extra is not None:
                is_zero = part.time == 1 and all(state is None for state in part.initial)
                selected: tuple[Any, ...] = ()
                if extra.dproducts is None and interface.directions:
                    selected = (slice(None),) * projected.x_axes.index("d") + (run,)
                dR.append(self._recurrent_gradient(recorder, extra.dproducts or dx, extra, selected, is_zero))
        of_R = dR[0] if dR else None
        if len(dR) > 1:
            of_R = recorder.computed(library.stacked, dR, interface.R_shape, arithmetic)
        dx_of_input, dweight = self._through_projection(recorder, call, dx, reads_x)
        computed = BackwardResult(dx_of_input, dinitial, sums, dweight, of_R, vectors, dshared, dinputs)
        replay = recorder.run(self.backwards, computed)
        return self.raw_gradients(replay.result)

    def _product_gradients(self, recorder: NativeRecorder, kernel: CpuKernel, part: Call) -> ProductGradients:
        """Allocate the arrays that a backward of one direction writes for the gradient of R.

        Time is their first axis if they share the gradients of x and x has time first; otherwise the batch is.
        """
        interface, arithmetic = self._interface, self._interface.precision.arithmetic_dtype
        # A reset cuts off the gradients of the products, and not those of x.
        is_shared = kernel.plan.shares_gradients and part.sequences.resets is None and part.x_axes[2:] == "gh"
        axes = part.x_axes[:2] if is_shared else "bt"
        sizes = [{"b": part.rows, "t": part.time}[axis] for axis in axes]
        places = kernel.plan.places_by_round
        outputs, *arguments = [recorder.new_array((*sizes, interface.hidden_size), arithmetic) for _ in places]
        shape = (*sizes, len(interface.recurrent_gates), interface.hidden_size)
        dproducts = None if is_shared else recorder.new_array(shape, arithmetic)
        return ProductGradients(axes + "h", outputs, dproducts, tuple(arguments), places)

    def _recurrent_gradient(
        self, recorder: NativeRecorder, dproducts: Array, extra: ProductGradients, selected: tuple[Any, ...], is_zero: bool
    ) -> Array:
        """Return the gradient of R of one direction; `is_zero`: R multiplied nothing but zeros."""
        interface, arithmetic = self._interface, self._interface.precision.arithmetic_dtype
        shape, outputs = interface.R_shape[-4:], extra.outputs
        if extra.arguments:
            in_rounds = partial(library.gradient_by_rounds, extra.places, heads=interface.heads, selected=selected)
            return recorder.computed(in_rounds, (dproducts, outputs, *extra.arguments), shape, arithmetic)
        if is_zero and recorder.is_kept and not interface.directions:
            return recorder.new_array(shape, arithmetic, fill=0)
        if outputs.library == "torch" and interface.heads == 1 and not interface.directions:
            columns = len(interface.recurrent_gates) * interface.hidden_size, interface.hidden_size
            compute = partial(library.multiplied, columns, shape)
        else:
            compute = partial(library.recurrent_gradient, heads=interface.heads, selected=selected)
        return recorder.computed(compute, (dproducts, outputs), shape, arithmetic)

    def _projected(self, recorder: NativeRecorder, call: Call) -> Call:
        """Multiply x by the weight, if any; the pre-activations are in the arithmetic dtype, with their gate axes last."""
        interface, arithmetic = self._interface, self._interface.precision.arithmetic_dtype
        if call.weight is None:
            return call
        # A single step has no axis of time.
        axes = call.x_axes.replace("i", "") + interface.gate_axes
        shape = interface.shape(axes, call.rows, call.time)
        if _multiplies_rows(call, arithmetic):
            compute = partial(library.projected_rows, shape)
        else:
            of_gates = interface.shape(interface.gate_axes, 0, 0)
            compute = partial(library.project, axes=call.x_axes, dtype=arithmetic, shape=of_gates)
        x = recorder.computed(compute, (call.x, call.weight), shape, arithmetic)
        return replace(call, x=x, x_axes=axes, weight=None)

    def _through_projection(
        self, recorder: NativeRecorder, call: Call, gradient: Array, reads_x: bool
    ) -> tuple[Array | None, Array | None]:
        """Return the gradients of x and of the weight from the gradient of the pre-activations."""
        weight, x, lengths, dtype = call.weight, call.x, call.sequences.lengths, gradient.dtype
        if weight is None:
            return gradient, None
        rows, inputs = weight.shape
        if _multiplies_rows(call, dtype) and lengths is None:
            of_weight = partial(library.multiplied, (rows, inputs), weight.shape)
            dweight = recorder.computed(of_weight, (gradient, x), weight.shape, dtype)
            of_x = partial(library.multiplied, (rows, inputs), x.shape, is_transposed=False)
            return recorder.computed(of_x, (gradient, weight), x.shape, dtype) if reads_x else None, dweight
        of_weight = partial(library.weight_gradient, rows, dtype, call.x_axes)
        dweight = recorder.computed(of_weight, (gradient, x, *(() if lengths is None else (lengths,))), weight.shape, dtype)
        of_x = partial(library.x_gradient, dtype, call.x_axes)
        return recorder.computed(of_x, (gradient, weight, x), x.shape, x.dtype) if reads_x else None, dweight

    def raw_gradients(self, result: BackwardResult) -> RawGradients:
        """Return the gradients of a backward, with all sums added up."""
        initial = result.initial or (None,) * len(self._interface.states)
        vectors = dict(zip(self._interface.vector_parameters, result.vectors, strict=True))
        return RawGradients(result.x, result.weight, initial, result.sums, result.R, vectors, result.shared, result.inputs)


def _multiplies_rows(call: Call, dtype: str) -> bool:
    """Say whether x and the weight are multiplied as they lie, by torch."""
    return call.x.library == "torch" and call.x_axes[-1] == "i" and call.x.dtype == dtype
