"""Calls over ranks as CUDA graphs: what a call enqueues between its exchanges, captured once and launched again.

A call is captured when it is met again with its arrays where they were, as replayed runs of one GPU are (`native/graphs.h`).
Exchanges stay outside: NCCL asks all ranks to capture a collective or none of them, watches over none that was captured, and
ends no group while a graph has one. So each rank decides for itself, by its own addresses, and a rank that dies ends the others
within the timeout of the group as it does without graphs.

Large results lie in memory of the call, whose addresses are part of the key; small ones are copied out of the graphs' memory.
So nothing that a caller keeps is ever written again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch

from minrnn_gen.config.environment import makes_graphs
from minrnn_gen.gpu import retired
from minrnn_gen.torch.sequence_group.exchange import is_watched, recorded_by
from minrnn_gen.torch.sequence_group.peer_buffers import PeerBuffers

# As of a program on one GPU: graphs of one form, calls remembered, and launches that are worth one more capture.
GRAPHS_MOST, MET_MOST, LAUNCHES_WORTH = 16, 32, 8
# What is copied out of the graphs' memory, next to what is written in place: a tenth of the time of both at most.
SHARE_COPIED_MOST = 1 / 16

Step = Callable[[], Any]
"""Enqueues what lies between two exchanges, or an exchange."""
Key = tuple[Any, ...]
Body = Callable[[], Sequence[Any]]


class Room:
    """The memory of all graphs that are launched on one stream: calls there follow each other, and so share it."""

    _of_streams: ClassVar[dict[tuple[int, int], Room]] = {}

    def __init__(self, device: torch.device) -> None:
        self.lock = threading.Lock()
        self._pool, self._side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        # Torch gives up the memory of graphs with the last of them.
        self._kept = self.recorded(lambda: [torch.zeros(1, device=device)], (), ())

    @classmethod
    def of(cls, device: torch.device) -> Room:
        """Return the memory for the current stream of a device."""
        key = (device.index, torch.cuda.current_stream(device).cuda_stream)
        if key not in cls._of_streams:
            cls._of_streams[key] = cls(device)
        return cls._of_streams[key]

    def recorded(self, body: Body, tensors: Sequence[Any], into: Sequence[Any]) -> Recorded:
        """Return what `body` enqueues, captured; `tensors` and `into` are the caller's. Raises what torch and CUDA raise."""
        retired.destroy_retired()
        with torch.cuda.stream(self._side), _without_collections():
            return Recorded(body, tensors, into, self.begin)

    def begin(self) -> Segment:
        """Begin a graph on the stream that is current."""
        return Segment(self._pool)


class Segment:
    """A graph while it is captured, in thread-local mode: other threads may do with the GPU what they like."""

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")

    def end(self) -> Step | None:
        """End the graph; return what launches it on the current stream, None for an empty one."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self._graph.capture_end()
            except RuntimeError:
                # Of a capture that failed torch goes on to give memory from the pool, and keeps what other streams let go of.
                with contextlib.suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
                raise
        return None if any("is empty" in str(warning.message) for warning in said) else self._graph.replay


class Recorded:
    """What a call enqueues, in steps, and its results: in memory of the call, or in the graphs'."""

    def __init__(self, body: Body, tensors: Sequence[Any], into: Sequence[Any], begin: Callable[[], Any]) -> None:
        """Capture `body`; `begin` begins a segment."""
        self._callers = {_storage(tensor) for tensor in (*tensors, *into) if tensor is not None}
        self.steps: list[Step] = []
        self._buffers: list[PeerBuffers] = []
        # Kept with the rest: a graph must not be destroyed while another one is captured, be it an empty one.
        self._begin, self._segments = begin, [begin()]
        retired.outlive(self, self._segments)
        try:
            with recorded_by(self):
                results = body()
            places = {(tensor.data_ptr(), tensor.shape): place for place, tensor in enumerate(into)}
            self._places = [None if result is None else places.get((result.data_ptr(), result.shape)) for result in results]
            self._results = [
                None if result is None or place is not None else self.own(result)
                for result, place in zip(results, self._places, strict=True)
            ]
        finally:
            self._end()

    @property
    def copied_bytes(self) -> int:
        """Bytes of the results that are copied out of the graphs' memory."""
        return sum(result.nbytes for result in self._results if result is not None)

    def own(self, tensor: Any) -> Any:
        return tensor.clone() if _storage(tensor) in self._callers else tensor

    def exchange(self, enqueue: Step) -> None:
        self._end()
        self.steps.append(enqueue)
        self._segments.append(self._begin())

    def by_peer_buffers(self, buffers: PeerBuffers) -> None:
        if buffers not in self._buffers:
            self._buffers.append(buffers)

    def launch(self, into: Sequence[Any]) -> list[Any]:
        """Enqueue the call, and return its results, the ones of `into` among them."""
        for buffers in self._buffers:
            buffers.take_turn()
        for step in self.steps:
            step()
        pairs = zip(self._results, self._places, strict=True)
        return [into[place] if place is not None else None if result is None else result.clone() for result, place in pairs]

    def _end(self) -> None:
        step = self._segments[-1].end()
        if step is not None:
            self.steps.append(step)


