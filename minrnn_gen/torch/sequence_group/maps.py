"""Maps of pieces from entering to end states, stage by stage of the cell's states, as arrays that ranks send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, recipe_with_products, stages_of
from minrnn_gen.torch.sequence_group.fold import fold
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.states import apart, apart_as, states_axis, together, together_as


@dataclass(frozen=True)
class StageMaps:
    """The maps of one stage of a cell's states.

    `states` are the stage's. The map of a piece is one array, its `entries` by row and column laid out as the states of a cell.
    `is_constant`: each step has the same map, and the map of a piece is a power of it. Such maps are in float64.
    """

    cell: Kernel
    place: int
    states: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]
    is_constant: bool

    @classmethod
    def of(cls, cell: Kernel) -> tuple[StageMaps, ...]:
        """Return the stages of a cell, the first one first."""
        stages = stages_of(cell.recipe)
        return tuple(cls(cell, place, stage.states, stage.entries, stage.is_constant) for place, stage in enumerate(stages))

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that computes the cell's forward and, as further states, the entries."""
        recipe, _ = recipe_with_products(self.cell.recipe, self.place)
        return kernel_by(recipe)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The names of the cell's states and of the entries among the states of `kernel`, whose order may be another."""
        _, names = recipe_with_products(self.cell.recipe, self.place)
        return (*self.cell.states, *names)

    @cached_property
    def _is_in_order(self) -> bool:
        """Whether all states of `kernel` as one array are the cell's, then the entries."""
        return states_axis(self.cell.interface) == 0 and self.kernel.states == self._names

    @property
    def _rows(self) -> list[str]:
        """The states that the entries are shaped like."""
        return [row for row, _ in self.entries]

    @cached_property
    def _is_diagonal(self) -> bool:
        """Whether a map has one factor for each of the cell's states, as in a scan."""
        return [*self.entries] == [(state, state) for state in self.cell.states]

    def nothing(self, like: Any) -> Any:
        """Return the zero map: entering states do not count after the piece; `like` is an array of all states."""
        nothing = self._alike(like, 0.0)
        return nothing.double() if self.is_constant else nothing

    def of_piece(self, piece: Piece) -> Piece:
        """Return the same piece of a call of the cell with this stage's products."""
        return replace(piece, kernel=self.kernel, all_states=False, saves=False)

    def entering(self, states: Any) -> Any:
        """Return all states of `kernel` for these entering states: its products start at the identity."""
        if self._is_in_order:
            return torch.cat((states, self._alike(states, 1.0)))
        products = apart_as(self.cell.interface, self._rows, self._alike(states, 1.0))
        named = dict(zip(self._names, (*apart(self.cell.interface, states), *products), strict=True))
        return together(self.kernel.interface, [named[name] for name in self.kernel.states])

    @property
    def is_of_one_pass(self) -> bool:
        """Whether one run gives the map of a piece and its end states, one after the other in one array."""
        return self._is_in_order and not self.is_constant

    def with_map(self, ends: Any) -> Any:
        """Return the states of `kernel` for end states whose map is not read."""
        return torch.cat((ends, self.nothing(ends)))

    def apart(self, ends: Any) -> tuple[Any, Any]:
        """Return the map, and the cell's states, of all states of `kernel`."""
        states, entries = self.split(ends)
        return entries, states

    def split(self, ends: Any) -> tuple[Any, Any]:
        """Return the cell's states, and the map, of all states of `kernel`."""
        interface, count = self.cell.interface, len(self.cell.states)
        if self._is_in_order:
            return ends[:count], ends[count:]
        named = dict(zip(self.kernel.states, apart(self.kernel.interface, ends), strict=True))
        arrays = [named[name] for name in self._names]
        return together(interface, arrays[:count]), together_as(interface, self._rows, arrays[count:])

    def power(self, piece: Piece, call: Sequence[Any], like: Any) -> Any:
        """Return the map of a piece of equal steps: per sequence, a step's map to the power of its steps; 0 after a reset."""
        if not like.numel() or not call[0].shape[piece.time_axis]:
            return self._alike(like, 1.0).double()
        begin = self.entering(torch.zeros_like(like.narrow(1, 0, 1)))
        of_step = self.of_piece(piece)
        _, entries = self.split(of_step.all_states_of(of_step.forward(piece.one_step_of(call), begin)))
        named = dict(zip(self.entries, apart_as(self.cell.interface, self._rows, entries.double()), strict=True))
        zero = torch.zeros_like(next(iter(named.values())))
        rows = [torch.stack([named.get((row, column), zero) for column in self.states], -1) for row in self.states]
        powers = _powers(torch.stack(rows, -2), piece.steps_within(call), call[0].shape[piece.time_axis])
        shape = (like.shape[1], *zero.shape[1:])
        places = {name: place for place, name in enumerate(self.states)}
        own = [powers[..., places[row], places[column]].expand(shape) for row, column in self.entries]
        power = together_as(self.cell.interface, self._rows, own)
        is_cut = piece.is_cut(call)
        return power if is_cut is None else power.masked_fill(is_cut.view(1, -1, *(1,) * (power.dim() - 2)), 0.0)

    def folded(self, pieces: Sequence[tuple[Any, Any]], adjoint: bool = False) -> Any:
        """Return the states after pieces, each a pair (map, end state), from the first on; right are those of the stage.

        `adjoint`: pieces come from the last on, and gradients go through the maps' transposes. Maps of several states are
        composed in float64, which the double eigenvalues of filters need.
        """
        if self._is_diagonal:
            return fold(pieces)
        interface = self.cell.interface
        places = {name: place for place, name in enumerate(self.cell.states)}
        _, first = pieces[0]
        states = [state.double() for state in apart(interface, first)]
        for products, end in pieces[1:]:
            after = [state.double() for state in apart(interface, end)]
            for (row, column), entry in zip(self.entries, apart_as(interface, self._rows, products), strict=True):
                into, of = (column, row) if adjoint else (row, column)
                value = after[places[into]]
                # Where an entry is zero, nothing before it counts, even NaN.
                after[places[into]] = torch.where(entry == 0, value, entry.double() * states[places[of]] + value)
            states = after
        return together(interface, states).to(first.dtype)

    def put(self, states: Any, right: Any) -> Any:
        """Return all states with those of the stage from `right`."""
        if len(self.states) == len(self.cell.states):
            return right
        interface = self.cell.interface
        pairs = zip(self.cell.states, apart(interface, states), apart(interface, right), strict=True)
        return together(interface, [new if name in self.states else old for name, old, new in pairs])

    def _alike(self, states: Any, unit: float) -> Any:
        """Return a map that is a multiple of the identity."""
        if self._is_diagonal:
            return torch.full_like(states, unit)
        own = dict(zip(self.cell.states, apart(self.cell.interface, states), strict=True))
        factors = [torch.full_like(own[row], unit if row == column else 0.0) for row, column in self.entries]
        return together_as(self.cell.interface, self._rows, factors)


def _powers(maps: Any, counts: Any, most: int) -> Any:
    """Return powers of matrices [1, ..., m, m], of each of `counts` [sequences], at most `most`; without them `most`."""
    if counts is None:
        return torch.linalg.matrix_power(maps, most)
    result = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device).expand(len(counts), *maps.shape[1:])
    counts = counts.view(-1, *(1,) * (maps.dim() - 1))
    for bit in range(most.bit_length()):
        result = torch.where((counts >> bit) % 2 == 1, maps @ result, result)
        maps = maps @ maps
    return result
