"""The CUDA device at hand, and CuPy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, NoReturn, Protocol

from minrnn_gen.build.nvrtc import make_cupy_cache
from minrnn_gen.call.array import Library
from minrnn_gen.config.gpu_profile import GpuProfile, profile_for_device, profile_from_attributes
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing, needing, why_not_imported
from minrnn_gen.gpu.calibration import calibrated
from minrnn_gen.gpu.driver import has_device

# Does nothing, for any thread, any number of times.
_AS_IT_IS = nullcontext()


class Placed(Protocol):
    """An object in a library's memory on a device: `Array`, or `Place` alone."""

    @property
    def library(self) -> Library: ...
    @property
    def device(self) -> int | None: ...


class Place(NamedTuple):
    """A library, and the CUDA device that its arrays are on."""

    library: Library
    device: int | None


@dataclass(frozen=True)
class LiveDevice:
    """The GPU of this machine: the driver's description of it, and its profile."""

    name: str
    compute_capability: str
    attributes: dict[str, int] = field(repr=False)
    profile: GpuProfile = field(repr=False)
    profile_is_shipped: bool


@cache
def live_device(device: int = 0) -> LiveDevice | None:
    """Return the GPU number `device`, None without a driver, a GPU or an importable CuPy.

    Raises ToolchainMissing for a driver that CuPy cannot use, BadInput for a GPU older than every profile.
    """
    if not has_device() or why_no_cupy():
        return None
    cupy = cupy_module()
    try:
        name = cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ToolchainMissing(
            f"CuPy cannot use the GPU here ({error}); run 'minrnn-gen doctor' to check the installation"
        ) from error
    capability = cupy.cuda.Device(device).compute_capability
    dotted = f"{capability[:-1]}.{capability[-1]}"
    attributes = {key: int(value) for key, value in cupy.cuda.Device(device).attributes.items()}
    shipped = profile_for_device(name, dotted)
    profile = calibrated(shipped or profile_from_attributes(name, dotted, attributes))
    return LiveDevice(name, dotted, attributes, profile, shipped is not None)


def on_device(device: int | None) -> AbstractContextManager[Any]:
    """Return a context in which the current device is `device`; nearly free if it already is, as in almost every call."""
    if device is None:
        return _AS_IT_IS
    cupy = cupy_module()
    is_current = cupy.cuda.runtime.getDevice() == device
    return _AS_IT_IS if is_current else cupy.cuda.Device(device)


def make_context() -> None:
    """Give this thread a context of the current device."""
    cupy_module().cuda.runtime.free(0)


def refuse(status: int) -> NoReturn:
    """Raise CuPy's exception for a status of the driver."""
    raise cupy_module().cuda.driver.CUDADriverError(status)


def synchronize() -> None:
    """Wait for everything on the current device."""
    cupy_module().cuda.Device().synchronize()


@cache
def cupy_module() -> Any:
    """Import CuPy; raises ToolchainMissing where it is not installed, or its import fails."""
    make_cupy_cache()
    with needing("cupy", "running on a GPU", INSTALL_CUDA):
        import cupy
        import cupy.cuda
    return cupy


def why_no_cupy() -> str:
    """Return why CuPy cannot be imported, as a relative clause; nothing where it can."""
    try:
        cupy_module()
    except ToolchainMissing as missing:
        return why_not_imported(missing.__cause__, "cupy")
    return ""


def why_no_gpu() -> str:
    """Return why `live_device` returns None, as a part of a sentence."""
    return f"the GPU here needs CuPy, {why_no_cupy()}" if has_device() else "no GPU found"
