"""What a piece makes of the states that enter it, one stage of the cell's states after another, as arrays that ranks send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.cell.affine_stages import AffineStage
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, recipe_with_products, stages_of
from minrnn_gen.torch.sequence_group.fold import fold
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.states import apart, states_axis, together


@dataclass(frozen=True)
class StageMaps:
    """The maps of one stage of a cell's states.

    The map of a piece is one array, the stage's `entries` as the states of a cell lie.
    """

    cell: Kernel
    place: int
    stage: AffineStage

    @classmethod
    def of(cls, cell: Kernel) -> tuple[StageMaps, ...]:
        """Return the stages of a cell, the first one first."""
        return tuple(cls(cell, place, stage) for place, stage in enumerate(stages_of(cell.recipe)))

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that computes the cell's forward and, as further states, the entries."""
        return kernel_by(recipe_with_products(self.cell.recipe, self.place))

    @cached_property
    def _is_diagonal(self) -> bool:
        """Whether a map has one factor for each of the cell's states, as that of a scan."""
        return [*self.stage.entries] == [(state, state) for state in self.cell.states]

    @property
    def _axis(self) -> int:
        return states_axis(self.cell.interface)

    def nothing(self, like: Any) -> Any:
        """Return the map of a piece after which nothing counts that entered; `like` is an array of all states."""
        return torch.zeros_like(like) if self._is_diagonal else self.split(self._entered(torch.zeros_like(like), 0.0), like)[1]

    def of_piece(self, piece: Piece) -> Piece:
        """Return the same piece of a call of the cell with this stage's products."""
        return replace(piece, kernel=self.kernel, all_states=False, saves=False)

    def entering(self, states: Any) -> Any:
        """Return all states of `kernel` where these enter: its products are those of no steps."""
        return self._entered(states, 1.0)

    def split(self, ends: Any, like: Any) -> tuple[Any, Any]:
        """Return the cell's states, shaped `like` them, and the map, of all states of `kernel`."""
        own = like.shape[self._axis]
        states, products = ends.split((own, ends.shape[self._axis] - own), self._axis)
        return states, products

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
            for (row, column), entry in zip(self.stage.entries, self._entries(products, first), strict=True):
                into, of = (column, row) if adjoint else (row, column)
                value = after[places[into]]
                # Where an entry is zero, nothing before it counts, even NaN.
                after[places[into]] = torch.where(entry == 0, value, entry.double() * states[places[of]] + value)
            states = after
        return together(interface, states).to(first.dtype)

    def put(self, states: Any, right: Any) -> Any:
        """Return all states with those of the stage from `right`."""
        if len(self.stage.states) == len(self.cell.states):
            return right
        interface = self.cell.interface
        pairs = zip(self.cell.states, apart(interface, states), apart(interface, right), strict=True)
        return together(interface, [new if name in self.stage.states else old for name, old, new in pairs])

    def _entered(self, states: Any, unit: float) -> Any:
        own = dict(zip(self.cell.states, apart(self.cell.interface, states), strict=True))
        products = [torch.full_like(own[row], unit if row == column else 0.0) for row, column in self.stage.entries]
        return together(self.kernel.interface, [*own.values(), *products])

    def _entries(self, products: Any, like: Any) -> list[Any]:
        """Return the entries of a map one by one."""
        return apart(self.kernel.interface, torch.cat((like, products), self._axis))[len(self.cell.states) :]
