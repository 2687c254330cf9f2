"""The program of a plain call: described from a spec alone, and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.call.address import place_in
from minrnn_gen.call.arguments import Call, IncomingGradient
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.call.slots import FIXED, X
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program import data
from minrnn_gen.program.data import At, Gap, Program
from minrnn_gen.program.number import text
from minrnn_gen.run.cuda import STRIDING_BLOCKS
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.kept import asked_by_backward
from minrnn_gen.run.recording.describer import Describer
from minrnn_gen.run.recording.replay import Finished

_INDENT = "  "


@dataclass
class PlannedOnly:
    """The kernels of a builder, planned and not compiled."""

    builder: Builder
    plans: dict[KernelKey, KernelPlan] = field(default_factory=dict)

    @property
    def half(self) -> PlannedOnly:
        """The kernels for half of the GPU."""
        return PlannedOnly(self.builder.half)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self.builder.choose(kernel_pass, specialization, sizes)

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel."""
        if kernel not in self.plans:
            self.plans[kernel] = self.builder.solve(kernel).plan()
        return self.plans[kernel]


class _Run(Describer):
    """A run that is described but not performed."""

    def __init__(self, backend: PlannedBackend, like: Array) -> None:
        self._backend = backend
        super().__init__(like, backend.inputs, backend.kernels)

    def finish(self, result: Any, metadata: Any) -> Finished[Any, Any]:
        """Leave the program with the backend."""
        self._backend.program = self.program(result, metadata)
        return Finished(result, metadata, None)


class PlannedBackend:
    """A backend that describes runs of calls with `inputs` slots, and performs none; `program` is that of the last run."""

    has_graphs = has_lanes = False
    joins_products = True
    program: Program

    def __init__(self, kernels: PlannedOnly, inputs: int) -> None:
        self.kernels, self.inputs = kernels, inputs
        self.built: Mapping[KernelKey, BuiltKernel] = {}

    @property
    def half(self) -> PlannedBackend:
        """Describes runs of kernels for half of the GPU."""
        return PlannedBackend(self.kernels.half, self.inputs)

    def without_graphs(self) -> PlannedBackend:
        """Return this backend."""
        return self

    def takes(self, _call: Call) -> bool:
        """Say that every call is described."""
        return True

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel."""
        return self.kernels.plan(kernel)

    def build_ahead(self, _kernel_pass: KernelPass, _specialization: Specialization, _sizes: Sizes) -> None:
        """Build nothing."""

    def prepare_gradients(self) -> None:
        """Prepare nothing."""

    def begin(self, like: Array, _keyed: KeyedArrays | None, _operands: Iterable[Array | None]) -> _Run:
        """Begin a description."""
        return _Run(self, like)

    @staticmethod
    def graph(*_arguments: Any) -> None:
        """Return None: steps are in loops."""
        return

    @staticmethod
    def striding_blocks(_rows: int) -> int:
        """Return the number of blocks of a kernel that strides over all elements."""
        return STRIDING_BLOCKS


def plain_program(builder: Builder, kernel_pass: KernelPass, sizes: Sizes) -> str:
    """Return the program of a call with contiguous arrays, a bias and no initial states, in words.

    Kernels are planned, none is compiled. Raises BadInput for a pass that the spec lacks.
    """
    program, names, plan = plain_call(builder, kernel_pass, sizes)
    has_time = kernel_pass != "step" and sizes.time > 1
    heading = f"program of a {kernel_pass} with batch {sizes.batch}" + (f", time {sizes.time}" if has_time else "")
    return "\n".join((heading, *_lines(program, names, plan)))


def plain_call(
    builder: Builder, kernel_pass: KernelPass, sizes: Sizes
) -> tuple[Program, dict[int, str], Callable[[KernelKey], KernelPlan]]:
    """Return the program of such a call, the names of its slots, and the plans of its kernels."""
    interface = interface_of(builder, builder.cell_shape)
    if kernel_pass == "step" and interface.directions:
        raise BadInput("a step needs one direction, but the spec is bidirectional; allowed for it: pass forward")
    if kernel_pass == "backward" and not builder.spec.training:
        raise BadInput("a backward needs training: true, but the spec says false; allowed for it: pass forward")
    call, names = _arrays_of(interface, sizes, kernel_pass == "step")
    backend = PlannedBackend(PlannedOnly(builder), interface.slots.total)
    run = GpuRun(interface, builder, backend)
    if kernel_pass == "step":
        run.step(call)
    else:
        saves = kernel_pass == "backward"
        forward = run.forward(call, asked_by_backward(builder) if saves else "none", saves)
        names |= _names_of(backend.program)
        if saves:
            first = backend.inputs + len(backend.program.buffers)
            backend.inputs = first + 1 + len(interface.states)
            shape = interface.y_shape(sizes.batch, sizes.time)
            dy = _array("dy", shape, interface.precision.storage_dtype, first)
            run.perform_backward(forward, IncomingGradient(dy, (None,) * len(interface.states), KeyedArrays((), [], [])))
            names |= {first: "dy"}
    program = backend.program
    names |= {slot: f"d{name}" if kernel_pass == "backward" else name for slot, name in _names_of(program).items()}
    return program, names, backend.plan


def _array(name: str, shape: tuple[int, ...], dtype: str, slot: int) -> Array:
    return Array(name, "torch", None, place_in(slot), shape, contiguous_strides(shape), dtype, 0)


def _arrays_of(interface: Interface, sizes: Sizes, is_step: bool) -> tuple[Call, dict[int, str]]:
    """Return a call with an array in each required slot, and the names of the slots."""
    precision, batch, time = interface.precision, sizes.batch, 1 if is_step else sizes.time
    axes = interface.x_axes.replace("t", "") if is_step else interface.x_axes
    shared_axes = interface.shared_axes.replace("t", "") if is_step else interface.shared_axes
    storage, carried = precision.storage_dtype, precision.arithmetic_dtype
    shapes: dict[str, tuple[tuple[int, ...], str]] = {"x": (interface.shape(axes, batch, time), storage)}
    if interface.recurrent_gates:
        shapes["R"] = (interface.R_shape, storage)
    if interface.input_size:
        shapes["weight"] = ((interface.weight_rows, interface.input_size), storage)
    shapes["bias"] = ((*interface.directions, len(interface.gates), interface.hidden_size), carried)
    arrays = {name: _array(name, *shapes[name], FIXED.index(name)) for name in shapes}
    slots = interface.slots
    parameters = {
        name: _array(name, interface.shape_of_parameter(name), carried, slot)
        for slot, name in enumerate(interface.parameters, slots.parameters.start)
    }
    shared = {
        name: _array(name, interface.shape(shared_axes, batch, time), storage, slot)
        for slot, name in enumerate(interface.shared, slots.shared.start)
    }
    channel_axes = interface.channel_axes.replace("t", "") if is_step else interface.channel_axes
    inputs = {
        name: _array(name, interface.shape(channel_axes, batch, time), storage, slot)
        for slot, name in enumerate(interface.inputs, slots.inputs.start)
    }
    others = [*parameters.values(), *(None for _ in interface.states), *shared.values(), *inputs.values()]
    flat = [*map(arrays.get, FIXED), *others]
    call = Call(
        x=arrays["x"],
        x_axes=axes,
        rows=batch,
        time=time,
        weight=arrays.get("weight"),
        bias=arrays["bias"],
        parameters=tuple(parameters.values()),
        initial=(None,) * len(interface.states),
        sequences=Sequences(batch),
        R=arrays.get("R"),
        shared=tuple(shared.values()),
        inputs=tuple(inputs.values()),
    )
    return call, {slot: array.name for slot, array in enumerate(flat, X) if array is not None}


def _names_of(program: Program) -> dict[int, str]:
    """Return the names of the slots of a program's results."""
    named: dict[int, str] = {}
    for name, value in zip(program.results._fields, program.results, strict=True):
        slots = value if isinstance(value, tuple) else (value,)
        for number, slot in enumerate(slots):
            if slot is not None:
                named[slot] = f"{name}[{number}]" if isinstance(value, tuple) else name
    return named


