"""A layer without values: the recipes of its kernels, the names and the shapes of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from minrnn_gen.build.recipe import cell_source_of, check_sizes_of_vectors, recipe_of
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.config.spec import Spec, load_spec, spec_of_arguments
from minrnn_gen.errors import BadInput
from minrnn_gen.layers.initial import GATE_STARTS, SCALED_INPUTS, VECTOR_STARTS, Start
from minrnn_gen.precision import PRECISION_NAMES
from minrnn_gen.run.projected_layers import ProjectedLayers, projected_layers

DIRECTION_SUFFIXES = ("", "_reverse")
# Where the cell's own vectors begin in `Names.in_call_order`.
VECTORS_FROM = 4


class Names(NamedTuple):
    """The names of the parameters of one run over time, None for an absent kind. `vectors`: the cell's own.

    `weight_shared` and `bias_shared` project the layer's input to the inputs S.*. Where products have several shapes,
    `products` and `product_biases` name their matrices and biases, each for one gate or for several adjacent ones. Methods, not
    properties: a compiler of torch 2.6 cannot trace a property of a tuple.
    """

    weight_hh: str | None
    weight_ih: str
    bias_ih: str | None
    bias_hh: str | None
    weight_shared: str | None
    bias_shared: str | None
    vectors: tuple[str, ...]
    products: tuple[str, ...] = ()
    product_biases: tuple[str, ...] = ()

    def in_call_order(self) -> tuple[str | None, ...]:
        """Return the names of a call's arguments, in its order."""
        return (self.weight_hh, self.weight_ih, self.bias_ih, self.bias_hh, *self.vectors)

    def of_shared(self) -> tuple[str | None, str | None]:
        """Return the names of the weight and of the bias of S.*."""
        return self.weight_shared, self.bias_shared


