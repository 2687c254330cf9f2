"""The numbers that a layer starts with."""

from __future__ import annotations

import math
from typing import Any

import torch

from minrnn_gen.layers.initial import Start


def draw(parameter: Any, hidden_size: int) -> None:
    """Draw from the uniform distribution over ±1/sqrt(hidden_size), as the recurrent layers of torch do."""
    bound = 1 / math.sqrt(hidden_size)
    torch.nn.init.uniform_(parameter, -bound, bound)


def begin(parameter: Any, start: Start) -> None:
    """Set a parameter, or a part of it, to `start` applied to uniform numbers."""
    parameter.copy_(start(torch, torch.empty_like(parameter, dtype=torch.float64).uniform_()))
