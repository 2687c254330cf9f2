"""The clock of the ranks of a group: what a run takes once all of them are ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

# Hosts run ahead of their devices, as those of a training loop do. The exchanges of a call let ranks wait for each other: one
# more collective after each call would take some 40 us of its time.
CALLS_IN_A_ROW = 4


@dataclass(frozen=True)
class Clock:
    """The clock of this rank of a group of torch's: events on a GPU, elsewhere the host's."""

    group: Any
    device: torch.device

    @classmethod
    def of(cls, process_group: Any) -> Clock:
        """Return the clock of the device on which a group exchanges: with gloo the CPU, else the current GPU if any."""
        backends = dict(pair.split(":") for pair in dist.get_backend_config(process_group).split(","))
        on_gpu = torch.cuda.is_available() and backends.get("cuda", "gloo") != "gloo"
        return cls(process_group, torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu"))

    @property
    def has_events(self) -> bool:
        """Whether time is taken between events on the device; the host's clock is, where not."""
        return bool(self.device.type == "cuda")

    @property
    def calls(self) -> int:
        """How many runs in a row are timed together."""
        return CALLS_IN_A_ROW if self.has_events else 1

    def mark(self) -> Any:
        """Return a moment, now on the device."""
        if not self.has_events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms_between(self, began: Any, ended: Any) -> float:
        """Return the milliseconds between two moments; waits for the later one."""
        if not self.has_events:
            return 1e3 * float(ended - began)
        ended.synchronize()
        return float(began.elapsed_time(ended))

    def start_together(self) -> None:
        """Wait until all ranks and their devices have nothing to do."""
        if self.has_events:
            torch.cuda.synchronize(self.device)
        dist.all_reduce(torch.zeros((), device=self.device), group=self.group)
        if self.has_events:
            torch.cuda.synchronize(self.device)

    def ms_of(self, run: Callable[[], Any]) -> float:
        """Return the milliseconds of a run on this rank: of `calls` in a row that all ranks begin together, the mean."""
        self.start_together()
        began = self.mark()
        for _ in range(self.calls):
            run()
        return self.ms_between(began, self.mark()) / self.calls

    def slowest(self, ms: list[list[float]]) -> list[list[float]]:
        """Return times [rounds, runs], each that of the slowest rank: the same on every rank."""
        times = torch.tensor(ms, dtype=torch.float64, device=self.device)
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self.group)
        return list(times.tolist())
