"""Steps on pools of states beside steps on rows: what slots hold before and after, and what padding leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.kernel import Kernel

BATCH, SLOTS, GAP = 5, 9, 3
# Each call of a step: slots that are read, what is written (None: the same), and the slot of padding. Row 1 is padding, or
# none is; rows share what they read where they write elsewhere, or drop what they would write.
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int]] = {
    "in place": ((7, -1, 2, 0, 5), None, -1),
    "padded by slot 0": ((7, 0, 2, 8, 5), None, 0),
    "into others": ((7, 7, 2, 0, 7), (1, 3, 4, 6, 8), -1),
    "dropped": ((7, -1, 2, 0, 5), (7, 3, -1, 1, 5), -1),
    "all padded": ((-1,) * BATCH, None, -1),
}


@dataclass(frozen=True)
class OnPool:
    """A step on a pool, whose unused slots are NaN, as are the inputs of padded rows; and the same step on rows.

    `whole` has the memory of the pool, with the gaps between slots.
    """

    arrays: dict[str, Any]
    plain: dict[str, Any]
    whole: dict[str, Any]
    is_live: Any
    written: Any

    def check(self, kernel: Kernel) -> None:
        """Step in place: bit by bit what a step on rows gives, in the slots that are written, and nothing anywhere else."""
        y, final = kernel.step(**self.plain)
        pool = self.arrays["state"]
        before = {name: values.copy() for name, values in self.whole.items()}
        y_on_pool, state = kernel.step(**self.arrays)
        assert all(state[name] is pool[name] for name in kernel.states)
        numpy.testing.assert_array_equal(y_on_pool[self.is_live], y[self.is_live])
        assert not y_on_pool[~self.is_live].any()
        for name in kernel.states:
            expected = before[name]
            for row, slot in enumerate(self.written):
                if slot >= 0:
                    expected[slot, : pool[name][0].size] = final[name][row].reshape(-1)
            numpy.testing.assert_array_equal(self.whole[name], expected)


def on_pool(kernel: Kernel, call: str, dtype: Any = numpy.int64, stride: int = 1, inputs: Inputs | None = None) -> OnPool:
    """Return a step on a pool whose slots have gaps between them; indices are of a dtype and a stride."""
    inputs = inputs or inputs_of(kernel.interface, Case(BATCH, 1))
    reads, writes, pad_slot = CALLS[call]
    slots, plain = numpy.array(reads), dict(inputs.step)
    is_live = slots != pad_slot
    written = numpy.where(is_live, slots if writes is None else writes, -1)
    written = numpy.where(written == pad_slot, -1, written)
    pool, whole, rows = {}, {}, {}
    for name, state in plain["state"].items():
        size = state[0].size
        whole[name] = numpy.full((SLOTS, size + GAP), numpy.nan, state.dtype)
        strides = (whole[name].strides[0], *state.strides[1:])
        pool[name] = numpy.ndarray((SLOTS, *state.shape[1:]), state.dtype, whole[name], strides=strides)
        pool[name][slots[is_live]] = state[is_live]
        rows[name] = numpy.zeros_like(state)
        rows[name][is_live] = pool[name][slots[is_live]]
    x = plain["x_t"].copy()
    x[~is_live] = numpy.nan

    def indices(values: Any) -> Any:
        apart = numpy.full((BATCH, stride), -7, dtype)
        apart[:, 0] = values
        return apart[:, 0]

    arrays = {**plain, "x_t": x, "state": pool, "slots": indices(slots), "pad_slot": pad_slot}
    if writes is not None:
        arrays["into_slots"] = indices(writes)
    return OnPool(arrays, {**plain, "state": rows}, whole, is_live, written)
