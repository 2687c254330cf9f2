"""The numbers that a layer starts with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

# Of rg_lru: the coefficient exp(-8 softplus(decay)) that a step has with an open gate is drawn from here, as its paper does,
# arXiv 2402.19427 section 2.4.
_RG_LRU_RANGE = (0.9, 0.999)
_RG_LRU_SHARPNESS = 8


def draw(parameter: Any, hidden_size: int) -> None:
    """Draw from the uniform distribution over ±1/sqrt(hidden_size), as the recurrent layers of torch do."""
    bound = 1 / math.sqrt(hidden_size)
    torch.nn.init.uniform_(parameter, -bound, bound)


def _draw_decay(parameter: Any) -> None:
    coefficient = torch.empty_like(parameter, dtype=torch.float64).uniform_(*_RG_LRU_RANGE)
    parameter.copy_(torch.log(torch.expm1(-torch.log(coefficient) / _RG_LRU_SHARPNESS)))


# Vectors of built-in cells that start otherwise: cell, vector.
DRAW: dict[tuple[str, str], Callable[[Any], None]] = {("rg_lru", "decay"): _draw_decay}