class Graphs:
    """The graphs of one form of a call, forward or backward, by its stream and the addresses of its arrays."""

    def __init__(self) -> None:
        self._held: dict[Key, Recorded] = {}
        self._met: dict[Key, None] = {}
        self._captures = self._launches = 0
        # Why calls of this form are not captured, if they are not.
        self.refusal = ""

    def run(self, body: Body, tensors: Sequence[Any], into: Sequence[Any]) -> Sequence[Any]:
        """Return the results of `body`, a call on `tensors` that writes `into` its own arrays: launched, captured, or run."""
        # While a caller captures, the call becomes a part of that graph.
        if self.refusal or is_watched() or is_capturing():
            return body()
        room = Room.of(into[0].device)
        key = (id(room), *map(_place_of, tensors), *(tensor.data_ptr() for tensor in into))
        with room.lock:
            recorded = self._held.pop(key, None)
            if recorded is None and self._is_worth_capturing(key):
                recorded = self._captured(room, body, tensors, into)
            if recorded is not None:
                self._held[key] = recorded  # used last
                self._launches += 1
                return recorded.launch(into)
        return body()

    def _is_worth_capturing(self, key: Key) -> bool:
        """Whether a call was met before and is worth a graph; note it where not."""
        if key in self._met:
            return self._captures < GRAPHS_MOST + self._launches // LAUNCHES_WORTH
        if len(self._met) >= MET_MOST:
            del self._met[next(iter(self._met))]
        self._met[key] = None
        return False

    def _captured(self, room: Room, body: Body, tensors: Sequence[Any], into: Sequence[Any]) -> Recorded | None:
        """Return a call, captured; None where torch or CUDA refuse: nothing was enqueued then, on no rank."""
        if len(self._held) >= GRAPHS_MOST:
            del self._held[next(iter(self._held))]
        self._captures += 1
        try:
            recorded = room.recorded(body, tensors, into)
        except Exception as error:  # if something is wrong with the call, running it says so
            self.refusal = f"{type(error).__name__}: {error}"
            return None
        if recorded.copied_bytes > SHARE_COPIED_MOST * sum(tensor.nbytes for tensor in into):
            self.refusal = f"{recorded.copied_bytes} bytes of results would be copied"
        return None if self.refusal else recorded


def may_capture(device: torch.device) -> bool:
    """Whether calls on a device are captured where they come again."""
    return device.type == "cuda" and makes_graphs()


def is_capturing() -> bool:
    """Whether the caller captures the current stream."""
    return bool(torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Let Python collect no garbage, which may contain graphs and events: destroying those ends a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _place_of(tensor: Any) -> Any:
    """Return where a tensor lies, and how: gradients arrive with any strides."""
    return tensor if tensor is None else (tensor.data_ptr(), tensor.stride(), tensor.dtype)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
