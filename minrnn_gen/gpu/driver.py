"""The CUDA driver: its release and version, and launches with all arguments in one block of bytes."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from minrnn_gen.errors import ToolchainMissing

SUCCESS = 0
# CUresult: the thread has not used the device yet.
NO_CONTEXT = 201
# Every GPU with clusters supports clusters of up to so many blocks; a kernel must request more (CUDA C++ Programming Guide).
PORTABLE_CLUSTER_BLOCKS = 8
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14  # CUfunction_attribute (cuda.h)
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_MANAGEMENT_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_RELEASE_BYTES = 96  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80
# Kernels have a few signatures each; a call has its sizes and stream, of which a program uses few at a time.
_LAYOUTS_HELD, _CONFIGURATIONS_HELD = 256, 1024
# CUlaunchAttributeID (cuda.h).
_COOPERATIVE = 2
_SLOT_BYTES = 8
# No device takes a greater distance between rows (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
PITCH_BYTES_MAX = 2**31 - 1


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute with a number as its value."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def has_device() -> bool:
    """Say whether the driver is installed and sees a GPU, without importing CuPy."""
    return device_count() > 0


def device_count() -> int:
    """Return how many GPUs the driver sees, 0 where there is no driver; without CuPy."""
    count = ctypes.c_int(0)
    driver = _loaded()
    if driver is None or driver.cuInit(0) != SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS:
        return 0
    return count.value


def driver_version() -> str | None:
    """Return the newest CUDA version that the driver supports, as "13.0", None without a driver; without importing CuPy."""
    version = ctypes.c_int(0)
    driver = _loaded()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != SUCCESS:
        return None
    # 1000 major + 10 minor (CUDA driver API, cuDriverGetVersion).
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def driver_release() -> str | None:
    """Return the driver's release, as "580.159.04", None without its management library."""
    try:
        management = ctypes.CDLL(_MANAGEMENT_LIBRARY)
    except OSError:
        return None
    text = ctypes.create_string_buffer(_RELEASE_BYTES)
    if management.nvmlInit_v2() != SUCCESS:
        return None
    read = management.nvmlSystemGetDriverVersion(text, _RELEASE_BYTES)
    management.nvmlShutdown()
    return text.value.decode() if read == SUCCESS else None


def allow_large_clusters(function: int) -> None:
    """Allow launches of a function in clusters of more than `PORTABLE_CLUSTER_BLOCKS`; ToolchainMissing where that fails."""
    status = _library().cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    if status != SUCCESS:
        raise ToolchainMissing(f"the driver refuses clusters of more than {PORTABLE_CLUSTER_BLOCKS} blocks (error {status})")


def launch(function: int, configuration: tuple[int, int, int, int, bool], arguments: Sequence[Any]) -> int:
    """Launch a function of the current device and return the driver's status.

    `configuration`: blocks, threads of each, bytes of dynamic shared memory, stream, and whether the launch is cooperative.
    `arguments` are ints (pointers, 0 for null, and 64-bit sizes) or NumPy scalars, one for each parameter of the kernel.
    """
    layout = _layout_of(tuple(map(type, arguments)))
    buffer = (ctypes.c_char * layout.size)()
    first = ctypes.addressof(buffer)
    behind = first + _SLOT_BYTES * len(arguments)
    layout.pack_into(buffer, 0, *arguments, *range(first, behind, _SLOT_BYTES))
    return int(_library().cuLaunchKernelEx(ctypes.byref(_configuration(*configuration)), function, behind, None))


def packed(arguments: Sequence[Any]) -> bytes:
    """Return the arguments of a launch as `launch` lays them out, 8 bytes each."""
    count = len(arguments)
    return _layout_of(tuple(map(type, arguments))).pack(*arguments, *(0,) * count)[: _SLOT_BYTES * count]


def functions() -> tuple[Any, Any, Any]:
    """Return the functions that launch a kernel, set bytes, and copy rows of memory with a pitch."""
    library = _library()
    return library.cuLaunchKernelEx, library.cuMemsetD8Async, library.cuMemcpy2DAsync_v2


def graph_functions() -> tuple[Any, ...]:
    """Return the functions that capture a stream as a graph and launch it, in the order of native/graphs.h."""
    library = _library()
    return (
        library.cuStreamIsCapturing,
        library.cuStreamCreate,
        library.cuStreamDestroy_v2,
        library.cuStreamBeginCapture_v2,
        library.cuStreamEndCapture,
        library.cuGraphInstantiateWithFlags,
        library.cuGraphDestroy,
        library.cuGraphExecDestroy,
        library.cuGraphLaunch,
    )


@lru_cache(maxsize=_LAYOUTS_HELD)
def _layout_of(kinds: tuple[type, ...]) -> struct.Struct:
    """Return the layout of a slot for each argument of these types, followed by the addresses of all slots.

    The driver reads only the bytes of the parameter from a slot, so that an int also serves a narrower parameter.
    """
    slots = ("q" if issubclass(kind, int) else _slot_of(sys.modules["numpy"].dtype(kind)) for kind in kinds)
    return struct.Struct("".join(slots) + f"{len(kinds)}Q")


def _slot_of(dtype: Any) -> str:
    return f"{dtype.char}{_SLOT_BYTES - dtype.itemsize}x"


@lru_cache(maxsize=_CONFIGURATIONS_HELD)
def _configuration(blocks: int, threads: int, shared_bytes: int, stream: int, is_cooperative: bool) -> _Configuration:
    """Return the configuration of a launch; it is never modified, so that threads may share it."""
    attributes = (_Attribute * 1)(_Attribute(id=_COOPERATIVE, value=1)) if is_cooperative else (_Attribute * 0)()
    return _Configuration((blocks, 1, 1), (threads, 1, 1), shared_bytes, stream, attributes, len(attributes))


@cache
def _library() -> Any:
    library = _loaded()
    if library is None:
        raise ToolchainMissing("there is no CUDA driver here; run 'minrnn-gen doctor' to check the installation")
    pointer = ctypes.c_void_p
    library.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    library.cuFuncSetAttribute.argtypes = (pointer, ctypes.c_int, ctypes.c_int)
    return library


def _loaded() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
