"""Recorder of an exported call: buffers, and operations on them and on the call's arrays."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.call.address import place_in
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.codegen.signature import names_of, signature
from minrnn_gen.export.source import AXIS_WORDS, ExportSource
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization, StatesOut
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program import data
from minrnn_gen.program.data import At
from minrnn_gen.program.number import Decisions, Expr, Number, most, symbol
from minrnn_gen.run.cuda import STRIDING_BLOCKS
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.describer import ALL_ONES, DescribedKernel, Describer, PlannedKernels
from minrnn_gen.run.recording.replay import Finished


class Room(NamedTuple):
    """Bytes that a call works on, unless the array in their slot is given; needed only where one of the arrays `of` is."""

    slot: int
    size_bytes: Number
    of: tuple[int, ...] = ()


class Described(NamedTuple):
    """One path through a call: its rooms, then its operations, in which kernels are numbers."""

    rooms: tuple[Room, ...]
    operations: tuple[Any, ...]


Paths = tuple[tuple[Decisions, Described], ...]


@dataclass(frozen=True)
class CallArrays:
    """The arrays of a call of an export."""

    source: ExportSource

    def array(self, name: str, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Array:
        """Return an array by its name, without gaps where no strides are given."""
        place = place_in(self.source.slots.index(name))
        return Array(name, "cupy", None, place, shape, strides or contiguous_strides(shape), dtype, 0)

    @property
    def storage(self) -> str:
        """The dtype of x, weights and y."""
        return self.source.interface.precision.storage_dtype

    @property
    def real(self) -> str:
        """The dtype of states, biases and parameters."""
        return self.source.interface.precision.arithmetic_dtype

    def strides(self, name: str, axes: str) -> tuple[int, ...]:
        """Return the strides of x, y or resets as symbols, but those along which kernels for GPUs take no gaps."""
        interface = self.source.interface
        time_last, whole = interface.layout == "BDT", ""
        if self.source.is_dispatched and name != "resets" and not (interface.recurrent_gates and time_last):
            whole = "t" if time_last else "h"
        return tuple(1 if axis == whole else symbol(f"{name}_{AXIS_WORDS[axis]}") for axis in axes)

    def x(self, name: str, rows: int, time: int, axes: str) -> Array:
        """Return x or its gradient."""
        interface = self.source.interface
        strides = None if interface.input_size else self.strides(name, axes)
        return self.array(name, interface.shape(axes, rows, time), self.storage, strides)

    def channel_inputs(self, prefix: str, rows: int, time: int, is_step: bool = False) -> tuple[Array, ...]:
        """Return the inputs X.*, or their gradients, which lie as y does."""
        interface = self.source.interface
        y_axes, axes = ("bh", "bh") if is_step else (Y_AXES[interface.layout], interface.channel_axes)
        by_axis = dict(zip(y_axes, self.strides("y", y_axes), strict=True))
        by_axis["d"] = by_axis["h"] * interface.hidden_size
        shape, strides = interface.shape(axes, rows, time), tuple(by_axis[axis] for axis in axes)
        return tuple(self.array(f"{prefix}_{name}", shape, self.storage, strides) for name in interface.inputs)

    def states(self, prefix: str, batch: int) -> tuple[Array, ...]:
        """Return states of sequences, or their gradients."""
        interface = self.source.interface
        shapes = {name: interface.shape_of_state(name, batch) for name in interface.states}
        return tuple(self.array(f"{prefix}_{name}", shape, self.real) for name, shape in shapes.items())

    def outputs(self, call: Call, states_out: StatesOut) -> list[Array]:
        """Return y, and the states after every step."""
        interface = self.source.interface
        shape, strides = interface.y_shape(call.rows, call.time), self.strides("y", Y_AXES[interface.layout])
        outputs = [self.array("y", shape, self.storage, strides)]
        if states_out != "none":
            dtype = self.real if states_out == "arithmetic" else self.storage
            for name in interface.states:
                is_vector = name in interface.vector_states
                of_state = interface.states_shape(name, call.rows, call.time)
                outputs.append(self.array(f"states_{name}", of_state, dtype, None if is_vector else strides))
        return outputs

    def call(self, packed: bool, resets: bool, is_step: bool = False, is_plain: bool = False) -> Call:
        """Return a call; where no kernel serves packed sequences alone, the call itself says whether it is packed.

        In a call that `is_plain`, all sequences have the same number of steps, at least one.
        """
        source, interface = self.source, self.source.interface
        dense, on_gpu, new = bool(interface.recurrent_gates), source.is_dispatched, self.array
        batch, time = symbol("batch", int(on_gpu)), 1 if is_step else symbol("time", int(is_plain))
        if source.has_cu_seqlens and not is_step and (dense or not on_gpu):
            packed = bool(symbol("is_packed", 0, 1))
        has_lengths = on_gpu and not (packed or is_step or is_plain) and bool(symbol("has_lengths", 0, 1))
        rows = (1 if packed else batch) if on_gpu else symbol("rows")
        axes, shared_axes = (axes.replace("t", "") if is_step else axes for axes in (interface.x_axes, interface.shared_axes))
        gates, parameters = (*interface.directions, len(interface.gates), interface.hidden_size), interface.parameters
        shared = interface.shape(shared_axes, rows, time)
        return Call(
            x=self.x("x", rows, time, axes),
            x_axes=axes,
            rows=rows,
            time=time,
            weight=new("weight", (interface.weight_rows, interface.input_size), self.storage) if interface.input_size else None,
            bias=new("bias", gates, self.real),
            parameters=tuple(new(f"parameter_{name}", interface.shape_of_parameter(name), self.real) for name in parameters),
            initial=self.states("initial", batch),
            sequences=Sequences(
                batch,
                new("resets", (rows, time), "bool", self.strides("resets", "bt")) if resets else None,
                new("lengths", (batch,), "int64") if has_lengths else None,
                new("cu_seqlens", (batch + 1,), "int64") if packed else None,
            ),
            R=new("R", interface.R_shape, self.storage) if dense else None,
            recurrent_bias=new("recurrent_bias", interface.recurrent_bias_shape, self.real)
            if interface.takes_recurrent_bias
            else None,
            shared=tuple(new(f"shared_{name}", shared, self.storage) for name in interface.shared),
            inputs=self.channel_inputs("input", rows, time, is_step),
        )


@dataclass
class Backend:
    """Kernels of a described call, and their numbers.

    `provided` are the caller's arrays that the next run allocates first; None allocates one.
    """

    source: ExportSource
    builder: Builder
    keys: Sequence[KernelKey]
    numbers: Mapping[KernelKey, int]
    provided: Sequence[Array | None] = ()
    built: Mapping[KernelKey, BuiltKernel] = field(default_factory=dict)
    has_graphs: bool = False
    has_lanes: bool = False
    joins_products: bool = False  # an export has kernels of its own for each variant of a call

    def begin(self, like: Array, _keyed: KeyedArrays | None, _operands: Iterable[Array | None]) -> Recorder:
        self.recorder = Recorder(self, like)
        return self.recorder

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel of a pass in a direction; a kernel that reads the direction from the call serves both."""

        def likeness(key: KernelKey) -> tuple[bool, bool]:
            own = key.specialization
            return own.input_size == specialization.input_size, own.reverse == specialization.reverse

        # A step without a kernel of its own is a forward of one step.
        return max([key for key in self.keys if key.kernel_pass == kernel_pass] or self.keys, key=likeness)

    @property
    def projecting(self) -> KernelKey | None:
        """The kernel of a scan that multiplies x itself, for some of the calls."""
        return next((key for key in self.keys if key.specialization.input_size), None)

    def plan(self, kernel: KernelKey) -> KernelPlan:
        return self.builder.build(kernel).plan

    def build_ahead(self, *_request: Any) -> None:
        """Build nothing."""

    def striding_blocks(self, _rows: int) -> int:
        return STRIDING_BLOCKS

    @property
    def half(self) -> Backend:
        raise NotImplementedError


