"""Cases of a rank in tests of `tune_sequence_group`: run by `support.ranks`, most by a clock that steps wind."""

from __future__ import annotations

import contextlib
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import ranks

import minrnn_gen.torch as wing
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.sequence_group import tuned
from minrnn_gen.torch.sequence_group.clock import Clock

SPEC = {"model": "min_gru", "hidden_size": 3, "precision": "fp64"}


@contextlib.contextmanager
def _wound() -> Iterator[Callable[[float], None]]:
    """Give a function that winds the clock of this rank, which nothing else does."""
    now = [0.0]

    class Wound(Clock):
        def mark(self) -> float:
            return now[0]

    def wind(seconds: float) -> None:
        now[0] += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "Clock", Wound)
        yield wind


def timed(
    group: Any, rank: int, *, seconds: Mapping[Any, Sequence[float]], rounds: int
) -> tuple[Any, dict[Any, float], dict[Any, int]]:
    """Return what a group is tuned to, by what times, and how often each way ran; a step takes `seconds[way]` of its rank."""
    runs = Counter[Any]()
    with _wound() as wind:

        def step(asked: Any) -> None:
            runs[asked.way] += 1
            wind(seconds[asked.way][rank])

        found = wing.tune_sequence_group(group, step, rounds=rounds)
    return found.way, {**found.times_ms}, {**runs}


def drifting(group: Any, rank: int, *, seconds: Mapping[Any, Sequence[float]], rounds: int) -> Any:
    """Return what a group is tuned to where a step takes another time at each of its runs, equal on all ranks."""
    del rank
    runs = Counter[Any]()
    with _wound() as wind:

        def step(asked: Any) -> None:
            wind(seconds[asked.way][runs[asked.way]])
            runs[asked.way] += 1

        return wing.tune_sequence_group(group, step, rounds=rounds).way


def compared(group: Any, rank: int, *, fastest: Any, mode: str, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Return the way to which a group is tuned by steps of a kind, and a call's results with it, which that way has too.

    A step of the way `fastest` takes half of the others' time. `mode`: "recurrence", "scan", or a model of layers.
    """
    with _wound() as wind:

        def step(asked: Any) -> None:
            run(asked)
            wind(0.5 if asked.way == fastest else 1.0)

        run = _run_of(group, rank, mode, arguments)
        found = wing.tune_sequence_group(wing.SequenceGroup(group, micro_batches=2), step, rounds=1)
    assert set(found.times_ms) == {None, "summary", "correct", "pipeline"} and found.micro_batches == 2
    plain = wing.SequenceGroup(group, found.way, 2)
    return found.way, dict(ranks.same_in_all([run(asked) for asked in (found, plain, replace(found, graphs=False), found)]))


def _run_of(group: Any, rank: int, mode: str, arguments: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a function of a group that runs forward and backward on the piece of a rank."""
    x = ranks.sliced(arguments["x"], 1, arguments["pieces"], rank)
    if mode == "scan":

        def scan(asked: Any) -> dict[str, Any]:
            a, b = (x[:, :, gate].sigmoid().requires_grad_() for gate in range(2))
            y, final = wing.scan(a, b, sequence_group=asked, axis=1)
            da, db = torch.autograd.grad(y.square().sum() + final.sum(), [a, b])
            return {"y": y.detach(), "final": final.detach(), "da": da, "db": db}

        return scan
    if mode == "recurrence":

        def recurrence(asked: Any) -> dict[str, Any]:
            own = x.clone().requires_grad_()
            y, final = wing.recurrence(ranks.kernel_of(SPEC), own, sequence_group=asked)
            (dx,) = torch.autograd.grad(y.square().sum() + final["h"].sum(), [own])
            return {"y": y.detach(), "final": final["h"].detach(), "dx": dx}

        return recurrence
    torch.manual_seed(0)
    model = Stack().double()
    called: Any = torch.nn.parallel.DistributedDataParallel(model, process_group=group) if mode == "parallel" else model
    called = torch.compile(called, backend="eager") if mode == "compiled" else called

    def layers(asked: Any) -> dict[str, Any]:
        model.zero_grad()
        y = called(x.flatten(2), asked)
        y.square().sum().backward()
        return {"y": y.detach(), **{name: parameter.grad.clone() for name, parameter in model.named_parameters()}}

    return layers


class Stack(torch.nn.Module):
    """Two scans, all of whose ways differ in what they run."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = wing.MinGRU(6, 4), wing.MinLSTM(4, 3)

    def forward(self, x: Any, group: Any) -> Any:
        x, _ = self.below(x, sequence_group=group)
        x, _ = self.above(torch.tanh(x), sequence_group=group)
        return x


def ways_of(group: Any, rank: int, *, models: Sequence[str], x: Any, pieces: Sequence[int], compiled: bool) -> list[Any]:
    """Return the ways that are timed for a step of layers, one after the other."""
    layers: list[Any] = [wing.RNN(model, x.shape[-1], x.shape[-1], dtype=x.dtype) for model in models]
    layers = [torch.compile(layer, backend="eager") for layer in layers] if compiled else layers

    def step(asked: Any) -> None:
        y = ranks.sliced(x, 1, pieces, rank)
        for layer in layers:
            y, _ = layer(y, sequence_group=asked)

    return [*wing.tune_sequence_group(group, step, rounds=1).times_ms]


def refused(group: Any, rank: int, *, asked: Sequence[Mapping[str, Any]]) -> str:
    """Return what a rank is refused with, where it asks as `asked` says."""
    options = dict(asked[rank])
    over = wing.SequenceGroup(group, options.pop("way", None), graphs=options.pop("graphs", True))
    with pytest.raises(BadInput) as error:
        wing.tune_sequence_group(over, options.pop("step", lambda _: None), **options)
    # The group is as good as before.
    assert wing.tune_sequence_group(group, lambda _: None, rounds=1).group is group
    return str(error.value)


def refused_step(group: Any, rank: int, *, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return what a rank is refused with by a step whose call every way refuses."""
    x = torch.zeros(shapes[rank], dtype=torch.float64)
    with pytest.raises(BadInput) as error:
        wing.tune_sequence_group(group, lambda asked: wing.recurrence(ranks.kernel_of(SPEC), x, sequence_group=asked))
    return str(error.value)


def raising(group: Any, rank: int, *, at: int, before: bool) -> tuple[str, float]:
    """Return what each rank raises where a step of the last one raises in its run number `at`, before its call or after."""
    x, runs = torch.zeros(1, 4, 2, 3, dtype=torch.float64), Counter[int]()

    def step(asked: Any) -> None:
        runs[rank] += 1
        fails = rank == dist.get_world_size(group) - 1 and runs[rank] == at
        if not (fails and before):
            wing.recurrence(ranks.kernel_of(SPEC), x, sequence_group=asked)
        if fails:
            raise ZeroDivisionError("of the step's own")

    began = clock.perf_counter()
    with pytest.raises((RuntimeError, ZeroDivisionError)) as error:
        wing.tune_sequence_group(group, step)
    return repr(error.value), clock.perf_counter() - began
