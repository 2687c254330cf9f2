"""What a layer is before it has numbers: the recipes of its kernels, the names and the shapes of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minrnn_gen.build.recipe import cell_source_of, recipe_of
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.config.spec import load_spec, spec_of_arguments
from minrnn_gen.errors import BadInput
from minrnn_gen.precision import PRECISION_NAMES

DIRECTION_SUFFIXES = ("", "_reverse")


class Names(NamedTuple):
    """The names of the parameters of one run over time, None where there is none of a kind. `vectors`: the cell's own."""

    weight_hh: str | None
    weight_ih: str
    bias_ih: str | None
    bias_hh: str | None
    vectors: tuple[str, ...]

    @property
    def in_call_order(self) -> tuple[str | None, ...]:
        """All names, in the order in which a call takes what they are of."""
        return (*self[:-1], *self.vectors)


@dataclass(frozen=True)
class Architecture:
    """Layers of one cell on top of each other. `recipes`: of each precision that there is, of each layer's kernel.

    `tf32_recipes`: those of fp32 with products in tf32, for where torch's settings ask for them; none where a spec says how.
    `names`: of each layer, of each direction; `shapes`: of all parameters, in the order of torch's layers.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    vectors: tuple[str, ...]
    recipes: Mapping[str, tuple[str, ...]]
    tf32_recipes: tuple[str, ...]
    names: tuple[tuple[Names, ...], ...]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def own_names(self) -> dict[str, str]:
        """The cell's own vectors by their names as parameters."""
        pairs = (zip(names.vectors, self.vectors, strict=True) for layer in self.names for names in layer)
        return {name: vector for pair in pairs for name, vector in pair}


def architecture_of(
    asked: Mapping[str, Any],
    caller: str,
    *,
    input_size: int,
    num_layers: int,
    directions: int,
    bias: bool,
    recurrent_bias: bool | None,
    precision: str | None,
) -> Architecture:
    """Return the architecture of `num_layers` layers by a spec that is `asked` for, still without sizes of inputs.

    `caller`: the layer's name in errors. `recurrent_bias` None: where the recurrent product is and `bias` is. Raises BadInput
    for what is wrong with the spec.
    """
    sized = {"input_size": input_size, "precision": "fp32" if precision is None else precision}
    first = spec_of_arguments({**asked, **sized}, caller)
    source = cell_source_of(first)
    if source.has_vectors:
        raise BadInput(
            f"{source.name} has n values per channel, which layers do not take yet; call its kernel, minrnn_gen.compile(…), or "
            "minrnn_gen.torch.recurrence with it"
        )
    cell = parse_cell(source)
    if recurrent_bias and not cell.recurrent_gates:
        raise BadInput(f"recurrent_bias is True, but {cell.name} has no recurrent product; leave it out")
    reserved = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"} & {*cell.parameters}
    if reserved:
        raise BadInput(f"{cell.name} has a vector {min(reserved)}, a name that layers have for other parameters; rename it")
    has_recurrent_bias = bool(cell.recurrent_gates) and (bias if recurrent_bias is None else recurrent_bias)
    first = load_spec(first, recurrent_bias=has_recurrent_bias)
    hidden = first.hidden_size
    inputs = (input_size, *(hidden * directions for _ in range(num_layers - 1)))
    layers = [load_spec(first, input_size=size) for size in inputs]
    recipes = {
        name: tuple(recipe_of(load_spec(layer, precision=name), source) for layer in layers)
        for name in (PRECISION_NAMES if precision is None else (precision,))
        if name != "fp64" or first.functions != "fast"  # which a spec refuses
    }
    tf32_recipes: tuple[str, ...] = ()
    if "fp32" in recipes and "fp32_product" not in asked:
        in_tf32 = (load_spec(layer, precision="fp32", fp32_product="tf32") for layer in layers)
        tf32_recipes = tuple(recipe_of(layer, source) for layer in in_tf32)
    present = {"weight_hh": bool(cell.recurrent_gates), "bias_ih": bias, "bias_hh": has_recurrent_bias}
    names = tuple(
        tuple(_names(f"_l{layer}{suffix}", present, cell.parameters) for suffix in DIRECTION_SUFFIXES[:directions])
        for layer in range(num_layers)
    )
    rows, recurrent_rows = len(cell.gates) * hidden, len(cell.recurrent_gates) * hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, directed in enumerate(names):
        for run_names in directed:
            shapes[run_names.weight_ih] = (rows, inputs[layer])
            if run_names.weight_hh:
                shapes[run_names.weight_hh] = (recurrent_rows, first.head_dim)
            if run_names.bias_ih:
                shapes[run_names.bias_ih] = (rows,)
            if run_names.bias_hh:
                shapes[run_names.bias_hh] = (recurrent_rows,)
            shapes |= dict.fromkeys(run_names.vectors, (hidden,))
    return Architecture(
        cell.name, cell.gates, cell.states, cell.recurrent_gates, cell.parameters, recipes, tf32_recipes, names, shapes
    )


def _names(suffix: str, present: Mapping[str, bool], vectors: tuple[str, ...]) -> Names:
    optional = {kind: f"{kind}{suffix}" if is_there else None for kind, is_there in present.items()}
    return Names(weight_ih=f"weight_ih{suffix}", vectors=tuple(f"{vector}{suffix}" for vector in vectors), **optional)
