"""`minrnn_gen.jax.RNN`: layers of any cell as a pair of functions, `init` and `apply`, over a flat dict of parameters."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from minrnn_gen.build.altered_cells import refuse_projected
from minrnn_gen.call.embedding import Embedding
from minrnn_gen.errors import BadInput, kind_of, nearest_name, shown
from minrnn_gen.jax.arrays import as_array, check_key, check_numbers, check_static
from minrnn_gen.jax.fp32_precision import multiplies_in_tf32
from minrnn_gen.jax.functional import check_x64, recurrence, step
from minrnn_gen.jax.layer_inputs import inputs_of_layer
from minrnn_gen.layers.architecture import VECTORS_FROM, Names, architecture_of
from minrnn_gen.layers.initial import Start
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.precision import PRECISION_NAMES, precision_of, why_unsupported
from minrnn_gen.run.projected_layers import NamedParameters, embedded_parameters

Parameters = Mapping[str, Any]

# The keywords of a layer, and the keys of a spec for which it has no arguments of its own (docs/spec.md).
KEYWORDS = ("heads", "bias", "dropout", "bidirectional", "precision", "recurrent_bias", "forget_bias", "dtype")
OPTIONS = (
    "functions",
    "fp32_product",
    "scan_arithmetic",
    "recurrent_gradient_clip",
    "state_size",
    "groups",
    "projection_size",
    "gpu",
    "batch",
    "time",
)
# Arguments of a constructor that no call reads; a subclass may well have attributes called `batch` and `time`.
_FIXED = frozenset({"model", "input_size", "hidden_size", "num_layers", *KEYWORDS, *OPTIONS}) - {"batch", "time"}
_PRECISIONS = {precision_of(name).storage_dtype: name for name in PRECISION_NAMES}


class RNN:
    """`num_layers` recurrent layers of one cell, in one direction or both, batch first.

    model: a built-in cell, the path of a cell file, or a cell file's mapping. Parameters have the names and shapes of
    `minrnn_gen.torch.RNN`, and so those of torch for lstm, gru and elman. precision: fp64, fp32, fp16 or bf16, by default the
    input's; if set, weights of another dtype are cast in every call. recurrent_bias: by default as `bias` where there is a
    recurrent product. forget_bias: what the input-side biases of gate f start with. dropout is between layers, where `apply` is
    called with a key. options: further keys of the spec, such as the `state_size` of cells with n values per channel. None of
    these can be set later: compiled calls would keep the old value. Raises BadInput where the spec is wrong.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Mapping[str, Any],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        heads: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        precision: str | None = None,
        recurrent_bias: bool | None = None,
        forget_bias: float | None = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name not in OPTIONS:
                allowed = ("model", "input_size", "hidden_size", "num_layers", *KEYWORDS, *OPTIONS)
                raise BadInput(
                    f"{name} is no argument of a layer{nearest_name(name, allowed)}; allowed are {', '.join(allowed)}"
                )
        arguments = {
            "model": model,
            "input_size": input_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "heads": heads,
            "bias": bias,
            "dropout": dropout,
            "bidirectional": bidirectional,
            "precision": precision,
            "recurrent_bias": recurrent_bias,
            "forget_bias": forget_bias,
            "dtype": dtype,
        }
        for name, value in (arguments | options).items():
            check_static(value, name)
        check_numbers(num_layers, dropout, forget_bias)
        self.num_layers, self.bidirectional, self.dropout, self.hidden_size = num_layers, bidirectional, dropout, hidden_size
        self.precision, self.forget_bias = precision, forget_bias
        self.dtype = _dtype_of(dtype)
        usual = {name: parameter.default for name, parameter in inspect.signature(RNN).parameters.items()}
        self._said = {
            name: value
            for name, value in (arguments | options).items()
            if name != "model" and (name not in usual or value != usual[name])
        }
        asked = {
            **{name: value for name, value in options.items() if value is not None},
            "model": model if isinstance(model, Mapping) else os.fspath(model),
            "hidden_size": hidden_size,
            "heads": heads,
            "direction": "bidirectional" if bidirectional else "forward",
        }
        self._made = architecture_of(
            asked,
            type(self).__name__,
            input_size=input_size,
            num_layers=num_layers,
            directions=2 if bidirectional else 1,
            bias=bias,
            recurrent_bias=recurrent_bias,
            precision=precision,
        )
        if forget_bias is not None and ("f" not in self._made.gates or not bias):
            raise BadInput(f"forget_bias was given, but {self._made.name} has no bias of a gate f; leave it out")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_made" in vars(self):
            raise BadInput(
                f"{name} cannot be set to {shown(value)} after the layer was made; make another layer, which takes the same "
                f"params where their shapes are the same"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        said = [repr(self._made.name), *(f"{name}={value!r}" for name, value in self._said.items())]
        return f"RNN({', '.join(said)})"

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states."""
        return self._made.states

    def init(self, key: Any) -> dict[str, Any]:
        """Return parameters uniform over ±1/sqrt(hidden_size), as torch draws them, but for those in docs/torch.md."""
        check_key(key, "key")
        check_x64(_PRECISIONS[self.dtype.name])
        drawn: dict[str, Any] = jax.jit(self._draw)(key)  # one program instead of one for each parameter
        return drawn

    def _draw(self, key: Any) -> dict[str, Any]:
        bound, made = 1 / math.sqrt(self.hidden_size), self._made
        keys = dict(zip(made.shapes, jax.random.split(key, len(made.shapes)), strict=True))
        drawn = {name: jax.random.uniform(keys[name], shape, self.dtype, -bound, bound) for name, shape in made.shapes.items()}
        for name, start in made.vector_starts.items():
            drawn[name] = self._started(start, keys[name], made.shapes[name])
        for name, rows, factor in made.scaled_inputs:
            drawn[name] = drawn[name].at[rows].multiply(factor)
        for name, gate, gate_start in made.gate_starts(self.forget_bias):
            values = self._started(gate_start, keys[name], (self.hidden_size,)) if callable(gate_start) else gate_start
            biases = slice(gate * self.hidden_size, (gate + 1) * self.hidden_size)
            drawn[name] = drawn[name].at[biases].set(values)
        return drawn

    def _started(self, start: Start, key: Any, shape: tuple[int, ...]) -> Any:
        """Return `start` of uniform numbers, computed in float32 or wider."""
        return start(jnp, jax.random.uniform(key, shape, jnp.promote_types(self.dtype, jnp.float32))).astype(self.dtype)

    def apply(
        self,
        params: Parameters,
        x: Any,
        state: Mapping[str, Any] | None = None,
        *,
        resets: Any = None,
        reset_states: Mapping[str, Any] | None = None,
        holds: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        key: Any = None,
        axis_name: str | None = None,
        inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Return (y [B, T, directions * H], {name: [num_layers * directions, B, H]}) of x [B, T, I].

        A state with n values per channel is [num_layers * directions, B, H, n]. `state` is like the second result, zeros where
        None. resets, holds, lengths and cu_seqlens are those of a kernel's call. `reset_states`, with which resets begin, are
        like `state`, or each [num_layers * directions, H] for all sequences. `key` draws the dropout masks; without it nothing
        is dropped. `axis_name` splits time, as in `recurrence`. `inputs` are the inputs X.* of the cell by name, each [B, T, H]
        (in both directions [B, T, 2, H]), the same for all layers, or a list with a mapping for each layer. Raises BadInput for
        arguments that do not fit.
        """
        if self._embedding is not None:
            refuse_projected(self._made.name, reset_states, holds)
        x, params, precision = self._checked(params, x, "x")
        if key is not None:
            check_key(key, "key")
        final: dict[str, list[Any]] = {name: [] for name in self.states}
        for layer, recipe in enumerate(self._recipes(precision)):
            R, weight, bias, recurrent_bias, *vectors = self._parameters(params, layer, x.dtype)
            shared = self._shared(params, layer, x)
            x, after = recurrence(
                kernel_by(recipe),
                x,
                R,
                weight=weight,
                bias=bias,
                recurrent_bias=recurrent_bias,
                parameters=dict(zip(self._made.vectors_of_kernels, vectors, strict=True)),
                state=self._state(state, layer),
                shared=shared,
                inputs=self._inputs(inputs, layer, x),
                resets=resets,
                reset_states=self._state(reset_states, layer, "reset_states"),
                holds=holds,
                lengths=lengths,
                cu_seqlens=cu_seqlens,
                axis_name=axis_name,
            )
            for name, array in after.items():
                final[name].append(array if self.bidirectional else array[None])
            if self.dropout and key is not None and layer + 1 < self.num_layers:
                key, own_key = jax.random.split(key)
                is_kept = jax.random.bernoulli(own_key, 1 - self.dropout, x.shape)
                x = jnp.where(is_kept, x / max(1 - self.dropout, jnp.finfo(x.dtype).tiny), 0).astype(x.dtype)
        states, embedding = {name: jnp.concatenate(arrays) for name, arrays in final.items()}, self._embedding
        return (x, states) if embedding is None else (embedding.y(x), embedding.by_name(states))

    def step(
        self,
        params: Parameters,
        x_t: Any,
        state: Mapping[str, Any] | None = None,
        *,
        inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Return (y_t [B, H], state) of one step more, for decoding; x_t is [B, I], each of `inputs` [B, H].

        Raises BadInput in both directions.
        """
        x_t, params, precision = self._checked(params, x_t, "x_t")
        final: dict[str, list[Any]] = {name: [] for name in self.states}
        for layer, recipe in enumerate(self._recipes(precision)):
            R, weight, bias, recurrent_bias, *vectors = self._parameters(params, layer, x_t.dtype)
            shared = self._shared(params, layer, x_t)
            x_t, after = step(
                kernel_by(recipe),
                x_t,
                R,
                weight=weight,
                bias=bias,
                recurrent_bias=recurrent_bias,
                parameters=dict(zip(self._made.vectors_of_kernels, vectors, strict=True)),
                state=self._state(state, layer),
                shared=shared,
                inputs=self._inputs(inputs, layer, x_t),
            )
            for name, array in after.items():
                final[name].append(array)
        states, embedding = {name: jnp.stack(arrays) for name, arrays in final.items()}, self._embedding
        return (x_t, states) if embedding is None else (embedding.y_of_step(x_t), embedding.by_name(states))

    @property
    def _embedding(self) -> Embedding | None:
        """Maps arrays to those of the kernels; None where the kernels take the layer's own."""
        return replace(made.embedding, library=jnp) if (made := self._made.projected) else None

    def _recipes(self, precision: str) -> tuple[str, ...]:
        """Return the recipe of each layer's kernel, in fp32 with the products that JAX is set to unless the layer says."""
        in_tf32 = precision == "fp32" and self._made.recurrent_gates and multiplies_in_tf32()
        return self._made.tf32_recipes if in_tf32 and self._made.tf32_recipes else self._made.recipes[precision]

    def _checked(self, params: Parameters, x: Any, name_of_x: str) -> tuple[Any, Parameters, str]:
        """Return x and the parameters as arrays, and the precision of a call; refuses arguments that do not fit the layer."""
        x = as_array(x, name_of_x)
        check_x64(self.precision)
        params = self._arrays(params)
        precision = self.precision or _PRECISIONS.get(x.dtype.name)
        if precision not in self._made.recipes or precision_of(str(precision)).storage_dtype != x.dtype.name:
            allowed = ", ".join(precision_of(name).storage_dtype for name in self._made.recipes)
            raise BadInput(f"{name_of_x} has dtype {x.dtype}; {allowed} is expected{why_unsupported(x.dtype)}")
        wrong = [name for name in self._made.shapes if params[name].dtype != x.dtype]
        if wrong and self.precision is None:
            raise BadInput(
                f"{name_of_x} has dtype {x.dtype}, but params['{wrong[0]}'] has {params[wrong[0]].dtype}; cast one of them, or "
                f"make the layer with a precision"
            )
        return x, params, str(precision)

    def _arrays(self, params: Parameters) -> Parameters:
        """Return the parameters as arrays of their shapes."""
        shapes = self._made.shapes
        expected = f"the layer has {', '.join(shapes)}, as init returns them"
        if not isinstance(params, Mapping):
            raise BadInput(f"params is {kind_of(params)}; a mapping is expected: {expected}")
        for name in shapes:
            if name not in params:
                raise BadInput(f"params lacks '{name}'; {expected}")
        for name in params:
            if name not in shapes:
                raise BadInput(f"params has an unknown name {name!r}{nearest_name(str(name), tuple(shapes))}; {expected}")
        arrays = {name: as_array(array, f"params['{name}']") for name, array in params.items()}
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise BadInput(f"params['{name}'] has shape {list(arrays[name].shape)}; {list(shape)} is expected")
        return arrays

    def _parameters(self, params: Parameters, layer: int, dtype: Any) -> list[Any]:
        """Return R, weight, bias and recurrent bias of a layer, None for what it lacks, and its own vectors."""
        directed = [self._parameters_in(params, names, layer) for names in self._made.names[layer]]
        # Vectors of the cell have an axis of directions; of others the rows of both lie one after the other.
        merged: list[Any] = [
            None if arrays[0] is None else _together(arrays, is_vector=place >= VECTORS_FROM)
            for place, arrays in enumerate(zip(*directed, strict=True))
        ]
        R, weight, *vectors = merged
        return [
            None if R is None else R.astype(dtype),
            weight.astype(dtype),
            *(vector if vector is None or vector.dtype in (dtype, jnp.float32) else vector.astype(dtype) for vector in vectors),
        ]

    def _parameters_in(self, params: Parameters, names: Names, layer: int) -> list[Any]:
        """Return R, weight, bias, recurrent bias and vectors of one run over time of a layer."""
        own = [None if name is None else params[name] for name in names.in_call_order()]
        if (embedding := self._embedding) is None:
            return own
        matrices, biases = ([params[name] for name in of_kind] for of_kind in (names.products, names.product_biases))
        of_run = NamedParameters(matrices, biases, own[1], own[2], own[4:])
        return embedded_parameters(embedding, self._made.vectors, of_run, is_first=layer == 0)

    def _shared(self, params: Parameters, layer: int, x: Any) -> dict[str, Any] | None:
        """Return the inputs S.* that a layer makes of x, by one product; None for cells without."""
        made = self._made
        if not made.shared:
            return None
        directed = [[None if name is None else params[name] for name in names.of_shared()] for names in made.names[layer]]
        pairs = zip(*directed, strict=True)
        weight, bias = (None if arrays[0] is None else _together(arrays, is_vector=False).astype(x.dtype) for arrays in pairs)
        product = jnp.einsum("...i,ri->...r", x, weight)
        product = product if bias is None else product + bias
        inputs = product.reshape(*x.shape[:-1], *((2,) if self.bidirectional else ()), *made.shared_shape)
        return {name: inputs[..., index, :, :] for index, name in enumerate(made.shared)}

    def _inputs(self, inputs: Any, layer: int, x: Any) -> Any:
        """Return the inputs X.* of a layer, in the dtype of its input where the layer has a precision."""
        shape = (*x.shape[:-1], *((2,) if self.bidirectional else ()), self.hidden_size)
        return inputs_of_layer(self._made, inputs, layer, None if self.precision is None else x.dtype, shape)

    def _state(self, state: Mapping[str, Any] | None, layer: int, what: str = "state") -> dict[str, Any] | None:
        """Return the states of a layer; reset states may be without the axis of sequences."""
        if state is None:
            return None
        directions = 2 if self.bidirectional else 1
        runs, values = self.num_layers * directions, self._made.values
        expected = {name: f"[{', '.join(map(str, (runs, 'batch', *values[name])))}]" for name in self.states}
        if not isinstance(state, Mapping):
            raise BadInput(
                f"{what} is {kind_of(state)}; a mapping is expected, as the second result is: {{"
                + ", ".join(f"'{name}': {shape}" for name, shape in expected.items())
                + "}"
            )
        arrays = {name: as_array(array, f"{what}['{name}']") for name, array in state.items()}
        if not {*arrays} <= {*expected}:
            return arrays  # which is refused
        for name, array in arrays.items():
            axes = 2 + len(values[name])
            if array.ndim not in ((axes,) if what == "state" else (axes - 1, axes)) or array.shape[0] != runs:
                raise BadInput(
                    f"{what}['{name}'] has shape {list(array.shape)}; {expected[name]} is expected, layers and directions first"
                )
        of_layer = slice(2 * layer, 2 * layer + 2) if self.bidirectional else layer
        arrays = {name: array[of_layer] for name, array in arrays.items()}
        return arrays if self._embedding is None else self._embedding.states(arrays)


def _together(arrays: Sequence[Any], is_vector: bool) -> Any:
    """Return an array of one direction, or of both."""
    if len(arrays) == 1:
        return arrays[0]
    return jnp.stack(arrays) if is_vector else jnp.concatenate(arrays)


def _dtype_of(asked: Any) -> Any:
    """Return the dtype of parameters; refuses a dtype that no precision stores."""
    try:
        dtype = jnp.dtype(jnp.float32 if asked is None else asked)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _PRECISIONS:
        raise BadInput(f"dtype is {shown(asked)}; {', '.join(_PRECISIONS)} is expected{why_unsupported(asked)}")
    return dtype
