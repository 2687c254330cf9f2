"""Work on another stream of a GPU, beside which tests run theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def last_beside_a_busy_stream(run: Callable[[], Any]) -> Any:
    """Run something a hundred times beside products of large matrices on another stream, and return the last results."""
    import torch

    busy, matrix = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        with torch.cuda.stream(busy):
            for _ in range(4):
                matrix @ matrix
        for _ in range(5):
            found = run()
    return found
