"""The target of XLA's custom calls: one handler a platform, registered at import, that finds a call by its attributes.

A program names its call by text and by the text's digest, under which the handler keeps the prepared call. So tracing again
registers nothing, and a program that another process compiled finds its call too.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.errors import BadInput
from minrnn_gen.jax import structures
from minrnn_gen.jax.c_handler import ON_HOST, CHandler, c_handler
from minrnn_gen.jax.device import DeviceCall, current_device_of, device_call
from minrnn_gen.jax.host import recorded_on_host, run_on_host
from minrnn_gen.jax.request import CallSite, Shaped, digest_of
from minrnn_gen.jax.structures import Buffers, CallFrame
from minrnn_gen.native import trip

TARGET = "minrnn_gen"
# XLA's names of the platforms, and whether arrays are on a GPU there.
PLATFORMS = {"cpu": False, "CUDA": True}
# Attributes come in the order of their names: these.
DIGEST_ATTRIBUTE, TEXT_ATTRIBUTE = "digest", "text"


def _register() -> None:
    """Register the handlers of all platforms, at import: a program that another process exported runs without a call here.

    Nothing is compiled. XLA takes one address for good: that of a function of the package's C part, which calls the handler in
    Python until `serve_by_c`, or without that part the handler itself.
    """
    for which, (platform, handler) in enumerate(_HANDLERS.items()):
        address = _address(handler) if trip.LIBRARY is None else trip.LIBRARY.forward(which, _address(handler) or 0)
        jax.ffi.register_ffi_target(TARGET, {"execute": jax.ffi.pycapsule(address)}, platform=platform)
    atexit.register(_finish)


def _finish() -> None:
    """Wait for calls with unread results: at exit JAX waits for XLA's threads, and these for Python, forever.

    JAX registered its own cleanup before, so it runs after this.
    """
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # of a failed call, or deleted: nobody reads it any more
            array.block_until_ready()


@cache
def serve_by_c(platform: str) -> CHandler | None:
    """Let the handler in C, compiled the first time, handle a platform's calls; None where Python keeps handling them."""
    handler = c_handler()
    if handler is not None and trip.LIBRARY is not None:
        address = handler.address(platform, _address(_HANDLERS[platform]))
        trip.LIBRARY.forward([*_HANDLERS].index(platform), address or 0)
    return handler


class HostCall(NamedTuple):
    """A call on host memory: its site, and the shapes and dtypes of its results."""

    site: CallSite
    results: tuple[Shaped, ...]

    @classmethod
    def of(cls, text: str) -> HostCall:
        site = CallSite.of(text)
        return cls(site, site.request.results(site.operands))

    def run(self, frame: CallFrame) -> None:
        """Read the operands in place, and copy the results to their buffers."""
        operands = [_view(frame.arguments, index, shaped) for index, shaped in enumerate(self.site.operands)]
        results = [_view(frame.results, index, shaped) for index, shaped in enumerate(self.results)]
        for operand, result in self.site.request.aliases.items():
            # XLA gives both the same memory, unless it had to copy.
            if operands[operand].ctypes.data != results[result].ctypes.data:
                results[result][...] = operands[operand]
            operands[operand] = results[result]
        for result, computed in zip(results, run_on_host(self.site.request, operands), strict=True):
            if result is not computed:
                result[...] = computed

    def publish(self, digest: int, frame: CallFrame) -> None:
        """Let C run the call from now on, where all of it is native code."""
        handler = serve_by_c("cpu")
        operands = [_view(frame.arguments, index, shaped) for index, shaped in enumerate(self.site.operands)]
        recorded = None if handler is None else recorded_on_host(self.site.request, operands)
        if handler is not None and recorded is not None:
            handler.publish(digest, ON_HOST, *recorded)


def _run_on_host(frame: CallFrame) -> None:
    digest = _digest(frame)
    call = _HOST_CALLS.get(digest)
    if call is not None:
        call.run(frame)
        return
    call = HostCall.of(_text(frame))
    call.run(frame)
    _HOST_CALLS[digest] = call
    call.publish(digest, frame)


def _run_on_device(frame: CallFrame) -> None:
    arguments, results = frame.arguments, frame.results
    operands = [arguments.buffers[index].contents.data or 0 for index in range(arguments.size)]
    written = [results.buffers[index].contents.data or 0 for index in range(results.size)]
    stream = _stream(frame)
    key = (_digest(frame), current_device_of(operands[0]))
    call = _DEVICE_CALLS.get(key) or _prepared(key, CallSite.of(_text(frame)))
    has_workspace = results.size > len(call.results)
    call.run(operands, written, results.buffers[results.size - 1].contents.dims[0] if has_workspace else 0, stream)


