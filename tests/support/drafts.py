"""Drafts of a cache next to single steps: what every accepted count leaves in slots, and what padding leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy
from support.pools import BATCH, SLOTS

from minrnn_gen.call.array import as_numpy, wrap_numpy
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.pool import PoolRows
from minrnn_gen.call.results import StepResult
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.cache import Cache
from minrnn_gen.run.drafts import Draft, launch_starts, places_on_host
from minrnn_gen.run.verify import steps_of

READ, PAD = numpy.array((7, -1, 2, 0, 5)), 1
LIVE = READ >= 0
# The steps of each sequence in a draft of `STEPS`, where it has lengths; one has none of them. Long drafts are of three tiles
# of the kernel that runs steps again.
STEPS, LONG_STEPS, LENGTHS = 3, 9, numpy.array((3, 2, 0, 3, 1))
OF_DRAFTS, OF_LONG_DRAFTS = Case(BATCH, STEPS), Case(BATCH, LONG_STEPS)
# Calls of the kernel that says where steps have their states, and the slots and sequences there are.
NOTES, ALL_SLOTS, ROWS, PLACES = ("noted", "lengths", "folds", "copies", "starts"), 70, 66, 4


def check_drafts(
    kernel: Kernel, rounds: int = STEPS + 1, has_lengths: bool = False, dtype: Any = None, steps: int = STEPS
) -> None:
    """Verify drafts round after round, each with other counts accepted of the one before, and commit the last.

    Bit by bit states are those of single steps on a pool without drafts, and y is but for sums over n; other slots stay NaN.
    """
    cache, single = (_cleared(kernel.cache(SLOTS, draft, dtype)) for draft in (steps, 0))
    axes, earlier, kept = Y_AXES[kernel.interface.layout], None, numpy.zeros(BATCH, numpy.int32)
    lengths = _lengths_of(steps, has_lengths)
    for number in range(rounds):
        arrays = _of_round(kernel, inputs_of(kernel.interface, Case(BATCH, steps)).forward, number)
        if earlier is not None:
            _advance(kernel, single.states, earlier, kept)
        expected = _advance(kernel, {name: states.copy() for name, states in single.states.items()}, arrays, lengths)
        given = {"lengths": lengths} if has_lengths else {}
        y, same = kernel.verify_draft(**arrays, **given, cache=cache, slots=READ, accepted=kept)
        assert same is cache
        found = numpy.moveaxis(y, (axes.index("t"), axes.index("b")), (0, 1)).astype(float)
        # A kernel that runs steps again may sum over n in another order than that of single steps.
        roundoff = kernel.interface.precision.storage_roundoff if cache.inputs else 0
        numpy.testing.assert_allclose(found, expected.astype(float), 4 * roundoff, 4 * roundoff)
        earlier, kept = arrays, _kept_of(number, lengths, steps).astype(kept.dtype)
    _advance(kernel, single.states, earlier, kept)
    cache.commit(READ[LIVE], kept[LIVE])
    unused = numpy.setdiff1d(numpy.arange(SLOTS), READ)
    for name, states in cache.states.items():
        numpy.testing.assert_array_equal(states.astype(float), single.states[name].astype(float))
        whole = cache.places[name].reshape(SLOTS, 1 if cache.inputs else steps + 1, -1)
        assert numpy.isnan(whole[unused].astype(float)).all() and not numpy.isnan(whole[READ[LIVE]].astype(float)[:, 0]).any()


def drafted(kernel: Kernel, forward: Mapping[str, Any], rounds: int, has_lengths: bool, dtype: Any) -> dict[str, Any]:
    """Return y of rounds of drafts, the steps of the last ones, and the states once they are committed."""
    steps = forward["x"].shape[kernel.interface.x_axes.index("t")]
    cache, results, kept = _cleared(kernel.cache(SLOTS, steps, dtype)), {}, numpy.zeros(BATCH, numpy.int64)
    lengths = _lengths_of(steps, has_lengths)
    given = {"lengths": lengths} if has_lengths else {}
    for number in range(rounds):
        arrays = _of_round(kernel, forward, number)
        results[f"y {number}"], _ = kernel.verify_draft(**arrays, **given, cache=cache, slots=READ, accepted=kept)
        kept = _kept_of(number, lengths, steps)
    results["steps"] = cache.drafts[:, 1].copy()
    cache.commit(READ[LIVE], kept[LIVE])
    return results | {name: states.astype(float) for name, states in cache.states.items()}


def placed(note: str, kernel: InterpretedKernel | None = None) -> dict[str, Any]:
    """Return where steps read and write, or where each draft starts, and the drafts that are noted.

    A kernel is given slots that a pool lacks and counts beyond a draft, but where it copies; NumPy the padding they stand for.
    """
    random, folds, copies = numpy.random.default_rng(0), note in ("folds", "copies"), note == "copies"
    dtype = (numpy.int64, numpy.int32)[NOTES.index(note) % 2]
    reads, drafts = random.permutation(ALL_SLOTS)[:ROWS], random.integers(0, 4, (ALL_SLOTS, 2))
    kept, wrong = random.integers(0, drafts[reads, 1] + 1), random.permutation(ROWS)[:8]
    into = random.permutation(ALL_SLOTS)[:ROWS]
    plain = reads.copy()
    plain[wrong] = into[wrong[3:] - 1] = -1
    reads[wrong[:4]], kept[wrong[4:]] = (-1, -2, ALL_SLOTS, 2**31 - 1), (-1, 4, 99, -1)
    lengths = _rows_of(random.integers(0, 4, ROWS)) if note == "lengths" else None
    if kernel is None or copies:
        reads, kept = plain, numpy.clip(kept, 0, drafts[plain, 1])
    rows = PoolRows(_rows_of(reads, dtype, 3), _rows_of(into) if copies else None, -1, ALL_SLOTS)
    draft = Draft(rows, wrap_numpy(drafts, "drafts"), PLACES, 1 if folds else 3, None, lengths, folds)
    draft = draft if copies else replace(draft, accepted=_rows_of(kept, dtype, 2))
    if note == "starts":
        return {"starts": _starts(draft, kernel), "drafts": drafts}
    found = places_on_host(draft) if kernel is None else kernel.executor.gpu.places(draft, None)
    return {"reads": found.reads, "writes": found.writes, "drafts": drafts}


def _starts(draft: Draft, kernel: InterpretedKernel | None) -> Any:
    """Return each sequence's slot, -1 for none, first place and kept steps, and note the draft."""
    if kernel is not None:
        recorder = kernel.backend.begin(draft.drafts, None, draft.flat())
        starts = launch_starts(recorder, kernel.builder, ArrayNames((), ()), draft)
        return recorder.finish(StepResult(starts, ()), None).result.y
    slots, kept, drafts = (as_numpy(array) for array in (draft.rows.slots, draft.accepted, draft.drafts))
    exists = slots >= 0
    first = (drafts[slots, 0] + kept) % PLACES
    places_on_host(draft)
    return numpy.where(exists, [slots, first, kept], [[-1], [0], [0]])


