"""The end of a run by small kernels within it: gradients in the shapes and dtypes of their arrays, and states of a layer."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.emulated_code import HAS_COMPILER
from support.fake_device import _EXECUTORS, as_if_on_a_device, memory
from support.fake_torch import as_arrays, as_tensors, torch_on_host
from support.patience import within
from support.sequence_cases import HIDDEN, assert_close, kernel_of
from support.small_problems import WantedBuilder

from minrnn_gen.build import gradients, nvrtc
from minrnn_gen.build.gradients import GradientCubin
from minrnn_gen.build.nvrtc import CompiledSource
from minrnn_gen.build.store import Store
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import numpy_dtype, wrap_numpy
from minrnn_gen.call.results import BackwardResult, SlotGradients
from minrnn_gen.codegen.gradients import ADD_UP, ADD_UP_STORED, GRADIENTS, STORE, SUMMED_LANES, SUMMED_THREADS
from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.gpu import stream
from minrnn_gen.gpu.device import Place
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.interpret.library import Memory, emulated_kernel
from minrnn_gen.program.data import AddUp, At, KernelRef
from minrnn_gen.program.data import Store as Stored
from minrnn_gen.run.ending import in_slots
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.run.recording.describer import Describer
from minrnn_gen.run.recording.trace import trace_of
from minrnn_gen.run.target import target_of

# ---- what is launched


class Emulated:
    """One of the kernels, its text emulated; `arrays` are those that it may touch."""

    def __init__(self, name: str, storage: str, folder: Path, arrays: Callable[[], list[np.ndarray]]) -> None:
        template = Gradients(Types("sm_90", storage, "float32"))
        threads = 256 if name == STORE else SUMMED_THREADS
        self._threads, self._arrays = threads, arrays
        plan: Any = SimpleNamespace(
            entry=name,
            problem=template.problem,
            symbol=name,
            launch=SimpleNamespace(threads=threads),
            budget=SimpleNamespace(shared_bytes=0 if name == STORE else 4 * threads),
            variables={},
            is_cooperative=False,
        )
        self._kernel = emulated_kernel(render_gradients(template), plan, Store(folder))

    def launch(self, _like: Any, blocks: int, threads: int, arguments: Any, /) -> None:
        """Launch, and demand that nothing else is touched."""
        assert threads == self._threads
        known = [Memory("array", array.ctypes.data, array.nbytes, True) for array in self._arrays()]
        assert self._kernel.launch(blocks, [*arguments], 1, known) == ()


@pytest.mark.matrix_full
@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_launches_do_what_the_operations_say(storage: str, folder: Path) -> None:
    generator, narrow = np.random.default_rng(3), numpy_dtype(storage)
    runs, parts, rows, batch, width = 2, 3, 5, 4, SUMMED_LANES + 8
    sums = generator.standard_normal((runs, parts, rows, batch, width)).astype(np.float32)
    matrices = generator.standard_normal((runs, 2, 3, 9, 9)).astype(np.float32)
    given = [wrap_numpy(array, "given").with_slot(slot) for slot, array in enumerate((sums, matrices))]
    run = Describer(given[0], len(given))
    # Sums are in buffers of the run too.
    held = [run.new_array(sums.shape, "float32"), run.new_array(matrices.shape, "float32")]
    results = [
        run.new_array((runs * 2 * width,), "float32"),
        run.new_array((runs, 3, width), storage),
        run.new_array((runs * 3 * 2, 81), storage),
    ]
    source, matrix, wide, stored, swapped = (At(array.address.slot, 0) for array in (*held, *results))
    run.note(AddUp(source, wide, parts, rows, batch, width, 0, 2))
    run.note(AddUp(source, stored, parts, rows, batch, width, 2, 3))
    run.note(Stored(matrix, swapped, matrices.size, 2, 3, 81))
    made: list[np.ndarray] = []
    modules = {
        KernelRef(GRADIENTS, name): Emulated(name, storage, folder, lambda: made) for name in (ADD_UP, ADD_UP_STORED, STORE)
    }
    trace = trace_of(run.program(SlotGradients(tuple(results)), None), (), Place("numpy", None), modules)
    arrays = [sums.copy(), matrices.copy(), *(np.zeros(array.shape, numpy_dtype(array.dtype)) for array in results)]
    made += arrays
    trace.program.run([0, 0, *(array.ctypes.data for array in arrays)], [])
    total = sums.astype(np.float64).sum((1, 3))
    np.testing.assert_allclose(arrays[2], total[:, :2].ravel(), rtol=1e-5, atol=1e-5)
    rounding = 2.0 ** -(8 if storage == "bfloat16" else 11)
    np.testing.assert_allclose(arrays[3].astype(np.float64), total[:, 2:], rtol=rounding, atol=1e-4)
    assert np.array_equal(arrays[4].ravel(), matrices.swapaxes(1, 2).astype(narrow).ravel())


# ---- whole backwards


class OnHost:
    """One of the kernels in NumPy, in float64."""

    def __init__(self, run: Callable[..., None], launched: list[str]) -> None:
        self._run, self._launched, self.loaded = run, launched, True

    def launch(self, _like: Any, blocks: int, _threads: int, arguments: Any, /) -> None:
        assert blocks > 0
        self._launched.append(self._run.__name__)
        self._run(blocks, *arguments)

    def is_loaded(self, _device: int | None) -> bool:
        return self.loaded


def add_up(
    blocks: int, source: int, target: int, parts: int, rows: int, batch: int, width: int, first: int, count: int
) -> None:
    vectors = blocks // -(-width // SUMMED_LANES)
    shape = (vectors // count, parts, rows, batch, width)
    sums = memory(source, shape, [math.prod(shape[axis + 1 :]) for axis in range(5)])
    memory(target, (vectors // count, count, width), (count * width, width, 1))[...] = sums.sum((1, 3))[
        :, first : first + count
    ]


def store(_blocks: int, source: int, target: int, count: int, heads: int, gates: int, square: int) -> None:
    outer, each = count // (heads * gates * square), heads * gates * square
    wide = memory(source, (outer, heads, gates, square), (each, gates * square, square, 1))
    memory(target, (outer, gates, heads, square), (each, heads * square, square, 1))[...] = wide.swapaxes(1, 2)


def kernels_on_host(launched: list[str]) -> dict[str, Any]:
    return {ADD_UP: OnHost(add_up, launched), ADD_UP_STORED: OnHost(add_up, launched), STORE: OnHost(store, launched)}


@contextmanager
def on_a_device(one: Any, given: Any) -> Iterator[tuple[Executor, Any]]:
    """Run calls as they would run on a device, by an executor that no other test has, with these kernels to end them."""
    _EXECUTORS.pop(one, None)
    try:
        with torch_on_host(), as_if_on_a_device(one):
            executor, kernels = _EXECUTORS[one]
            kernels.gradient_kernels = lambda _waits: given  # type: ignore[assignment]
            yield executor, kernels
    finally:
        _EXECUTORS.pop(one, None)


def arguments_of(one: Any, has_bias: bool) -> dict[str, Any]:
    cell, random = one.interface, np.random.default_rng(4)
    runs = (2,) if cell.directions else ()
    gates = len(one.gates)
    return {
        "x": random.normal(size=(2, 5, 4)),
        "weight": random.normal(size=(math.prod(runs) * gates * HIDDEN, 4)),
        "bias": random.normal(size=(*runs, gates, HIDDEN)) if has_bias else None,
        "parameters": {name: random.normal(size=(*runs, HIDDEN)) for name in cell.parameters},
        "state": {name: random.normal(size=(*runs, 2, HIDDEN)) for name in cell.states},
    }


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("model", "direction"), [("min_gru", "bidirectional"), ("ind_rnn", "forward"), ("rg_lru", "reverse")])
def test_gradients_are_those_that_a_library_makes(model: str, direction: str, has_bias: bool) -> None:
    one = kernel_of(model, direction, input_size=4)
    arguments, launched = arguments_of(one, has_bias), list[str]()
    y, _, saved = one.forward(**arguments)
    expected = one.backward(saved, y)
    with on_a_device(one, kernels_on_host(launched)):
        for convert in (lambda arrays: arrays, as_tensors):
            for _ in range(2):  # recorded, and replayed
                _, _, saved = one.forward(**convert(arguments))
                found = as_arrays(one.backward(saved, convert({"y": y})["y"]))
                assert_close(found, expected)
                names = {"x", "weight", "bias"} & {*expected}
                assert all(np.shape(found[name]) == np.shape(expected[name]) for name in names)
    assert launched or not (has_bias or one.interface.parameters)


def test_a_run_that_ends_without_these_kernels_is_not_kept() -> None:
    one = kernel_of("min_gru", "forward", input_size=4)
    arguments, launched = arguments_of(one, True), list[str]()
    y, _, saved = one.forward(**arguments)
    expected = one.backward(saved, y)
    ready = kernels_on_host(launched)
    for kernel in ready.values():
        kernel.loaded = False
    with on_a_device(one, ready) as (executor, kernels):
        for given, is_captured, is_kept in ((None, False, False), (ready, True, False), (ready, False, True)):
            kernels.gradient_kernels = lambda _waits, given=given: given
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stream, "is_capturing", lambda _, answer=is_captured: answer)
                _, _, saved = one.forward(**as_tensors(arguments))
                assert_close(as_arrays(one.backward(saved, as_tensors(y))), expected)
            assert len(executor.gpu.backwards) == is_kept and bool(launched) == is_kept


def test_a_first_backward_that_adds_nothing_up_waits_for_no_kernels_and_is_kept() -> None:
    one, asked = kernel_of("min_gru", "forward"), list[bool]()
    x = np.random.default_rng(4).normal(size=(2, 5, 2, HIDDEN))
    y, _, saved = one.forward(x)
    expected = one.backward(saved, y)
    with on_a_device(one, {}) as (executor, kernels):
        kernels.gradient_kernels = asked.append
        _, _, saved = one.forward(**as_tensors({"x": x}))
        assert_close(as_arrays(one.backward(saved, as_tensors(y))), expected)
        assert len(executor.gpu.backwards) == 1
    assert not asked


class Asked(Describer):
    """A run that notes whether it was asked for the kernels of its end."""

    ends_in_slots = True
    asked: tuple[bool, ...] = ()

    def can_store(self, *, waits: bool) -> bool:
        """Say that they are there."""
        self.asked += (waits,)
        return True


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("storage", "carried"), [("float32", "float32"), ("bfloat16", "float32"), ("complex64", "complex64")])
@pytest.mark.parametrize("given", [*itertools.product((False, True), repeat=4)], ids=str)
def test_kernels_are_asked_for_where_a_run_ends_by_one_and_waited_for_where_it_adds_up(
    given: tuple[bool, ...], storage: str, carried: str, heads: int
) -> None:
    (has_bias, has_parameter, has_R, has_weight), hidden = given, 4
    like = wrap_numpy(np.zeros(1, numpy_dtype(storage)), "x")
    run = Asked(like.with_slot(0), 1)

    def own(is_there: bool, *shape: int, dtype: str = storage) -> Any:
        return wrap_numpy(np.zeros(shape, numpy_dtype(dtype)), "an array") if is_there else None

    interface: Any = SimpleNamespace(
        precision=SimpleNamespace(storage_dtype=storage, arithmetic_dtype=carried),
        heads=heads,
        head_dim=hidden // heads,
        gates=("g",),
        recurrent_gates=("g",),
        parameters=("p",),
        summed_parameters=("p",),
        vector_parameters=(),
    )
    R = own(has_R, 1, heads, hidden // heads, hidden // heads)
    call: Any = SimpleNamespace(
        x=own(True, 2, 3, 1, hidden), rows=2, time=3, batch=2, shared=(), inputs=(), initial=(None,), R=R,
        weight=own(has_weight, hidden, 5), bias=own(has_bias, 1, hidden), recurrent_bias=None,
        parameters=(own(has_parameter, hidden, dtype=carried),),
    )  # fmt: skip
    wide = BackwardResult(
        run.new_array(call.x.shape, storage),
        (run.new_array((2, hidden), carried),),
        run.new_array((1, 1, 3, 2, hidden), carried),
        run.new_array((hidden, 5), carried) if has_weight else None,
        run.new_array((1, heads, 1, hidden // heads, hidden // heads), carried) if has_R else None,
    )
    gradients = in_slots(interface, run, call, wide)
    assert gradients is not None
    noted = [type(one) for one in run.program(gradients, None).operations]
    assert run.asked == ((AddUp in noted,) if noted else ())
    assert noted or not (has_bias or has_parameter)


# ---- the cubin


def builder_in(folder: Path, precision: str, compute_capability: str) -> Any:
    """Return what of a builder decides on these kernels."""
    return SimpleNamespace(
        spec=SimpleNamespace(precision=precision),
        target=SimpleNamespace(profile=SimpleNamespace(compute_capability=compute_capability, has_bf16_arithmetic=True)),
        store=Store(folder),
    )


def test_the_cubin_is_compiled_once_by_another_thread_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, may_end = list[str](), threading.Event()

    def compile_source(text: str, _plan: Any) -> CompiledSource:
        may_end.wait(within(30))
        compiled.append(text)
        return CompiledSource(b"code", ())

    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    monkeypatch.setattr(gradients, "_cubins", {})
    builder = builder_in(tmp_path, "bf16", "9.0")
    kernels = CompiledKernels(builder, ())
    assert kernels.gradient_kernels(waits=False) is None and kernels.gradient_kernels(waits=False) is None
    may_end.set()
    found = kernels.gradient_kernels(waits=True)
    assert found is not None and {*found} == {ADD_UP, ADD_UP_STORED, STORE} and len(compiled) == 1
    assert {kernel.cubin for kernel in found.values()} == {b"code"}
    monkeypatch.setattr(gradients, "_cubins", {})  # another process
    assert GradientCubin(builder).find() == b"code" and len(compiled) == 1


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_source(_text: str, _plan: Any) -> CompiledSource:
        raise ToolchainMissing("there is none")

    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    monkeypatch.setattr(gradients, "_cubins", {})
    builder = builder_in(tmp_path, "fp32", "8.0")
    kernels = CompiledKernels(builder, ())
    kernels.prepare_gradients()
    assert kernels.gradient_kernels(waits=True) == {}


# ---- final states, and gradients of initial ones


def executor_of(direction: str, precision: str, folder: Path) -> Executor:
    spec = load_spec(
        {"model": "min_gru", "hidden_size": 16, "input_size": 8, "precision": precision, "direction": direction, "gpu": "h200"}
    )
    builder = WantedBuilder(spec, target_of(spec), Store(folder), wanted=(("threads", 64),))
    return Executor(interface_of(builder, builder.cell_shape), builder, EmulatedBackend(builder, ()))


@pytest.mark.skipif(not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none")
@pytest.mark.parametrize(
    ("direction", "precision"), [("forward", "bf16"), pytest.param("bidirectional", "fp32", marks=pytest.mark.matrix_full)]
)
def test_final_states_are_those_of_a_layer(direction: str, precision: str, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    executor, dtype = executor_of(direction, precision, folder), {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    runs = 2 if direction == "bidirectional" else 1
    weight = torch.randn(runs * 2 * 16, 8).to(dtype)
    arguments = CallArguments(torch.randn(3, 5, 8).to(dtype), weight=weight)
    (wide, _), (narrow, _) = (executor.forward(arguments, False, False, of_layer) for of_layer in (False, True))
    assert torch.equal(narrow.y, wide.y)
    for state, expected in zip(narrow.final, wide.final, strict=True):
        assert state.shape == (runs, 3, 16) and state.dtype is dtype
        assert torch.equal(state, expected.view(runs, 3, 16).to(dtype))


def test_gradients_of_states_that_nobody_gave_are_left_out_for_those_who_say_so() -> None:
    one = kernel_of("min_gru", "forward", input_size=4)
    arguments = arguments_of(one, True)
    without = {name: array for name, array in arguments.items() if name != "state"}
    with on_a_device(one, kernels_on_host([])) as (executor, _):
        for given, is_given in ((arguments, True), (without, False)):
            for _ in range(2):  # recorded, and replayed
                y, _, saved = one.forward(**as_tensors(given))
                forward = saved.open_for(executor)
                gradients = [executor.backward(forward, y, None, given_only)["state"] for given_only in (False, True)]
                assert all(state is not None for state in gradients[0].values())
                assert all((state is not None) == is_given for state in gradients[1].values())
