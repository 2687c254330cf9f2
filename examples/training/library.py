"""Facts about the library that an example trains with: whether it has a GPU, and which device it computes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library by the name of its distribution; devices are `cpu` and `cuda`."""

    name: str
    has_gpu: Callable[[], bool]
    device_name: Callable[[str], str]


def _torch_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _device_of_torch(device: str) -> str:
    import torch

    if device == "cuda":
        return f"an {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"a CPU, {threads} thread{'s' * (threads > 1)}"


def _jax_has_gpu() -> bool:
    import jax

    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def _device_of_jax(device: str) -> str:
    import jax

    if device == "cuda":
        return f"an {jax.devices('cuda')[0].device_kind}"
    cores = os.cpu_count() or 1
    return f"a CPU, {cores} core{'s' * (cores > 1)}"


TORCH = Library("torch", _torch_has_gpu, _device_of_torch)
JAX = Library("jax", _jax_has_gpu, _device_of_jax)