@dataclass(frozen=True)
class Architecture:
    """Layers of one cell on top of each other. `recipes`: for each supported precision, the recipe of each layer's kernel.

    `tf32_recipes`: the fp32 recipes with products in tf32, for torch settings that request them; none where a spec chooses.
    `names`: by layer and direction; `shapes`: of all parameters, in the order of torch's layers. `shared`: the names of the
    inputs S.*, and `shared_shape` [names, groups, n] the shape of all of them in one step of one sequence. `state_size`: n, 0
    where no array has this axis. `values`: for each state, its units and the shape of their values, (H,), (P,) or (H, n).
    `inputs`: the names of the inputs X.*, which a caller gives, the `step_inputs` among them with one value per step.
    `projected`: further facts for a cell with projected units. `folded`: the layers that serve calls without initial states
    where the output's own product is folded into others, by `folding`, which these have instead of `projected`.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    vectors: tuple[str, ...]
    shared: tuple[str, ...]
    state_size: int
    values: Mapping[str, tuple[int, ...]]
    shared_shape: tuple[int, ...]
    recipes: Mapping[str, tuple[str, ...]]
    tf32_recipes: tuple[str, ...]
    names: tuple[tuple[Names, ...], ...]
    shapes: Mapping[str, tuple[int, ...]]
    projected: ProjectedLayers | None = None
    inputs: tuple[str, ...] = ()
    step_inputs: tuple[str, ...] = ()
    folded: Architecture | None = None
    folding: ProjectedLayers | None = None

    @property
    def has_vectors(self) -> bool:
        """Whether any array has the axis n."""
        return self.state_size > 0

    @property
    def vectors_of_kernels(self) -> tuple[str, ...]:
        """The names of the vectors that the kernels take."""
        mask = None if self.projected is None else self.projected.embedding.mask
        return self.vectors if mask is None else (*self.vectors, mask)

    @property
    def directed(self) -> Iterator[Names]:
        """The names of each run over time."""
        return (names for layer in self.names for names in layer)

    @property
    def vector_starts(self) -> dict[str, Start]:
        """Initial values of the cell's own vectors that are not drawn like all others, by parameter name."""
        pairs = (pair for names in self.directed for pair in zip(names.vectors, self.vectors, strict=True))
        return {name: VECTOR_STARTS[self.name, vector] for name, vector in pairs if (self.name, vector) in VECTOR_STARTS}

    def gate_starts(self, forget_bias: float | None) -> Iterator[tuple[str, int, Start | float]]:
        """Yield input-side biases with other initial values: the parameter, the gate's index, and the start or number."""
        for names in self.directed:
            for index, gate in enumerate(self.gates):
                start = GATE_STARTS.get((self.name, gate))
                if names.bias_ih and gate == "f" and forget_bias is not None:
                    yield names.bias_ih, index, forget_bias
                elif names.bias_ih and start:
                    yield names.bias_ih, index, start

    @property
    def scaled_inputs(self) -> Iterator[tuple[str, slice, float]]:
        """Yield the rows of weights and biases of S.* that start smaller: the parameter, the rows, and the factor."""
        for index, name in enumerate(self.shared):
            if (self.name, name) in SCALED_INPUTS:
                rows = prod(self.shared_shape[1:])
                parameters = (parameter for names in self.directed for parameter in names.of_shared() if parameter)
                of_name = slice(index * rows, (index + 1) * rows)
                yield from ((parameter, of_name, self.state_size**-0.5) for parameter in parameters)


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
    """Return the architecture of `num_layers` layers for the `asked` spec, which lacks the sizes of inputs.

    `caller`: the layer's name in errors. `recurrent_bias` None: if there are a recurrent product and `bias`. Raises BadInput
    for an invalid spec.
    """
    sized = {"input_size": input_size, "precision": "fp32" if precision is None else precision}
    first = spec_of_arguments({**asked, **sized}, caller)
    source = cell_source_of(first)
    check_sizes_of_vectors(first, source)
    cell = parse_cell(source)
    if recurrent_bias and not cell.recurrent_gates:
        raise BadInput(f"recurrent_bias is True, but {cell.name} has no recurrent product; leave it out")
    shared = cell.vectors.shared
    reserved = {*Names._fields[:-1]} & {*cell.parameters}
    if reserved:
        raise BadInput(f"{cell.name} has a vector {min(reserved)}, a name that layers have for other parameters; rename it")
    has_recurrent_bias = bool(cell.recurrent_gates) and (bias if recurrent_bias is None else recurrent_bias)
    first = load_spec(first, recurrent_bias=has_recurrent_bias)
    hidden = first.hidden_size
    if cell.step_inputs:
        data = cell_source_of(first).document.data
        first = load_spec(first, model={**data, "inputs": dict.fromkeys(data["inputs"], 1)})
        source = cell_source_of(first)
    projected = projected_layers(first, source, cell, has_recurrent_bias)
    outputs = hidden if projected is None else projected.outer.units_of_output
    inputs = (input_size, *(outputs * directions for _ in range(num_layers - 1)))
    of_kernels = first if projected is None else projected.spec(first)
    kernel_inputs = (input_size, *(hidden * directions for _ in range(num_layers - 1)))
    precisions = PRECISION_NAMES if precision is None else (precision,)
    recipes, tf32_recipes = _recipes(of_kernels, kernel_inputs, precisions, "fp32_product" not in asked)
    present = {
        "weight_hh": bool(cell.recurrent_gates) and projected is None,
        "bias_ih": bias,
        "bias_hh": has_recurrent_bias and projected is None,
        "weight_shared": bool(shared),
        "bias_shared": bool(shared) and bias,
    }
    names = tuple(
        tuple(_names(f"_l{layer}{suffix}", present, cell.parameters, projected) for suffix in DIRECTION_SUFFIXES[:directions])
        for layer in range(num_layers)
    )
    n = () if first.state_size is None else (first.state_size,)
    shared_shape = (len(shared), first.groups or 1, *n) if shared else ()
    rows, recurrent_rows, shared_rows = len(cell.gates) * hidden, len(cell.recurrent_gates) * hidden, prod(shared_shape)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, directed in enumerate(names):
        for run_names in directed:
            shapes[run_names.weight_ih] = (rows, inputs[layer])
            if run_names.weight_hh:
                shapes[run_names.weight_hh] = (recurrent_rows, first.head_dim)
            shapes |= {} if projected is None else projected.shapes_of_products(run_names.products)
            if run_names.bias_ih:
                shapes[run_names.bias_ih] = (rows,)
            if run_names.bias_hh:
                shapes[run_names.bias_hh] = (recurrent_rows,)
            shapes |= {} if projected is None else projected.shapes_of_biases(run_names.product_biases)
            if run_names.weight_shared:
                shapes[run_names.weight_shared] = (shared_rows, inputs[layer])
            if run_names.bias_shared:
                shapes[run_names.bias_shared] = (shared_rows,)
            for name, vector in zip(run_names.vectors, cell.parameters, strict=True):
                shapes[name] = (hidden, *n) if vector in cell.vectors.parameters else (hidden,)
                if vector in cell.projection.parameters:
                    shapes[name] = (first.projection_size or 0,)
    architecture = Architecture(
        name=cell.name,
        gates=cell.gates,
        states=cell.states,
        recurrent_gates=cell.recurrent_gates,
        vectors=cell.parameters,
        shared=shared,
        state_size=first.state_size or 0,
        values={
            state: (hidden if projected is None else projected.outer.units_of_state(state),)
            + (n if state in cell.vectors.states else ())
            for state in cell.states
        },
        shared_shape=shared_shape,
        recipes=recipes,
        tf32_recipes=tf32_recipes,
        names=names,
        shapes=shapes,
        projected=projected,
        inputs=cell.inputs,
        step_inputs=cell.step_inputs,
    )
    if projected is None or projected.folded is None or (of_folded := projected.folded_spec(first)) is None:
        return architecture
    recipes, tf32_recipes = _recipes(of_folded, kernel_inputs, precisions, "fp32_product" not in asked)
    fields: dict[str, Any] = {"recipes": recipes, "tf32_recipes": tf32_recipes, "projected": None}
    return replace(architecture, folded=replace(architecture, folding=projected, **fields))