def _lines(program: Program, names: Mapping[int, str], plan: Callable[[KernelKey], KernelPlan]) -> Iterator[str]:
    yield "buffers"
    for buffer in program.buffers:
        size = ", ".join(map(text, buffer.shape))
        fill = "" if buffer.fill is None else f", filled with {buffer.fill:#04x}"
        yield f"{_INDENT}{_name(names, buffer.slot)}: {buffer.dtype} [{size}]{fill}"
    for cast in program.casts:
        yield f"{_INDENT}{_name(names, cast.slot)} is {_name(names, cast.source)} as {cast.dtype}"
    yield "operations"
    for operation in program.operations:
        yield from _operation(operation, names, plan, _INDENT)


def _operation(operation: Any, names: Mapping[int, str], plan: Callable[[KernelKey], KernelPlan], indent: str) -> Iterator[str]:
    def place(at: At) -> str:
        name = _name(names, at.slot)
        return name if isinstance(at.offset_bytes, int) and not at.offset_bytes else f"{name} + {text(at.offset_bytes)} B"

    match operation:
        case data.Launch(kernel, blocks, threads, arguments):
            places = [source for source in arguments if isinstance(source, At)]
            places += [end for source in arguments if isinstance(source, Gap) for end in (source.first, source.second)]
            entry = plan(kernel.key).entry + kernel.part  # type: ignore[arg-type]  # a key of the planner's
            on = ", ".join(dict.fromkeys(map(place, places)))
            yield f"{indent}launch {entry}, {text(blocks)} blocks of {threads} threads, on {on}"
        case data.Multiply(m, n, k, left, right, result, batch, adds, in_tf32):
            sizes = f"[{text(m)}, {text(k)}] x [{text(k)}, {text(n)}]" + (f", {text(batch)} times" if batch != 1 else "")
            how = f"{' in tf32' if in_tf32 else ''}{', added' if adds else ''}"
            yield f"{indent}multiply {place(left.at)} by {place(right.at)} to {place(result.at)}, {sizes}{how}"
        case data.CopyHeadsFirst(_, _, source, target):
            yield f"{indent}copy {place(source)} to {place(target)}, heads first"
        case data.Loop(index, start, stop, step, body):
            yield f"{indent}repeat for {index} from {text(start)} to {text(stop)}" + (f" by {text(step)}" if step != 1 else "")
            for inner in body:
                yield from _operation(inner, names, plan, indent + _INDENT)
        case _:
            raise TypeError(f"a plain call has no {operation!r}")


def _name(names: Mapping[int, str], slot: int | None) -> str:
    return names.get(slot, f"slot {slot}") if slot is not None else "an array"
