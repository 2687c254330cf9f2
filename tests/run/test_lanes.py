"""Steps of a run on lanes: enqueued on streams of their own, behind what they wait for, when recorded and when replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import pytest
from support.fake_plan import plan_with
from support.fake_torch import torch_on_host

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.gpu import stream
from minrnn_gen.gpu.device import Place
from minrnn_gen.run.cuda import CudaRecorder
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording import operations
from minrnn_gen.run.recording.operations import StepsOnLanes

MAIN, FIRST_LANE = 7, 100
KERNEL: Any = "kernel"
LIKE = Array("x", "torch", None, 0, (1,), (1,), "float32", 0)


class LoggedLanes:
    """Lanes that note what is asked of them."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def fork(self, main: int, lanes: int) -> None:
        self.log.append(("fork", main, lanes))

    def begin(self, lane: int, waits: Sequence[int]) -> int:
        self.log.append(("begin", lane, tuple(waits)))
        return FIRST_LANE + lane

    def end(self, lane: int, step: int) -> None:
        self.log.append(("end", lane, step))

    def join(self, main: int, lanes: int) -> None:
        self.log.append(("join", main, lanes))


class LoggedModule:
    """A kernel that notes on which stream it is launched."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def launch(self, like: Any, blocks: int, _threads: int, _arguments: Sequence[Any]) -> None:
        self.log.append(("launch", blocks, stream.current_stream(like)))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    found: list[Any] = []
    monkeypatch.setattr(stream, "torch_stream", lambda _: MAIN)
    monkeypatch.setattr(operations.gpu_device, "on_device", lambda _: nullcontext())
    monkeypatch.setattr(operations, "lanes_of", lambda _: LoggedLanes(found))
    with torch_on_host():
        yield found


class LoggedKernels:
    """Kernels that note their launches."""

    built: ClassVar[dict[Any, Any]] = {}

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def load(self, _kernel: Any, _part: str) -> tuple[LoggedModule, Any]:
        return LoggedModule(self.log), plan_with(threads=32)


class Nothing(NamedTuple):
    """The result of a run that has none."""

    def mapped(self, _change: Any) -> Nothing:
        return self


def recorder_of(log: list[Any]) -> CudaRecorder:
    return CudaRecorder(LIKE, KeyedArrays(("recorded", ()), [None], [0]), LoggedKernels(log))  # type: ignore[arg-type]


def recorded(log: list[Any]) -> StepsOnLanes:
    """Record two launches on lanes, of which the second waits for the first, and a third that waits for nothing."""
    recorder = recorder_of(log)
    kernel = recorder.load(KERNEL)
    kernel.launch(Launch(1, ()))
    with recorder.lanes(2) as lanes:
        with lanes.step(0, ()):
            kernel.launch(Launch(2, ()))
        with lanes.step(1, (0,)):
            kernel.launch(Launch(3, ()))
            kernel.launch(Launch(4, ()))
        with lanes.step(0, ()):
            kernel.launch(Launch(5, ()))
    kernel.launch(Launch(6, ()))
    assert log == []  # nothing is enqueued before the run is over
    replay = recorder.finish(Nothing(), None).replay
    assert replay is not None
    first, steps, last = replay.trace.program._operations
    assert isinstance(steps, StepsOnLanes) and not isinstance(first, StepsOnLanes) and not isinstance(last, StepsOnLanes)
    return steps


# The ends of the steps that others wait for are marked.
LAUNCHES = [
    ("fork", MAIN, 2),
    ("begin", 0, ()),
    ("launch", 2, FIRST_LANE),
    ("end", 0, 0),
    ("begin", 1, (0,)),
    ("launch", 3, FIRST_LANE + 1),
    ("launch", 4, FIRST_LANE + 1),
    ("begin", 0, ()),
    ("launch", 5, FIRST_LANE),
    ("join", MAIN, 2),
]


def test_a_run_is_performed_on_lanes(log: list[Any]) -> None:
    recorded(log)
    assert log == [("launch", 1, MAIN), *LAUNCHES, ("launch", 6, MAIN)]


def test_a_replay_does_the_same(log: list[Any]) -> None:
    steps = recorded(log)
    log.clear()
    steps.replay(Place("torch", 0), [])
    assert log == LAUNCHES
    assert steps.in_c(0) is None


def test_what_fails_while_it_is_described_enqueues_nothing(log: list[Any]) -> None:
    recorder = recorder_of(log)
    kernel = recorder.load(KERNEL)
    kernel.launch(Launch(1, ()))
    with pytest.raises(ValueError, match="refused"), recorder.lanes(2) as lanes, lanes.step(1, ()):
        kernel.launch(Launch(2, ()))
        raise ValueError("refused")
    assert log == []
    assert stream.current_stream(LIKE) == MAIN
