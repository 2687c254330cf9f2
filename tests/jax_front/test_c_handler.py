"""XLA's custom calls by the handler in C: the bits of the one in Python, for every call that it takes, on both platforms."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needed import needed

from minrnn_gen.native import trip

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
c_handler = needed("minrnn_gen.jax.c_handler")
structures = needed("minrnn_gen.jax.structures")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def handler() -> Iterator[Any]:
    if reason := c_handler.why_no_c_handler():
        pytest.skip(reason)
    handler = c_handler.c_handler()
    assert handler is not None
    yield handler
    handler.withdraw_all()


@pytest.fixture
def native(handler: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The handler, with native code and nothing that was called before."""
    monkeypatch.setenv("MINRNN_CPU", "native")
    monkeypatch.setattr("minrnn_gen.layers.kernels._KERNELS", {})
    monkeypatch.setattr("minrnn_gen.jax.target._HOST_CALLS", {})
    handler.withdraw_all()
    return handler


@pytest.mark.parametrize("by_c", [True, False])
@pytest.mark.parametrize(
    ("spec", "boundaries"),
    [
        ({"model": "min_gru", "precision": "fp64"}, "resets"),
        ({"model": "lstm", "precision": "bf16", "heads": 2, "layout": "TBD"}, "resets"),
        ({"model": "gru", "precision": "fp32", "direction": "bidirectional", "recurrent_bias": True}, ""),
        ({"model": "rg_lru", "precision": "fp16", "layout": "BDT", "direction": "reverse"}, ""),
        ({"model": "min_lstm", "precision": "fp32"}, "lengths"),
        ({"model": "qrnn", "precision": "fp32"}, "cu_seqlens"),
    ],
    ids=str,
)
def test_forwards_have_the_bits_of_numpy_calls(spec: dict[str, Any], boundaries: str, by_c: bool, native: Any) -> None:
    """The first call runs in Python and is published, all others in C; those with lengths, which are checked, in Python."""
    from test_jax_recurrence import drawn, kernel_of

    spec = {"hidden_size": 16, **spec}
    kernel = kernel_of(spec)
    arrays = drawn(kernel, boundaries=boundaries, time=5)
    run = jax.jit(lambda arrays: front.recurrence(spec, **arrays, all_states=True))
    y, final = kernel(**arrays)
    expected = y, final, kernel(**arrays, all_states=True)[1]
    jax.block_until_ready(run(arrays))
    before = native.served
    with contextlib.nullcontext() if by_c else native.paused():
        for _ in range(2):
            jax.tree.map(np.testing.assert_array_equal, jax.block_until_ready(run(arrays)), expected)
    runs_in_c = by_c and boundaries not in ("lengths", "cu_seqlens")
    assert native.served - before == 2 * runs_in_c


@pytest.mark.parametrize("model", ["lstm", "min_gru"])
def test_steps_run_in_c(model: str, native: Any) -> None:
    from test_jax_recurrence import drawn, kernel_of

    spec = {"model": model, "hidden_size": 16, "precision": "fp64"}
    arrays = drawn(kernel_of(spec))
    arrays["x_t"] = arrays.pop("x")[:, 0]
    run = jax.jit(lambda arrays: front.step(spec, **arrays))
    first, before = jax.block_until_ready(run(arrays)), native.served
    jax.tree.map(np.testing.assert_array_equal, run(arrays), first)
    assert native.served - before == 1


