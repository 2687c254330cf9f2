"""The host's part of a call over ranks, as on GPUs, in one process: kernels that do nothing, and a group that sends nothing."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.fake_device import HostBackend
from support.software_graphs import SoftwareSegment, software_graphs
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
import minrnn_gen.torch as wing
from minrnn_gen.gpu import device, memory, stream
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers import kernels
from minrnn_gen.plan.problem import KernelKey
from minrnn_gen.run import executor
from minrnn_gen.run.recording.plain_program import PlannedOnly
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.sequence_group import cells, exchange, heads, peer_buffers, piece
from minrnn_gen.torch.sequence_group.agreement import Agreement
from minrnn_gen.torch.sequence_group.peer_buffers import PeerBuffers

# Long enough for a correction.
TIME = 4096


class Silent(dist.ProcessGroup):
    """A group of one process that says it is one of several; `asked` notes what it should have sent or received."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.asked: list[str] = []

    def _allgather_base(self, *_: Any) -> None:
        self.asked.append("gather")

    def all_gather_single(self, *_: Any) -> None:
        self.asked.append("gather")

    def allreduce(self, *_: Any) -> None:
        self.asked.append("sum")

    def broadcast(self, *_: Any) -> None:
        self.asked.append("broadcast")

    def send(self, *_: Any) -> Any:
        self.asked.append("send")
        return _Done()

    def recv(self, *_: Any) -> Any:
        self.asked.append("receive")
        return _Done()


class _Done:
    def wait(self) -> None:
        """Return at once."""


class SilentPeerBuffers(PeerBuffers):
    """Buffers into which nothing is stored; the group notes what should have been."""

    asked: list[str]

    @classmethod
    def of(cls, group: Silent) -> SilentPeerBuffers:
        """Give a group buffers."""
        made = cls(None, 1, 1 << 20, torch.device("cpu"), group.rank(), group.size(), None, 0)  # type: ignore[arg-type]
        made.asked = []
        peer_buffers.keep(group, made)
        return made

    def take_turn(self) -> None:
        """There is one stream."""

    def _launch(self, own: Any, *_: Any, is_gathered: bool = False) -> None:
        self.asked.append("gather" if is_gathered else "receive" if own is None else "send")


class _Nothing:
    def launch(self, *_: Any) -> None:
        """Run nothing."""


class _Kernels(PlannedOnly):
    """Kernels that are planned and do nothing."""

    choose_built = PlannedOnly.choose
    gradient_kernels = staticmethod(lambda _waits: {})
    built: Mapping[KernelKey, Any] = {}

    def load(self, kernel: KernelKey, _part: str = "") -> tuple[Any, Any]:
        return _Nothing(), self.plan(kernel)

    def build_ahead(self, *_: Any) -> None:
        """Build nothing."""


def _agreed(member: Any, _device: Any, _form: Any, *, time: int, records: bool, refusal: Any, seconds: Any) -> Agreement:
    assert refusal is None, refusal
    return Agreement((time,) * member.size, records, seconds)


@contextlib.contextmanager
def hosts_of_gpus() -> Iterator[None]:
    """Let calls on host arrays take the way of calls on a GPU, in which nothing is computed; all ranks agree at once."""

    def made(recipe: str) -> Kernel:
        kernel = minrnn_gen.compile(kernels.spec_from(recipe), gpu="h200")
        kernel.executor = executor.Executor(kernel.interface, kernel.builder, HostBackend(_Kernels(kernel.builder)))
        return kernel

    with nothing_compiled(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_KERNELS", {})
        patch.setattr(kernels, "_made", made)
        patch.setattr(executor, "is_on_cpu", lambda _: False)
        for module in (cells, exchange, heads, piece):
            patch.setattr(module, "is_on_gpu", lambda _: True)
        for module in (cells, heads):
            patch.setattr(module, "agree", _agreed)
        patch.setattr(stream, "is_capturing", lambda _: False)
        patch.setattr(stream, "current_stream", lambda _: 0)
        patch.setattr(device, "on_device", lambda _: contextlib.nullcontext())
        patch.setattr(memory, "set_bytes", lambda *_: None)
        yield


class _Launched(SoftwareSegment):
    """A graph that computes nothing, as kernels here do, and is counted."""

    into: Counter[str]

    def launch(self) -> None:
        _Launched.into["graph"] += 1


@contextlib.contextmanager
def in_graphs(into: Counter[str]) -> Iterator[None]:
    """Let calls be captured when they come again, and count the graphs that are launched; within `hosts_of_gpus`."""
    _Launched.into = into
    with software_graphs(_Launched):
        yield


@contextlib.contextmanager
def counted_runs(into: Counter[str]) -> Iterator[None]:
    """Count the runs of kernels that are asked for, by the names of their functions."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward", "backward", "forward_in_place", "backward_in_place"):
            function = getattr(calls, name)

            def counting(*arguments: Any, name: str = name, function: Any = function, **keywords: Any) -> Any:
                into[name] += 1
                return function(*arguments, **keywords)

            patch.setattr(calls, name, counting)
        yield


@functools.cache
def _recipe(spec: str) -> str:
    return minrnn_gen.compile(json.loads(spec), gpu="h200").recipe


def call_on_rank(
    spec: Mapping[str, Any],
    group: Any,
    way: Any,
    records: bool,
    batch: int = 1,
    micro_batches: int | None = None,
    graphs: bool = False,
) -> Any:
    """Return a call, with its backward where it `records`, on a rank's piece, or of one rank; within `hosts_of_gpus`."""
    kernel = kernels.kernel_by(_recipe(json.dumps(spec)))
    interface = kernel.interface
    x = torch.zeros(interface.shape(interface.x_axes, batch, TIME)).requires_grad_(records)
    dy = torch.zeros(interface.y_shape(batch, TIME))
    asked: dict[str, Any] = {} if group is None else {"head_group": group}
    if asked and way != "heads":
        asked = {"sequence_group": wing.SequenceGroup(group, way, micro_batches, graphs)}

    def run() -> None:
        y, _ = wing.recurrence(kernel, x, **asked)
        if records:
            torch.autograd.grad(y, [x], dy)

    return run
