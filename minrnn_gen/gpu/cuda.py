"""Loading and launching cubins, and the live device."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from minrnn_gen.call.array import (
    Array,
    Library,
    as_numpy,
    contiguous_strides,
    inspect_array,
    new_numpy,
    numpy_dtype,
    torch_empty,
    torch_stream,
)
from minrnn_gen.config.gpu_profile import GpuProfile, profile_for_device, profile_from_attributes
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.gpu.calibration import calibrated
from minrnn_gen.gpu.driver import NO_CONTEXT, PORTABLE_CLUSTER_BLOCKS, SUCCESS, allow_large_clusters, has_device, launch
from minrnn_gen.plan.kernel_plan import KernelPlan

# Streams in use at once, as objects.
_STREAMS_HELD = 64
# Does nothing, for any thread, any number of times.
_AS_IT_IS = nullcontext()


class Placed(Protocol):
    """Whatever is in a library's memory on a device: `Array`, or `Place` alone."""

    @property
    def library(self) -> Library: ...
    @property
    def device(self) -> int | None: ...


class Place(NamedTuple):
    """A library, and the CUDA device that its arrays are on."""

    library: Library
    device: int | None


class Allocation(NamedTuple):
    """An array to be allocated, contiguous: `dtype` is the library's own; `fill`: the byte it is full of, or None."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    fill: int | None


@dataclass(frozen=True)
class LiveDevice:
    """The GPU of this machine: what the driver says of it, and the profile that describes it."""

    name: str
    compute_capability: str
    attributes: dict[str, int] = field(repr=False)
    profile: GpuProfile = field(repr=False)
    profile_is_shipped: bool


@cache
def live_device(device: int = 0) -> LiveDevice | None:
    """Return the GPU number `device`, or None where there is no driver, no GPU or no CuPy.

    Raises ToolchainMissing for a driver that CuPy cannot use, BadInput for a GPU older than every profile.
    """
    if not has_device():
        return None
    try:
        import cupy
    except ImportError:
        return None
    try:
        name = cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ToolchainMissing(f"CuPy cannot use the GPU here ({error}); 'minrnn-gen doctor' looks closer") from error
    capability = cupy.cuda.Device(device).compute_capability
    dotted = f"{capability[:-1]}.{capability[-1]}"
    attributes = {key: int(value) for key, value in cupy.cuda.Device(device).attributes.items()}
    shipped = profile_for_device(name, dotted)
    profile = calibrated(shipped or profile_from_attributes(name, dotted, attributes))
    return LiveDevice(name, dotted, attributes, profile, shipped is not None)


def import_foreign(value: Any, name: str) -> Any:
    """Turn an array with DLPack or `__cuda_array_interface__` into a CuPy array (device memory) or a NumPy one, uncopied."""
    try:
        if hasattr(value, "__cuda_array_interface__"):
            return cupy_module().asarray(value)
        kind, _ = value.__dlpack_device__()
        if kind == 1:  # kDLCPU (dlpack.h)
            import numpy

            return numpy.from_dlpack(value)
        return cupy_module().from_dlpack(value)
    # What libraries raise for a protocol that is half there, or for a device that is not.
    except (AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError) as refused:
        raise BadInput(
            f"{name} is a {type(value).__name__} that cannot be read as an array ({' '.join(str(refused).split())}); "
            f"a NumPy, CuPy or torch array, or any with DLPack, is expected"
        ) from refused


def inspect(value: Any, name: str) -> Array:
    """Describe any array; see `arrays.inspect_array`."""
    return inspect_array(value, name, import_foreign)


def new_array(like: Array, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
    """Allocate an array of the library and on the device of `like`; uninitialised without `fill`, see `Allocation`."""
    if like.library == "numpy":
        return new_numpy(shape, dtype, fill)
    its_dtype = getattr(sys.modules["torch"], dtype) if like.library == "torch" else numpy_dtype(dtype)
    return inspect(allocate(like.owner, like, Allocation(shape, contiguous_strides(shape), its_dtype, fill))[0], "result")


def allocate(like: Any, place: Placed, allocation: Allocation) -> tuple[Any, int]:
    """Allocate in `place`, beside the tensor `like`, on the current stream; return the library's array and its address."""
    shape, strides, dtype, fill = allocation
    if place.library == "torch":
        empty = torch_empty(place.device)
        # Through the caller's tensor, so that the memory is of torch's own allocator and on the same device.
        tensor = empty(shape, strides, dtype) if empty else like.new_empty(shape, dtype=dtype)
        if fill is not None:
            tensor.fill_(fill)
        return tensor, tensor.data_ptr()
    cupy = cupy_module()
    with on_device(place.device):
        array = cupy.empty(shape, dtype)
        if fill is not None:
            array.data.memset_async(fill, array.nbytes)
    return array, array.data.ptr