@pytest.mark.usefixtures("native")
def test_many_threads_run_a_call_at_once() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 40, 2, 16)))
    run = jax.jit(lambda x: front.recurrence({"model": "min_gru", "hidden_size": 16, "precision": "fp64"}, x)[0])
    compiled = run.lower(x).compile()
    expected, wrong = np.asarray(compiled(x)), []

    def call() -> None:
        for _ in range(50):
            if not np.array_equal(compiled(x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


PROGRAM = """
import jax, numpy as np, minrnn_gen.jax
from minrnn_gen.jax.c_handler import c_handler, why_no_c_handler
run = jax.jit(lambda x: minrnn_gen.jax.recurrence({"model": "min_gru", "hidden_size": 4}, x)[0])
print([float(run(np.ones((1, 3, 2, 4), np.float32)).sum()) for _ in range(2)], c_handler(), why_no_c_handler())
"""


@pytest.mark.matrix_full
@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"MINRNN_JAX": "python"}, "MINRNN_JAX is python"), ({"CC": "no-such-compiler"}, "CC is 'no-such-compiler'")],
    ids=str,
)
def test_without_it_python_serves(variables: dict[str, str], reason: str) -> None:
    environment = {**os.environ, **variables, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert f"None {reason}" in answer.stdout


# ---- the device's calls, with functions that stand for XLA's, the driver's and cuBLAS's

STREAM, DEVICE, DIGEST = 7, 3, 1234
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
SET_BYTES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)


class DeviceArguments(ctypes.Structure):
    """XLA_FFI_DeviceOrdinal_Get_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("device", ctypes.c_int32),
    )


class WholeApi(ctypes.Structure):
    """XLA_FFI_Api, with what is between the functions that are called."""

    _fields_ = (
        *structures.Api._fields_,
        ("between", ctypes.c_void_p * 12),
        ("get_device", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(DeviceArguments))),
    )


class Xla:
    """A frame of XLA's with buffers at these addresses, and what its handler in Python was called for."""

    def __init__(self, arguments: list[int], results: list[int], workspace_bytes: int = 0, device: int = DEVICE) -> None:
        def get_stream(pointer: Any) -> int | None:
            pointer.contents.stream = STREAM
            return None

        def get_device(pointer: Any) -> int | None:
            pointer.contents.device = device
            return None

        self.by_python = 0
        self._functions = (structures.GetStream(get_stream), WholeApi._fields_[-1][1](get_device))
        self.api = WholeApi(struct_size=ctypes.sizeof(WholeApi), get_stream=self._functions[0], get_device=self._functions[1])
        self._sizes = (ctypes.c_int64 * 1)(workspace_bytes)
        digest = ctypes.c_int64(DIGEST)
        scalar = structures.Scalar(5, ctypes.pointer(digest))
        values = (ctypes.c_void_p * 1)(ctypes.addressof(scalar))
        types = (ctypes.c_int * 1)(structures.SCALAR_ATTRIBUTE)
        attributes = structures.Attributes(0, None, 1, types, None, values)
        self._held = (digest, scalar, values, types)
        self.frame = structures.CallFrame(
            struct_size=ctypes.sizeof(structures.CallFrame),
            api=ctypes.cast(ctypes.pointer(self.api), ctypes.POINTER(structures.Api)),
            stage=structures.EXECUTE_STAGE,
            arguments=self._buffers(arguments),
            results=self._buffers(results),
            attributes=attributes,
        )

    def _buffers(self, addresses: list[int]) -> Any:
        dims = ctypes.cast(self._sizes, ctypes.POINTER(ctypes.c_int64))
        buffers = [structures.Buffer(ctypes.sizeof(structures.Buffer), None, 7, address, 1, dims) for address in addresses]
        pointers = (ctypes.POINTER(structures.Buffer) * len(buffers))(*map(ctypes.pointer, buffers))
        return structures.Buffers(ctypes.sizeof(structures.Buffers), None, len(buffers), None, pointers)

    def run(self, handler: Any) -> int | None:
        """Call the handler of devices."""

        def python(_frame: Any) -> int | None:
            self.by_python += 1
            return None

        fallback = structures.Handler(python)
        address = handler.address("CUDA", ctypes.cast(fallback, ctypes.c_void_p).value)
        returned: int | None = structures.Handler(address)(ctypes.pointer(self.frame))
        return returned


