"""The caller's arrays, whatever library they come from, seen as pointer, shape, strides and dtype; no library is imported."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from minrnn_gen.call.address import Address, address_of
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.program.number import bounds, most

Library = Literal["numpy", "torch", "cupy"]

# Types of arrays in use at once.
TYPES_HELD = 16

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
DTYPE_BYTES |= {"complex64": 8, "complex128": 16, "uint8": 1}


@dataclass(frozen=True, slots=True)
class Array:
    """One array of the caller.

    `pointer` is an `Address` if the array has a slot in its call, and a `Place` if a described run will allocate the array,
    whose sizes may then be expressions. `strides` count elements. `device` is the CUDA device's number, or None for host
    memory. `owner` is the caller's object (or what it was converted to) and keeps the memory alive; for a view it is the whole
    array.
    """

    name: str
    library: Library
    owner: Any
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        return self.strides_match(contiguous_strides(self.shape))

    @property
    def address(self) -> Address:
        """The pointer, with the slot of the array if it has one; a place is no address, but stands for one."""
        return address_of(self.pointer)

    def with_slot(self, slot: int) -> Array:
        """Return the array in a slot of its call."""
        return replace(self, pointer=Address(self.pointer, slot))

    def rebound(self, owners: Sequence[Any], addresses: Sequence[int]) -> Array:
        """Return the same view of the array in this slot of another call, with its `owners` and `addresses` by slot."""
        address = self.address
        assert address.slot is not None
        pointer = Address(address.rebound(addresses), address.slot, address.offset_bytes)
        return replace(self, owner=owners[address.slot], pointer=pointer)

    def selected(self, axis: int, index: int) -> Array:
        """View the array at `index` of `axis`, without that axis."""
        return replace(
            self,
            pointer=self.address + index * self.strides[axis] * self.itemsize,
            shape=self.shape[:axis] + self.shape[axis + 1 :],
            strides=self.strides[:axis] + self.strides[axis + 1 :],
        )

    def narrowed(self, axis: int, start: int, size: int) -> Array:
        """View `size` elements of `axis` from `start` on."""
        return replace(
            self,
            pointer=self.address + start * self.strides[axis] * self.itemsize,
            shape=(*self.shape[:axis], size, *self.shape[axis + 1 :]),
        )

    def strides_match(self, wanted: tuple[int, ...]) -> bool:
        """Compare strides where they matter: along axes longer than 1, of an array with elements."""
        if math.prod(self.shape) == 0:
            return True
        axes = zip(self.strides, wanted, self.shape, strict=True)
        return all(stride == want for stride, want, size in axes if (size if type(size) is int else bounds(size)[1]) > 1)


def is_tensor(array: Any) -> bool:
    """Say whether an array is torch's, by an attribute: compilers of torch before 2.11 find no method of a tensor."""
    return hasattr(array, "requires_grad")


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1) if type(size) is int else most(size, 1)
    return tuple(reversed(strides))


def inspect_array(value: Any, name: str, import_foreign: Callable[[Any, str], Any]) -> Array:
    """Describe `value`; `import_foreign(value, name)` turns an array of another library into a CuPy or NumPy one.

    Raises BadInput where `value` is no array, or a torch tensor that records gradients (the plain kernel has none to give), or
    where it lies on a GPU at an address that the GPU cannot load its elements from.
    """
    array = _described(value, name, import_foreign)
    if array.device is not None and array.pointer % DTYPE_BYTES.get(array.dtype, 1):
        raise BadInput(
            f"{name} starts at address {array.pointer}, no multiple of the {array.itemsize} bytes of {array.dtype}; copy it"
        )
    return array


def _described(value: Any, name: str, import_foreign: Callable[[Any, str], Any]) -> Array:
    library = _library_of(type(value))  # type: ignore[arg-type]  # every type has a hash
    if library == "torch":
        return _inspect_torch(value, name)
    if library == "numpy" and hasattr(value, "mask"):
        raise BadInput(f"{name} is a masked array, whose mask a kernel does not know; fill it, and pass the plain array")
    if library == "numpy" and hasattr(value, "__array_interface__"):
        return wrap_numpy(value, name)
    if library == "cupy":
        return _inspect_strided(value, name, "cupy", value.data.ptr, value.device.id)
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__"):
        return _described(import_foreign(value, name), name, import_foreign)
    raise BadInput(f"{name} is {kind_of(value)}; a NumPy, CuPy or torch array, or any with DLPack, is expected")


@lru_cache(maxsize=TYPES_HELD)
def _library_of(kind: type) -> str:
    """Return the package of a type; torch's name for a type of torch, or derived from one."""
    package, *others = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return "torch" if "torch" in others else package


