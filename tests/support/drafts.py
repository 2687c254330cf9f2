"""Drafts of a cache next to single steps: what every accepted count leaves in slots, and what padding leaves alone."""

from __future__ import annotations

from typing import Any

import numpy
from support.pools import BATCH, SLOTS

from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.verify import steps_of

READ, PAD = numpy.array((7, -1, 2, 0, 5)), 1
LIVE = READ >= 0
# The steps of each sequence in a draft of `STEPS`, where it has lengths; one has none of them.
STEPS, LENGTHS = 3, numpy.array((3, 2, 0, 3, 1))


def check_drafts(kernel: Kernel, rounds: int = STEPS + 1, has_lengths: bool = False, dtype: Any = None) -> None:
    """Verify drafts round after round, each with other counts accepted of the one before, and commit the last.

    Bit by bit states are those of single steps on a pool without drafts, and y is but for sums over n; other slots stay NaN.
    """
    cache, steps = kernel.cache(SLOTS, STEPS, dtype), kernel.cache(SLOTS, 0, dtype)
    for arrays in (cache.places, steps.states):
        for states in arrays.values():
            states[...] = numpy.nan
    for pool in (cache, steps):
        pool.clear(READ[LIVE])
    axes, earlier, kept = Y_AXES[kernel.interface.layout], None, numpy.zeros(BATCH, numpy.int32)
    lengths = LENGTHS if has_lengths else numpy.full(BATCH, STEPS)
    for number in range(rounds):
        arrays = dict(inputs_of(kernel.interface, Case(BATCH, STEPS)).forward)
        arrays = {name: array for name, array in arrays.items() if name not in ("state", "resets", "lengths", "cu_seqlens")}
        arrays["x"] = numpy.roll(arrays["x"], number, kernel.interface.x_axes.index("t"))
        numpy.moveaxis(arrays["x"], kernel.interface.x_axes.index("b"), 0)[PAD] = numpy.nan
        if earlier is not None:
            _advance(kernel, steps.states, earlier, kept)
        expected = _advance(kernel, {name: states.copy() for name, states in steps.states.items()}, arrays, lengths)
        given = {"lengths": lengths} if has_lengths else {}
        y, same = kernel.verify_draft(**arrays, **given, cache=cache, slots=READ, accepted=kept)
        assert same is cache
        found = numpy.moveaxis(y, (axes.index("t"), axes.index("b")), (0, 1)).astype(float)
        # A kernel that runs steps again may sum over n in another order than that of single steps.
        roundoff = kernel.interface.precision.storage_roundoff if cache.inputs else 0
        numpy.testing.assert_allclose(found, expected.astype(float), 4 * roundoff, 4 * roundoff)
        kept = ((number + numpy.arange(BATCH)) % (STEPS + 1)).astype(kept.dtype)
        earlier, kept = arrays, numpy.minimum(kept, lengths)
    _advance(kernel, steps.states, earlier, kept)
    cache.commit(READ[LIVE], kept[LIVE])
    unused = numpy.setdiff1d(numpy.arange(SLOTS), READ)
    for name, states in cache.states.items():
        numpy.testing.assert_array_equal(states.astype(float), steps.states[name].astype(float))
        whole = cache.places[name].reshape(SLOTS, 1 if cache.inputs else STEPS + 1, -1)
        assert numpy.isnan(whole[unused].astype(float)).all() and not numpy.isnan(whole[READ[LIVE]].astype(float)[:, 0]).any()


def _advance(kernel: Kernel, pool: Any, arrays: Any, counts: Any) -> Any:
    """Run so many single steps of each sequence of a call in a pool, and return y, time first."""
    from minrnn_gen.call.arguments import CallArguments

    at = steps_of(kernel.interface, CallArguments(**arrays))
    is_reverse, ys = kernel.spec.direction == "reverse", []
    for number in range(STEPS):
        t = STEPS - 1 - number if is_reverse else number
        step = {name: array for name, array in at(t)._asdict().items() if name in arrays and name != "x"}
        slots = numpy.where(LIVE & (number < counts), READ, -1)
        ys.append(kernel.step(at(t).x, **step, state=pool, slots=slots)[0])
    return numpy.stack(ys[::-1] if is_reverse else ys)
