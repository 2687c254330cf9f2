"""Calls that are replayed by C: the same keys, launches, products and results as by Python alone."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fake_device import LoadedOnHost, as_if_on_a_device, plain_loops_for
from support.fake_torch import Tensor, as_arrays, as_tensors, torch_on_host
from support.native_part import DriverOnHost, KernelOnHost, library, using
from support.sequence_cases import HIDDEN, assert_close, kernel_of

from minrnn_gen import native
from minrnn_gen.call.address import Address, PointerDifference
from minrnn_gen.call.key import keyed
from minrnn_gen.codegen.signature import signature
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import cublas, device, stream
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.driver import NO_CONTEXT
from minrnn_gen.native import trip
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run.recording.operations import FillOperation, LaunchOperation, ProductOperation, Program

PLACE = Place("torch", 0)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Functions of the driver and of cuBLAS on host memory, which C calls."""
    made = DriverOnHost()
    monkeypatch.setattr(stream, "current_stream", lambda _: 0)
    monkeypatch.setattr(device, "on_device", lambda _: device._AS_IT_IS)
    monkeypatch.setattr(cublas, "handle", lambda: 1)
    with using(library()), made.in_place():
        yield made


# ---- keys


def drawn_tensors(data: st.DataObject) -> list[Any]:
    torch = pytest.importorskip("torch")
    tensors: list[Any] = []
    for _ in range(data.draw(st.integers(1, 3))):
        dtype = data.draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64)))
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
        whole = torch.zeros((*shape, 2), dtype=dtype)
        tensor = data.draw(st.sampled_from((whole[..., 0], whole[..., 1], whole, whole.transpose(0, -1), whole.flatten()[1:])))
        tensors.append(data.draw(st.sampled_from((tensor, tensor, None))) if tensors else tensor)
    return tensors


@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_key_says_what_it_says_in_python(data: st.DataObject) -> None:
    """Equal where the other is, else different; and the addresses are the same."""
    pytest.importorskip("torch")
    first, second = drawn_tensors(data), drawn_tensors(data)
    found = []
    for part in (library(), None):
        with using(part):
            found.append([keyed("operation", tensors) for tensors in (first, second)])
    (one, two), (other_one, other_two) = found
    assert None not in (one, two, other_one, other_two)
    assert isinstance(one.key[1], bytes) and isinstance(other_one.key[1], tuple)
    assert (one.key == two.key) == (other_one.key == other_two.key)
    for by_c, by_python in zip(*found, strict=True):
        assert by_c.addresses == by_python.addresses


def test_what_has_no_key_in_python_has_none_in_c() -> None:
    torch = pytest.importorskip("torch")
    x, parameter = torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(3))

    class Other(torch.Tensor):
        """A tensor of another type."""

    without = {
        "recorded": parameter,
        "another type": torch.zeros(3).as_subclass(Other),
        "an array": np.zeros(3),
        "negated on the way": torch.zeros(3, dtype=torch.complex64).conj().imag,
        "conjugated on the way": torch.zeros(3, dtype=torch.complex64).conj(),
        "without values": torch.zeros(3, device="meta"),
        "zeros without memory": torch._efficientzerotensor((3,)),
        "sparse": torch.eye(3).to_sparse(),
    }
    for part in (library(), None):
        with using(part):
            for name, tensor in without.items():
                assert keyed("operation", [x, tensor]) is None, name
            assert keyed("operation", [x, torch.zeros(0, 3), torch.zeros(3)]) is not None
            with torch.no_grad():
                assert keyed("operation", [x, parameter]) is not None


def test_what_was_compiled_from_another_source_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    part = library()
    monkeypatch.setitem(sys.modules, "minrnn_gen.native._trip", part)
    monkeypatch.setattr(native, "_trip", part, raising=False)
    assert trip.library_of_source() is part
    assert {path.name for path in trip.SOURCES} == {path.name for path in trip.SOURCES[0].parent.glob("*.[ch]")}
    other = tmp_path / "trip.c"
    other.write_bytes(trip.SOURCES[0].read_bytes() + b"\n")
    for source in (other, tmp_path / "missing.c"):
        monkeypatch.setattr(trip, "SOURCES", (source, *trip.SOURCES[1:]))
        assert trip.library_of_source() is None


# ---- operations

SMALL, NUMBERS = st.integers(0, 7), st.integers(-(2**62), 2**62)
POINTERS = st.one_of(
    st.builds(lambda slot, offset: Address(0, slot, offset), st.integers(0, 2), st.integers(0, 99)),
    st.builds(
        lambda first, second, offset, size: PointerDifference(Address(0, first, offset), Address(0, second), size),
        *(st.integers(0, 2),) * 2,
        st.integers(0, 99),
        st.sampled_from((1, 2, 4, 8, 3)),
    ),
)
SCALARS = st.one_of(NUMBERS, st.integers(-(2**31), 2**31 - 1).map(np.int32), st.floats(-9, 9, width=32).map(np.float32))


