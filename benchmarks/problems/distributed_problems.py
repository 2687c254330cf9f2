"""Problems of `python -m benchmarks distributed`: long sequences of scans, whose gates forget or do not, and a dense cell."""

from __future__ import annotations

import math
from typing import Any, Literal

import pydantic

# Gates that keep 0.9999 of the state at every step: what enters a piece counts for tens of thousands of steps.
REMEMBERED = 0.9999
# The pre-activation of an update gate that keeps as much.
REMEMBERING_LOGIT = math.log((1 - REMEMBERED) / REMEMBERED)
# The logarithm of the rate at which a selective scan keeps as much with a step of softplus(0).
REMEMBERING_RATE = math.log(-math.log(REMEMBERED) / math.log(2))
MICRO_BATCHES = 4

KernelPass = Literal["forward", "forward and backward"]
PASSES: tuple[KernelPass, ...] = ("forward", "forward and backward")


class DistributedProblem(pydantic.BaseModel):
    """A recurrence of all ranks together: `time` is that of the whole.

    `state_size`: the values per channel of a selective scan. `gates`: pre-activations from a normal distribution, or such that
    every gate keeps `REMEMBERED` of the state.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    model: Literal["min_gru", "selective", "lstm"]
    batch: int
    time: int
    heads: int = 1
    head_dim: int
    state_size: int | None = None
    precision: Literal["bf16", "fp32"] = "bf16"
    gates: Literal["normal", "remembering"] = "normal"

    @property
    def is_dense(self) -> bool:
        """Whether states go through a recurrent matrix."""
        return self.model == "lstm"

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the kernel."""
        spec = {"model": self.model, "hidden_size": self.heads * self.head_dim, "precision": self.precision}
        spec |= {"state_size": self.state_size} if self.state_size else {}
        return {**spec, "heads": self.heads} if self.is_dense else spec

    @property
    def label(self) -> str:
        """The problem in a table."""
        width = f"{self.heads} x {self.head_dim}" if self.is_dense else f"{self.head_dim}"
        width += f" of {self.state_size}" if self.state_size else ""
        gates = f", gates at {REMEMBERED}" if self.gates == "remembering" else ""
        return f"{self.model} {width}, {self.batch} x {self.time} {self.precision}{gates}"


# Batch, time and channels: from 1.7 ms on one large GPU on.
_SCANS = ((1, 1 << 20, 1024), (1, 1 << 18, 4096), (8, 1 << 19, 512))
# Selective scans of 16 values per channel, likewise.
_SELECTIVE_SCANS, _STATE_SIZE = ((1, 1 << 18, 1024), (4, 1 << 16, 2048)), 16
# It fills the memory of one.
_LARGEST = (1, 1 << 24, 512)
_SMALL_SCANS, _SMALL_SELECTIVE_SCANS = ((1, 256, 8), (4, 64, 4)), ((1, 256, 4),)


def problems(quick: bool) -> tuple[DistributedProblem, ...]:
    """Return the problems, or few and small ones."""
    sizes: tuple[tuple[Literal["min_gru", "selective"], int | None, tuple[tuple[int, int, int], ...]], ...] = (
        ("min_gru", None, _SMALL_SCANS if quick else _SCANS),
        ("selective", _STATE_SIZE, _SMALL_SELECTIVE_SCANS if quick else _SELECTIVE_SCANS),
    )
    scans: tuple[DistributedProblem, ...] = tuple(
        DistributedProblem(
            model=model, batch=batch, time=time, head_dim=width, state_size=values, gates=gates,
            precision="fp32" if quick else "bf16",
        )
        for model, values, of_model in sizes
        for batch, time, width in of_model
        for gates in ("normal", "remembering")
    )  # fmt: skip
    if quick:
        return (*scans, DistributedProblem(model="lstm", batch=4, time=8, heads=4, head_dim=4, precision="fp32"))
    batch, time, width = _LARGEST
    return (
        *scans,
        DistributedProblem(model="lstm", batch=256, time=1024, heads=12, head_dim=64),
        DistributedProblem(model="min_gru", batch=batch, time=time, head_dim=width),
    )