class RoomRecorder(Describer):
    """A call being described, whose buffers are rooms."""

    def __init__(self, source: ExportSource, like: Array, kernels: PlannedKernels | None = None) -> None:
        super().__init__(like, len(source.slots), kernels, lambda _: 0)
        self.source, self.rooms = source, list[Room]()

    def room(self, shape: tuple[int, ...], dtype: str, *of: str) -> Array:
        """Return a room as an array; it is needed only where one of the arrays `of` is present."""
        return self.with_room(super().new_array(shape, dtype), *of)

    def with_room(self, array: Array, *of: str) -> Array:
        """Return an array with a room unless the call passes it."""
        slot = array.address.slot
        assert slot is not None
        self.rooms.append(Room(slot, math.prod(array.shape) * array.itemsize, tuple(map(self.slot, of))))
        return array

    def with_room_as_y(self, array: Array) -> Array:
        """Return an array laid out like y, gaps included, with a room unless the call passes it."""
        return replace(self.with_room(replace(array, shape=(symbol("span"),))), shape=array.shape)

    def call(self, function: str, *arguments: Any) -> None:
        """Record a call of a function of the export's C."""
        self.note(data.Called(function, tuple(map(self._source, arguments))))

    def slot(self, name: str) -> int:
        """Return the slot of an array of the call."""
        return self.source.slots.index(name)

    def _name(self, slot: int) -> str:
        slots = self.source.slots
        return slots[slot] if slot < len(slots) else ""

    def described(self) -> Described:
        """Return the path that was described."""
        return Described(tuple(self.rooms), tuple(self._operations))


