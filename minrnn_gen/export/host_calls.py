"""Calls of a kernel exported for the CPU as programs: the launches of native code, and the products around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from minrnn_gen.call.address import Address, place_in
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.codegen.cpu_source import CpuPass, CpuPlan, NativePlan
from minrnn_gen.export.describe import CallArrays, Described, Paths, Room, RoomRecorder
from minrnn_gen.export.source import ExportSource
from minrnn_gen.program import data
from minrnn_gen.program.data import KernelRef
from minrnn_gen.program.number import Decisions, Number, paths, symbol
from minrnn_gen.run.cpu.arguments import ProductGradients, Steps, backward_arguments, forward_arguments, products_shape
from minrnn_gen.run.cpu.threads import Schedule, schedule

# As the launches of a call have them: `schedule_of` says how they follow from its sizes.
_SCHEDULE = Schedule(symbol("threads", 1), symbol("splits_units", 0, 1), symbol("packs", 0, 1))


class HostRecorder(RoomRecorder):
    """A call on the CPU."""

    def run_kernel(self, plan: NativePlan, values: Mapping[str, Any]) -> None:
        """Record a launch with arguments by name; absent ones are 0."""
        arguments = tuple(self._source(values.get(field.name, 0)) for field in plan.fields)
        self.note(data.Launch(KernelRef(plan.kernel_pass), 1, values["threads"], arguments))


@dataclass(frozen=True)
class HostCalls:
    """Describes calls by the passes that native code has `plans` of."""

    source: ExportSource
    plans: Mapping[CpuPass, NativePlan]
    clip: float | None

    def schedule(self, kernel_pass: CpuPass) -> tuple[tuple[Decisions, Schedule], ...]:
        """Return how threads share a call, decided by its sizes."""
        sizes = symbol("batch"), symbol("steps"), symbol("has_initial", 0, 1), symbol("most_threads", 1)
        return tuple(paths(lambda: schedule(self.source.interface, kernel_pass, *sizes, self._has_rounds)))

    def saved(self) -> tuple[Room, ...]:
        """Return the rooms of the arrays that a forward keeps for a backward."""
        rows, time, arrays = symbol("rows"), symbol("time"), self._arrays
        # States are laid out like y, gaps included.
        states = [arrays.array(f"states_{name}", (symbol("span"),), arrays.real) for name in self.source.kept_states]
        recorder = HostRecorder(self.source, arrays.array("y", (), arrays.storage))
        for array in (self._products(rows, time), *states, self._projected(rows, time)):
            if array is not None:
                recorder.with_room(array)
        return tuple(recorder.rooms)

    def forward(self) -> Paths:
        """Describe a forward."""
        interface = self.source.interface

        def describe() -> Described:
            recorder, call, projected, outputs = self._begin()
            final = tuple(map(recorder.with_room, self._arrays.states("final", call.batch)))
            if call.weight is not None:
                recorder.with_room(projected.x)
                recorder.call("project", call.x.pointer, call.weight.pointer, projected.x.pointer)
            for run, part in runs_of(interface, projected):
                written = outputs_of_run(interface, replace(outputs, final=final), run)
                arguments = forward_arguments(interface, part, written, self._steps, _SCHEDULE)
                recorder.run_kernel(self.plans["forward"], arguments)
            return recorder.described()

        return tuple(paths(describe))

    def backward(self) -> Paths:
        """Describe a backward. Sums are those of one direction: each is stored before the next begins."""
        interface, plan = self.source.interface, self.plans["backward"]

        def describe() -> Described:
            recorder, call, projected, outputs = self._begin()
            gradients, extra = self._gradients(recorder, call, projected)
            dR = None if call.R is None else recorder.room(interface.R_shape[-3:], self._arrays.real, "dR")
            dy = self._arrays.array("dy", outputs.y.shape, outputs.y.dtype, outputs.y.strides)
            incoming = IncomingGradient(dy, self._arrays.states("dfinal", call.batch))
            for run, part in runs_of(interface, projected):
                of_run = gradients_of_run(interface, projected.x_axes, gradients, run)
                written, entering = outputs_of_run(interface, outputs, run), incoming_of_run(interface, incoming, run)
                arrays = part, written, entering, of_run, extra
                recorder.run_kernel(plan, backward_arguments(interface, plan, *arrays, self.clip, self._steps, _SCHEDULE))
                self._store_sums(recorder, run, gradients)
                if extra is not None and dR is not None:
                    self._recurrent_gradient(recorder, run, extra, dR)
            if call.weight is not None:
                self._through_projection(recorder, call, gradients.dx)
            return recorder.described()

        return tuple(paths(describe))

    @property
    def _has_rounds(self) -> bool:
        plan = self.plans["forward"]
        return isinstance(plan, CpuPlan) and bool(plan.rounds)

    @property
    def _arrays(self) -> CallArrays:
        return CallArrays(self.source)

    @property
    def _steps(self) -> Steps:
        firsts, counts = (place_in(self.source.slots.index(name)) for name in ("cu_seqlens", "counts"))
        return Steps(firsts, counts, symbol("steps"), symbol("has_lengths", 0, 1))

    def _begin(self) -> tuple[HostRecorder, Call, Call, Outputs]:
        """Return the call's recorder, the call, the call with x projected, and its outputs except final states."""
        call = projected = self._arrays.call(packed=False, resets=True)
        y, *kept = self._arrays.outputs(call, "arithmetic")
        x, products = self._projected(call.rows, call.time), self._products(call.rows, call.time)
        if x is not None:
            projected = replace(call, x=x, x_axes=f"bt{self.source.interface.gate_axes}", weight=None)
        return HostRecorder(self.source, call.x), call, projected, Outputs(y, tuple(kept), (), products)

    def _products(self, rows: Number, time: Number) -> Array | None:
        """Return the arrays other than states that a forward saves, where a backward follows."""
        shape = products_shape(self.source.interface, rows, time) if self.source.has_backward else ()
        return self._arrays.array("saved_products", shape, self._arrays.real) if shape else None

    def _projected(self, rows: Number, time: Number) -> Array | None:
        """Return the projected x, if the call projects it: rows first, whatever the layout."""
        interface, arrays = self.source.interface, self._arrays
        shape = interface.shape(f"bt{interface.gate_axes}", rows, time)
        return arrays.array("projected", shape, arrays.real) if interface.input_size else None

    def _of_run(self, name: str, run: int, shape: tuple[int, ...], dtype: str) -> Address:
        """Return the begin of one direction's part of a gradient."""
        runs = len(self.source.interface.runs_reversed)
        return self._arrays.array(name, (runs, *shape), dtype).selected(0, run).address

    def _gradients(self, recorder: HostRecorder, call: Call, projected: Call) -> tuple[Gradients, ProductGradients | None]:
        """Return the buffers that launches write: arrays of the call, and rooms."""
        interface, arrays = self.source.interface, self._arrays
        if interface.input_size:
            dx = recorder.room(projected.x.shape, arrays.real)
        else:
            dx = recorder.with_room(arrays.x("dx", call.rows, call.time, call.x_axes))

        def sums_of_runs(shape: tuple[int, ...]) -> Array:
            room = recorder.room(shape, "float64")
            return replace(room, shape=(len(interface.runs_reversed), *shape), strides=(0, *room.strides))

        sums = sums_of_runs((interface.summed_count, interface.hidden_size))
        vectors = tuple(sums_of_runs((interface.hidden_size, interface.state_size)) for _ in interface.vector_parameters)
        shared = zip(interface.shared, call.shared, strict=True)
        dshared = tuple(recorder.with_room(arrays.array(f"dshared_{name}", array.shape, array.dtype)) for name, array in shared)
        dinputs = tuple(map(recorder.with_room_as_y, arrays.channel_inputs("dinput", call.rows, call.time)))
        gradients = Gradients(dx, arrays.states("dinitial", call.batch), sums, dshared, vectors, dinputs)
        if call.R is None:
            return gradients, None
        sizes, hidden = (call.rows, call.time), interface.hidden_size
        places = self.plans["backward"].places_by_round
        outputs, *arguments = [recorder.room((*sizes, hidden), arrays.real) for _ in places]
        dproducts = recorder.room((*sizes, len(interface.recurrent_gates), hidden), arrays.real)
        return gradients, ProductGradients("bth", outputs, dproducts, tuple(arguments), places)

    def _store_sums(self, recorder: HostRecorder, run: int, gradients: Gradients) -> None:
        """Store the sums of a direction in the type of their arrays."""
        interface, real = self.source.interface, self._arrays.real
        hidden, (sums, vectors) = interface.hidden_size, (gradients.sums, gradients.vectors)
        assert sums is not None
        for name, _, first, count in self.source.sums:
            of_name, target = sums.narrowed(1, first, count), self._of_run(name, run, (count, hidden), real)
            recorder.call("store_sums", of_name.pointer, target, count * hidden)
        for name, vector in zip(interface.vector_parameters, vectors, strict=True):
            shape = hidden, interface.state_size
            recorder.call("store_sums", vector.pointer, self._of_run(f"dparameter_{name}", run, shape, real), math.prod(shape))

    def _recurrent_gradient(self, recorder: HostRecorder, run: int, extra: ProductGradients, room: Array) -> None:
        """Multiply the gradients of a direction's products by the products' operands, gate by gate in one room."""
        interface, dproducts = self.source.interface, extra.dproducts
        assert dproducts is not None
        shape = (len(interface.runs_reversed), *interface.R_shape[-4:])
        of_run = self._arrays.array("dR", shape, self._arrays.storage).selected(0, run)
        for places, multiplied in zip(extra.places, (extra.outputs, *extra.arguments), strict=True):
            for place in places:
                of_gate, target = dproducts.selected(2, place).pointer, of_run.selected(0, place).pointer
                recorder.call("recurrent_gradient", of_gate, multiplied.pointer, room.pointer, target)

    def _through_projection(self, recorder: HostRecorder, call: Call, gradient: Array) -> None:
        """Multiply the gradient of the pre-activations by the weight, and by x."""
        arrays, weight = self._arrays, call.weight
        assert weight is not None
        products = ("x_gradient", "dx", call.x, weight), ("weight_gradient", "dweight", weight, call.x)
        for function, name, like, other in products:
            room, target = recorder.room(like.shape, arrays.real, name), arrays.array(name, like.shape, like.dtype)
            recorder.call(function, gradient.pointer, other.pointer, room.pointer, target.pointer)
