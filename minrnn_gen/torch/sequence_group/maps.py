"""What a piece makes of the states that enter it, one stage of the cell's states after another, as arrays that ranks send."""

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

    `states` are the stage's. The map of a piece is one array, its `entries` by row and column as the states of a cell lie.
    """

    cell: Kernel
    place: int
    states: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, cell: Kernel) -> tuple[StageMaps, ...]:
        """Return the stages of a cell, the first one first."""
        stages = stages_of(cell.recipe)
        return tuple(cls(cell, place, stage.states, stage.entries) for place, stage in enumerate(stages))

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
        """Whether a map has one factor for each of the cell's states, as that of a scan."""
        return [*self.entries] == [(state, state) for state in self.cell.states]

    def nothing(self, like: Any) -> Any:
        """Return the map of a piece after which nothing counts that entered; `like` is an array of all states."""
        return self._alike(like, 0.0)

    def of_piece(self, piece: Piece) -> Piece:
        """Return the same piece of a call of the cell with this stage's products."""
        return replace(piece, kernel=self.kernel, all_states=False, saves=False)

    def entering(self, states: Any) -> Any:
        """Return all states of `kernel` where these enter: its products are those of no steps."""
        if self._is_in_order:
            return torch.cat((states, self._alike(states, 1.0)))
        products = apart_as(self.cell.interface, self._rows, self._alike(states, 1.0))
        named = dict(zip(self._names, (*apart(self.cell.interface, states), *products), strict=True))
        return together(self.kernel.interface, [named[name] for name in self.kernel.states])

    def split(self, ends: Any) -> tuple[Any, Any]:
        """Return the cell's states, and the map, of all states of `kernel`."""
        interface, count = self.cell.interface, len(self.cell.states)
        if self._is_in_order:
            return ends[:count], ends[count:]
        named = dict(zip(self.kernel.states, apart(self.kernel.interface, ends), strict=True))
        arrays = [named[name] for name in self._names]
        return together(interface, arrays[:count]), together_as(interface, self._rows, arrays[count:])

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
        own = dict(zip(self.cell.states, apart(self.cell.interface, states), strict=True))
        factors = [torch.full_like(own[row], unit if row == column else 0.0) for row, column in self.entries]
        return together_as(self.cell.interface, self._rows, factors)
