"""Calls whose sizes are symbols, described, and bound to the sizes that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.call_corpus import RESIDENT_BLOCKS, Options, PlannedKernels, arguments_of, gradients_of

from minrnn_gen.build.projected import projected_at
from minrnn_gen.call.address import place_in
from minrnn_gen.call.arguments import Call, IncomingGradient, with_slots
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.key import KeyedArrays, keyed
from minrnn_gen.call.validate import check_call, check_gradient
from minrnn_gen.gpu import memory
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.program.data import Program, bound, unrolled
from minrnn_gen.program.number import Expr, Undecided, divisor_of, symbol, value
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.recording.describer import Describer
from minrnn_gen.run.recording.replay import Finished

# Arrays of a run that is not replayed have the slots of their call.
SLOTTED = KeyedArrays((), [], [])


class Recorder(Describer):
    """A run that is described and not performed."""

    def __init__(self, backend: DescribingBackend, like: Array) -> None:
        self._backend = backend
        blocks = symbol("resident", 1) if backend.is_symbolic else RESIDENT_BLOCKS
        super().__init__(like, backend.inputs, backend.kernels, lambda _: blocks, gives_workspace=True)

    def finish(self, result: Any, metadata: Any) -> Finished[Any, Any]:
        """Leave the program with the backend."""
        self._backend.described = self.program(result, metadata)
        return Finished(result, metadata, None)


class DescribingBackend:
    """Describes runs; a call of the next one has `inputs` arrays."""

    has_graphs = has_lanes = False
    joins_products = True

    def __init__(self, kernels: PlannedKernels, inputs: int, is_symbolic: bool) -> None:
        self.kernels, self.inputs, self.is_symbolic = kernels, inputs, is_symbolic
        self.built, self.plan, self.build_ahead = kernels.built, kernels.plan, kernels.build_ahead
        self.described: Program | None = None

    def begin(self, like: Array, _keyed: Any, _operands: Any) -> Recorder:
        """Begin a description."""
        return Recorder(self, like)

    @staticmethod
    def striding_blocks(_rows: int) -> int:
        """Return how many blocks a GPU is given."""
        return 264


@contextmanager
def decided_by(sizes: dict[str, int]) -> Iterator[None]:
    """Decide what bounds do not as it is for these sizes: an exported call has a variant for it."""
    by_bounds = Expr.__bool__

    def decide(condition: Expr) -> bool:
        try:
            return by_bounds(condition)
        except Undecided:
            return bool(value(condition, sizes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expr, "__bool__", decide)
        yield


def with_symbols(array: Array | None, slot: int, sized: Callable[[int, int], Any], strides: Any = None) -> Array | None:
    """Return an array of a call with symbols for sizes; `sized` gives that of an axis by its number and size."""
    if array is None:
        return None
    shape = tuple(sized(axis, size) for axis, size in enumerate(array.shape))
    return replace(array, owner=None, pointer=place_in(slot), shape=shape, strides=strides or contiguous_strides(shape))


class Symbols:
    """The sizes of a call as symbols, and their values."""

    def __init__(self, call: Call) -> None:
        self.values = {"batch": call.batch, "time": call.time, "resident": RESIDENT_BLOCKS}
        # A call of one sequence, or of one step, is of another kind.
        self.batch = call.batch if call.batch == 1 else symbol("batch", 2, divisor=divisor_of(call.batch))
        self.time = call.time if call.time == 1 else symbol("time", 2, divisor=divisor_of(call.time))
        self.rows = 1 if call.sequences.cu_seqlens is not None else self.batch

    def call(self, interface: Any, call: Call) -> Call:
        """Return a call of symbols; pre-activations have strides of their own."""
        axes, slots, sequences = call.x_axes, interface.slots, call.sequences
        by_axis = {"b": self.rows, "t": self.time}
        strides = None
        if not interface.input_size:
            strides = tuple(
                stride if axis == axes[-1] else self._stride(axis, stride)
                for axis, stride in zip(axes, call.x.strides, strict=True)
            )
        x = with_symbols(call.x, 0, lambda axis, size: by_axis.get(axes[axis], size), strides)
        assert x is not None
        flat = call.flat()
        whole = [with_symbols(array, slot, lambda _, size: size) for slot, array in enumerate(flat)]
        first = slots.states.start
        initial = [self._state(interface, name, slot, flat[slot]) for slot, name in enumerate(interface.states, first)]
        resets, lengths, ends = (
            with_symbols(array, slot, lambda axis, _, sizes=sizes: sizes[axis])  # type: ignore[misc]
            for slot, (array, sizes) in enumerate(
                (
                    (sequences.resets, (self.rows, self.time)),
                    (sequences.lengths, (self.batch,)),
                    (sequences.cu_seqlens, (self.batch + 1,)),
                ),
                5,
            )
        )
        return replace(
            call,
            x=x,
            rows=self.rows,
            time=self.time,
            R=whole[1],
            weight=whole[2],
            bias=whole[3],
            parameters=tuple(whole[slots.parameters]),
            initial=tuple(initial),
            sequences=replace(sequences, count=self.batch, resets=resets, lengths=lengths, cu_seqlens=ends),
            keyed=None,
        )

    def incoming(self, interface: Any, incoming: IncomingGradient, first: int) -> IncomingGradient:
        """Return gradients of symbols, in slots from `first` on."""
        shape = interface.y_shape(self.rows, self.time)
        dy = with_symbols(incoming.dy, first, lambda axis, _: shape[axis])
        assert dy is not None
        pairs = zip(interface.states, incoming.dfinal, strict=True)
        dfinal = (self._state(interface, name, slot, array) for slot, (name, array) in enumerate(pairs, first + 1))
        return IncomingGradient(dy, tuple(dfinal), SLOTTED)

    def _state(self, interface: Any, name: str, slot: int, array: Array | None) -> Array | None:
        shape = interface.shape_of_state(name, self.batch)
        return with_symbols(array, slot, lambda axis, _: shape[axis])

    def _stride(self, axis: str, stride: int) -> Any:
        self.values[f"x_{axis}_stride"] = stride
        return symbol(f"x_{axis}_stride", 0, divisor=divisor_of(stride))


def bound_traces(kernel: Kernel, kernels: PlannedKernels, options: Options) -> Iterator[tuple[str, Any, Any]]:
    """Yield each pass of a call: its name, what it is with symbols that are bound, and what it is with integers."""
    interface, arguments = kernel.interface, arguments_of(kernel.interface, options)
    flat = arguments.flat(interface)
    assert flat is not None
    checked = check_call(interface, memory.inspect, lambda _: None, arguments, single_step=options.is_step)
    call = checked.with_slots(keyed("x", flat))
    symbols = Symbols(call)
    backends = [DescribingBackend(kernels, len(flat), is_symbolic) for is_symbolic in (True, False)]
    sizes = Sizes(call.batch, call.time)
    runs: list[Any] = [
        GpuRun(interface, kernel.builder, backend, lambda builder, _: projected_at(builder, sizes))  # type: ignore[arg-type]
        for backend in backends
    ]
    calls = symbols.call(interface, call), call
    with decided_by(symbols.values):
        if options.is_step:
            for run, each in zip(runs, calls, strict=True):
                run.step(each)
            yield ("step", *_programs(backends, symbols))
            return
        states_out = kernel.executor._states_out(options.all_states, options.saves)
        forwards = [run.forward(each, states_out, options.saves) for run, each in zip(runs, calls, strict=True)]
        yield ("forward", *_programs(backends, symbols))
        has_trace = not (options.lengths and interface.input_size)  # which the library masks
        if not options.saves:
            return
        program = backends[1].described
        assert program is not None
        first = len(flat) + len(program.buffers)
        for backend in backends:
            backend.inputs = first + 1 + len(interface.states)
        dy, dstate = gradients_of(interface, options)
        y = replace(forwards[1].outputs.y, library="torch")
        incoming = check_gradient(interface, memory.inspect, y, dy, dstate, call.batch)
        given, *finals = with_slots((incoming.dy, *incoming.dfinal), first)
        assert given is not None
        of_integers = IncomingGradient(given, tuple(finals), SLOTTED)
        gradients = symbols.incoming(interface, of_integers, first), of_integers
        for run, forward, arriving in zip(runs, forwards, gradients, strict=True):
            run.perform_backward(forward, arriving)
        if has_trace:
            yield ("backward", *_programs(backends, symbols))


def _programs(backends: list[DescribingBackend], symbols: Symbols) -> tuple[Any, Any]:
    programs = []
    for backend in backends:
        program = backend.described
        assert program is not None
        sizes = symbols.values if backend.is_symbolic else {}
        buffers, operations = bound(program.buffers, sizes), tuple(unrolled(program.operations, sizes))
        programs.append((buffers, program.casts, operations, tuple(program.results)))
    return programs[0], programs[1]
