"""Runs that come again on arrays at the same addresses: one graph in place of their launches, and the same results."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.native_part import DriverOnHost, KernelOnHost, library, using

from minrnn_gen.call.address import Address
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import StepResult
from minrnn_gen.gpu import cublas, device, retired, stream
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.run.recording import operations
from minrnn_gen.run.recording.layout import Allocated, laid_out
from minrnn_gen.run.recording.operations import LaunchOperation, ProductOperation, Program
from minrnn_gen.run.recording.replay import Replay, Trace

torch = pytest.importorskip("torch")
PLACE = Place("torch", 0)
SIZE = 4
# Slots: left and right are the call's, the others are allocated.
LEFT, RIGHT, RESULT, FILLED, SCRATCH = range(5)


class Memory:
    """Allocates tensors of torch: any of the same size at the address of the first one of `turn`."""

    def __init__(self) -> None:
        self.turn, self.offset_bytes = 0, 0
        self._held: dict[tuple[Any, ...], Any] = {}
        self._count = 0

    def begin(self, turn: int) -> None:
        """Have what is allocated next be at the addresses of that turn."""
        self.turn, self._count = turn, 0

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """Allocate as torch does, 16 bytes aligned and `offset_bytes` further."""
        size_bytes = math.prod(shape) * dtype.itemsize
        self._count += 1
        room = self._held.setdefault((self.turn, self._count), torch.empty(size_bytes + 64, dtype=torch.uint8))
        first = -room.data_ptr() % 16 + self.offset_bytes
        return room[first : first + size_bytes].view(dtype).as_strided(shape, strides)


class Case(NamedTuple):
    """A run of a product, a fill and two kernels, and where it is done."""

    trace: Trace[Any, Any]
    made: DriverOnHost
    memory: Memory

    def run(self, turn: int, inputs: Any) -> Replay[Any, Any]:
        """Do it on inputs, with memory of a turn, and check what came out."""
        self.memory.begin(turn)
        left, right = inputs
        replay = self.trace.replay(KeyedArrays((), [*inputs], [left.data_ptr(), right.data_ptr()]))
        np.testing.assert_allclose(replay.result.y, (left @ right + 1).numpy(), rtol=1e-12)
        assert replay.arrays[FILLED].tolist() == [0x0101010101010101]
        return replay


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    made, memory, workspace = DriverOnHost(), Memory(), np.empty(cublas.WORKSPACE_BYTES, np.uint8)
    monkeypatch.setattr(stream, "current_stream", lambda _: 5)
    monkeypatch.setattr(device, "on_device", lambda _: device._AS_IT_IS)
    monkeypatch.setattr(cublas, "handle", lambda: 1)
    monkeypatch.setattr(cublas, "workspace_on", lambda *_: workspace.ctypes.data)
    monkeypatch.setattr(operations, "torch_empty", lambda _: memory.empty)
    with using(library()), made.in_place():
        case = Case(_trace(made), made, memory)
        yield case
        _end(case)  # its graphs go while the driver that made them is in place


def _end(case: Case) -> None:
    """Let go of a program, whatever holds its case."""
    object.__setattr__(case.trace, "program", None)  # a trace is frozen


def _add_one(_blocks: int, _threads: int, addresses: list[int]) -> None:
    source, target = (np.ctypeslib.as_array((ctypes.c_double * SIZE**2).from_address(at)) for at in addresses)
    target[...] = source + 1


def _trace(made: DriverOnHost) -> Trace[Any, Any]:
    square = Allocation((SIZE, SIZE), (SIZE, 1), torch.float64, None)
    filled = Allocation((1,), (1,), torch.int64, 1)
    allocated = [Allocated.of(RESULT, square, 8), Allocated.of(FILLED, filled, 8), Allocated.of(SCRATCH, square, 8)]
    layout = laid_out(allocated, {RESULT, FILLED}, torch.uint8)
    matrices = (Matrix(Address(0, slot), "float64", SIZE) for slot in (LEFT, RIGHT, SCRATCH))
    kernel = KernelOnHost(made, _add_one, 2)
    program = Program(
        PLACE,
        (
            *layout.fills,
            ProductOperation(Product(SIZE, SIZE, SIZE, *matrices)),
            LaunchOperation(kernel, 1, 32, [0, 0], [(0, Address(0, SCRATCH)), (1, Address(0, RESULT))]),
        ),
    )
    return Trace((), PLACE, (square, filled, square), layout, (), program, StepResult(RESULT, ()), None)


def _inputs(seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(2, SIZE, SIZE))).unbind(0)


def test_the_third_run_on_the_same_memory_is_one_launch(case: Case) -> None:
    inputs = _inputs()
    for count in range(5):
        case.made.asked.clear()
        inputs[0].add_(1)  # the values are no part of what comes again
        case.run(0, inputs)
        kinds = [asked[0] for asked in case.made.asked]
        own = ["bytes", "multiply", "launch"]
        assert kinds == {0: own, 1: own * 2}.get(count, []), "run; run and captured; launched"
        assert len(case.made.graphs.launched) == max(0, count - 1)
    assert case.made.graphs.streams == 0, "the stream of the capture is gone"


def test_other_memory_is_another_run(case: Case) -> None:
    kept = [_inputs(seed) for seed in range(3)]
    for inputs in kept:
        case.run(0, inputs)
    for turn in (1, 2, 3):
        case.run(turn, kept[0])
    assert case.made.graphs.made == {}
    for _ in range(2):
        for turn, inputs in enumerate(kept):
            case.run(turn, inputs)
    case.run(0, kept[0])
    assert case.made.graphs.launched == [1, 1]


def test_another_stream_is_another_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs()
    for handle in (5, 6, 7):
        monkeypatch.setattr(stream, "current_stream", lambda _, handle=handle: handle)
        case.run(0, inputs)
    assert case.made.graphs.made == {}


def test_a_stream_that_a_caller_captures_gets_the_launches(case: Case) -> None:
    inputs, graphs = _inputs(), case.made.graphs
    for _ in range(2):
        case.run(0, inputs)
    graphs.is_captured = True
    for _ in range(2):
        case.run(0, inputs)
    other = _inputs(1)
    for _ in range(3):
        case.run(1, other)
    assert graphs.launched == [] and len(graphs.made) == 1


def test_where_the_driver_makes_no_graph_all_is_launched(case: Case) -> None:
    inputs, graphs = _inputs(), case.made.graphs
    graphs.refuses = True
    for _ in range(5):
        case.run(0, inputs)
    assert graphs.launched == [] and len(graphs.made) == 1, "it was tried once"
    assert graphs.streams == 0


def test_graphs_are_few(case: Case) -> None:
    inputs, graphs = _inputs(), case.made.graphs
    most = 0
    for first in range(0, 200, 10):
        for turn in (*range(first, first + 10), *range(first, first + 10)):
            case.run(turn, inputs)
            most = max(most, len(graphs.made))
    assert most == 16, "of one program"
    assert graphs.launched == [], "none of these came a third time"
    count = graphs.streams, len(case.made.asked)
    for turn in range(200, 210):
        for _ in range(2):
            case.run(turn, inputs)
    assert len(graphs.made) == 16 and graphs.streams == count[0], "what never pays is given up"


def test_graphs_of_a_program_that_is_gone_are_destroyed_before_the_next_capture(case: Case) -> None:
    """Whenever Python collects the program: a caller may be capturing a stream, and a graph destroyed then would end that."""
    inputs, graphs = _inputs(), case.made.graphs
    other = Case(_trace(case.made), case.made, case.memory)
    for turn in (0, 1, 0, 1):
        other.run(turn, inputs)
    graphs.is_captured = True
    _end(other)
    assert len(graphs.made) == 2
    case.run(2, inputs)
    graphs.is_captured = False
    for _ in range(2):
        case.run(3, inputs)
    assert [*graphs.made] == [3]


def test_other_graphs_outlive_their_owners_until_they_are_destroyed() -> None:
    class Owner: ...

    class Graph: ...

    owner, graph = Owner(), Graph()
    of_graph = weakref.ref(graph)
    retired.outlive(owner, graph)
    del graph
    retired.destroy_retired()
    assert of_graph() is not None, "its owner is there"
    del owner
    assert of_graph() is not None
    retired.destroy_retired()
    assert of_graph() is None


def test_a_process_that_met_many_shapes_makes_graphs_of_new_ones(case: Case) -> None:
    graphs, inputs = case.made.graphs, _inputs()
    many = [Case(_trace(case.made), case.made, Memory()) for _ in range(20)]
    for one in many:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operations, "torch_empty", lambda _, one=one: one.memory.empty)
            for turn in (*range(16), *range(16)):
                one.run(turn, inputs)
            assert len(graphs.made) <= 256, "in all"
            launched = len(graphs.launched)
            one.run(15, inputs)
            assert len(graphs.launched) == launched + 1
    assert len(graphs.made) == 256
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "torch_empty", lambda _: many[0].memory.empty)
        many[0].run(15, inputs)
    assert len(graphs.launched) == 20, "the oldest made room"
    for one in many:
        _end(one)
    for _ in range(2):
        case.run(0, inputs)
    assert len(graphs.made) == 1


def test_memory_that_is_not_aligned_is_allocated_anew(case: Case) -> None:
    inputs = _inputs()
    case.memory.offset_bytes = 8
    for _ in range(3):
        replay = case.run(0, inputs)
        assert all(address % 16 == 0 for address in replay.addresses[RESULT:])


def test_what_cannot_be_allocated_is_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("none is left")

    monkeypatch.setattr(operations, "torch_empty", lambda _: refuse)
    with pytest.raises(MemoryError, match="none is left"):
        case.run(0, _inputs())
    monkeypatch.setattr(operations, "torch_empty", lambda _: lambda *_: 5)
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        case.run(0, _inputs())


def test_never_in_the_environment_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that begins so."""
    from minrnn_gen.config.environment import makes_graphs
    from minrnn_gen.errors import BadInput

    assert makes_graphs()
    monkeypatch.setenv("MINRNN_GRAPHS", "never")
    assert not makes_graphs()
    monkeypatch.setenv("MINRNN_GRAPHS", "often")
    with pytest.raises(BadInput, match="MINRNN_GRAPHS"):
        makes_graphs()
