"""The states of requests that come and go: a pool of slots, which steps update in place, and copies between its slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, new_numpy, wrap_numpy
from minrnn_gen.call.pool import PAD_SLOT, PoolRows
from minrnn_gen.call.pool_checks import check_pool, check_range, check_writes
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.call.validate import INTEGER_DTYPES, check_dtype, check_exact_shape, check_place
from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.gpu import memory
from minrnn_gen.run.executor import Executor


class Cache:
    """The states of `slots` requests, zeros to begin with.

    `states` {name: [slots, H]} is the pool that steps take as `state`; its arrays stay the same, so that CUDA graphs may have
    them.
    """

    def __init__(self, executor: Executor, states: Mapping[str, Any]) -> None:
        """Take arrays of one pool; raises BadInput for what is none."""
        self._executor, self.states = executor, dict(states)
        self._pool = check_pool(executor.interface, memory.inspect, states)

    @classmethod
    def of(cls, executor: Executor, slots: Any, draft: Any, dtype: Any, like: Any) -> Cache:
        """Return a pool of zeros beside the array `like`, of NumPy without; raises BadInput for other sizes and dtypes."""
        interface, carried = executor.interface, executor.interface.precision.arithmetic_dtype
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise BadInput(f"slots is {shown(slots)}; a positive integer is expected")
        if draft != 0 or isinstance(draft, bool):
            raise BadInput(f"draft is {shown(draft)}, but no cache takes back drafted steps yet; 0 is expected")
        dtypes = dict.fromkeys((carried, interface.precision.storage_dtype))
        named = carried if dtype is None else str(dtype).removeprefix("torch.")
        if named not in dtypes:
            raise BadInput(f"dtype is {shown(dtype)}; {' or '.join(dtypes)} is expected")
        beside = new_numpy((0,), named, None) if like is None else memory.inspect(like, "like")
        shapes = {name: interface.shape_of_state(name, slots) for name in interface.states}
        return cls(executor, {name: memory.new_array(beside, shape, named, fill=0).owner for name, shape in shapes.items()})

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return int(self._pool[0].shape[0])

    def copy(self, source: Any, target: Any) -> None:
        """Copy all states of slots `source` to slots `target`: a number each, or as many int32 or int64 [B] of each.

        All are read before any is written. Raises BadInput for slots in host memory that do not exist, and for a target that
        stands twice; on a GPU a pair with a slot that does not exist is left out.
        """
        call = self._call(source, "source", target, "target")
        if call.x.device is not None:
            self._executor.gpu.move_slots(call, clears=False)
            return
        assert call.pool is not None
        reads, writes = as_numpy(call.pool.slots), as_numpy(call.pool.written)
        for array in self._pool:
            values = as_numpy(array)
            values[writes] = values[reads]

    def clear(self, slots: Any) -> None:
        """Set all states of slots to zeros: a number, or int32 or int64 [B]; raises BadInput as `copy` does."""
        call = self._call(slots, "slots", slots, "slots")
        if call.x.device is not None:
            self._executor.gpu.move_slots(call, clears=True)
            return
        assert call.pool is not None
        for array in self._pool:
            as_numpy(array)[as_numpy(call.pool.written)] = 0

    def _call(self, source: Any, source_name: str, target: Any, target_name: str) -> Call:
        """Return a call without any array but the pool, whose sequences read and write these slots."""
        reads, writes = self._indices(source, source_name), self._indices(target, target_name)
        check_exact_shape(writes, reads.shape)
        rows = PoolRows(reads, writes, PAD_SLOT, self.slots)
        return Call(
            x=reads,
            x_axes="b",
            rows=reads.shape[0],
            time=1,
            weight=None,
            bias=None,
            parameters=(),
            initial=self._pool,
            sequences=Sequences(reads.shape[0]),
            pool=rows,
        )

    def _indices(self, slots: Any, name: str) -> Array:
        """Return slots as an array beside the pool, checked where they are in host memory."""
        import numpy

        if isinstance(slots, bool) or slots is None:
            raise BadInput(f"{name} is {kind_of(slots)}; a slot, or int32 or int64 [B], is expected")
        is_plain = isinstance(slots, int | list | tuple | range)
        array = wrap_numpy(numpy.array(slots, ndmin=1), name) if is_plain else memory.inspect(slots, name)
        check_dtype(array, INTEGER_DTYPES)
        check_exact_shape(array, (array.shape[0] if array.shape else 0,))
        like = self._pool[0]
        if array.device is not None:
            check_place(array, like)
            return array
        check_range(as_numpy(array), name, self.slots)
        if name != "source":
            check_writes(as_numpy(array), name)
        return array if like.device is None else memory.int64_beside(like, array)
