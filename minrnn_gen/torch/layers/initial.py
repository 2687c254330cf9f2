"""The numbers that a layer starts with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from minrnn_gen.layers.initial import RG_LRU_RANGE, RG_LRU_SHARPNESS


def draw(parameter: Any, hidden_size: int) -> None:
    """Draw from the uniform distribution over ±1/sqrt(hidden_size), as the recurrent layers of torch do."""
    bound = 1 / math.sqrt(hidden_size)
    torch.nn.init.uniform_(parameter, -bound, bound)


def _draw_decay(parameter: Any) -> None:
    coefficient = torch.empty_like(parameter, dtype=torch.float64).uniform_(*RG_LRU_RANGE)
    parameter.copy_(torch.log(torch.expm1(-torch.log(coefficient) / RG_LRU_SHARPNESS)))


# Vectors of built-in cells that start otherwise: cell, vector.
DRAW: dict[tuple[str, str], Callable[[Any], None]] = {("rg_lru", "decay"): _draw_decay}