class Driver:
    """Enqueued work in its order; the functions that enqueue it."""

    def __init__(self, status: int = 0) -> None:
        self.done: list[Any] = []

        def launch(configuration: int, function: int, pointers: Any, _extra: Any) -> int:
            stream = ctypes.cast(configuration, ctypes.POINTER(ctypes.c_uint64))[4]
            values = [ctypes.cast(pointers[place], ctypes.POINTER(ctypes.c_int64))[0] for place in range(3)]
            self.done.append(("launch", stream, function, *values))
            return status

        def set_bytes(address: int, value: int, size_bytes: int, stream: int) -> int:
            self.done.append(("bytes", stream, address, value, size_bytes))
            return status

        self._held = (LAUNCH(launch), SET_BYTES(set_bytes))
        launched, set_ = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._held)
        # Slots: operand 0, result 1, scratch 2. The launch reads at 8 bytes behind the operand, and its argument 1 stays.
        arguments = np.array([0, 42, 0], np.int64).tobytes()
        patches = ((0, 0, 0, 0, 8, 0), (2, 0, 0, 2, 0, 0))
        operations = ((trip.SET_BYTES, 1, 0, 5, 16), (trip.LAUNCH, 99, 4, 32, 0, False, arguments, patches))
        assert trip.LIBRARY is not None
        self.program = trip.LIBRARY.program((launched, set_, 0, 0, 0, 0, 0), operations)


LAYOUT = c_handler.Layout(3, (0,), (1,), ((2, 64),), workspace_bytes=128, alignment=16)


def test_a_recorded_call_is_launched_on_xlas_stream(handler: Any) -> None:
    driver = Driver()
    xla = Xla([1600], [3200, 6400], workspace_bytes=128)
    handler.withdraw_all()
    assert xla.run(handler) is None and xla.by_python == 1, "nothing is published"
    handler.publish(DIGEST, DEVICE, LAYOUT, driver.program)
    assert xla.run(handler) is None and xla.by_python == 1
    assert driver.done == [("bytes", STREAM, 3200, 5, 16), ("launch", STREAM, 99, 1608, 42, 6464)]
    handler.withdraw_all()


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        ({"arguments": [1600], "results": [3200, 6400], "workspace_bytes": 64}, 0),  # compiled elsewhere, with less memory
        ({"arguments": [1601], "results": [3200, 6400], "workspace_bytes": 128}, 0),  # at no multiple of 16
        ({"arguments": [1600, 1600], "results": [3200, 6400], "workspace_bytes": 128}, 0),
        ({"arguments": [1600], "results": [3200, 6400], "workspace_bytes": 128, "device": 0}, 0),  # of another GPU
        ({"arguments": [1600], "results": [3200, 6400], "workspace_bytes": 128}, 201),  # refused by the driver
    ],
    ids=str,
)
def test_what_does_not_fit_is_pythons_to_say(frame: Any, status: int, handler: Any) -> None:
    driver = Driver(status)
    handler.withdraw_all()
    handler.publish(DIGEST, DEVICE, LAYOUT, driver.program)
    xla = Xla(**frame)
    assert xla.run(handler) is None and xla.by_python == 1
    assert len(driver.done) == bool(status)
    handler.withdraw_all()


QUESTION = structures.MetadataExtension(structures.Extension(0, structures.METADATA_EXTENSION, None))


def test_other_stages_and_questions_are_pythons(handler: Any) -> None:
    driver = Driver()
    handler.withdraw_all()
    handler.publish(DIGEST, DEVICE, LAYOUT, driver.program)
    for change in ({"stage": 2}, {"extension": ctypes.pointer(QUESTION)}):
        xla = Xla([1600], [3200, 6400], workspace_bytes=128)
        for name, value in change.items():
            setattr(xla.frame, name, value)
        assert xla.run(handler) is None and xla.by_python == 1 and not driver.done
    handler.withdraw_all()


@pytest.mark.parametrize(
    "layout",
    [
        (1, (1,), ()),
        (1, (0,), (-1,)),
        (2**63, (2**63 - 1,), ()),
        (1, (0,), (), ((0, 2**63 - 1),), 8),
        (1, (0,), (), (), -(2**63)),
        (1, (0,), (), (), 0, 0),
    ],
)
def test_numbers_that_c_cannot_compute_with_are_refused(layout: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="allowed: 0 to"):
        c_handler.Layout(*layout).check()
    c_handler.Layout(2, (0,), (1,), ((1, 8),), 16).check()
