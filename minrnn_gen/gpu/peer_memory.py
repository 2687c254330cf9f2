"""Memory of one GPU that other processes of the machine read and write, by CUDA's handles for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.gpu import device as gpu_device


def allocate_shared(device: int, count: int) -> tuple[int, bytes]:
    """Return the address of `count` bytes on `device`, all zero, and their handle.

    They stay for as long as the process: another one may still write to them. Raises CuPy's exception where CUDA refuses.
    """
    runtime = gpu_device.cupy_module().cuda.runtime
    with gpu_device.on_device(device):
        address = int(runtime.malloc(count))
        runtime.memset(address, 0, count)
        runtime.deviceSynchronize()
        return address, bytes(runtime.ipcGetMemHandle(address))


def open_shared(device: int, handle: bytes) -> int:
    """Return the address, on `device`, of memory that another process of this machine gave a handle of; raises as above."""
    runtime = gpu_device.cupy_module().cuda.runtime
    with gpu_device.on_device(device):
        return int(runtime.ipcOpenMemHandle(handle))  # by default it gives access to the other GPU


def addresses_on(device: int, addresses: Sequence[int]) -> Any:
    """Return addresses as an array on `device`."""
    cupy = gpu_device.cupy_module()
    with gpu_device.on_device(device):
        array = cupy.asarray(addresses, dtype="u8")
        cupy.cuda.runtime.deviceSynchronize()
        return array
