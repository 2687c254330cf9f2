"""Calls on pools of states next to calls on rows: what slots hold before and after, and what padding leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.kernel import Kernel

BATCH, SLOTS, GAP = 5, 9, 3
# Each call of a step: slots that are read, what is written (None: the same), and the slot of padding. Row 1 is padding, or
# none is; rows share what they read where they write elsewhere, or drop what they would write, and padding would write a slot
# that has numbers.
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int]] = {
    "in place": ((7, -1, 2, 0, 5), None, -1),
    "padded by slot 0": ((7, 0, 2, 8, 5), None, 0),
    "into others": ((7, 7, 2, 0, 7), (1, 3, 4, 6, 8), -1),
    "dropped": ((7, -1, 2, 0, 5), (7, 2, -1, 1, 5), -1),
    "all padded": ((-1,) * BATCH, None, -1),
}


# Of a call over time: lengths of padded sequences, which some rows have no step of, and which rows have a state.
TIME, LENGTHS, HAS_STATE = 3, (3, 2, 0, 3, 1), (True, True, True, False, True)
FORMS = ("step", "time", "lengths", "packed")
# Of the largest value, between two orders of a step's sums.
ROUNDINGS = 8


@dataclass(frozen=True)
class OnPool:
    """A call on a pool, whose unused slots are NaN, as are the inputs of padded rows; and the same call on rows.

    `whole` has the memory of the pool, with the gaps between slots.
    """

    form: str
    arrays: dict[str, Any]
    plain: dict[str, Any]
    whole: dict[str, Any]
    is_live: Any
    written: Any

    def run(self, kernel: Kernel, arrays: dict[str, Any]) -> tuple[Any, Any]:
        """Run the call on `arrays`; return y, sequences first, or packed steps, and the states."""
        y, state = kernel.step(**arrays) if self.form == "step" else kernel(**arrays)
        if self.form == "packed":
            return y[0], state
        return y if self.form == "step" else numpy.moveaxis(y, Y_AXES[kernel.interface.layout].index("b"), 0), state

    def expected(self, kernel: Kernel, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return y and the memory of the pool as the call on rows has them: its states in the slots that are written."""
        y, final = self.run(kernel, dict(plain))
        y = y.copy()
        y[~(numpy.repeat(self.is_live, LENGTHS) if self.form == "packed" else self.is_live)] = 0
        whole = {name: values.copy() for name, values in self.whole.items()}
        for row, slot in enumerate(self.written):
            for name, values in whole.items() if slot >= 0 else ():
                values[slot, : final[name][row].size] = final[name][row].reshape(-1)
        return {"y": y, **{name: values.astype(float) for name, values in whole.items()}}

    def results(self, kernel: Kernel) -> dict[str, Any]:
        """Return y and the memory of the pool after the call in place; the pool is again as it was."""
        before = {name: values.copy() for name, values in self.whole.items()}
        try:
            y, state = self.run(kernel, self.arrays)
            assert all(state[name] is self.arrays["state"][name] for name in kernel.states)
            return {"y": y, **{name: values.astype(float) for name, values in self.whole.items()}}
        finally:
            for name, values in before.items():
                self.whole[name][...] = values

    def check(self, kernel: Kernel) -> None:
        """Run in place: bit by bit what the call on rows gives, in the slots that are written, and nothing anywhere else.

        In cells whose step waits within itself a step on rows may be another kernel, which adds up products in another order.
        """
        results, slack = self.results(kernel), 0.0
        if self.form == "step" and kernel.executor.builder.cell_shape.makes_again:
            slack = ROUNDINGS * float(numpy.finfo(numpy_dtype(kernel.interface.precision.storage_dtype)).eps)
        for name, values in self.expected(kernel, self.plain).items():
            largest = float(abs(values[numpy.isfinite(values)]).max(initial=0))
            numpy.testing.assert_allclose(results[name], values, rtol=0, atol=slack * largest)


def on_pool(
    kernel: Kernel, call: str, dtype: Any = numpy.int64, stride: int = 1, form: str = "step", is_narrow: bool = False
) -> OnPool:
    """Return a call on a pool whose slots have gaps between them; indices are of a dtype and a stride.

    `is_narrow`: the states in the pool are in the storage dtype.
    """
    interface, reads_writes_pad = kernel.interface, CALLS[call]
    reads, writes, pad_slot = reads_writes_pad
    slots, is_live = numpy.array(reads), numpy.array(reads) != pad_slot
    written = numpy.where(is_live, slots if writes is None else writes, -1)
    written = numpy.where(written == pad_slot, -1, written)
    plain, changes, is_read = _inputs(interface, form, is_live)
    pool, whole, rows = {}, {}, {}
    for name, state in plain["state"].items():
        stored = numpy_dtype(interface.precision.storage_dtype) if is_narrow else state.dtype
        whole[name] = numpy.full((SLOTS, state[0].size + GAP), numpy.nan, stored)
        strides = (whole[name].strides[0], *numpy.empty(state.shape[1:], stored).strides)
        pool[name] = numpy.ndarray((SLOTS, *state.shape[1:]), stored, whole[name], strides=strides)
        pool[name][slots[is_read]] = state[is_read]
        rows[name] = numpy.zeros_like(state)
        rows[name][is_read] = pool[name][slots[is_read]]

    def indices(values: Any) -> Any:
        apart = numpy.full((BATCH, stride), -7, dtype)
        apart[:, 0] = values
        return apart[:, 0]

    arrays = {**plain, **changes, "state": pool, "slots": indices(slots), "pad_slot": pad_slot}
    if writes is not None:
        arrays["into_slots"] = indices(writes)
    return OnPool(form, arrays, {**plain, "state": rows}, whole, is_live, written)


def _inputs(interface: Interface, form: str, is_live: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return a call on rows, what differs on a pool but for states, and which rows read a state."""
    if form == "step":
        plain = dict(inputs_of(interface, Case(BATCH, 1)).step)
        x = plain["x_t"].copy()
        x[~is_live] = numpy.nan
        return plain, {"x_t": x}, is_live
    if form == "packed":
        packed = inputs_of(interface, Case(1, sum(LENGTHS))).forward
        plain = {**packed, "state": inputs_of(interface, Case(BATCH, 1)).forward["state"]}
        plain["cu_seqlens"] = numpy.cumsum((0, *LENGTHS))
        x = plain["x"].copy()
        x[0, numpy.repeat(~is_live, LENGTHS)] = numpy.nan
    else:
        plain = dict(inputs_of(interface, Case(BATCH, TIME)).forward)
        plain |= {"lengths": numpy.array(LENGTHS)} if form == "lengths" else {}
        x = plain["x"].copy()
        numpy.moveaxis(x, interface.x_axes.index("b"), 0)[~is_live] = numpy.nan
    return plain, {"x": x, "has_state": numpy.array(HAS_STATE)}, is_live & HAS_STATE
