"""Calls on host arrays: by native code, or in NumPy, which takes them time first and in the order in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.cpu_kernel import CpuKernel
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs, with_slots
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ForwardResult, StepResult
from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cpu.blocks import run_blocks, run_blocks_backward
from minrnn_gen.cpu.call import BackwardCall, ForwardCall
from minrnn_gen.cpu.matmul import StepProducts
from minrnn_gen.cpu.recurrence import ScanMethod, Values
from minrnn_gen.cpu.scan import ScanGradients, run_scan, run_scan_backward
from minrnn_gen.cpu.steps import StepsGradients, run_steps, run_steps_backward
from minrnn_gen.gpu import memory
from minrnn_gen.run.cpu import views
from minrnn_gen.run.cpu.native_run import NativeRun
from minrnn_gen.run.cpu.products import project, weight_gradient, x_gradient
from minrnn_gen.run.cpu.slots import forward_on_pool, step_on_pool
from minrnn_gen.run.cpu.stretches import stretches_of
from minrnn_gen.run.cpu.trace import keyed_by_threads
from minrnn_gen.run.kept import StatesAsked
from minrnn_gen.run.saved import Forward, owner_of


@dataclass(frozen=True)
class CpuRun:
    """The CPU target of one builder; may be used from several threads."""

    interface: Interface
    builder: Builder

    @cached_property
    def native(self) -> NativeRun:
        """The native code of the cell, where there is some."""
        return NativeRun(self.interface, self.builder)

    def products_shape(self, rows: int, time: int) -> tuple[int, ...]:
        """The shape of the products with R that a forward saves for a backward; nothing where it saves none."""
        return self.native.products_shape(rows, time)

    def forward(self, call: Call, states_out: StatesAsked, saves: bool, _of_layer: bool = False) -> Forward:
        """Run over time; states are written in the arithmetic dtype, whatever `states_out` says but "none".

        Where a backward follows (`saves`), a cell that is no scan writes its states, unless native code reads y alone: R
        multiplied the output before it was rounded to y.
        """
        if call.pool is not None:
            return forward_on_pool(self.interface, partial(self.forward, states_out=states_out, saves=saves), call)
        precision = self.interface.precision
        writes_states = self.states_dtype(states_out, saves) is not None
        kernel = self.native.kernels.forward
        if kernel and (self._native_serves_backward or not saves):
            return self.native.forward(kernel, call, writes_states, saves)
        return self._forward(call, call.x, precision.arithmetic_dtype, precision.storage_dtype, writes_states)

    @staticmethod
    def with_sequences_beside_x(call: Call) -> Call:
        """Return the call: lengths and ends are read wherever they are."""
        return call

    @property
    def preactivation_axes(self) -> str:
        """The axes of x once it is projected."""
        return self.interface.x_axes.replace("i", "") + self.interface.gate_axes

    @property
    def preactivation_dtype(self) -> str:
        """The dtype of x once it is projected."""
        return self.interface.precision.arithmetic_dtype

    def states_written(self, _states_out: StatesAsked) -> tuple[str, ...]:
        """The names of the states that a forward writes, if it writes any: all."""
        return self.interface.states

    def states_dtype(self, states_out: StatesAsked, saves: bool) -> str | None:
        """The dtype in which a forward writes states, None where it writes none; `saves`: a backward follows."""
        if self.interface.has_vectors and states_out == "storage" and self._native_serves_backward:
            return None  # a backward computes them again
        writes_states = states_out != "none" or (saves and self._keeps_states)
        return self.interface.precision.arithmetic_dtype if writes_states else None

    @cached_property
    def _keeps_states(self) -> bool:
        """Whether a forward that saves always writes states."""
        if self.builder.cell_shape.is_scan:
            return False
        if self.interface.has_vectors:
            return not self._native_serves_backward
        return self.native.kernels.keeps_states if self.native.kernels.forward else True

    @property
    def _native_serves_backward(self) -> bool:
        """Whether native code runs the backward, where it needs other saved states than NumPy."""
        return self.native.kernels.writes_checkpoints or not self.interface.has_vectors

    @property
    def expects_states(self) -> bool:
        """Whether a forward that saves will write states, provided that an installed compiler works; nothing is compiled."""
        native = self.native.kernels
        return native.keeps_states if native.is_expected else not self.builder.cell_shape.is_scan

    def reference(self, call: Call, all_states: bool) -> ForwardResult:
        """Run over time sequentially in float64; the results are NumPy arrays in float64."""
        like = replace(call.x, library="numpy")
        return self._forward(call, like, "float64", "float64", all_states, "sequential").result

    def step(self, call: Call) -> StepResult:
        """Run one step, as a sequence of one."""
        if call.pool is not None:
            return step_on_pool(self.interface, self.step, call)
        if kernel := self.native.kernels.forward:
            return self.native.step(kernel, call)
        interface, precision = self.interface, self.interface.precision
        outputs = Outputs(
            y=memory.new_array(call.x, interface.step_shape(call.batch), precision.storage_dtype),
            kept=(),
            final=self._new_states(call.x, call.batch, precision.arithmetic_dtype),
        )
        projected = _projected(interface, call, precision.arithmetic_dtype)
        y = views.with_n(interface, as_numpy(outputs.y)[None])
        self._run(projected, y, {}, outputs.final, precision.arithmetic_dtype, None)
        return StepResult(outputs.y, outputs.final).mapped(owner_of)

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        if kernel := self._native_backward(forward):
            return self.native.backward(kernel, forward, incoming)
        interface, call, projected = self.interface, forward.call, forward.projected
        carried = interface.precision.arithmetic_dtype
        gradients = Gradients(
            dx=memory.new_array(call.x, projected.x.shape, projected.x.dtype),
            dinitial=self._new_states(call.x, call.batch, carried),
            sums=None,
            dshared=tuple(memory.new_array(call.x, array.shape, array.dtype) for array in call.shared),
            dinputs=tuple(memory.new_array(call.x, array.shape, array.dtype) for array in call.inputs),
        )
        runs, hidden = len(interface.runs_reversed), interface.hidden_size
        sums = numpy.zeros((runs, interface.summed_count, hidden))
        vectors = {name: numpy.zeros((runs, hidden, interface.state_size)) for name in interface.vector_parameters}
        dR = None if call.R is None else numpy.zeros(interface.R_shape)
        for run, part in runs_of(interface, projected):
            self._run_backward(
                part,
                outputs_of_run(interface, forward.outputs, run),
                incoming_of_run(interface, incoming, run),
                gradients_of_run(interface, projected.x_axes, gradients, run),
                sums[run],
                {name: total[run] for name, total in vectors.items()},
                None if dR is None else dR.reshape(runs, *interface.R_shape_of_run)[run],
            )
        written = gradients.dinitial, gradients.dshared, gradients.dinputs
        initial, dshared, dinputs = ([array.owner for array in arrays] for arrays in written)
        dx, dweight = gradients.dx.owner, None
        if call.weight is not None:
            carried, lengths = gradients.dx.dtype, call.sequences.lengths
            of_lengths = None if lengths is None else lengths.owner
            dweight = weight_gradient(call.weight.shape[0], carried, call.x_axes, dx, call.x.owner, of_lengths)
            dx = x_gradient(carried, call.x_axes, dx, call.weight.owner, call.x.owner)
        return RawGradients(dx, dweight, initial, sums, dR, vectors, dshared, dinputs)

    def replay_forward(self, keyed: KeyedArrays | None) -> ForwardResult | None:
        """Replay a call whose key is known; None for a new key."""
        replay = None if keyed is None else self.native.forwards.replay(keyed_by_threads(keyed))
        return None if replay is None else replay.result

    def replay_step(self, keyed: KeyedArrays | None) -> StepResult | None:
        """Replay a step whose key is known; None for a new key."""
        replay = None if keyed is None else self.native.steps.replay(keyed_by_threads(keyed))
        return None if replay is None else replay.result

    def replay_backward(self, keyed: KeyedArrays) -> RawGradients | None:
        """Replay a backward whose key is known; None for a new key."""
        replay = self.native.backwards.replay(keyed_by_threads(keyed))
        return None if replay is None else self.native.raw_gradients(replay.result)

    def record_backward(
        self, keyed: KeyedArrays, forward: Forward, incoming: IncomingGradient, reads_x: bool
    ) -> RawGradients | None:
        """Run a backward of arrays with a key: the call's, the forward's results, the gradients; None where NumPy serves."""
        kernel = self._native_backward(forward)
        if kernel is None:
            return None
        call, outputs = forward.call.with_slots(keyed), forward.outputs
        projected = None if forward.call.weight is None else forward.projected.x
        written = (outputs.y, *outputs.kept, *(array for array in (outputs.products, projected) if array is not None))
        y, *others = (array for array in with_slots(written, self.interface.slots.total) if array is not None)
        kept, others = others[: len(outputs.kept)], others[len(outputs.kept) :]
        multiplied = call if projected is None else replace(call, x=others[-1], x_axes=forward.projected.x_axes, weight=None)
        forward = Forward(call, multiplied, Outputs(y, tuple(kept), (), None if outputs.products is None else others[0]))
        incoming = incoming.with_slots(keyed)
        reads_initial = any(state is not None for state in call.initial)
        return self.native.backward(kernel, forward, incoming, reads_x, reads_initial)

    def _native_backward(self, forward: Forward) -> CpuKernel | None:
        """Return the native backward of a forward; only a native forward saved the products with R."""
        keeps_products = forward.call.R is not None or self.interface.has_vectors
        has_products = not keeps_products or forward.outputs.products is not None
        return self.native.kernels.backward if has_products else None

    @staticmethod
    def in_form_of(array: Array, gradient: Values) -> Any:
        """Return a NumPy array in the library, shape and dtype of `array`."""
        if array.library == "torch" and hasattr(gradient, "to"):
            return gradient.to(array.owner.dtype).reshape(array.shape).contiguous()
        result = memory.new_array(array, array.shape, array.dtype)
        as_numpy(result)[...] = numpy.asarray(gradient).reshape(array.shape)
        return result.owner

    def _new_states(self, like: Array, sequences: int, dtype: str) -> tuple[Array, ...]:
        shapes = (self.interface.shape_of_state(name, sequences) for name in self.interface.states)
        return tuple(memory.new_array(like, shape, dtype) for shape in shapes)

    def _forward(
        self, call: Call, like: Array, arithmetic: str, storage: str, writes_states: bool, method: ScanMethod | None = None
    ) -> Forward:
        """Run with dtypes of these names, into arrays of the library of `like`."""
        interface = self.interface
        kept = [interface.states_shape(name, call.rows, call.time) for name in interface.states] if writes_states else []
        outputs = Outputs(
            y=memory.new_array(like, interface.y_shape(call.rows, call.time), storage),
            kept=tuple(memory.new_array(like, shape, arithmetic) for shape in kept),
            final=self._new_states(like, call.batch, arithmetic),
        )
        projected = _projected(interface, call, arithmetic)
        for run, part in runs_of(interface, projected):
            written = outputs_of_run(interface, outputs, run)
            states = views.states(interface, written.kept)
            self._run(part, views.y(interface, written.y), states, written.final, arithmetic, method)
        return Forward(call, projected, outputs)

    def _run(
        self,
        call: Call,
        y: Values,
        states: Mapping[str, Values],
        final: tuple[Array, ...],
        arithmetic: str,
        method: ScanMethod | None,
    ) -> None:
        """Run a call of one direction; `y` and `states` are [T, B, H], with n or 1 last where the cell has the axis n."""
        interface, lowered = self.interface, self.builder.lowered
        gates, vectors = views.gates(interface, call), views.vectors(interface, call)
        initial, shared = views.initial(interface, call, arithmetic), views.shared(interface, call)
        inputs = views.channel_inputs(interface, call.inputs)
        last = views.of_names(interface, final)
        run: Callable[..., dict[str, Values]]
        if isinstance(lowered, LoweredScan):
            run = partial(run_scan, lowered, method=method)
        elif blocks := self.builder.programs.blocks:
            run = partial(run_blocks, blocks, method=method)
        else:
            products = _products_of(interface, lowered, call, arithmetic)
            run = partial(run_steps, lowered, products=products, heads=interface.heads)
        for stretch in stretches_of(call):
            forward = ForwardCall(
                gates=stretch.of(gates),
                **vectors,
                initial=stretch.of_states(initial),
                arithmetic=numpy_dtype(arithmetic),
                y=stretch.of(y),
                all_states=stretch.of_each(states),
                marks=stretch.marks,
                shared=stretch.of_each(shared),
                channel_inputs=stretch.of_each(inputs),
            )
            carried = run(forward)
            for name, state in last.items():
                state[stretch.sequences] = carried[name]

    def _run_backward(
        self,
        call: Call,
        outputs: Outputs,
        incoming: IncomingGradient,
        gradients: Gradients,
        sums: Values,
        vector_sums: Mapping[str, Values],
        dR: Values | None,
    ) -> None:
        """Run back through a call of one direction.

        Adds to `sums` [gates + recurrent gates + parameters, H], to the `vector_sums` [H, n] and to `dR`.
        """
        interface, lowered = self.interface, self.builder.lowered_backward
        carried = interface.precision.arithmetic_dtype
        gates, vectors = views.gates(interface, call), views.vectors(interface, call)
        initial, shared = views.initial(interface, call, carried), views.shared(interface, call)
        dx, dy = views.gates_of(interface, gradients.dx, call.x_axes), views.y(interface, incoming.dy)
        dshared = {
            name: views.groups(interface, array) for name, array in zip(interface.shared, gradients.dshared, strict=True)
        }
        inputs, dinputs = (views.channel_inputs(interface, arrays) for arrays in (call.inputs, gradients.dinputs))
        states = views.states(interface, outputs.kept)
        run: Callable[..., ScanGradients | StepsGradients]
        if isinstance(lowered, LoweredScanBackward):
            run = partial(run_scan_backward, lowered)
            if lowered.output_state is not None:
                states[lowered.output_state] = views.y(interface, outputs.y)
        else:
            products, clip = _products_of(interface, lowered, call, carried), self.builder.spec.recurrent_gradient_clip
            if not outputs.kept and lowered.output_state is not None:
                states[lowered.output_state] = views.y(interface, outputs.y)
            run = partial(run_steps_backward, lowered, products=products, clip=clip, heads=interface.heads)
            if blocks := self.builder.programs.blocks_backward:
                run = partial(run_blocks_backward, blocks)
        dfinal, dinitial = views.of_names(interface, incoming.dfinal), views.of_names(interface, gradients.dinitial)
        for stretch in stretches_of(call):
            backward = BackwardCall(
                gates=stretch.of(gates),
                **vectors,
                initial=stretch.of_states(initial),
                states=stretch.of_each(states),
                dy=stretch.of(dy),
                dfinal=stretch.of_states(dfinal),
                arithmetic=numpy_dtype(carried),
                dx=stretch.of(dx),
                marks=stretch.marks,
                shared=stretch.of_each(shared),
                dshared=stretch.of_each(dshared),
                channel_inputs=stretch.of_each(inputs),
                dinputs=stretch.of_each(dinputs),
            )
            partial_gradients = run(backward)
            for name, gradient in dinitial.items():
                gradient[stretch.sequences] = partial_gradients.initial[name]
            sums += partial_gradients.sums.reshape(sums.shape)
            for name, total in vector_sums.items():
                total += partial_gradients.vectors[name]
            if dR is not None and isinstance(partial_gradients, StepsGradients):
                dR += partial_gradients.R


def _products_of(
    interface: Interface, lowered: LoweredSteps | LoweredStepsBackward, call: Call, arithmetic: str
) -> StepProducts | None:
    """Return the recurrent products of a call of one direction, if it has any."""
    if call.R is None:
        return None
    bias = None if call.recurrent_bias is None else as_numpy(call.recurrent_bias)
    rounds = [of_round.gates for of_round in lowered.rounds]
    gates, shapes = lowered.recurrent_gates, interface.product_shapes
    return StepProducts.prepared(gates, rounds, shapes, as_numpy(call.R), bias, numpy_dtype(arithmetic))


def _projected(interface: Interface, call: Call, arithmetic: str) -> Call:
    """Multiply x by the weight, if any; the pre-activations stay in `arithmetic`, with their gate axes last."""
    if call.weight is None:
        return call
    shape = interface.shape(interface.gate_axes, 0, 0)
    x = project(call.x.owner, call.weight.owner, call.x_axes, arithmetic, shape)
    # A single step has no axis of time.
    return replace(call, x=memory.inspect(x, "x"), x_axes=call.x_axes.replace("i", "") + interface.gate_axes, weight=None)
