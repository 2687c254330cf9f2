"""The recipe of the kernel that computes another's tangent, and the source of each of its arrays in the call."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from minrnn_gen.build.recipe import cell_source_of, spec_from
from minrnn_gen.errors import BadInput

if TYPE_CHECKING:
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.tangent_names import TangentNames
    from minrnn_gen.config.spec import Spec

Picks = tuple[tuple[int, bool], ...]
"""For each name of the tangent's kernel: the index of the cell's own name, and whether it is that name's tangent."""


@dataclass(frozen=True)
class TangentRecipe:
    """The recipe of a tangent's kernel.

    `products`: for each of its gates of R, the index of the cell's own gate, and the product: of R with the state ("R"), of R
    with the state's tangent ("d"), or of R's tangent with the state ("dR"). `sums`: of each gate of R of the cell, whether the
    product with the output of the call, which is known, is added to x; where it is not, the product follows the cell's own
    `inputs`. None where the kernel multiplies the output itself. `output`: the index of the state that is the cell's output,
    where the kernel reads y.
    """

    recipe: str
    gates: Picks
    states: Picks
    parameters: Picks
    shared: Picks
    inputs: Picks
    products: tuple[tuple[int, Literal["R", "d", "dR"]], ...]
    sums: tuple[bool, ...] | None = None
    output: int | None = None


_TANGENTS: set[str] = set()


@functools.lru_cache(maxsize=256)
def tangent_recipe(recipe: str, moves_R: bool) -> TangentRecipe:
    """Return the recipe of the tangent's kernel; `moves_R`: R has a tangent too.

    Raises BadInput for the recipe of a tangent, whose derivatives would be of third order, for clipped gradients, and for a
    cell whose tangent is larger than a cell may be.
    """
    from minrnn_gen.cell.language import parse_cell
    from minrnn_gen.cell.tangent import tangent_cell

    if recipe in _TANGENTS:
        raise BadInput(
            "a third derivative of a recurrence of minrnn_gen was asked for, which has two; take the outermost one by "
            "differences of second derivatives"
        )
    spec = spec_from(recipe)
    if spec.recurrent_gradient_clip is not None:
        raise BadInput(
            "recurrent_gradient_clip has no second derivative: a clipped gradient is the derivative of nothing; leave it out "
            "of the spec of minrnn_gen, and clip the gradients of parameters"
        )
    cell = parse_cell(cell_source_of(spec))
    return _recipe_of(recipe, spec, cell, *tangent_cell(cell, moves_R))


@functools.lru_cache(maxsize=256)
def joint_recipe(recipe: str) -> TangentRecipe | None:
    """Return the recipe of the kernel of a cell with its tangent, see `cell.tangent.joint_cell`; None where it has none.

    Its last state and its last input, the total's, stand for no array of the cell and are in no list of picks.
    """
    from minrnn_gen.cell.language import parse_cell
    from minrnn_gen.cell.tangent import joint_cell

    spec = spec_from(recipe)
    cell = parse_cell(cell_source_of(spec))
    try:
        made = joint_cell(cell)
        return None if made is None else _recipe_of(recipe, spec, cell, *made)
    except BadInput:  # larger than a cell may be
        return None


def _recipe_of(recipe: str, spec: Spec, cell: Cell, data: dict[str, Any], names: TangentNames) -> TangentRecipe:
    """Return the recipe of a tangent from its cell's file and names."""
    from minrnn_gen.cell import expressions as ex
    from minrnn_gen.cell.files import find_cell
    from minrnn_gen.cell.language import parse_cell

    data["recurrent_bias"] = cell_source_of(spec).recurrent_bias
    try:
        tangent = parse_cell(find_cell(data, spec.folder, spec.where))
    except BadInput as refused:
        raise BadInput(f"the tangent of {cell.name} is no cell that kernels take: {refused}") from None
    said = {**json.loads(recipe), "model": data}
    for key in ("input_size", "scan_arithmetic", "batch", "time"):
        said.pop(key, None)
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    _TANGENTS.add(text)
    of_R: dict[str, tuple[int, Literal["R", "d", "dR"]]] = {}
    for place, gate in enumerate(cell.recurrent_gates):
        along, of_matrix = names.products[gate]
        of_R |= {gate: (place, "R"), along: (place, "d")}
        of_R |= {of_matrix: (place, "dR")} if of_matrix else {}
    total, along = names.total or ("", "")
    return TangentRecipe(
        text,
        _picks(tangent.gates, names.gates),
        _picks([state for state in tangent.states if state != total], names.states),
        _picks(tangent.parameters, names.parameters),
        _picks(tangent.vectors.shared, names.shared),
        _picks(
            [name for name in tangent.inputs if name != along],
            {**names.inputs, **dict(names.inputs_of_products.values())},
        ),
        tuple(of_R[gate] for gate in tangent.recurrent_gates),
        tuple(gate not in names.inputs_of_products for gate in cell.recurrent_gates) if names.has_output else None,
        next(place for place, state in enumerate(cell.states) if ex.current(state) == cell.output)
        if names.has_output
        else None,
    )


def _picks(names: Sequence[str], tangents: Mapping[str, str]) -> Picks:
    places: dict[Any, tuple[int, bool]] = {}
    for place, (name, tangent) in enumerate(tangents.items()):
        places |= {name: (place, False), tangent: (place, True)}
    return tuple(places[name] for name in names)
