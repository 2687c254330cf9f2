"""Resets, reset states and holds of a layer's call, checked, and the kernel and inputs of a layer for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.layers.architecture import Architecture
from minrnn_gen.torch.layers import checks
from minrnn_gen.torch.operators.altered import altered, by_layer, checked_holds, inputs_of
from minrnn_gen.torch.operators.stack_operator import of_layer
from minrnn_gen.torch.sequence_group.ranks import Ranks

# Reset states of all layers, empty where there are none, and holds.
Altering = tuple[Sequence[Any], Any]


def marks_of(
    made: Architecture,
    input: Any,
    count: int,
    hidden: int,
    marked: tuple[Any, Any, Any],
    batch_first: bool,
    batched: bool = True,
) -> tuple[Any, Altering]:
    """Return the resets of a call of `count` sequences as [batch, time], and its reset states and holds; None stays None.

    `marked`: resets, reset states and holds as the caller has them. Raises BadInput for arguments that do not fit.
    """
    resets, reset_states, holds = marked
    beginnings: Sequence[Any] = ()
    if reset_states is not None:
        runs = sum(map(len, made.names))
        beginnings = by_layer(reset_states, resets, made.states, runs, count, hidden, batched=batched)
    marks = checks.marks_beside(input, resets, "resets", batch_first)
    holds = None if holds is None else checked_holds(holds)
    return marks, (beginnings, checks.marks_beside(input, holds, "holds", batch_first))


def altered_layer(
    made: Architecture,
    recipe: str,
    layer: int,
    x: Any,
    marks: tuple[Any, Any],
    altering: Altering,
    axes: str,
    hidden: int,
    ranks: Ranks | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """Return the recipe of a layer's kernel for reset states or holds, and its further inputs X.*, of these `axes`.

    `marks`: the resets, and boundaries of packed sequences.
    """
    (beginnings, holds), both = altering, "d" in axes
    recipe, begins = altered(recipe, len(beginnings) > 0, holds is not None)
    begun = [of_layer(beginnings[made.states.index(name)], layer, both) for name in begins]
    width = (*((2,) if both else ()), hidden)
    return recipe, inputs_of(axes, begun, width, x, (*marks, holds), x.dtype, ranks)
