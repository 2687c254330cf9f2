"""Steps of a run on lanes: enqueued on streams of their own, behind what they wait for, when recorded and when replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.gpu import stream
from minrnn_gen.gpu.device import Place
from minrnn_gen.run import operations, replay
from minrnn_gen.run.operations import StepsOnLanes
from minrnn_gen.run.replay import TraceRecorder
from minrnn_gen.run.scan_launch import Launch

MAIN, FIRST_LANE = 7, 100
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
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(stream, "torch_stream", lambda _: MAIN)
    monkeypatch.setattr(operations.gpu_device, "on_device", lambda _: nullcontext())
    for module in (operations, replay):
        monkeypatch.setattr(module, "lanes_of", lambda _: LoggedLanes(found))
    return found


def recorded(log: list[Any]) -> StepsOnLanes:
    """Record two launches on lanes, of which the second waits for the first, and a third that waits for nothing."""
    recorder, module = TraceRecorder(LIKE, KeyedArrays(("recorded", ()), [], [])), LoggedModule(log)
    recorder.launch(module, Launch(1, ()), 32)
    with recorder.lanes(2) as lanes:
        with lanes.step(0, ()):
            recorder.launch(module, Launch(2, ()), 32)
        with lanes.step(1, (0,)):
            recorder.launch(module, Launch(3, ()), 32)
            recorder.launch(module, Launch(4, ()), 32)
        with lanes.step(0, ()):
            recorder.launch(module, Launch(5, ()), 32)
    recorder.launch(module, Launch(6, ()), 32)
    first, steps, last = recorder._operations
    assert isinstance(steps, StepsOnLanes) and not isinstance(first, StepsOnLanes) and not isinstance(last, StepsOnLanes)
    return steps


LAUNCHES = [
    ("fork", MAIN, 2),
    ("begin", 0, ()),
    ("launch", 2, FIRST_LANE),
    ("end", 0, 0),
    ("begin", 1, (0,)),
    ("launch", 3, FIRST_LANE + 1),
    ("launch", 4, FIRST_LANE + 1),
    ("end", 1, 1),
    ("begin", 0, ()),
    ("launch", 5, FIRST_LANE),
    ("end", 0, 2),
    ("join", MAIN, 2),
]


def test_a_run_is_performed_on_lanes(log: list[Any]) -> None:
    recorded(log)
    assert log == [("launch", 1, MAIN), *LAUNCHES, ("launch", 6, MAIN)]


def test_a_replay_does_the_same_and_marks_what_is_waited_for(log: list[Any]) -> None:
    steps = recorded(log)
    log.clear()
    steps.replay(Place("torch", 0), [])
    assert log == [entry for entry in LAUNCHES if entry not in (("end", 1, 1), ("end", 0, 2))]
    assert steps.in_c(0) is None


def test_what_fails_on_a_lane_leaves_none_behind(log: list[Any]) -> None:
    recorder = TraceRecorder(LIKE, None)
    with pytest.raises(ValueError, match="refused"), recorder.lanes(2) as lanes, lanes.step(1, ()):
        raise ValueError("refused")
    # The main stream waits for all lanes, and what comes next is enqueued there.
    assert log[-1] == ("join", MAIN, 2) and recorder.lane is None
    assert stream.current_stream(LIKE) == MAIN
