"""Calls of an exported kernel as programs: sizes and strides are symbols, arrays that may be absent are null addresses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.build.projected import condition
from minrnn_gen.call.arguments import Call, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import BackwardResult
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.export.describe import Backend, Described, Paths, Recorder, array_of
from minrnn_gen.export.source import AXIS_WORDS, ExportSource
from minrnn_gen.plan.kernel_plan import Specialization, StatesOut
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.program import data
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
            call = self._call(packed, resets, is_plain=projecting is not None)
            final = self._states("final", call.batch)
            self.backend.provided = [*self._outputs(call, states_out), *final, *self._projected(call)]
            self._run_with(projecting).forward(call, states_out, saves=projecting is not None)
            recorder = self.backend.recorder
            if projecting:  # pre-activations are written where they are kept for a backward
                recorder.taken_by(recorder.slot("projected"), "projected")
            return recorder.described()

        return tuple(paths(describe))

    def step(self) -> Paths:
        """Describe a single step."""

        def describe() -> Described:
            call = self._call(False, False, is_step=True)
            y = self._array("y", self.source.interface.state_shape(call.batch), self._storage, self._strides("y", "bh"))
            self.backend.provided = [y, *self._states("final", call.batch), *self._projected(call)]
            self._run.step(call)
            return self.backend.recorder.described()

        return tuple(paths(describe))

    def backward(self, packed: bool, resets: bool) -> Paths:
        """Describe a backward, and what is made of the gradients that kernels write."""
        interface = self.source.interface

        def describe() -> Described:
            call = self._call(packed, resets)
            is_wide = self.source.casts_states and bool(symbol("has_wide_states", 0, 1))
            y, *kept = self._outputs(call, "arithmetic" if is_wide else self.saved_states_out)
            projected, dx = call, self._x("dx", call.rows, call.time, interface.x_axes)
            for x in self._projected(call):
                projected = replace(call, x=x, x_axes=interface.preactivation_axes, weight=None)
            dy = self._array("dy", y.shape, y.dtype, y.strides)
            incoming = IncomingGradient(dy, self._states("dfinal", call.batch), _SLOTTED)
            self.backend.provided = [None if interface.input_size else dx, *self._states("dinitial", call.batch)]
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
        backend: Any = self.backend  # which has what a description asks for
        return GpuRun(self.source.interface, self.backend.builder, backend, lambda *_: projecting)

    def _projecting(self) -> Specialization | None:
        """Decide whether a call is one whose scan multiplies x itself, as `ProjectedScan` does, and return its kernel's."""
        key = self.backend.projecting
        if key is None:
            return None
        is_plain = least(symbol("lies_whole", 0, 1), symbol("has_lengths", 0, 1) == 0)
        is_served = least(is_plain, condition(self.backend.builder, key.specialization))
        return key.specialization if is_served else None

    def _array(self, *of_array: Any) -> Array:
        return array_of(self.source, *of_array)

    def _finish(self, recorder: Recorder, result: BackwardResult) -> None:
        """Add gradients up, and store them in the form of their arrays; what of them is absent is written nowhere."""
        interface, rounds = self.source.interface, self.source.rounds
        slots = result.mapped(lambda array: array.address.slot)
        _, time_parts, _, batch, _ = result.sums.shape
        recorder.needed_for([slots.sums], *(recorder.slot(target) for target, *_ in self.source.sums))
        for name, _, first, count in self.source.sums:
            sums = At(slots.sums, 0), At(recorder.slot(name), 0), time_parts, interface.summed_count, batch
            recorder.note(data.AddUp(*sums, interface.hidden_size, first, count))
        for name, slot in zip(interface.vector_parameters, slots.vectors, strict=True):
            target = recorder.slot(f"dparameter_{name}")
            recorder.needed_for([slot], target)
            width = interface.hidden_size * interface.state_size
            recorder.note(data.AddUp(At(slot, 0), At(target, 0), time_parts, 1, batch, width, 0, 1))
        for name, slot, array in zip(interface.shared, slots.shared, result.shared, strict=True):
            target, (parts, *shape) = recorder.slot(f"dshared_{name}"), array.shape
            recorder.note(data.AddParts(At(slot, 0), At(target, 0), math.prod(shape), parts))
        if result.R is not None:
            recorder.needed_for([slots.R], recorder.slot("dR"))
            count, square = math.prod(result.R.shape), interface.head_dim**2
            shape = count, interface.heads, len(interface.recurrent_gates), square
            recorder.note(data.Store(At(slots.R, 0), At(recorder.slot("dR"), 0), *shape))
        if result.weight is None:
            return
        recorder.taken_by(slots.x, "dx")
        recorder.needed_for(recorder.zeroed, recorder.slot("dweight"))
        if rounds:
            recorder.needed_for([slots.weight], recorder.slot("dweight"))
            count = math.prod(result.weight.shape)
            recorder.note(data.Store(At(slots.weight, 0), At(recorder.slot("dweight"), 0), count, 1, 1, count))
        else:
            recorder.taken_by(slots.weight, "dweight")

    @property
    def _storage(self) -> str:
        return self.source.interface.precision.storage_dtype

    @property
    def _real(self) -> str:
        return self.source.interface.precision.arithmetic_dtype

    def _strides(self, name: str, axes: str) -> tuple[int, ...]:
        """Return the strides of x, y or resets as symbols; kernels for all steps of a tile take no gaps along one axis."""
        interface = self.source.interface
        dense = bool(interface.recurrent_gates)
        whole = "" if name == "resets" or (dense and interface.layout == "BDT") else "t" if interface.layout == "BDT" else "h"
        return tuple(1 if axis == whole else symbol(f"{name}_{AXIS_WORDS[axis]}") for axis in axes)

    def _x(self, name: str, rows: int, time: int, axes: str) -> Array:
        interface = self.source.interface
        strides = None if interface.input_size else self._strides(name, axes)
        return self._array(name, interface.shape(axes, rows, time), self._storage, strides)

    def _projected(self, call: Call) -> tuple[Array, ...]:
        """Return x projected, where it is."""
        interface = self.source.interface
        if not interface.input_size:
            return ()
        axes = interface.preactivation_axes if "t" in call.x_axes else "bgh"
        return (self._array("projected", interface.shape(axes, call.rows, call.time), self._storage),)

    def _states(self, prefix: str, batch: int) -> tuple[Array, ...]:
        interface = self.source.interface
        shapes = {name: interface.shape_of_state(name, batch) for name in interface.states}
        return tuple(self._array(f"{prefix}_{name}", shape, self._real) for name, shape in shapes.items())

    def _outputs(self, call: Call, states_out: StatesOut) -> list[Array]:
        """Return y, and the states after every step."""
        interface = self.source.interface
        shape, strides = interface.y_shape(call.rows, call.time), self._strides("y", Y_AXES[interface.layout])
        outputs = [self._array("y", shape, self._storage, strides)]
        if states_out != "none":
            dtype = self._real if states_out == "arithmetic" else self._storage
            for name in interface.states:
                is_vector = name in interface.vector_states
                of_state = interface.states_shape(name, call.rows, call.time)
                outputs.append(self._array(f"states_{name}", of_state, dtype, None if is_vector else strides))
        return outputs

    def _call(self, packed: bool, resets: bool, is_step: bool = False, is_plain: bool = False) -> Call:
        """Return a call; of one that `is_plain` all sequences have the same steps, and some."""
        source, interface = self.source, self.source.interface
        dense, new = bool(interface.recurrent_gates), self._array
        batch, time = symbol("batch", 1), 1 if is_step else symbol("time", int(is_plain))
        if dense and source.has_cu_seqlens and not is_step:
            packed = bool(symbol("is_packed", 0, 1))
        has_lengths = not packed and not is_step and not is_plain and bool(symbol("has_lengths", 0, 1))
        rows = 1 if packed else batch
        axes, shared_axes = (axes.replace("t", "") if is_step else axes for axes in (interface.x_axes, interface.shared_axes))
        gates, parameters = (*interface.directions, len(interface.gates), interface.hidden_size), interface.parameters
        shared = interface.shape(shared_axes, rows, time)
        return Call(
            x=self._x("x", rows, time, axes),
            x_axes=axes,
            rows=rows,
            time=time,
            weight=new("weight", (interface.weight_rows, interface.input_size), self._storage)
            if interface.input_size
            else None,
            bias=new("bias", gates, self._real),
            parameters=tuple(new(f"parameter_{name}", interface.shape_of_parameter(name), self._real) for name in parameters),
            initial=self._states("initial", batch),
            sequences=Sequences(
                batch,
                new("resets", (rows, time), "bool", self._strides("resets", "bt")) if resets else None,
                new("lengths", (batch,), "int64") if has_lengths else None,
                new("cu_seqlens", (batch + 1,), "int64") if packed else None,
            ),
            R=new("R", interface.R_shape, self._storage) if dense else None,
            recurrent_bias=new("recurrent_bias", interface.recurrent_bias_shape, self._real)
            if interface.takes_recurrent_bias
            else None,
            shared=tuple(new(f"shared_{name}", shared, self._storage) for name in interface.shared),
        )