def _handler_of(run: Callable[[CallFrame], None]) -> Any:
    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if frame.extension and frame.extension.contents.base.type == structures.METADATA_EXTENSION:
                _describe(frame.extension.contents.metadata.contents)
            elif frame.stage == structures.EXECUTE_STAGE:
                run(frame)
        except BaseException as error:  # ctypes would print it and go on
            return _refusal(frame, error)
        return None

    return structures.Handler(handle)


def _describe(metadata: Any) -> None:
    """Describe the handler: a replay launches the same as the first run, so XLA may capture it into a command buffer."""
    metadata.version.major, metadata.version.minor = structures.API_MAJOR, structures.API_MINOR
    metadata.traits = structures.COMMAND_BUFFER_COMPATIBLE


def _refusal(frame: CallFrame, error: BaseException) -> int | None:
    """Return an exception as an error of XLA, which raises it where the result is waited for."""
    is_bad = isinstance(error, BadInput)
    message = str(error) if is_bad else f"{type(error).__name__}: {error}"
    arguments = structures.ErrorArguments(
        ctypes.sizeof(structures.ErrorArguments) - 4,  # without padding
        None,
        message.encode(errors="replace"),
        structures.INVALID_ARGUMENT if is_bad else structures.INTERNAL,
    )
    created: int | None = frame.api.contents.create_error(ctypes.byref(arguments))
    return created


def _stream(frame: CallFrame) -> int:
    arguments = structures.StreamArguments(ctypes.sizeof(structures.StreamArguments), None, frame.context, None)
    if frame.api.contents.get_stream(ctypes.byref(arguments)):
        raise RuntimeError("XLA has no stream for a custom call")
    return arguments.stream or 0


def _digest(frame: CallFrame) -> int:
    value = ctypes.cast(frame.attributes.values[0], ctypes.POINTER(structures.Scalar))
    return int(value.contents.value[0])


def _text(frame: CallFrame) -> str:
    span = ctypes.cast(frame.attributes.values[1], ctypes.POINTER(structures.Text)).contents
    return ctypes.string_at(span.start, span.size).decode()


def _view(buffers: Buffers, index: int, shaped: Shaped) -> Any:
    """Return a buffer in host memory as a NumPy array, without a copy."""
    dtype = numpy_dtype(shaped.dtype)
    size_bytes = math.prod(shaped.shape) * dtype.itemsize
    if not size_bytes:
        return numpy.empty(shaped.shape, dtype)
    memory = (ctypes.c_byte * size_bytes).from_address(buffers.buffers[index].contents.data)
    return numpy.frombuffer(memory, dtype).reshape(shaped.shape)


def _address(handler: Any) -> int | None:
    return ctypes.cast(handler, ctypes.c_void_p).value


def prepare(site: CallSite) -> DeviceCall:
    """Prepare a call for JAX's first GPU here, while a program is compiled rather than while it runs."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        raise BadInput(
            "a program for CUDA is compiled where JAX has no GPU, but its calls are recorded on one; compile it, or export it, "
            "on a machine with a GPU"
        ) from None
    return _prepared((digest_of(site.text()), device.local_hardware_id), site)


def _prepared(key: tuple[int, int], site: CallSite) -> DeviceCall:
    with _LOCK:
        if key not in _DEVICE_CALLS:
            # The C compiler is another process: kernels are planned and compiled meanwhile.
            by_c = threading.Thread(target=serve_by_c, args=("CUDA",), name="minrnn_gen handler")
            by_c.start()
            try:
                call = device_call(site, key[1])
            finally:
                by_c.join()
            call.publish(key[0])
            _DEVICE_CALLS[key] = call
        return _DEVICE_CALLS[key]


# The handlers that XLA calls as long as the process lives, and their calls by the programs' texts.
_HANDLERS = {platform: _handler_of(_run_on_device if is_gpu else _run_on_host) for platform, is_gpu in PLATFORMS.items()}
_HOST_CALLS: dict[int, HostCall] = {}
_DEVICE_CALLS: dict[tuple[int, int], DeviceCall] = {}
_LOCK = threading.Lock()

_register()