def _recipes(
    spec: Spec, input_sizes: Sequence[int], precisions: Sequence[str], takes_tf32: bool
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return the recipes of all layers, of each precision, and those of fp32 with products in tf32, if layers may take them."""
    layers = [load_spec(spec, input_size=size) for size in input_sizes]
    source = cell_source_of(spec)
    recipes = {
        name: tuple(recipe_of(load_spec(layer, precision=name), source) for layer in layers)
        for name in precisions
        if name != "fp64" or spec.functions != "fast"  # which a spec refuses
    }
    if "fp32" not in recipes or not takes_tf32:
        return recipes, ()
    in_tf32 = (load_spec(layer, precision="fp32", fp32_product="tf32") for layer in layers)
    return recipes, tuple(recipe_of(layer, source) for layer in in_tf32)


def _names(suffix: str, present: Mapping[str, bool], vectors: tuple[str, ...], projected: ProjectedLayers | None) -> Names:
    optional: dict[str, Any] = {kind: f"{kind}{suffix}" if is_there else None for kind, is_there in present.items()}
    names = Names(weight_ih=f"weight_ih{suffix}", vectors=tuple(f"{vector}{suffix}" for vector in vectors), **optional)
    if projected is None:
        return names
    products = tuple(f"weight_hh_{gate}{suffix}" for gate in projected.outer.recurrent_gates)
    biases = tuple(f"bias_hh_{gate}{suffix}" for gate in projected.biased_gates)
    return names._replace(products=products, product_biases=biases)
