"""Drafted steps of a cache: where each reads and writes its states, by a kernel or in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.call.pool import PoolRows
from minrnn_gen.call.results import Places
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.gpu import memory
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.program.number import divided_up
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.launch import address_or_null, launch_in_grid
from minrnn_gen.run.slots import slot_values

# The bit of `wide_slots` that says whether the accepted counts are int64.
_WIDE_ACCEPTED = 4


@dataclass(frozen=True)
class Draft:
    """The next draft of some sequences, `time` steps of each, or as many as its length; its states are in a ring of places.

    `drafts` [slots, 2]: the first place of each slot's last draft, which holds the state before it, and its number of steps;
    the state after step t is t places further, modulo `places`. `accepted` steps of that draft are kept, by default none, and
    the next draft begins where they end. With `folds`, the kept state goes to place 0 of the slot that is written, and no draft
    follows. Where steps are run again, the places hold their `inputs` instead of their states.
    """

    rows: PoolRows
    drafts: Array
    places: int
    time: int
    accepted: Array | None = None
    lengths: Array | None = None
    folds: bool = False
    inputs: tuple[Array, ...] = ()

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return int(self.rows.slots.shape[0])

    def flat(self) -> list[Array | None]:
        """Return the arrays in the order of their slots."""
        return [self.rows.slots, self.rows.into, self.accepted, self.lengths, self.drafts, *self.inputs]

    def placed(self, arrays: Sequence[Array | None]) -> Draft:
        """Return the same draft with arrays in the order of `flat`."""
        slots, into, accepted, lengths, drafts, *inputs = arrays
        assert slots is not None and drafts is not None
        rows = PoolRows(slots, into, self.rows.pad_slot, self.rows.count)
        return replace(self, rows=rows, drafts=drafts, accepted=accepted, lengths=lengths, inputs=tuple(filter(None, inputs)))


def places_on_host(draft: Draft) -> Places:
    """Return the places of each step, [time, batch], in host memory; checks the draft and notes it."""
    import numpy

    rows, drafts = draft.rows, as_numpy(draft.drafts)
    reads, writes = as_numpy(rows.slots).astype(numpy.int64), as_numpy(rows.written).astype(numpy.int64)
    exists = (reads != rows.pad_slot) & (writes != rows.pad_slot)
    last = drafts[numpy.where(exists, reads, 0)]
    first = (last[:, 0] + (0 if draft.accepted is None else as_numpy(draft.accepted))) % draft.places
    steps = numpy.full(len(reads), draft.time) if draft.lengths is None else as_numpy(draft.lengths)
    t = numpy.arange(draft.time)[:, None]
    runs = exists & (t < steps)
    following = 0 if draft.folds else (first + t + 1) % draft.places
    places = Places(*(memory.new_array(draft.drafts, (draft.time, len(reads)), "int64").owner for _ in range(2)))
    for place, values in zip(
        places, (reads * draft.places + (first + t) % draft.places, writes * draft.places + following), strict=True
    ):
        as_numpy(memory.inspect(place, "places"))[...] = numpy.where(runs, values, -1)
    noted = numpy.stack([first, steps], axis=1)
    drafts[writes[exists]] = 0 if draft.folds else noted[exists]
    return places


def launch_places(recorder: Recorder, builder: Builder, names: ArrayNames, draft: Draft) -> Places:
    """Launch a kernel that writes the places of each step, [time, batch], and notes the draft.

    Where slots are copied, a second launch notes it.
    """
    reads, writes = (recorder.new_array((draft.time, draft.batch), "int64") for _ in range(2))
    # A copy notes its targets once all sources are read.
    at_once: dict[str, Any] = {"reads": reads.address, "writes": writes.address}
    phases = (at_once,) if draft.rows.into is None else ({**at_once, "keeps": 0}, {})
    for phase in phases:
        _launch(recorder, builder, names, draft, phase)
    return Places(reads, writes)


def launch_starts(recorder: Recorder, builder: Builder, names: ArrayNames, draft: Draft) -> Array:
    """Launch a kernel that writes, as [3, batch], each sequence's slot (-1 for none), first place and kept steps.

    It also notes the draft.
    """
    starts = recorder.new_array((3, draft.batch), "int64")
    _launch(recorder, builder, names, draft, {"starts": starts.address})
    return starts


def _launch(recorder: Recorder, builder: Builder, names: ArrayNames, draft: Draft, phase: dict[str, Any]) -> None:
    import numpy

    accepted = draft.accepted
    on_pool = replace(builder.hinted_specialization, pool="arithmetic")
    kernel = recorder.load(recorder.choose("drafts", on_pool, Sizes(draft.batch, 1)))
    values = slot_values(draft.rows) | {
        "accepted": address_or_null(accepted),
        "accepted_stride": 0 if accepted is None else accepted.strides[0],
        "lengths": address_or_null(draft.lengths),
        "drafts": draft.drafts.address,
        **dict.fromkeys(("reads", "writes", "starts"), 0),
        "places": draft.places,
        "folds": int(draft.folds),
        "keeps": 1,
        "batch": draft.batch,
        "time": draft.time,
    }
    is_wide = accepted is not None and accepted.dtype == "int64"
    values["wide_slots"] = numpy.uint32(values["wide_slots"] | (_WIDE_ACCEPTED if is_wide else 0))
    if draft.batch:
        arguments = pack(signature(kernel.plan, names), values | phase)
        kernel.launch(launch_in_grid(divided_up(draft.batch, kernel.plan.launch.threads), arguments))
