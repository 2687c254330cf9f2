"""What records an exported call: rooms, and operations on them and on the arrays that the call is given."""

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
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.codegen.signature import names_of, signature
from minrnn_gen.export.source import ExportSource
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program import data
from minrnn_gen.program.data import At
from minrnn_gen.program.number import Decisions, Expr, Number, most, symbol
from minrnn_gen.run.cuda import STRIDING_BLOCKS
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.describer import DescribedKernel, Describer
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


def array_of(
    source: ExportSource, name: str, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None
) -> Array:
    """Return an array of a call by its name, without gaps where no strides are given."""
    place = place_in(source.slots.index(name))
    return Array(name, "cupy", None, place, shape, strides or contiguous_strides(shape), dtype, 0)


@dataclass
class Backend:
    """What a call is described with: its kernels, and their numbers.

    `provided` are the arrays that the next run allocates first: those of the caller, or None for one of its own.
    """

    source: ExportSource
    builder: Builder
    keys: Sequence[KernelKey]
    numbers: Mapping[KernelKey, int]
    provided: Sequence[Array | None] = ()
    built: Mapping[KernelKey, BuiltKernel] = field(default_factory=dict)
    has_graphs: bool = False
    has_lanes: bool = False

    def begin(self, like: Array, _keyed: KeyedArrays | None, _operands: Iterable[Array | None]) -> Recorder:
        self.recorder = Recorder(self, like)
        return self.recorder

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel of a pass in a direction; one that is read off a call serves either direction."""

        def likeness(key: KernelKey) -> tuple[bool, bool]:
            own = key.specialization
            return own.input_size == specialization.input_size, own.reverse == specialization.reverse

        return max((key for key in self.keys if key.kernel_pass == kernel_pass), key=likeness)

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


class Recorder(Describer):
    """A call being described: fills are operations, and the arrays that it allocates first are those of the caller."""

    def __init__(self, backend: Backend, like: Array) -> None:
        super().__init__(like, len(backend.source.slots), backend, lambda _: 0)
        self._backend, self._provided = backend, deque(backend.provided)
        self.rooms: list[Room] = []
        self.zeroed: list[int | None] = []
        self._shared_bytes: dict[str, Number] = {}

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        array_of_caller = self._provided.popleft() if self._provided else None
        array = array_of_caller or super().new_array(shape, dtype)
        slot, size_bytes = array.address.slot, math.prod(shape) * array.itemsize
        assert slot is not None
        name = self._name(slot)
        if name != "y" and not name.startswith("states_"):
            self.rooms.append(Room(slot, size_bytes))
        if fill is not None:
            self.note(data.Fill(At(slot, 0), fill, size_bytes))
        return array

    def slot(self, name: str) -> int:
        """Return the slot of an array of the call."""
        return self._backend.source.slots.index(name)

    def _name(self, slot: int) -> str:
        slots = self._backend.source.slots
        return slots[slot] if slot < len(slots) else ""

    def workspace(self, size_bytes: int) -> Array | None:
        if not isinstance(size_bytes, Expr) and not size_bytes:
            return None
        array = self._shared("workspace", size_bytes)
        self.note(data.Fill(At(array.address.slot, 0), 255, size_bytes))
        return array

    def _shared(self, name: str, size_bytes: Number) -> Array:
        self._shared_bytes[name] = most(size_bytes, self._shared_bytes.get(name, 0))
        return array_of(self._backend.source, name, (size_bytes,), "uint8")

    def cast(self, array: Array, dtype: str) -> Array:
        if array.dtype == dtype:
            return array
        source = array.address.slot
        assert source is not None
        # States after every step lie as y does, gaps included.
        count = symbol("span") if self._name(source).startswith("states_") else math.prod(array.shape)
        target = self.new_array((count,), dtype)
        slot = target.address.slot
        assert slot is not None
        self.needed_for((slot,), source)
        self.note(data.Store(At(source, 0), At(slot, 0), count, 1, 1, count))
        return replace(array, pointer=target.pointer, dtype=dtype)

    def contiguous(self, array: Array) -> Array:
        return array  # kernels take the strides of an export's arrays

    def load(self, kernel: KernelKey, part: str = "") -> DescribedKernel:
        plan, number = self._backend.plan(kernel), self._backend.numbers[kernel]
        resident: Any = Expr("resident", (number,), 1, 1 << 31)  # as many as the device holds, at most those of the plan
        of_step = plan.problem.kernel_pass == "step"
        # Calls of "projected" are those whose arrays lie as it takes them.
        if plan.strategy not in ("stepwise", "elementwise", "projected") and (plan.problem.has_matrix or not of_step):
            self.note(data.Check(plan.problem.specialization.alignment_bytes, of_step))
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
        """Return a room of its own for each piece; products work in one that all share."""
        sizes = {name: size for name, size in sizes_bytes.items() if name not in ("call", "cublas")}
        rooms = {name: self.new_array((size,), "uint8").address for name, size in sizes.items()}
        return super().scratch({"call": sizes_bytes["call"]}).beside(**rooms, cublas=0)

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        target = super().zeroed_beyond(x, axes, lengths)
        self.zeroed.append(target.address.slot)
        return target

    def needed_for(self, slots: Iterable[int | None], *of: int) -> None:
        """Leave rooms out where none of the arrays in slots `of` is given."""
        chosen = set(slots)
        self.rooms = [room._replace(of=of) if room.slot in chosen else room for room in self.rooms]

    def taken_by(self, slot: int | None, name: str) -> None:
        """Have the caller's array be what was allocated in a slot, and nothing where it is absent."""
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
