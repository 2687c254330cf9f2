"""Time over the devices of an axis of `jax.shard_map`: each piece from zero, gathered, folded in order, and run once more.

The map of a piece, in scans the product of its coefficients, is the gradient of its initial states with respect to the final
ones, by the existing kernels. Coupled states have a map for each stage, and pieces run once for each. An array that all devices
hold counts once: final states are those of the device where the recurrence ends, and their gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from minrnn_gen.call.interface import Interface
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.differentiable import Arrays, run_raw
from minrnn_gen.jax.primitive import bind
from minrnn_gen.jax.request import Request
from minrnn_gen.jax.second import backward_reads_states, differentiated_once
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import stages_of


class Ranks(NamedTuple):
    """The devices of an axis in the order of a recurrence; `position` is this one's, a tracer."""

    axis_name: str
    size: int
    position: Any
    is_reversed: bool

    @classmethod
    def of(cls, axis_name: Any, is_reversed: bool) -> Ranks:
        """Return the devices of an axis; raises BadInput for one that no `shard_map` around this call has."""
        try:
            size = jax.lax.axis_size(axis_name)
        except (NameError, TypeError, ValueError):
            raise BadInput(f"axis_name is {axis_name!r}, which no jax.shard_map around this call has") from None
        rank = jax.lax.axis_index(axis_name)
        return cls(axis_name, size, size - 1 - rank if is_reversed else rank, is_reversed)

    @property
    def is_first(self) -> Any:
        """Whether the recurrence begins here."""
        return self.position == 0

    @property
    def is_last(self) -> Any:
        """Whether the recurrence ends here."""
        return self.position == self.size - 1

    def gathered(self, arrays: Sequence[Any]) -> list[Any]:
        """Return each array of all devices, in the order of the recurrence, the first axis."""
        of_all = (jax.lax.all_gather(array, self.axis_name) for array in arrays)
        return [array[::-1] if self.is_reversed else array for array in of_all]

    def of_last(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays of the device where the recurrence ends, the same bits on all."""
        last: list[Any] = jax.lax.psum([jnp.where(self.is_last, array, 0) for array in arrays], self.axis_name)
        return last


def folded(products: Any, ends: Any) -> Any:
    """Return the states after each piece from the products and the ends from zero; the first end is the state after its piece.

    Where a product is zero, nothing before it counts, even NaN.
    """
    states = [ends[0]]
    for product, end in zip(products[1:], ends[1:], strict=True):
        states.append(jnp.where(product == 0, end, product * states[-1] + end))
    return jnp.stack(states)


class Stage(NamedTuple):
    """States of a cell that one map takes from the begin of a piece to its end, by their places in the cell."""

    places: tuple[int, ...]
    entries: tuple[tuple[int, int], ...]
    is_diagonal: bool

    @classmethod
    def of(cls, request: Request) -> tuple[Stage, ...]:
        """Return the stages of a cell, the first one first."""
        place = request.interface.states.index
        return tuple(
            cls(
                tuple(map(place, stage.states)),
                tuple((place(row), place(column)) for row, column in stage.entries),
                all(row == column for row, column in stage.entries),
            )
            for stage in stages_of(request.recipe)
        )

    def map_of(self, of_final: Callable[[Sequence[Any]], Sequence[Any]], initial: Sequence[Any]) -> list[Any]:
        """Return the entries of a piece's map; `of_final` maps gradients of the final states to those of the `initial`."""

        def of_rows(rows: Sequence[int]) -> Sequence[Any]:
            ones = (jnp.ones_like(state) if place in rows else jnp.zeros_like(state) for place, state in enumerate(initial))
            return of_final([*ones])

        if self.is_diagonal:
            own = of_rows(self.places)
            return [own[place] for place in self.places]
        by_row = {row: of_rows((row,)) for row in self.places}
        return [by_row[row][column] for row, column in self.entries]

    def folded(self, maps: Sequence[Any], ends: Sequence[Any], *, adjoint: bool = False) -> list[Any]:
        """Return the states of this stage after each piece, from the maps and all states' ends; the first axis is the pieces.

        `adjoint`: gradients, which go through the transposed maps. Maps of several states are composed in the widest dtype of
        JAX's mode.
        """
        if self.is_diagonal:
            return [folded(entry, ends[place]) for entry, place in zip(maps, self.places, strict=True)]
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        states = {place: ends[place][0].astype(wide) for place in self.places}
        after = {place: [state] for place, state in states.items()}
        for piece in range(1, len(ends[0])):
            value = {place: ends[place][piece].astype(wide) for place in self.places}
            for (row, column), entry in zip(self.entries, maps, strict=True):
                into, of = (column, row) if adjoint else (row, column)
                # Where an entry is zero, nothing before it counts, even NaN.
                passed = entry[piece].astype(wide) * states[of] + value[into]
                value[into] = jnp.where(entry[piece] == 0, value[into], passed)
            states = value
            for place, state in states.items():
                after[place].append(state)
        return [jnp.stack(after[place]).astype(ends[place].dtype) for place in self.places]


def check_cell(kernel: Kernel, all_states: bool) -> None:
    """Refuse calls that do not run over an axis of time."""
    name, interface = kernel.builder.cell_source.name, kernel.interface
    if not stages_of(kernel.recipe):
        raise BadInput(
            f"axis_name was given, but the steps of {name} are not affine, so that its pieces are not folded; "
            "split batch or heads instead"
        )
    if interface.directions:
        raise BadInput("axis_name was given, but the spec is bidirectional; call both directions by themselves")
    if not kernel.spec.training:
        raise BadInput("axis_name was given, which needs the backward of the kernel, but the spec has training: false")
    if all_states:
        raise BadInput(
            "axis_name was given with all_states, which calls over several devices do not return; leave one of them out"
        )


def local_boundaries(boundaries: Any, axis_name: str, time: int) -> Any:
    """Return lengths or boundaries of whole sequences as those of this device's piece of `time` steps."""
    ranks = Ranks.of(axis_name, False)
    return None if boundaries is None else jnp.clip(boundaries - ranks.position * time, 0, time)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_over_time(request: Request, axis_name: str, operands: Arrays) -> Arrays:
    """Return y of this piece and the final states of the whole; the initial states are among the operands."""
    return _forward(request, axis_name, operands)[0]


def _forward(request: Request, axis_name: str, operands: Arrays) -> tuple[Arrays, tuple[Arrays, Arrays, list[list[Any]]]]:
    ranks, places = Ranks.of(axis_name, request.interface.runs_reversed[0]), _state_places(request)
    operands = _once(operands)
    saving = replace(request, keeps=backward_reads_states(request.recipe), trains=True)
    initial, count = operands[places], len(request.interface.states)
    entering, maps = [jnp.where(ranks.is_first, state, 0) for state in initial], list[list[Any]]()
    for stage in Stage.of(request):
        entered = _with_states(operands, places, entering)
        y, *others = bind(saving, entered)
        of_final = partial(_of_initial, request, entered, (y, *others[count:]), jnp.zeros_like(y))
        own = stage.map_of(of_final, initial)
        maps.append(ranks.gathered(own))
        states = stage.folded(maps[-1], ranks.gathered(others[:count]))
        for place, state in zip(stage.places, states, strict=True):
            entering[place] = jnp.where(ranks.is_first, initial[place], state[ranks.position - 1])
    whole = _with_states(operands, places, entering)
    y, *others = bind(saving, whole)
    return (y, *ranks.of_last(others[:count])), (whole, (y, *others[count:]), maps)


def _backward(
    request: Request, axis_name: str, residuals: tuple[Arrays, Arrays, list[list[Any]]], incoming: Arrays
) -> tuple[Arrays]:
    operands, saved, maps = residuals
    ranks, places = Ranks.of(axis_name, request.interface.runs_reversed[0]), _state_places(request)
    operands, (dy, *dfinal) = _once(operands), _once(incoming)
    dfinal = jax.lax.psum(dfinal, axis_name)
    arriving = [jnp.where(ranks.is_last, state, 0) for state in dfinal]
    for stage, of_pieces in reversed([*zip(Stage.of(request), maps, strict=True)]):
        own = _of_initial(request, operands, saved, dy, arriving)
        ends = [end[::-1] for end in ranks.gathered(own)]
        after = stage.folded([entry[::-1] for entry in of_pieces], ends, adjoint=True)
        for place, state in zip(stage.places, after, strict=True):
            behind = state[::-1][(ranks.position + 1) % ranks.size]
            arriving[place] = jnp.where(ranks.is_last, dfinal[place], behind)
    gradients, own = _of_states(request, operands, saved, dy, arriving)
    by_slot = dict(zip(request.gradient_slots, gradients, strict=True))
    of_states = dict(zip(request.slots[places], own, strict=True))
    by_slot |= {slot: jnp.where(ranks.is_first, gradient, 0) for slot, gradient in of_states.items()}
    return (tuple(by_slot.get(slot) for slot in request.slots),)


run_over_time.defvjp(_forward, _backward)


def _once(arrays: Sequence[Any]) -> Arrays:
    """Refuse second derivatives of arrays: arrays that all devices hold count once in the first derivative."""
    return tuple(differentiated_once(array) if jnp.issubdtype(array.dtype, jnp.inexact) else array for array in arrays)


def _state_places(request: Request) -> slice:
    """Return the indices of the initial states, which are all present, among the operands."""
    states = request.interface.slots.states
    first = request.slots.index(states.start)
    return slice(first, first + states.stop - states.start)


def _with_states(operands: Arrays, places: slice, states: Sequence[Any]) -> Arrays:
    return (*operands[: places.start], *states, *operands[places.stop :])


def _of_states(
    request: Request, operands: Arrays, saved: Arrays, dy: Any, dfinal: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the gradients of a piece, and separately those of its initial states."""
    backward = replace(request, kind="backward", keeps=len(saved) > 1)
    gradients = bind(backward, (*operands, *saved, dy, *dfinal))
    by_slot = dict(zip(request.gradient_slots, gradients, strict=True))
    return gradients, [by_slot[slot] for slot in request.slots[_state_places(request)]]


def _of_initial(request: Request, operands: Arrays, saved: Arrays, dy: Any, dfinal: Sequence[Any]) -> Sequence[Any]:
    return _of_states(request, operands, saved, dy, dfinal)[1]


def with_initial_states(flat: Sequence[Any], interface: Interface, sequences: int, dtype: Any) -> list[Any]:
    """Return the arrays of a call of `sequences` sequences, with zeros for absent initial states."""
    states = interface.slots.states
    initial = [
        jnp.zeros(interface.shape_of_state(name, sequences), dtype) if state is None else state
        for name, state in zip(interface.states, flat[states], strict=True)
    ]
    return [*flat[: states.start], *initial, *flat[states.stop :]]


def scan_over_time(request: Request, axis_name: str, a: Any, b: Any, h0: Any) -> Arrays:
    """Return y of this piece of a raw scan and the final state of the whole, with the gradients of these operations."""
    ranks = Ranks.of(axis_name, request.reverse)
    _, end = run_raw(request, (a, b, jnp.where(ranks.is_first, h0, 0)))
    coefficients = a.astype(h0.dtype)
    product = jnp.exp(coefficients.sum(request.axis)) if request.log_a else coefficients.prod(request.axis)
    states = folded(*ranks.gathered((product, end)))
    y, final = run_raw(request, (a, b, jnp.where(ranks.is_first, h0, states[ranks.position - 1])))
    return (y, *ranks.of_last([final]))
