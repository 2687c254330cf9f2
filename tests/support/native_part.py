"""The C part of a replayed call, compiled for the tests, and functions of the driver and of cuBLAS that work on host memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import itertools
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.fake_device import CublasOnHost, set_bytes_on_host

from minrnn_gen.call import key
from minrnn_gen.gpu import cublas, driver, retired
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.native import trip

ROOT = Path(__file__).resolve().parents[2]
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def hatch_build() -> Any:
    """Return the module that compiles the C part."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    sys.modules["hatch_build"] = build
    spec.loader.exec_module(build)
    return build


@functools.cache
def compiled() -> ModuleType | str:
    """Return the C part, compiled from the checkout, or why there is none."""
    build = hatch_build()
    _KEPT.append(tempfile.TemporaryDirectory())
    target = Path(_KEPT[0].name) / "_trip.abi3.so"
    why_not = build.why_not(ROOT / build.SOURCE, target)
    if why_not:
        return str(why_not)
    loader = importlib.machinery.ExtensionFileLoader("minrnn_gen.native._trip", str(target))
    found = importlib.util.spec_from_file_location(loader.name, target, loader=loader)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    loader.exec_module(module)
    return module


def library() -> ModuleType:
    """Return the C part; skips the test where it cannot be compiled."""
    found = compiled()
    if isinstance(found, str):
        assert "headers" in found or "No such file" in found or sysconfig.get_config_var("Py_GIL_DISABLED"), found
        pytest.skip(found)
    return found


@contextlib.contextmanager
def using(part: ModuleType | None) -> Iterator[None]:
    """Let calls be replayed by C, or by Python alone where `part` is None."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trip, "LIBRARY", part)
        key._describer_of.cache_clear()
        yield
    key._describer_of.cache_clear()


class _Side(ctypes.Structure):
    """Where a copy reads or writes (cuda.h)."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("memory", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    )


class _CopyOfRows(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (("source", _Side), ("target", _Side), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t))


_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(driver._Configuration), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
_SetBytes = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
_SetStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_CopyOfRows), ctypes.c_void_p)
_SetWorkspace = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SetMode = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_IsCapturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_Create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
_OfOne = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Begin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_End = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_Instantiate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_ulonglong)
_LaunchGraph = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Multiply = ctypes.CFUNCTYPE(ctypes.c_int, *cublas._GEMM_ARGUMENTS)


class GraphsOnHost:
    """Streams that are captured and graphs that are launched: what is enqueued meanwhile is done when its graph is launched.

    `recording`: what is enqueued on the stream that is captured, None where none is; `is_captured`: whether a caller captures
    the stream of calls; `launched`: the graphs that were launched, by number; `refuses`: whether no graph can be made.
    """

    def __init__(self) -> None:
        self.recording: list[Callable[[], None]] | None = None
        self.made: dict[int, list[Callable[[], None]]] = {}
        self._numbers = itertools.count(1)
        self.launched: list[int] = []
        self.is_captured = self.refuses = False
        self.streams = 0
        self.functions = (
            _IsCapturing(self._is_capturing),
            _Create(self._create),
            _OfOne(self._destroy_stream),
            _Begin(self._begin),
            _End(self._end),
            _Instantiate(self._instantiate),
            _OfOne(lambda _graph: 0),
            _OfOne(self._destroy),
            _LaunchGraph(self._launch),
        )

    def enqueue(self, action: Callable[[], None]) -> None:
        """Do something now, or when the graph is launched that is being captured."""
        if self.recording is None:
            action()
        else:
            self.recording.append(action)

    def _is_capturing(self, _stream: int | None, status: Any) -> int:
        status[0] = int(self.is_captured)
        return 0

    def _create(self, stream: Any, _flags: int) -> int:
        self.streams += 1
        stream[0] = 77
        return 0

    def _destroy_stream(self, _stream: int) -> int:
        self.streams -= 1
        return 0

    def _begin(self, stream: int, mode: int) -> int:
        assert (stream, mode) == (77, 1)  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.recording = []
        return 0

    def _end(self, _stream: int, graph: Any) -> int:
        number = next(self._numbers)
        assert self.recording is not None
        self.made[number], self.recording = self.recording, None
        graph[0] = number
        return 0

    def _instantiate(self, executable: Any, graph: int, _flags: int) -> int:
        executable[0] = graph
        return 900 if self.refuses else 0

    def _destroy(self, executable: int) -> int:
        assert self.recording is None and not self.is_captured, "that would end the capture"
        del self.made[executable]
        return 0

    def _launch(self, executable: int, _stream: int | None) -> int:
        self.launched.append(executable)
        for action in self.made[executable]:
            action()
        return 0


