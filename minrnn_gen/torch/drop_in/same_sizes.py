"""Layers of torch.nn of given sizes, to be timed next to ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def torch_layer(name: str, inputs: int, hidden: int, x: Any, *, is_batch_first: bool) -> Callable[[], None]:
    """Return a call of a layer of torch.nn on `x` [B, T, inputs] ([T, B, inputs]), without gradients.

    x: a NumPy array, for a layer on the CPU, or a CuPy array, for one on its GPU; the layer has its dtype.
    """
    tensor = torch.from_dlpack(x)
    layer = getattr(torch.nn, name)(inputs, hidden, batch_first=is_batch_first, dtype=tensor.dtype, device=tensor.device)

    def call() -> None:
        with torch.no_grad():
            layer(tensor)

    return call
