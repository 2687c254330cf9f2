"""An executor that computes nothing: how many operations of each kind a program has, and how many bytes of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from minrnn_gen.call.array import DTYPE_BYTES
from minrnn_gen.program import data
from minrnn_gen.program.data import Program


class Counting:
    """Counts of one program."""

    def __init__(self, program: Program) -> None:
        """Perform `program`."""
        self.bytes = sum(math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype] for buffer in program.buffers)
        self.counts: Counter[str] = Counter(cast=len(program.casts))
        self._perform(data.unrolled(program.operations))

    def _perform(self, operations: Iterable[Any]) -> None:
        for operation in operations:
            match operation:
                case data.Launch():
                    self.counts["launch"] += 1
                case data.Multiply() | data.Computed():
                    self.counts["product"] += 1
                case data.CopyHeadsFirst() | data.ZeroBeyond():
                    self.counts["copy"] += 1
                case data.OnLanes(steps):
                    for step in steps:
                        self._perform(step.body)
                case _:
                    raise TypeError(f"{operation!r} is not counted")
