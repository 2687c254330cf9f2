"""Calls on host arrays by native code: allocation, products by the caller's library, and the runs of each direction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.cpu_kernel import CpuKernel
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import BackwardResult, ForwardResult, StepResult
from minrnn_gen.gpu import memory
from minrnn_gen.run.cpu.native import NativeKernels, ProductGradients
from minrnn_gen.run.cpu.products import in_library, project, recurrent_gradient, stacked, through_projection
from minrnn_gen.run.cpu.threads import IS_PACKED
from minrnn_gen.run.cpu.trace import CpuRecorder, CpuTraceCache, MatrixProduct, Projection, ProjectionOfSteps, Zeros
from minrnn_gen.run.saved import Forward, owner_of

# Pre-activations of so many bytes stay in the cache of all cores until the recurrence has read them, beside a weight as large:
# a larger one is read too often for that. In pieces of 2^19, which one core's cache holds, handing over between the two takes
# a tenth to a quarter of an LSTM's time (64 sequences of 256 steps, 32 and 128 units).
PIECE_BYTES = 1 << 22


class NativeRun:
    """The native code of one builder, run; may be used from several threads."""

    def __init__(self, interface: Interface, builder: Builder) -> None:
        self._interface, self._builder = interface, builder
        self.kernels = NativeKernels(interface, builder)
        self.forwards = CpuTraceCache[ForwardResult]()
        self.steps = CpuTraceCache[StepResult]()
        self.backwards = CpuTraceCache[BackwardResult]()

    def products_shape(self, rows: int, time: int) -> tuple[int, ...]:
        """The shape of the products with R that a forward saves for a backward; nothing where it saves none."""
        interface = self._interface
        if not self.kernels.writes_products:
            return ()
        return (len(interface.runs_reversed), rows, time, len(interface.recurrent_gates), interface.hidden_size)

    def forward(self, kernel: CpuKernel, call: Call, writes_states: bool, saves: bool) -> Forward:
        """Run over time."""
        interface, precision = self._interface, self._interface.precision
        arithmetic = precision.arithmetic_dtype
        shape, state_shape = interface.y_shape(call.rows, call.time), interface.state_shape(call.batch)
        products_shape = self.products_shape(call.rows, call.time) if saves else ()
        recorder = CpuRecorder(self._builder.store, call.x, call.keyed)
        outputs = Outputs(
            y=recorder.new_array(shape, precision.storage_dtype),
            kept=tuple(recorder.new_array(shape, arithmetic) for _ in (interface.states if writes_states else ())),
            final=tuple(recorder.new_array(state_shape, arithmetic) for _ in interface.states),
            products=recorder.new_array(products_shape, arithmetic) if products_shape else None,
        )
        if not saves and (count := self._steps_at_once(recorder, call)):
            projected = call
            self._run_in_pieces(recorder, kernel, call, outputs, count)
        else:
            projected = self._projected(recorder, call)
            for run, part in runs_of(interface, projected):
                self.kernels.run_forward(recorder, kernel, part, outputs_of_run(interface, outputs, run))
        forward = Forward(call, projected, outputs)
        self.forwards.keep(call.keyed, saves, recorder.finish(forward.written))
        return forward

    def _steps_at_once(self, recorder: CpuRecorder, call: Call) -> int:
        """Return how many steps are projected at once where nobody keeps pre-activations; 0 for all of a call."""
        interface, sequences, weight = self._interface, call.sequences, call.weight
        has_sequences = any(array is not None for array in (sequences.resets, sequences.lengths, sequences.cu_seqlens))
        if not recorder.is_replayable or weight is None or has_sequences or interface.directions or call.x_axes[-1] != "i":
            return 0
        if call.x.dtype != interface.precision.arithmetic_dtype or math.prod(weight.shape) * weight.itemsize > PIECE_BYTES:
            return 0
        step_bytes = call.rows * weight.shape[0] * call.x.itemsize
        count = max(1, PIECE_BYTES // step_bytes)
        return 0 if count * 2 > call.time else count

    def _run_in_pieces(self, recorder: CpuRecorder, kernel: CpuKernel, call: Call, outputs: Outputs, count: int) -> None:
        """Project and run so many steps at once, whose pre-activations stay in cache; each piece begins where one ended."""
        interface, weight = self._interface, call.weight
        assert weight is not None
        axes = call.x_axes.replace("i", "") + interface.gate_axes
        axis, y_axis = call.x_axes.index("t"), Y_AXES[interface.layout].index("t")
        whole = self._projection_shape(call, count)
        room = recorder.new_array(whole, call.x.dtype)
        (reverse,) = interface.runs_reversed
        plan = self.kernels.schedule(kernel, call)
        firsts = range(0, call.time, count)
        part = replace(call, reverse=reverse, weight=None, x_axes=axes)
        for first in reversed(firsts) if reverse else firsts:
            steps = min(count, call.time - first)
            shape = self._projection_shape(call, steps)
            x_slot, weight_slot, room_slot = (array.address.slot or 0 for array in (call.x, weight, room))
            operation = ProjectionOfSteps(x_slot, weight_slot, room_slot, axis, first, steps)
            recorder.perform(operation, (call.x, weight, room))
            part = replace(part, x=replace(room, shape=shape, strides=contiguous_strides(shape)), time=steps)
            y = outputs.y.narrowed(y_axis, first, steps)
            kept = tuple(states.narrowed(y_axis, first, steps) for states in outputs.kept)
            self.kernels.run_forward(recorder, kernel, part, replace(outputs, y=y, kept=kept), plan)
            part = replace(part, initial=outputs.final)
            plan = plan._replace(packs=IS_PACKED if plan.packs else 0)

    def _projection_shape(self, call: Call, steps: int) -> tuple[int, ...]:
        interface = self._interface
        return interface.shape(call.x_axes.replace("i", "") + interface.gate_axes, call.rows, steps)

    def step(self, kernel: CpuKernel, call: Call) -> StepResult:
        """Run one step, as a sequence of one."""
        interface, precision = self._interface, self._interface.precision
        recorder = CpuRecorder(self._builder.store, call.x, call.keyed)
        shape = interface.state_shape(call.batch)
        y = recorder.new_array(shape, precision.storage_dtype)
        final = tuple(recorder.new_array(shape, precision.arithmetic_dtype) for _ in interface.states)
        y_shape = interface.y_shape(call.batch, 1)
        sequence = replace(y, shape=y_shape, strides=contiguous_strides(y_shape))
        self.kernels.run_forward(recorder, kernel, self._projected(recorder, call), Outputs(sequence, (), final))
        result = StepResult(y, final)
        self.steps.keep(call.keyed, None, recorder.finish(result))
        return result.mapped(owner_of)

    def backward(
        self,
        kernel: CpuKernel,
        forward: Forward,
        incoming: IncomingGradient,
        keyed: KeyedArrays | None = None,
        reads_x: bool = True,
        reads_initial: bool = True,
    ) -> RawGradients:
        """Run against time; the gradients of x and of initial states are there where somebody `reads_` them.

        The arrays of `keyed` have their slots, of all of `forward` and `incoming`.
        """
        interface, call, projected = self._interface, forward.call, forward.projected
        arithmetic = interface.precision.arithmetic_dtype
        recorder = CpuRecorder(self._builder.store, call.x, keyed)
        state_shape = interface.state_shape(call.batch)
        dx = recorder.new_array(projected.x.shape, projected.x.dtype)
        dinitial = tuple(recorder.new_array(state_shape, arithmetic) for _ in interface.states) if reads_initial else ()
        has_sums = bool(call.bias is not None or call.recurrent_bias is not None or call.parameters)
        shape = (len(interface.runs_reversed), interface.summed_count, interface.hidden_size)
        sums = recorder.new_array(shape, "float64") if has_sums else None
        gradients = Gradients(dx, dinitial, sums)
        dR: list[Any] = []
        for run, part in runs_of(interface, projected):
            of_run = gradients_of_run(interface, projected.x_axes, gradients, run)
            extra = None if call.R is None else self._product_gradients(recorder, kernel, part)
            outputs = outputs_of_run(interface, forward.outputs, run)
            self.kernels.run_backward(recorder, kernel, part, outputs, incoming_of_run(interface, incoming, run), of_run, extra)
            if extra is not None:
                dproducts = of_run.dx if extra.dproducts is None else extra.dproducts
                is_zero = part.time == 1 and all(state is None for state in part.initial)
                dR.append(self._recurrent_gradient(recorder, dproducts, extra.outputs, is_zero))
        of_R = _stacked(dR)
        dx_of_input, dweight = self._through_projection(recorder, call, dx, reads_x)
        result = BackwardResult(dx_of_input, dinitial or (None,) * len(interface.states), sums, dweight, of_R)
        if keyed is not None:
            self.backwards.keep(keyed, reads_x, recorder.finish(result))
        return raw_gradients(BackwardResult(*(_owned(part) for part in result)))

    def _product_gradients(self, recorder: CpuRecorder, kernel: CpuKernel, part: Call) -> ProductGradients:
        """Return what a backward of one direction writes for the gradient of R, time first where it shares x's and x has it."""
        interface, arithmetic = self._interface, self._interface.precision.arithmetic_dtype
        # A reset cuts off the gradients of the products, and not those of x.
        is_shared = kernel.plan.shares_gradients and part.sequences.resets is None and part.x_axes[2:] == "gh"
        axes = part.x_axes[:2] if is_shared else "bt"
        sizes = [{"b": part.rows, "t": part.time}[axis] for axis in axes]
        before = recorder.new_array((*sizes, interface.hidden_size), arithmetic)
        shape = (*sizes, len(interface.recurrent_gates), interface.hidden_size)
        return ProductGradients(axes + "h", before, None if is_shared else recorder.new_array(shape, arithmetic))

    def _recurrent_gradient(self, recorder: CpuRecorder, dproducts: Array, outputs: Array, is_zero: bool) -> Any:
        """Return the gradient of R of one direction; `is_zero`: R multiplied nothing but zeros."""
        interface, arithmetic = self._interface, self._interface.precision.arithmetic_dtype
        if is_zero and recorder.is_replayable and not interface.directions:
            zeros = recorder.with_slot(memory.new_array(outputs, interface.R_shape, arithmetic, fill=0))
            recorder.record(Zeros(zeros.address.slot or 0, zeros.shape, zeros.owner.dtype))
            return zeros
        product = recurrent_gradient(in_library(dproducts, arithmetic), in_library(outputs, arithmetic), interface.heads)
        first, second = dproducts.address.slot, outputs.address.slot
        if interface.heads > 1 or interface.directions or first is None or second is None:
            recorder.stop()
            return product
        array = recorder.with_slot(memory.inspect(product, "R"))
        hidden, width = interface.hidden_size, len(interface.recurrent_gates) * interface.hidden_size
        slot = array.address.slot or 0
        recorder.record(MatrixProduct(first, width, True, second, hidden, slot, array.shape))
        return array

    def _projected(self, recorder: CpuRecorder, call: Call) -> Call:
        """Multiply x by the weight, if there is one; the pre-activations are in the arithmetic dtype, their gate axes last."""
        interface = self._interface
        if call.weight is None:
            return call
        arithmetic = interface.precision.arithmetic_dtype
        x = project(call, call.weight, arithmetic, interface.shape(interface.gate_axes, 0, 0))
        slots = call.x.address.slot, call.weight.address.slot
        if None in slots or call.x_axes[-1] != "i" or call.x.dtype != arithmetic:
            recorder.stop()
        else:
            x = recorder.with_slot(x)
            recorder.record(Projection(slots[0] or 0, slots[1] or 0, x.address.slot or 0, x.shape))
        # A single step has no axis of time.
        return replace(call, x=x, x_axes=call.x_axes.replace("i", "") + interface.gate_axes, weight=None)

    def _through_projection(self, recorder: CpuRecorder, call: Call, gradient: Array, reads_x: bool) -> tuple[Any, Any]:
        """Return the gradients of x and of the weight, given that of the pre-activations."""
        weight, x = call.weight, call.x
        if weight is None:
            return gradient, None
        slots = x.address.slot, weight.address.slot, gradient.address.slot
        dx, dweight = through_projection(call, weight, gradient, reads_x)
        if None in slots or call.x_axes[-1] != "i" or x.dtype != gradient.dtype or call.sequences.lengths is not None:
            recorder.stop()
            return dx, dweight
        of_weight = recorder.with_slot(memory.inspect(dweight, "weight"))
        rows, inputs = weight.shape
        x_slot, weight_slot, slot = (slot or 0 for slot in slots)
        recorder.record(MatrixProduct(slot, rows, True, x_slot, inputs, of_weight.address.slot or 0, weight.shape))
        if dx is None:
            return None, of_weight
        of_x = recorder.with_slot(memory.inspect(dx, "x"))
        recorder.record(MatrixProduct(slot, rows, False, weight_slot, inputs, of_x.address.slot or 0, x.shape))
        return of_x, of_weight


def raw_gradients(result: BackwardResult) -> RawGradients:
    """Return the gradients of a backward, whose sums are added up."""
    return RawGradients(result.x, result.weight, result.initial, result.sums, result.R)


def _owned(part: Any) -> Any:
    """Return an array's owner, and what is none as it is."""
    if isinstance(part, tuple):
        return tuple(map(_owned, part))
    return part.owner if isinstance(part, Array) else part


def _stacked(gradients: list[Any]) -> Any:
    """Return the gradients of R of each direction as one, None where there are none."""
    if len(gradients) < 2:
        return gradients[0] if gradients else None
    return stacked(gradients)
