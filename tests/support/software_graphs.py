"""CUDA graphs in software: what a call over ranks does between its exchanges is noted, and done again at the same addresses.

Noted are torch's operators and the runs of kernels, on host arrays that pose as a GPU's. While they are noted they run, on
values that nobody reads; exchanges do not, as when a stream is captured.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.sequence_group import cells, graphs, on_rank
from minrnn_gen.torch.sequence_group.piece import Piece

_RUNS = ("forward", "backward", "forward_in_place", "backward_in_place")


class SoftwareSegment(TorchDispatchMode):
    """A graph that notes what is done until its end."""

    current: SoftwareSegment | None = None

    def __init__(self) -> None:
        super().__init__()
        self._done: list[tuple[Any, ...]] = []
        self._is_empty = True
        SoftwareSegment.current = self
        self.__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._is_empty &= _enqueues_nothing(func)
        return self.note(func, args, kwargs or {})

    def note(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Run a function, and note it: arguments by their memory, which may be others' in between, results as they are."""
        kept = tree_map(_alias, (arguments, keywords))
        result = function(*arguments, **keywords)
        given = {_storage(tensor) for tensor in tree_leaves((arguments, keywords)) if isinstance(tensor, torch.Tensor)}

        def own(value: Any) -> Any:
            """Return a view, which holds the memory of an argument, by its memory alone."""
            return _alias(value) if isinstance(value, torch.Tensor) and _storage(value) in given else value

        self._done.append((function, *kept, tree_map(own, result)))
        return result

    def end(self) -> Callable[[], None] | None:
        self.__exit__(None, None, None)
        SoftwareSegment.current = None
        return None if self._is_empty else self.launch

    def launch(self) -> None:
        """Do again what was noted."""
        for function, arguments, keywords, result in self._done:
            again = function(*arguments, **keywords)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Arena:
    """Memory for results as a caching allocator gives it: the same again once nobody holds it."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []

    def like(self, tensor: Any) -> Any:
        """Return memory for a tensor, with its values."""
        for piece in self._pieces:
            if piece.nbytes == tensor.nbytes and sys.getrefcount(piece) == self._unused:
                break
        else:
            piece = np.empty(tensor.nbytes, np.uint8)
            self._pieces.append(piece)
        return torch.from_numpy(piece).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    @functools.cached_property
    def _unused(self) -> int:
        """The references to a piece that only the list holds, in a loop over it."""
        return next(sys.getrefcount(piece) for piece in [np.empty(1)])


@contextlib.contextmanager
def software_graphs(segment: Callable[[], SoftwareSegment] = SoftwareSegment) -> Iterator[list[int]]:
    """Let calls on host arrays be captured as on a GPU, in segments; count how many are launched, forward and backward."""
    room, counted, arena = SimpleNamespace(lock=threading.Lock()), [0, 0], Arena()
    room.recorded = lambda body, tensors, into: graphs.Recorded(body, tensors, into, segment)

    def counting(recorded: Any, into: Sequence[Any], launch: Any = graphs.Recorded.launch) -> Any:
        counted[torch._C._current_graph_task_id() != -1] += 1
        results = launch(recorded, into)
        return [one if one is None or any(one is own for own in into) else arena.like(one) for one in results]

    with pytest.MonkeyPatch.context() as patch:
        for name in _RUNS:
            patch.setattr(calls, name, _noted(getattr(calls, name)))
        patch.setattr(graphs.Room, "of", lambda _: room)
        patch.setattr(graphs.Recorded, "launch", counting)
        patch.setattr(on_rank, "may_capture", lambda _: True)
        patch.setattr(graphs, "is_capturing", lambda: False)
        patch.setattr(cells, "is_on_gpu", lambda _: True)
        of_forward, of_backward = Piece.outputs_of, Piece.gradient_like
        patch.setattr(Piece, "outputs_of", lambda *call: [*map(arena.like, of_forward(*call))])
        patch.setattr(Piece, "gradient_like", lambda *call: arena.like(of_backward(*call)))
        yield counted


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        segment = SoftwareSegment.current
        if segment is None:
            return function(*arguments, **keywords)
        segment._is_empty = False
        with _disable_current_modes():
            return segment.note(function, arguments, keywords)

    return run


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _enqueues_nothing(operator: Any) -> bool:
    """Whether an operator of torch allocates, or returns views, and enqueues nothing."""
    schema = operator._schema
    writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    is_view = any(value.alias_info is not None for value in schema.returns)
    return "empty" in schema.name or (is_view and not writes)


def _alias(value: Any) -> Any:
    """Return a tensor at the same address that holds none of its memory; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.untyped_storage().nbytes():
        return value
    storage = value.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    with _disable_current_modes():
        whole = torch.frombuffer(memory, dtype=value.dtype, count=math.floor(storage.nbytes() / value.itemsize))
        return whole.as_strided(value.size(), value.stride(), value.storage_offset())