def cast(value: Any, dtype: str) -> Any:
    """Return a torch tensor or CuPy array in `dtype`, itself where it has that already, on the current stream."""
    if hasattr(value, "astype"):
        return value.astype(numpy_dtype(dtype), copy=False)
    return value.to(getattr(sys.modules["torch"], dtype))


def without_gaps(array: Array) -> Array:
    """Return a whole array of a caller as a contiguous one, a copy where it is not, on the current stream."""
    if array.library == "torch":
        return inspect(array.owner.contiguous(), array.name)
    with on_device(array.device):
        # As words, which are copied alike whatever the dtype.
        words = _numpy_or_cupy(array).ascontiguousarray(array.owner.view(f"u{array.itemsize}"))
        return inspect(words.view(numpy_dtype(array.dtype)), array.name)


def read_back(array: Array) -> Any:
    """Return the values of an array on a GPU as a NumPy array, after everything before it on the current stream.

    Where that stream is being captured there is nothing to read yet: None.
    """
    if is_capturing(array):
        return None
    if array.library == "torch":
        return array.owner.cpu().numpy()
    return to_host(array.owner)


def int64_beside(like: Array, array: Array) -> Array:
    """Return integers as int64 in the library and on the device of `like`: `array` itself where it is that.

    Raises BadInput for an array in host memory while the stream is being captured, when nothing can be copied from there.
    """
    if array.device is None and is_capturing(like):
        raise BadInput(f"{array.name} is in host memory while a CUDA graph is captured; copy it to the GPU before")
    given = as_numpy(array) if array.device is None else array.owner
    if like.library == "torch":
        torch = sys.modules["torch"]
        return inspect(torch.as_tensor(given, device=like.owner.device).to(torch.int64), array.name)
    with on_device(like.device):
        return inspect(cast(_numpy_or_cupy(like).asarray(given), "int64"), array.name)


def zeroed_beyond(x: Array, axes: str, lengths: Array) -> Array:
    """Return x, whose axes have the letters `axes`, with zeros where time is beyond each sequence's length, whatever was there.

    `lengths` as `int64_beside` returns them.
    """
    time = x.shape[axes.index("t")]
    along_time, along_batch = (tuple(-1 if axis == one else 1 for axis in axes) for one in "tb")
    if x.library == "torch":
        steps = sys.modules["torch"].arange(time, device=x.owner.device)
        beyond = steps.reshape(along_time) >= lengths.owner.reshape(along_batch)
        return inspect(x.owner.masked_fill(beyond, 0), x.name)
    module = _numpy_or_cupy(x)
    with on_device(x.device):
        within = module.arange(time).reshape(along_time) < lengths.owner.reshape(along_batch)
        # As words, which are selected alike whatever the dtype.
        words = module.where(within, x.owner.view(f"u{x.itemsize}"), 0)
        return inspect(words.astype(f"u{x.itemsize}", copy=False).view(numpy_dtype(x.dtype)), x.name)


def _numpy_or_cupy(like: Placed) -> Any:
    if like.device is not None:
        return cupy_module()
    import numpy

    return numpy


def is_capturing(like: Array) -> bool:
    """Say whether the current stream of the library of `like` is recording a graph."""
    if like.device is None:
        return False
    runtime = cupy_module().cuda.runtime
    stream = current_stream(like)
    with on_device(like.device):
        try:
            return bool(runtime.streamIsCapturing(stream))
        except runtime.CUDARuntimeError:
            # The answer on the default stream while another one is captured.
            return True


def current_stream(like: Placed) -> int:
    """Return the handle of the stream on which the library of `like` now works on its device."""
    assert like.device is not None
    if like.library == "torch":
        return torch_stream(like.device)
    cupy = cupy_module()
    with on_device(like.device):
        return int(cupy.cuda.get_current_stream().ptr)


def on_device(device: int | None) -> AbstractContextManager[Any]:
    """Return a context in which the current device is `device`; next to nothing where it is that, as in almost every call."""
    if device is None:
        return _AS_IT_IS
    cupy = cupy_module()
    is_current = cupy.cuda.runtime.getDevice() == device
    return _AS_IT_IS if is_current else cupy.cuda.Device(device)


def cublas_handle() -> int:
    """Return this thread's handle of cuBLAS for the current device, which CuPy prepares anew before each use of its own."""
    return int(cupy_module().cuda.device.get_cublas_handle())