def _inspect_strided(value: Any, name: str, library: Library, pointer: int, device: int | None) -> Array:
    itemsize = max(value.dtype.itemsize, 1)  # 0: not a dtype that a kernel takes, which a later check reports
    strides = value.strides
    if any(stride % itemsize for stride in strides):
        raise BadInput(f"{name} has strides of {strides} bytes, which are no multiples of its {itemsize}-byte elements")
    steps = tuple(stride // itemsize for stride in strides)
    # The name of a dtype leaves out the order of its bytes.
    dtype = value.dtype.name if value.dtype.isnative else value.dtype.str
    return Array(name, library, value, pointer, tuple(value.shape), steps, dtype, device)


def _inspect_torch(value: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        raise BadInput(f"{name} is {kind_of(value)}; a torch tensor is expected")
    if value.requires_grad and torch.is_grad_enabled():
        raise BadInput(
            f"{name} requires grad, which a plain kernel does not record; call minrnn_gen.torch.recurrence, or call under "
            f"torch.no_grad()"
        )
    # The memory of conj() and of its imaginary part holds other numbers than the tensor.
    value = value.resolve_conj().resolve_neg()
    if value.device.type not in ("cpu", "cuda"):
        raise BadInput(f"{name} is on torch device '{value.device}'; only cpu and cuda are supported")
    if value.device.type == "cuda" and torch.version.hip:
        raise BadInput(f"{name} is on an AMD GPU, which is not supported; give it in host memory, where native code computes")
    device = value.get_device() if value.device.type == "cuda" else None
    dtype = str(value.dtype).removeprefix("torch.")
    try:
        address, shape, strides = value.data_ptr(), tuple(value.shape), tuple(value.stride())
    except RuntimeError:
        address, shape, strides = 0, (1,), (1,)  # sparse, nested, batched
    if not address and math.prod(shape):
        raise BadInput(f"{name} is a torch tensor of layout {value.layout} without memory of its own; a dense one is expected")
    return Array(name, "torch", value, address, shape, strides, dtype, device)


def new_numpy(shape: tuple[int, ...], dtype: str, fill: int | None) -> Array:
    """Allocate a NumPy array, uninitialised without `fill`; `dtype` is a name, bfloat16 included."""
    import numpy

    result = numpy.empty(shape, numpy_dtype(dtype))
    if fill is not None:
        result.fill(fill)
    return wrap_numpy(result, "result")


def wrap_numpy(value: Any, name: str) -> Array:
    """Describe a NumPy array of our own."""
    return _inspect_strided(value, name, "numpy", value.__array_interface__["data"][0], None)


def torch_stream(device: int) -> int:
    """Return the handle of torch's current stream on `device`."""
    torch = sys.modules["torch"]
    # Torch's own compiled code calls this, ten times as fast as making a Stream; not every build has it.
    handle_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(handle_of(device) if handle_of else torch.cuda.current_stream(device).cuda_stream)


def torch_empty(device: int | None) -> Callable[..., Any] | None:
    """Return an allocator of tensors (shape, strides, dtype) if torch's current device is `device` and its build has one.

    `device` None is host memory. Torch's own compiled code uses this allocator, which takes half the time of `new_empty`.
    """
    internals = getattr(sys.modules["torch"], "_C", None)
    guards = getattr(getattr(internals, "_dynamo", None), "guards", None)
    empty: Callable[..., Any] | None = getattr(guards, "_empty_strided_cpu" if device is None else "_empty_strided_cuda", None)
    if device is None:
        return empty  # Torch starts CUDA to say which device is current, and raises where there is no driver.
    get_device = getattr(internals, "_cuda_getDevice", None)
    return empty if empty and get_device and get_device() == device else None


class _HostMemory:
    """Host memory as NumPy's array interface; holds its owner alive."""

    def __init__(self, array: Array) -> None:
        self.owner = array.owner
        self.__array_interface__ = {
            "data": (array.pointer, False),
            "shape": array.shape,
            "strides": tuple(stride * array.itemsize for stride in array.strides),
            "typestr": f"|V{array.itemsize}",
            "version": 3,
        }


def as_numpy(array: Array) -> Any:
    """Return a NumPy view of host memory, without a copy; bfloat16 is `ml_dtypes.bfloat16`."""
    import numpy

    if math.prod(array.shape) == 0:
        return numpy.empty(array.shape, numpy_dtype(array.dtype))
    return numpy.asarray(_HostMemory(array)).view(numpy_dtype(array.dtype))


def numpy_dtype(name: str) -> Any:
    """Return the NumPy dtype called `name`, `ml_dtypes.bfloat16` included."""
    import numpy

    if name == "bfloat16":
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)
