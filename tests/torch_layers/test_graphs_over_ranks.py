"""Calls over ranks as graphs: when they are captured, and that they compute what they compute without."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch lacks torch.distributed", allow_module_level=True)

from support import ranks  # noqa: E402

from minrnn_gen.errors import BadInput  # noqa: E402
from minrnn_gen.gpu import retired  # noqa: E402
from minrnn_gen.torch.sequence_group import exchange, graphs  # noqa: E402
from minrnn_gen.torch.sequence_group.graphs import GRAPHS_MOST, LAUNCHES_WORTH, MET_MOST, Graphs  # noqa: E402
from minrnn_gen.torch.sequence_group.group import SequenceGroup  # noqa: E402


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ranks.Ranks]:
    with ranks.started(tmp_path_factory.mktemp("ranks")) as started:
        yield started


OF_TWO, OF_THREE = ((2, "correct"), (2, "pipeline")), ((3, "correct"), (3, "summary"))


@pytest.mark.parametrize(
    # Kernels are emulated, on three ranks those of maps too.
    ("size", "way"),
    [*OF_TWO, *(pytest.param(*case, marks=pytest.mark.matrix_full) for case in OF_THREE)],
)
def test_graphs_over_ranks_change_no_bit(group: ranks.Ranks, size: int, way: str) -> None:
    """Each rank decides for itself: some may launch what others enqueue."""
    for forwards, backwards in group.run(size, "in_graphs", way=way, calls=14, time=96):
        assert forwards and backwards


class Rooms:
    """Memory of graphs that captures nothing: it notes captures, and a launch returns what the body did at its capture."""

    def __init__(self, copied_bytes: int = 0, fails: bool = False) -> None:
        self.lock, self.captures = threading.Lock(), 0
        self._copied_bytes, self._fails = copied_bytes, fails

    def recorded(self, body: Any, _tensors: Any, _into: Any) -> Any:
        self.captures += 1
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        results = body()
        return SimpleNamespace(copied_bytes=self._copied_bytes, launch=lambda _: ["launched", *results])


@contextlib.contextmanager
def graphs_in(room: Rooms, is_captured: bool = False) -> Iterator[Callable[[Any], list[Any]]]:
    """Give a function that calls on a tensor, and returns "launched" where that was launched as a graph."""
    held, into = Graphs(), torch.empty(64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.Room, "of", lambda _: room)
        patch.setattr(graphs, "is_capturing", lambda: is_captured)
        yield lambda tensor: [*held.run(lambda: [tensor], [tensor, None], [into])]


def test_a_call_is_captured_when_its_arrays_come_again() -> None:
    first, second = torch.zeros(4, 4), torch.zeros(4, 4)
    with graphs_in(Rooms()) as call:
        assert [len(call(tensor)) for tensor in (first, second, first, second, first)] == [1, 1, 2, 2, 2]
        # Elsewhere in memory, or with other strides, it is another call.
        assert len(call(first.t())) == 1 and len(call(first[1:])) == 1


@given(st.lists(st.integers(0, 60), max_size=400))
def test_captures_are_few_next_to_launches(places: list[int]) -> None:
    """Callers whose arrays never come to rest pay for no capture after the first ones, and hold no memory."""
    memory, room = torch.zeros(61), Rooms()
    with graphs_in(room) as call:
        launched = 0
        for place in places:
            launched += len(call(memory[place : place + 1])) > 1
            assert room.captures <= GRAPHS_MOST + launched // LAUNCHES_WORTH
    assert launched or len({*places}) == len(places) or len(places) > MET_MOST


@pytest.mark.parametrize(("room", "is_captured"), [(Rooms(fails=True), False), (Rooms(1 << 10), False), (Rooms(), True)])
def test_calls_run_as_they_are_where_no_graph_fits(room: Rooms, is_captured: bool) -> None:
    """Where torch refuses, where too much would be copied out of graphs, and where the caller captures the call himself."""
    x = torch.zeros(4)
    with graphs_in(room, is_captured) as call:
        assert [call(x)[0] is x for _ in range(5)] == [True] * 5
    assert room.captures == (0 if is_captured else 1)


def test_a_graph_holds_nothing_of_the_caller() -> None:
    """Results and messages that are arrays of the call are copied, so that memory is given back, and comes again."""

    def recorded(x: Any, into: Any) -> graphs.Recorded:
        def body() -> list[Any]:
            sent = exchange._sent(x)
            exchange._exchange(lambda: sent.add_(1), 0)
            return [into, x[1:], None]

        return graphs.Recorded(body, [x], [into], lambda: SimpleNamespace(end=lambda: None))

    x, into = torch.ones(3), torch.zeros(3)
    known, references = recorded(x, into), [weakref.ref(x), weakref.ref(into)]
    y, rest, nothing = known.launch([other := torch.zeros(3)])
    assert y is other and nothing is None and torch.equal(x, torch.ones(3)) and torch.equal(rest, x[1:])
    del x, into
    assert [reference() for reference in references] == [None, None]


def test_no_graph_is_destroyed_while_another_one_is_captured() -> None:
    """CUDA would end that capture with an error; between two exchanges there may be nothing, and so an empty graph."""
    captured, destroyed = [0], []

    class Segment:
        def __init__(self) -> None:
            captured[0] += 1

        def end(self) -> None:
            captured[0] -= 1

        def __del__(self) -> None:
            destroyed.append(captured[0])

    def body() -> list[Any]:
        for _ in range(3):
            exchange._exchange(lambda: None, 0)
        return []

    recorded = graphs.Recorded(body, [], [], Segment)
    assert len(recorded.steps) == 3 and not destroyed
    del recorded
    assert not destroyed, "a caller may be capturing"
    retired.destroy_retired()
    assert destroyed == [0, 0, 0, 0]


def test_graphs_are_asked_for_by_a_bool() -> None:
    with pytest.raises(BadInput, match="graphs is 1; True or False is expected"):
        SequenceGroup(None, graphs=1)  # type: ignore[arg-type]
