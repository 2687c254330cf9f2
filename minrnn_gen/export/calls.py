"""Calls of an exported kernel as programs: sizes and strides are symbols, arrays that may be absent are null addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.build.projected import condition
from minrnn_gen.call.arguments import Call, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import BackwardResult
from minrnn_gen.export.describe import Backend, CallArrays, Described, Paths, Recorder
from minrnn_gen.export.source import ExportSource
from minrnn_gen.plan.kernel_plan import Specialization, StatesOut
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.program.data import At
from minrnn_gen.program.number import least, paths, symbol
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.saved import Forward

# Arrays of a backward have the slots that they are described with.
_SLOTTED = KeyedArrays((), [], [])


class Variant(NamedTuple):
    """Calls of one pass that have their own kernels."""

    kernel_pass: KernelPass
    packed: bool = False
    resets: bool = False
    states_out: StatesOut = "none"


PLAIN = Variant("forward")


@dataclass(frozen=True)
class ExportedCalls:
    """Describes calls by the kernels of `backend`."""

    backend: Backend
    saved_states_out: StatesOut

    def of(self, variant: Variant) -> Paths:
        """Describe the calls of a variant."""
        if variant.kernel_pass == "step":
            return self.step()
        if variant.kernel_pass == "backward":
            return self.backward(variant.packed, variant.resets)
        return self.forward(variant.states_out, variant.packed, variant.resets)

    def forward(self, states_out: StatesOut, packed: bool, resets: bool) -> Paths:
        """Describe a forward."""

        def describe() -> Described:
            projecting = self._projecting()
            call = self._arrays.call(packed, resets, is_plain=projecting is not None)
            final = self._arrays.states("final", call.batch)
            self.backend.provided = [*self._arrays.outputs(call, states_out), *final, *self._projected(call)]
            self._run_with(projecting).forward(call, states_out, saves=projecting is not None)
            recorder = self.backend.recorder
            if projecting:  # pre-activations are written where they are kept for a backward
                recorder.taken_by(recorder.slot("projected"), "projected")
            return recorder.described()

        return tuple(paths(describe))

    def step(self) -> Paths:
        """Describe a single step."""
        arrays = self._arrays

        def describe() -> Described:
            call = arrays.call(False, False, is_step=True)
            shape, strides = self.source.interface.step_shape(call.batch), arrays.strides("y", "bh")
            y = arrays.array("y", shape, arrays.storage, strides)
            self.backend.provided = [y, *arrays.states("final", call.batch), *self._projected(call)]
            self._run.step(call)
            return self.backend.recorder.described()

        return tuple(paths(describe))

    def backward(self, packed: bool, resets: bool) -> Paths:
        """Describe a backward, and the operations on the gradients that kernels write."""
        interface, arrays = self.source.interface, self._arrays

        def describe() -> Described:
            call = arrays.call(packed, resets)
            is_wide = self.source.casts_states and bool(symbol("has_wide_states", 0, 1))
            y, *kept = arrays.outputs(call, "arithmetic" if is_wide else self.saved_states_out)
            projected, dx = call, arrays.x("dx", call.rows, call.time, interface.x_axes)
            for x in self._projected(call):
                projected = replace(call, x=x, x_axes=interface.preactivation_axes, weight=None)
            dy = arrays.array("dy", y.shape, y.dtype, y.strides)
            incoming = IncomingGradient(dy, arrays.states("dfinal", call.batch), _SLOTTED)
            dinputs = arrays.channel_inputs("dinput", call.rows, call.time)
            self.backend.provided = [None if interface.input_size else dx, *arrays.states("dinitial", call.batch), *dinputs]
            forward = Forward(call, projected, Outputs(y, tuple(kept), ()))
            result = self._run.perform_backward(forward, incoming).result
            assert isinstance(result, BackwardResult)
            self._finish(self.backend.recorder, result)
            return self.backend.recorder.described()

        return tuple(paths(describe))

    @property
    def source(self) -> ExportSource:
        """The export, which names the arrays of a call."""
        return self.backend.source

    @property
    def _run(self) -> GpuRun:
        return self._run_with(None)

    def _run_with(self, projecting: Specialization | None) -> GpuRun:
        backend: Any = self.backend  # which has the attributes that a description reads
        return GpuRun(self.source.interface, self.backend.builder, backend, lambda *_: projecting)

    def _projecting(self) -> Specialization | None:
        """Return the specialization of a call whose scan multiplies x itself, as `ProjectedScan` decides, or None."""
        key = self.backend.projecting
        if key is None:
            return None
        is_plain = least(symbol("lies_whole", 0, 1), symbol("has_lengths", 0, 1) == 0)
        is_served = least(is_plain, condition(self.backend.builder, key.specialization))
        return key.specialization if is_served else None

    @property
    def _arrays(self) -> CallArrays:
        return CallArrays(self.source)

    def _projected(self, call: Call) -> tuple[Array, ...]:
        """Return the projected x, if the call projects it."""
        interface, arrays = self.source.interface, self._arrays
        if not interface.input_size:
            return ()
        axes = interface.preactivation_axes if "t" in call.x_axes else "bgh"
        return (arrays.array("projected", interface.shape(axes, call.rows, call.time), arrays.storage),)

    def _finish(self, recorder: Recorder, result: BackwardResult) -> None:
        """Sum gradients, and store them in the form of their arrays; absent arrays are not written."""
        interface, rounds = self.source.interface, self.source.rounds
        slots = result.mapped(lambda array: array.address.slot)
        _, time_parts, _, batch, _ = result.sums.shape
        recorder.needed_for([slots.sums], *(recorder.slot(target) for target, *_ in self.source.sums))
        for name, _, first, count in self.source.sums:
            numbers = time_parts, interface.summed_count, batch, interface.hidden_size, first, count
            recorder.call("add_up", At(slots.sums, 0), At(recorder.slot(name), 0), *numbers)
        for name, slot in zip(interface.vector_parameters, slots.vectors, strict=True):
            target = recorder.slot(f"dparameter_{name}")
            recorder.needed_for([slot], target)
            width = interface.hidden_size * interface.state_size
            recorder.call("add_up", At(slot, 0), At(target, 0), time_parts, 1, batch, width, 0, 1)
        for name, slot, array in zip(interface.shared, slots.shared, result.shared, strict=True):
            target, (parts, *shape) = recorder.slot(f"dshared_{name}"), array.shape
            recorder.call("add_parts", At(slot, 0), At(target, 0), math.prod(shape), parts)
        if result.R is not None:
            recorder.needed_for([slots.R], recorder.slot("dR"))
            count, square = math.prod(result.R.shape), interface.head_dim**2
            shape = count, interface.heads, len(interface.recurrent_gates), square
            recorder.call("store", At(slots.R, 0), At(recorder.slot("dR"), 0), *shape)
        if result.weight is None:
            return
        recorder.taken_by(slots.x, "dx")
        recorder.needed_for(recorder.zeroed, recorder.slot("dweight"))
        if rounds:
            recorder.needed_for([slots.weight], recorder.slot("dweight"))
            count = math.prod(result.weight.shape)
            recorder.call("store", At(slots.weight, 0), At(recorder.slot("dweight"), 0), count, 1, 1, count)
        else:
            recorder.taken_by(slots.weight, "dweight")
