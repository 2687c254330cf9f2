"""The package's arrays: allocated on a GPU or in host memory, read from any library, converted and copied."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from minrnn_gen.call.array import (
    DTYPE_BYTES,
    Array,
    as_numpy,
    contiguous_strides,
    inspect_array,
    new_numpy,
    numpy_dtype,
    torch_empty,
)
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.device import Placed

# The C library keeps smaller tensors in host memory for the next call. NumPy asks the system for large pages: the first touch
# of small ones takes longer than their use.
LARGE_BYTES = 1 << 25
LARGE_ALIGNMENT_BYTES = 64
LARGEST_WORD_BYTES = 8


class Allocation(NamedTuple):
    """A contiguous array to be allocated: `dtype` is the library's own; `fill`: the value of all bytes, or None."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    fill: int | None


def import_foreign(value: Any, name: str) -> Any:
    """Turn an array with DLPack or `__cuda_array_interface__` into a CuPy array (device memory) or a NumPy one, uncopied."""
    try:
        if hasattr(value, "__cuda_array_interface__"):
            return gpu_device.cupy_module().asarray(value)
        kind, _ = value.__dlpack_device__()
        if kind == 1:  # kDLCPU (dlpack.h)
            import numpy

            return numpy.from_dlpack(value)
        return gpu_device.cupy_module().from_dlpack(value)
    # The errors of libraries for an incomplete protocol, or for a missing device.
    except (AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError) as refused:
        raise BadInput(
            f"{name} is {kind_of(value)} that cannot be read as an array ({' '.join(str(refused).split())}); "
            f"a NumPy, CuPy or torch array, or any with DLPack, is expected"
        ) from refused


def inspect(value: Any, name: str) -> Array:
    """Describe any array; see `array.inspect_array`."""
    return inspect_array(value, name, import_foreign)