class Recorder(RoomRecorder):
    """A call on a GPU: fills are operations, and its first allocations are the caller's arrays."""

    def __init__(self, backend: Backend, like: Array) -> None:
        super().__init__(backend.source, like, backend)
        self._backend, self._provided = backend, deque(backend.provided)
        self.zeroed: list[int | None] = []
        self._shared_bytes: dict[str, Number] = {}

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        array_of_caller = self._provided.popleft() if self._provided else None
        array = array_of_caller or super().new_array(shape, dtype)
        slot = array.address.slot
        assert slot is not None
        name = self._name(slot)
        if name.startswith("dinput_"):
            self.with_room_as_y(array)
        elif name != "y" and not name.startswith("states_"):
            self.with_room(array)
        if fill is not None:
            self.call("fill", array.pointer, fill, math.prod(shape) * array.itemsize)
        return array

    def workspace(self, size_bytes: int) -> Array | None:
        if not isinstance(size_bytes, Expr) and not size_bytes:
            return None
        array = self._shared("workspace", size_bytes)
        self.call("fill", array.pointer, ALL_ONES, size_bytes)
        return array

    def _shared(self, name: str, size_bytes: Number) -> Array:
        self._shared_bytes[name] = most(size_bytes, self._shared_bytes.get(name, 0))
        return CallArrays(self.source).array(name, (size_bytes,), "uint8")

    def cast(self, array: Array, dtype: str) -> Array:
        if array.dtype == dtype:
            return array
        source = array.address.slot
        assert source is not None
        # States after every step are laid out like y, gaps included.
        count = symbol("span") if self._name(source).startswith("states_") else math.prod(array.shape)
        target = self.new_array((count,), dtype)
        self.needed_for((target.address.slot,), source)
        self.call("store", array.pointer, target.pointer, count, 1, 1, count)
        return replace(array, pointer=target.pointer, dtype=dtype)

    def contiguous(self, array: Array) -> Array:
        return array  # kernels take the strides of an export's arrays

    def load(self, kernel: KernelKey, part: str = "") -> DescribedKernel:
        plan, number = self._backend.plan(kernel), self._backend.numbers[kernel]
        resident: Any = Expr("resident", (number,), 1, 1 << 31)  # as many as the device holds, at most those of the plan
        of_step = plan.problem.kernel_pass == "step"
        # Calls of "projected" have arrays in its layout.
        if plan.strategy not in ("stepwise", "elementwise", "projected") and (plan.problem.has_matrix or not of_step):
            self.call("check_step" if of_step else "check", plan.problem.specialization.alignment_bytes)
        return DescribedKernel(self, data.KernelRef(number, part), plan, lambda: resident)

    def launch(self, kernel: data.KernelRef, plan: KernelPlan, launch: Launch) -> None:
        kernel_pass = cast(KernelPass, plan.problem.kernel_pass)
        names = names_of(self._backend.builder.lowered_for(kernel_pass))
        parameters = signature(plan, names, kernel.part)
        pairs = zip(parameters, launch.arguments, strict=True)
        arguments = tuple(self._slot_of(parameter.source, argument) for parameter, argument in pairs)
        self.note(data.Launch(kernel, launch.blocks, 0, arguments))

    def _slot_of(self, source: str, argument: Any) -> Any:
        if source == "launch.float32_vectors":
            return data.Mask(int(argument)) if argument else 0
        if source == "call.sequences.lengths" and argument == 0 and type(argument) is int:
            return At(self.slot("lengths"), 0)  # absent, and so null
        if isinstance(argument, float | numpy.floating):
            return int.from_bytes(numpy.asarray(argument).tobytes(), "little")
        return int(argument) if isinstance(argument, numpy.integer) else self._source(argument)

    def multiply(self, product: Any, _workspace: int | None = None) -> None:
        self._shared("products", symbol("CUBLAS_BYTES", 1))
        super().multiply(product)

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Any:
        """Return a separate room for each piece; products share one room."""
        sizes = {name: size for name, size in sizes_bytes.items() if name not in ("call", "cublas")}
        rooms = {name: self.new_array((size,), "uint8").address for name, size in sizes.items()}
        return super().scratch({"call": sizes_bytes["call"]}).beside(**rooms, cublas=0)

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        target = super().zeroed_beyond(x, axes, lengths)
        self.zeroed.append(target.address.slot)
        return target

    def needed_for(self, slots: Iterable[int | None], *of: int) -> None:
        """Omit buffers where no array in the slots `of` is present."""
        chosen = set(slots)
        self.rooms = [room._replace(of=of) if room.slot in chosen else room for room in self.rooms]

    def taken_by(self, slot: int | None, name: str) -> None:
        """Replace the allocation in a slot by the caller's array, which may be absent."""
        self.rooms = [room for room in self.rooms if room.slot != slot]
        at = self.slot(name)
        self._operations = [_moved(operation, {slot: at}) for operation in self._operations]

    def finish(self, result: Any, metadata: Any) -> Finished[Any, Any]:
        return Finished(result, metadata, None)

    def described(self) -> Described:
        rooms = [Room(self.slot(name), size) for name, size in self._shared_bytes.items()]
        return Described((*self.rooms, *rooms), tuple(self._operations))


def _moved(part: Any, slots: Mapping[int | None, int]) -> Any:
    if isinstance(part, At):
        return part._replace(slot=slots.get(part.slot, part.slot))
    return data.changed(part, lambda inner: _moved(inner, slots)) if data.has_members(part) else part
