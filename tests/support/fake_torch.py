"""A stand-in for torch: tensors in host memory that say they are on a GPU, as far as a call looks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class Device:
    type: str = "cuda"
    index: int = 0


ON_GPU = Device()


class Tensor:
    """A NumPy array that poses as a tensor."""

    def __init__(self, values: Any, requires_grad: bool = False, device: Device = ON_GPU) -> None:
        self.values, self.requires_grad, self.device = np.asarray(values), requires_grad, device

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> str:
        return f"torch.{self.values.dtype.name}"

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.values.itemsize for stride in self.values.strides)

    def data_ptr(self) -> int:
        return int(self.values.__array_interface__["data"][0])

    def get_device(self) -> int:
        return self.device.index

    def is_contiguous(self) -> bool:
        return bool(self.values.flags.c_contiguous)

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False

    def resolve_conj(self) -> Tensor:
        return self

    def resolve_neg(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.values))

    def new_empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Memory full of what would be noticed."""
        values = np.empty(shape, dtype.removeprefix("torch."))
        values.fill(np.nan if values.dtype.kind in "fc" else 85)
        return Tensor(values)

    def fill_(self, value: int) -> Tensor:
        self.values.fill(value)
        return self

    def sum(self, axes: tuple[int, ...]) -> Tensor:
        return Tensor(self.values.sum(axes))

    def swapaxes(self, first: int, second: int) -> Tensor:
        return Tensor(self.values.swapaxes(first, second))

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.values.reshape(shape))

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.values.astype(dtype.removeprefix("torch.")))

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.values[index])


class Parameter(Tensor):
    """A tensor of another type, as a layer has."""


Tensor.__module__ = Parameter.__module__ = "torch"


@contextlib.contextmanager
def torch_on_host() -> Iterator[None]:
    """Let the package find this as torch; gradients are not recorded unless a tensor says so."""
    dtypes = {name: f"torch.{name}" for name in ("float64", "float32", "complex128", "bool", "uint8")}
    module = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=Parameter),
        is_grad_enabled=lambda: True,
        version=SimpleNamespace(hip=None),
        **dtypes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", module)
        yield


def as_tensors(value: Any) -> Any:
    """Return NumPy arrays, and those in mappings, as tensors on their memory."""
    if isinstance(value, dict):
        return {name: as_tensors(each) for name, each in value.items()}
    return Tensor(value) if isinstance(value, np.ndarray) else value


def as_arrays(value: Any) -> Any:
    """Return tensors, and those in mappings, as NumPy arrays on their memory."""
    if isinstance(value, dict):
        return {name: as_arrays(each) for name, each in value.items()}
    return value.values if isinstance(value, Tensor) else value