def new_array(like: Array, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
    """Allocate an array of the library and on the device of `like`; uninitialised without `fill`, see `Allocation`."""
    if like.library == "numpy":
        return new_numpy(shape, dtype, fill)
    allocation = Allocation(shape, contiguous_strides(shape), own_dtype(like, dtype), fill)
    return inspect(allocate(like.owner, like, allocation)[0], "result")


def own_dtype(like: Placed, dtype: str) -> Any:
    """Return a dtype in the form of the library of `like`."""
    return getattr(sys.modules["torch"], dtype) if like.library == "torch" else numpy_dtype(dtype)


def allocate(like: Any, place: Placed, allocation: Allocation) -> tuple[Any, int]:
    """Allocate in `place`, on the device of `like`, on the current stream; return the library's array and its address."""
    array, address = allocator(like, place)(allocation)
    fill = allocation.fill
    if fill is not None:
        if place.library == "torch":
            array.fill_(fill)
        else:
            with gpu_device.on_device(place.device):
                array.data.memset_async(fill, array.nbytes)
    return array, address


def allocator(like: Any, place: Placed) -> Callable[[Allocation], tuple[Any, int]]:
    """Return an allocator in `place`, on the device of `like`, for the current stream; its arrays are not filled."""
    if place.library == "numpy":
        import numpy

        def by_numpy(allocation: Allocation) -> tuple[Any, int]:
            array = numpy.empty(allocation.shape, allocation.dtype)
            return array, array.__array_interface__["data"][0]

        return by_numpy
    if place.library != "torch":

        def by_cupy(allocation: Allocation) -> tuple[Any, int]:
            with gpu_device.on_device(place.device):
                array = gpu_device.cupy_module().empty(allocation.shape, allocation.dtype)
            return array, array.data.ptr

        return by_cupy
    if place.device is None:
        return _host_allocator(sys.modules["torch"])
    empty = torch_empty(place.device)

    def by_torch(allocation: Allocation) -> tuple[Any, int]:
        shape, strides, dtype, _ = allocation
        # By the caller's tensor, so that the memory comes from torch's allocator, on the same device.
        tensor = empty(shape, strides, dtype) if empty else like.new_empty(shape, dtype=dtype)
        return tensor, tensor.data_ptr()

    return by_torch


@lru_cache(maxsize=1)
def _host_allocator(torch: Any) -> Callable[[Allocation], tuple[Any, int]]:
    empty = torch_empty(None) or (lambda shape, _strides, dtype: torch.empty(shape, dtype=dtype))

    def on_host(allocation: Allocation) -> tuple[Any, int]:
        shape, strides, dtype, _ = allocation
        tensor = in_large_pages(shape, dtype) if is_large(shape, dtype) else empty(shape, strides, dtype)
        return tensor, tensor.data_ptr()

    return on_host


def is_large(shape: tuple[int, ...], dtype: Any) -> bool:
    """Say whether a tensor of a shape and dtype in host memory uses large pages."""
    return bool(math.prod(shape) * dtype.itemsize >= LARGE_BYTES)


def in_large_pages(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised tensor in host memory, in large pages where the system gives them on request."""
    import numpy

    size_bytes = math.prod(shape) * dtype.itemsize
    memory = numpy.empty(size_bytes + LARGE_ALIGNMENT_BYTES, numpy.uint8)
    first = -int(memory.ctypes.data) % LARGE_ALIGNMENT_BYTES
    return sys.modules["torch"].from_numpy(memory[first : first + size_bytes]).view(dtype).view(shape)


def allocate_aligned(
    allocate: Callable[[Allocation], tuple[Any, int]], allocation: Allocation, alignment_bytes: int
) -> tuple[Any, int]:
    """Allocate by `allocate`, with padding so that the array begins at a multiple of `alignment_bytes` wherever it is."""
    itemsize = DTYPE_BYTES[str(allocation.dtype).removeprefix("torch.")]
    count = math.prod(allocation.shape)
    whole, address = allocate(Allocation((count + alignment_bytes // itemsize,), (1,), allocation.dtype, None))
    first = -address % alignment_bytes // itemsize
    return whole[first : first + count].reshape(allocation.shape), address + first * itemsize


def set_bytes(place: Placed, address: int, size_bytes: int, value: int) -> None:
    """Enqueue bytes of one value from `address` on, on the current stream of the library."""
    stream = gpu_stream.current_stream(place)
    with gpu_device.on_device(place.device):
        gpu_device.cupy_module().cuda.runtime.memsetAsync(address, value, size_bytes, stream)


def cast(value: Any, dtype: str) -> Any:
    """Return a torch tensor or CuPy array in `dtype`, itself where it has that already, on the current stream."""
    if hasattr(value, "astype"):
        return value.astype(numpy_dtype(dtype), copy=False)
    return value.to(getattr(sys.modules["torch"], dtype))


def cast_at(value: Any, dtype: str) -> tuple[Any, int]:
    """Return what `cast` does, and its address."""
    converted = cast(value, dtype)
    return converted, start_of(converted)


def start_of(value: Any) -> int:
    """Return the address of a library's array."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    return int(value.ctypes.data if hasattr(value, "ctypes") else value.data.ptr)


def without_gaps(array: Array) -> Array:
    """Return a contiguous copy of a caller's whole array, on the current stream."""
    if array.library == "torch":
        return inspect(array.owner.clone() if array.is_contiguous else array.owner.contiguous(), array.name)
    with gpu_device.on_device(array.device):
        # As words, which are copied alike whatever the dtype; none has the 16 bytes of two doubles.
        words = array.owner.view(f"u{array.itemsize}") if array.itemsize <= LARGEST_WORD_BYTES else array.owner
        copied = _numpy_or_cupy(array).array(words, order="C")
        return inspect(copied.view(numpy_dtype(array.dtype)), array.name)


def read_back(array: Array) -> Any:
    """Return the values of an array on a GPU as a NumPy array, after all earlier work on the current stream.

    None while that stream is being captured, when there is nothing to read yet.
    """
    if gpu_stream.is_capturing(array):
        return None
    if array.library == "torch":
        return array.owner.cpu().numpy()
    return to_host(array.owner)


def int64_beside(like: Array, array: Array) -> Array:
    """Return integers as int64 in the library and on the device of `like`: `array` itself if it fits already.

    Raises BadInput for an array in host memory while the stream is being captured, when no copy from there is possible.
    """
    if array.device is None and gpu_stream.is_capturing(like):
        raise BadInput(f"{array.name} is in host memory while a CUDA graph is captured; copy it to the GPU before")
    if (array.dtype, array.library, array.device) == ("int64", like.library, like.device):
        return array
    values = as_numpy(array) if array.device is None else array.owner
    if like.library == "torch":
        torch = sys.modules["torch"]
        return inspect(torch.as_tensor(values, device=like.owner.device).to(torch.int64), array.name)
    with gpu_device.on_device(like.device):
        return inspect(cast(_numpy_or_cupy(like).asarray(values), "int64"), array.name)


def stacked(arrays: Sequence[Any], axis: int) -> Any:
    """Return arrays of one library as one, along a new axis."""
    like = inspect(arrays[0], "array")
    return (sys.modules["torch"] if like.library == "torch" else _numpy_or_cupy(like)).stack([*arrays], axis)


def with_first_at(array: Any, axis: int) -> Any:
    """Return an array of a library with its first axis at `axis`, in the same memory."""
    if inspect(array, "array").library == "torch":
        return array.movedim(0, axis)
    return _numpy_or_cupy(inspect(array, "array")).moveaxis(array, 0, axis)


def zeroed_beyond(x: Array, axes: str, lengths: Array) -> Array:
    """Return x, whose axes have the letters `axes`, with zeros where time is beyond each sequence's length, replacing even NaN.

    `lengths` as `int64_beside` returns them.
    """
    time = x.shape[axes.index("t")]
    along_time, along_batch = (tuple(-1 if axis == letter else 1 for axis in axes) for letter in "tb")
    if x.library == "torch":
        steps = sys.modules["torch"].arange(time, device=x.owner.device)
        beyond = steps.reshape(along_time) >= lengths.owner.reshape(along_batch)
        return inspect(x.owner.masked_fill(beyond, 0), x.name)
    module = _numpy_or_cupy(x)
    with gpu_device.on_device(x.device):
        within = module.arange(time).reshape(along_time) < lengths.owner.reshape(along_batch)
        # As words, which are selected alike whatever the dtype.
        words = module.where(within, x.owner.view(f"u{x.itemsize}"), 0)
        return inspect(words.astype(f"u{x.itemsize}", copy=False).view(numpy_dtype(x.dtype)), x.name)


def _numpy_or_cupy(like: Placed) -> Any:
    if like.device is not None:
        return gpu_device.cupy_module()
    import numpy

    return numpy


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the current device, as a CuPy array."""
    return gpu_device.cupy_module().asarray(array)


def to_host(array: Any) -> Any:
    """Copy a CuPy array to a NumPy array, after all earlier work on the current stream."""
    return gpu_device.cupy_module().asnumpy(array)
