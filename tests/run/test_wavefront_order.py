"""The schedule of a wavefront: every step once, behind what it needs, on lanes that take one step at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.run.layers.wavefront import PRODUCT_TIME, Step, wavefront

SIZES = (st.integers(1, 6), st.integers(1, 9), st.integers(1, 6), st.booleans())


def needed_by(step: Step, products_first: bool) -> set[tuple[str, int, int]]:
    """Return the steps whose results a step reads, as the equations have it."""
    kind, layer, piece = step.kind, step.layer, step.piece
    needed = {("recurrence", layer, piece - 1)} if kind == "recurrence" and piece else set()
    if products_first:  # x of a layer is projected, and then the recurrence runs
        needed |= {("product", layer, piece)} if kind == "recurrence" else set()
        return needed | ({("recurrence", layer - 1, piece)} if kind == "product" and layer else set())
    needed |= {("recurrence", layer, piece)} if kind == "product" else set()
    return needed | ({("product", layer - 1, piece)} if kind == "recurrence" and layer else set())


@given(*SIZES)
def test_every_step_is_taken_once(layers: int, pieces: int, lanes: int, products_first: bool) -> None:
    steps = wavefront(layers, pieces, lanes, products_first)
    found = {(step.kind, step.layer, step.piece) for step in steps}
    assert len(found) == len(steps) == 2 * layers * pieces
    assert {(layer, piece) for _, layer, piece in found} == {
        (layer, piece) for layer in range(layers) for piece in range(pieces)
    }


@given(*SIZES)
def test_a_step_is_enqueued_behind_what_it_needs(layers: int, pieces: int, lanes: int, products_first: bool) -> None:
    steps = wavefront(layers, pieces, lanes, products_first)
    place_of = {(step.kind, step.layer, step.piece): place for place, step in enumerate(steps)}
    for place, step in enumerate(steps):
        for needed in needed_by(step, products_first):
            before = place_of[needed]
            assert before < place
            # On its own lane it is behind that anyway; else an event is waited for.
            assert steps[before].lane == step.lane or before in step.waits
        assert all(wait < place and steps[wait].lane != step.lane for wait in step.waits)


@given(*SIZES)
def test_no_more_recurrences_run_at_once_than_there_are_lanes(
    layers: int, pieces: int, lanes: int, products_first: bool
) -> None:
    steps = wavefront(layers, pieces, lanes, products_first)
    assert {step.lane for step in steps if step.kind == "recurrence"} <= set(range(lanes))
    assert {step.lane for step in steps if step.kind == "product"} == {lanes}
    free_at: dict[int, float] = {}
    for step in steps:
        begin = step.end - (1.0 if step.kind == "recurrence" else PRODUCT_TIME)
        assert begin >= free_at.get(step.lane, 0.0)
        assert all(begin >= steps[wait].end for wait in step.waits)
        free_at[step.lane] = step.end


@given(st.integers(2, int(1 / PRODUCT_TIME)), st.integers(4, 16))
def test_with_a_lane_for_each_layer_only_the_ramp_is_added(layers: int, pieces: int) -> None:
    for products_first in (True, False):
        end = max(step.end for step in wavefront(layers, pieces, layers, products_first))
        assert end <= pieces + layers * (1 + PRODUCT_TIME)


def test_layers_on_one_lane_run_one_after_the_other() -> None:
    assert max(step.end for step in wavefront(3, 1, 1, True)) == 3 + 3 * PRODUCT_TIME