def load_cublas() -> None:
    """Load cuBLAS into the process, from where CuPy finds it; raises ToolchainMissing where it does not."""
    cupy_module()
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except ImportError as missing:
        raise ToolchainMissing("cuBLAS is not installed: pip install 'minrnn-gen[cuda13]' (or [cuda12])") from missing


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the current device, as a CuPy array."""
    return cupy_module().asarray(array)


def to_host(array: Any) -> Any:
    """Copy a CuPy array to a NumPy array, after everything before it on the current stream."""
    return cupy_module().asnumpy(array)


def synchronize() -> None:
    """Wait for everything on the current device."""
    cupy_module().cuda.Device().synchronize()


@dataclass
class LoadedKernel:
    """A kernel of one cubin, loaded on first use on each device; `launch` may be called from any thread.

    The module stays loaded as long as this object lives. Launches are asynchronous. Where `is_cooperative`, the driver launches
    only what the GPU holds at once, so that blocks may wait for each other.
    """

    cubin: bytes
    entry: str
    arch: str
    dynamic_shared_bytes: int
    cluster_blocks: int = 1
    is_cooperative: bool = False
    _functions: dict[int, Any] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def launch(self, like: Placed, blocks: int, threads: int, arguments: Sequence[Any], /) -> None:
        """Launch on the device of `like`, on the stream on which its library now works there.

        `arguments` are ints (pointers, 0 for null, and 64-bit sizes) or NumPy scalars.
        """
        assert like.device is not None
        self.launch_on(like.device, current_stream(like), blocks, threads, arguments)

    def launch_on(self, device: int, stream: int, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        """Launch on a stream of `device`; raises CuPy's exception of the driver where it refuses."""
        cupy, pointer = cupy_module(), self.function(device).ptr
        configuration = (blocks, threads, self.dynamic_shared_bytes, stream, self.is_cooperative)
        with on_device(device):
            status = launch(pointer, configuration, arguments)
            if status == NO_CONTEXT:
                cupy.cuda.runtime.free(0)  # which makes one
                status = launch(pointer, configuration, arguments)
        if status != SUCCESS:
            raise cupy.cuda.driver.CUDADriverError(status)

    def resident_blocks(self, device: int | None, threads: int) -> int:
        """Return how many blocks of so many threads `device` holds at once."""
        assert device is not None
        driver, runtime = cupy_module().cuda.driver, cupy_module().cuda.runtime
        function = self.function(device)
        with on_device(device):
            per_sm = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, self.dynamic_shared_bytes)
        return int(per_sm * runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))

    def function(self, device: int) -> Any:
        """Return the function on `device`, loaded there if it was not yet."""
        return self._functions.get(device) or self._load(device)

    def _load(self, device: int) -> Any:
        cupy = cupy_module()
        with self._lock, cupy.cuda.Device(device):
            capability = cupy.cuda.Device(device).compute_capability
            compiled_for = self.arch.removeprefix("sm_")
            if capability[:-1] != compiled_for[:-1] or int(capability[-1]) < int(compiled_for[-1]):
                raise BadInput(
                    f"the kernel was compiled for {self.arch} but the arrays are on a GPU of sm_{capability}; "
                    f"compile it without 'gpu' on this machine, or with a profile of sm_{capability}"
                )
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{self.entry}.cubin"
                path.write_bytes(self.cubin)
                kernel = cupy.RawModule(path=str(path)).get_function(self.entry)
            if self.dynamic_shared_bytes:
                kernel.max_dynamic_shared_size_bytes = self.dynamic_shared_bytes
            if self.cluster_blocks > PORTABLE_CLUSTER_BLOCKS:
                allow_large_clusters(kernel.kernel.ptr)
            self._functions[device] = kernel.kernel
            return kernel.kernel


def loaded_kernel(cubin: bytes, plan: KernelPlan, part: str = "") -> LoadedKernel:
    """Return the kernel of `plan`, to be loaded on first use; `part` is the end of its name where the plan has several."""
    variables = plan.variables
    return LoadedKernel(
        cubin,
        plan.entry + part,
        plan.arch,
        plan.shared_bytes,
        variables.get("cluster_blocks", 1),
        is_cooperative=variables.get("grid_blocks", 1) > 1,
    )


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of another library."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version and the handle."""
        return 0, self.handle


@lru_cache(maxsize=_STREAMS_HELD)
def external_stream(handle: int) -> Any:
    """Return the stream of another library as one of CuPy's."""
    return cupy_module().cuda.Stream.from_external(_Stream(handle))


@cache
def cupy_module() -> Any:
    """Import CuPy; raises ToolchainMissing where it is not installed."""
    try:
        import cupy
    except ImportError as missing:
        raise ToolchainMissing(
            "running on a GPU needs CuPy, which is not installed: pip install 'minrnn-gen[cuda13]' (or [cuda12])"
        ) from missing
    return cupy