@given(
    arguments=st.lists(st.one_of(POINTERS, SCALARS), min_size=1, max_size=9),
    addresses=st.lists(st.integers(0, 2**47), min_size=3, max_size=4),
    blocks=st.integers(1, 2**31 - 1),
    threads=st.integers(1, 1024),
    cooperative=st.booleans(),
)
def test_a_launch_has_the_arguments_that_python_gives_it(
    arguments: list[Any], addresses: list[int], blocks: int, threads: int, cooperative: bool
) -> None:
    made, seen = DriverOnHost(), []
    with using(library()), made.in_place(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "current_stream", lambda _: 77)
        patch.setattr(device, "on_device", lambda _: device._AS_IT_IS)
        kernel = KernelOnHost(made, lambda *launched: seen.append(launched), len(arguments))
        kernel.dynamic_shared_bytes, kernel.is_cooperative = 1234, cooperative
        pointers = [(place, one) for place, one in enumerate(arguments) if isinstance(one, (Address, PointerDifference))]
        plain = [0 if isinstance(one, (Address, PointerDifference)) else one for one in arguments]
        Program(PLACE, (LaunchOperation(kernel, blocks, threads, plain, pointers),)).run(addresses)
    expected = [one.rebound(addresses) if isinstance(one, (Address, PointerDifference)) else one for one in arguments]
    words = [int.from_bytes(np.asarray(one).tobytes().ljust(8, b"\0"), "little", signed=True) for one in expected]
    assert seen == [(blocks, threads, words)]
    assert made.asked == [("launch", 1, blocks, threads, 1234, 77, cooperative)]