def _rows_of(values: Any, dtype: Any = numpy.int64, stride: int = 1) -> Any:
    apart = numpy.full((ROWS, stride), -9, dtype)
    apart[:, 0] = values
    return wrap_numpy(apart[:, 0], "array")


def _cleared(cache: Cache) -> Cache:
    """Return a cache whose unused slots are NaN; a ring of inputs is about to begin again."""
    for states in cache.places.values():
        states[...] = numpy.nan
    cache.clear(READ[LIVE])
    if cache.inputs:
        cache.drafts[:, 0] = 2 * cache.draft - 2
    return cache


def _of_round(kernel: Kernel, forward: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the arrays of a draft, NaN in padding."""
    left_out = ("state", "resets", "lengths", "cu_seqlens")
    arrays = {name: array for name, array in forward.items() if name not in left_out}
    arrays["x"] = numpy.roll(arrays["x"], number, kernel.interface.x_axes.index("t"))
    numpy.moveaxis(arrays["x"], kernel.interface.x_axes.index("b"), 0)[PAD] = numpy.nan
    return arrays


def _lengths_of(steps: int, has_lengths: bool) -> Any:
    return LENGTHS * (steps // STEPS) if has_lengths else numpy.full(BATCH, steps)


def _kept_of(number: int, lengths: Any, steps: int) -> Any:
    """Return other counts for every sequence and round."""
    return numpy.minimum((number + steps * numpy.arange(BATCH) // STEPS) % (steps + 1), lengths)


def _advance(kernel: Kernel, pool: Any, arrays: Any, counts: Any) -> Any:
    """Run so many single steps of each sequence of a call in a pool, and return y, time first."""
    from minrnn_gen.call.arguments import CallArguments

    at = steps_of(kernel.interface, CallArguments(**arrays))
    is_reverse, ys = kernel.spec.direction == "reverse", []
    steps = arrays["x"].shape[kernel.interface.x_axes.index("t")]
    for number in range(steps):
        t = steps - 1 - number if is_reverse else number
        step = {name: array for name, array in at(t)._asdict().items() if name in arrays and name != "x"}
        slots = numpy.where(LIVE & (number < counts), READ, -1)
        ys.append(kernel.step(at(t).x, **step, state=pool, slots=slots)[0])
    return numpy.stack(ys[::-1] if is_reverse else ys)