class DriverOnHost:
    """Functions as the driver and cuBLAS have them, called from C; kernels are known by numbers in place of addresses.

    `refusals`: statuses that are answered in place of what is asked, the first one first. `asked`: what was asked for.
    """

    def __init__(self) -> None:
        self.kernels: dict[int, Callable[[int, int, list[int]], None]] = {}
        self.counts: dict[int, int] = {}
        self.refusals: list[int] = []
        self.asked: list[tuple[Any, ...]] = []
        self.blas = CublasOnHost()
        self.graphs = GraphsOnHost()
        self.driver = _Launch(self._launch), _SetBytes(self._set_bytes), _Copy(self._copy)
        settings = _SetStream(self._set_stream), _SetWorkspace(self._set_workspace), _SetMode(self._set_mode)
        self.cublas = *settings, _Multiply(self._multiply)

    def kernel(self, run: Callable[[int, int, list[int]], None], arguments: int) -> int:
        """Return the number of a kernel of so many arguments that `run(blocks, threads, arguments)` runs."""
        number = len(self.kernels) + 1
        self.kernels[number], self.counts[number] = run, arguments
        return number

    def _launch(self, configuration: Any, function: int, arguments: Any, _extra: Any) -> int:
        if self.refusals:
            return self.refusals.pop(0)
        shape = configuration.contents
        values = [ctypes.c_int64.from_address(arguments[index]).value for index in range(self.counts[function])]
        is_cooperative = bool(shape.attribute_count and shape.attributes[0].id == 2 and shape.attributes[0].value == 1)
        self.asked.append(
            ("launch", function, shape.blocks[0], shape.threads[0], shape.shared_bytes, shape.stream, is_cooperative)
        )
        blocks, threads = shape.blocks[0], shape.threads[0]
        self.graphs.enqueue(lambda: self.kernels[function](blocks, threads, values))
        return 0

    def _set_bytes(self, address: int, value: int, size_bytes: int, _stream: Any) -> int:
        self.asked.append(("bytes", address, value, size_bytes))
        self.graphs.enqueue(lambda: set_bytes_on_host(None, address, size_bytes, value))
        return 0

    def _copy(self, copy: Any, _stream: Any) -> int:
        rows, on_device = copy.contents, 2  # CU_MEMORYTYPE_DEVICE
        assert (rows.source.memory, rows.target.memory) == (on_device, on_device)
        assert rows.width <= min(rows.source.pitch, rows.target.pitch)
        self.asked.append(("copy", rows.width, rows.height))
        for row in range(rows.height):
            source, target = (side.address + side.y * side.pitch + side.x for side in (rows.source, rows.target))
            ctypes.memmove(target + row * rows.target.pitch, source + row * rows.source.pitch, rows.width)
        return 0

    def _set_workspace(self, handle: int, workspace: int, size_bytes: int) -> int:
        return self.blas.cublasSetWorkspace_v2(handle, workspace, size_bytes)

    def _set_stream(self, handle: int, stream: int | None) -> int:
        assert stream == 77 or self.graphs.recording is None, "products go where launches go"
        return self.blas.cublasSetStream_v2(handle, 0)

    def _set_mode(self, handle: int, mode: int) -> int:
        return self.blas.cublasSetMathMode(handle, mode)

    def _multiply(self, handle: int, *arguments: Any) -> int:
        if self.refusals:
            return self.refusals.pop(0)
        numbers = list(arguments)
        for place, scalar in ((5, 5), (14, 14)):
            value = ctypes.c_double.from_address(numbers[scalar])
            numbers[place] = SimpleNamespace(_obj=value)
        self.asked.append(("multiply", *arguments[:5], *arguments[6:14], *arguments[15:]))
        mode, workspace = self.blas._mode, self.blas._workspace
        assert workspace[0] or self.graphs.recording is None, "of a graph a product has memory of its own"

        def run() -> None:
            now = self.blas._mode, self.blas._workspace
            self.blas._mode, self.blas._workspace = mode, workspace
            self.blas.cublasGemmStridedBatchedEx(handle, *numbers)
            self.blas._mode, self.blas._workspace = now

        self.graphs.enqueue(run)
        return 0

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let C find these functions."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "functions", lambda: self.driver)
            patch.setattr(driver, "graph_functions", lambda: self.graphs.functions)
            patch.setattr(cublas, "functions", lambda: self.cublas)
            try:
                yield
            finally:
                self.graphs.is_captured = False
                retired.destroy_retired()  # graphs go while the driver that made them is here


class KernelOnHost(LoadedKernel):
    """A kernel of plain Python that C launches too."""

    def __init__(self, on: DriverOnHost, run: Callable[[int, int, list[int]], None], arguments: int) -> None:
        super().__init__(b"", "on_host", "sm_90", 0)
        self.run = run
        self._functions = {0: SimpleNamespace(ptr=on.kernel(run, arguments))}

    def launch(self, _like: Any, blocks: int, threads: int, arguments: Any, /) -> None:
        """Run at once."""
        self.run(blocks, threads, [int(argument) for argument in arguments])