@given(
    sizes=st.tuples(*(st.integers(1, 4),) * 3),
    batch=st.integers(1, 2),
    turned=st.tuples(st.booleans(), st.booleans()),
    adds=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_product_is_that_of_python(
    sizes: tuple[int, int, int], batch: int, turned: tuple[bool, bool], adds: bool, seed: int
) -> None:
    m, n, k = sizes
    random = np.random.default_rng(seed)
    left, right = random.normal(size=(batch, m, k)), random.normal(size=(batch, k, n))
    start = random.normal(size=(batch, m, n))
    stored = [
        np.ascontiguousarray(each.transpose(0, 2, 1) if turn else each)
        for each, turn in zip((left, right), turned, strict=True)
    ]
    result = start.copy()
    matrices = [
        Matrix(Address(0, slot), "float64", each.shape[2], each.shape[1] * each.shape[2], turn)
        for slot, (each, turn) in enumerate(zip((*stored, result), (*turned, False), strict=True))
    ]
    made = DriverOnHost()
    with using(library()), made.in_place(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "current_stream", lambda _: 0)
        patch.setattr(device, "on_device", lambda _: device._AS_IT_IS)
        patch.setattr(cublas, "handle", lambda: 1)
        operation = ProductOperation(Product(m, n, k, *matrices, batch=batch, adds=adds))
        Program(PLACE, (operation,)).run([each.ctypes.data for each in (*stored, result)])
    np.testing.assert_allclose(result, left @ right + (start if adds else 0), rtol=1e-12)
    assert made.blas._mode == 0, "others find the mode of cuBLAS as they left it"


def launches_of(made: DriverOnHost, count: int) -> tuple[Program, list[int]]:
    done: list[int] = []
    kernels = [KernelOnHost(made, lambda *_, number=number: done.append(number), 1) for number in range(count)]
    return Program(PLACE, tuple(LaunchOperation(kernel, 1, 32, [0], [(0, Address(0, 0))]) for kernel in kernels)), done


def test_a_thread_without_a_context_gets_one_and_nothing_is_launched_twice(
    on_host: DriverOnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[int] = []
    monkeypatch.setattr(device, "make_context", lambda: contexts.append(1))
    program, done = launches_of(on_host, 3)
    on_host.refusals = [NO_CONTEXT]
    program.run([8])
    assert (done, contexts) == ([0, 1, 2], [1])


def test_refusals_are_raised(on_host: DriverOnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        """In place of CuPy's exception."""

    def refuse(status: int) -> None:
        raise Refused(status)

    monkeypatch.setattr(device, "refuse", refuse)
    monkeypatch.setattr(device, "make_context", lambda: None)
    program, done = launches_of(on_host, 2)
    for refusals, status in (([700], 700), ([NO_CONTEXT, 700], 700)):
        on_host.refusals = refusals
        with pytest.raises(Refused, match=str(status)):
            program.run([8])
    assert done == []
    matrix = Matrix(Address(0, 0), "float64", 1)
    product = Program(PLACE, (ProductOperation(Product(1, 1, 1, matrix, matrix, matrix)),))
    on_host.refusals = [13]
    with pytest.raises(ToolchainMissing, match="status 13"):
        product.run([8])


def test_what_c_does_not_know_python_does(on_host: DriverOnHost) -> None:
    class Elsewhere:
        """A kernel that the driver does not have."""

        def __init__(self) -> None:
            self.launched: list[Any] = []

        def launch(self, _like: Any, _blocks: int, _threads: int, arguments: Any, /) -> None:
            self.launched.append([*arguments])

    kernel, memory = Elsewhere(), np.ones(16, np.uint8)
    fill = FillOperation(Address(0, 0, 4), 8, 255)
    program = Program(PLACE, (LaunchOperation(kernel, 1, 32, [0, 5], [(0, Address(0, 0))]),))
    program.run([memory.ctypes.data])
    assert kernel.launched == [[memory.ctypes.data, 5]] and on_host.asked == []
    Program(PLACE, (fill,)).run([memory.ctypes.data])
    assert memory.tolist() == [1] * 4 + [255] * 8 + [1] * 4


@pytest.mark.parametrize("operations", [((9,),), ((),), (5,), ((0, 1, 1, 1, 1, False, bytes(8), ((1, 0, 0, 0, 0, 0),)),)])
def test_operations_that_are_none_are_refused(operations: Any) -> None:
    part = library()
    with pytest.raises((TypeError, ValueError)):
        part.program((0,) * 7, operations)
    empty = part.program((0,) * 7, ((trip.SET_BYTES, 3, 0, 0, 1),))
    with pytest.raises(ValueError, match="not there"):
        part.run(empty, [1, 2], 0, 0, 0)


# ---- calls


@pytest.mark.parametrize(("model", "direction"), [("min_gru", "forward"), ("qrnn", "reverse"), ("rg_lru", "bidirectional")])
def test_a_call_replayed_by_c_is_what_the_host_does(on_host: DriverOnHost, model: str, direction: str) -> None:
    one, both = kernel_of(model, direction, input_size=4), direction == "bidirectional"
    runs = (2,) if both else ()
    gates, cell, loops = len(one.gates), one.interface, plain_loops_for(one)
    kernels: dict[Any, Any] = {}

    def load(key: KernelKey) -> Any:
        loaded, plan = loops(key)
        assert isinstance(loaded, LoadedOnHost)
        count = len(signature(plan, loaded.names).names)
        made = KernelOnHost(on_host, lambda blocks, threads, given: loaded.launch(None, blocks, threads, given), count)
        return kernels.setdefault(key, made), plan

    with torch_on_host():
        for seed in range(3):
            random = np.random.default_rng(seed)
            arguments = {
                "x": random.normal(size=(2, 5, 4)),
                "weight": random.normal(size=(math.prod(runs) * gates * HIDDEN, 4)),
                "bias": random.normal(size=(*runs, gates, HIDDEN)),
                "parameters": {name: random.normal(size=(*runs, HIDDEN)) for name in cell.parameters},
                "state": {name: random.normal(size=(*runs, 2, HIDDEN)) for name in cell.states},
            }
            y, state, saved = one.forward(**arguments)
            expected = one.backward(saved, y)
            on_host.asked.clear()
            with as_if_on_a_device(one, load):
                y_found, state_found, saved = one.forward(**as_tensors(arguments))
                found = one.backward(saved, Tensor(y))
            assert_close(as_arrays(y_found), y)
            assert_close(as_arrays(state_found), state)
            assert_close(as_arrays(found), expected)
            # What C did is noted: all of it, in the first call too.
            kinds = [asked[0] for asked in on_host.asked]
            assert kinds.count("launch") == 2 * (2 if both else 1)
            assert kinds.count("multiply") == 3


def test_a_recorded_run_lets_its_arrays_go(on_host: DriverOnHost) -> None:
    """When the caller does, without a collection of garbage: y holds the graph of autograd, and that the weights' nodes."""
    one = kernel_of("min_gru", "forward")
    loops = plain_loops_for(one)

    def load(key: KernelKey) -> Any:
        loaded, plan = loops(key)
        count = len(signature(plan, loaded.names).names)
        return KernelOnHost(on_host, lambda blocks, threads, given: loaded.launch(None, blocks, threads, given), count), plan

    gc.collect()
    gc.disable()
    try:
        with torch_on_host(), as_if_on_a_device(one, load):
            for _ in range(2):  # recorded, and replayed
                x = as_tensors(np.ones((2, 5, len(one.gates), HIDDEN)))
                y, state, saved = one.forward(x)
                gradients = one.backward(saved, y)
                alive = [weakref.ref(array) for array in (x, y, *state.values(), gradients["x"])]
                saved.release()
                del x, y, state, saved, gradients
                assert [array() for array in alive] == [None] * len(alive)
    finally:
        gc.enable()
