"""`minrnn_gen.jax.recurrence` and `step`: the recurrence of a spec, with gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from minrnn_gen.build.recipe import cell_source_of, recipe_of, spec_from
from minrnn_gen.build.widened_recipes import without_projection
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.folding import Folding
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import joined
from minrnn_gen.call.keywords import CallArrays, StepArrays, call_arguments, shows_call, shows_step, step_arguments
from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.call.pool_checks import check_pool, pool_arguments
from minrnn_gen.call.reshaped_arrays import checked_arrays
from minrnn_gen.call.sequences import as_marks
from minrnn_gen.call.validate import INTEGER_DTYPES, check_call, check_dtype, check_exact_shape
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.jax.altered import altered_call
from minrnn_gen.jax.arrays import as_array, as_integers, check_static, described, is_traced, values_of
from minrnn_gen.jax.fp32_precision import multiplies_in_tf32
from minrnn_gen.jax.over_time import check_cell, local_boundaries, run_over_time, with_initial_states
from minrnn_gen.jax.primitive import bind
from minrnn_gen.jax.request import Request
from minrnn_gen.jax.slots import on_rows
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import has_recurrent_product, kernel_by, known
from minrnn_gen.run.embedded import EmbeddedExecutor

SpecLike = str | os.PathLike[str] | Mapping[str, Any] | Spec | Kernel


@shows_call
def recurrence(
    spec: SpecLike,
    x: Any,
    R: Any = None,
    *,
    all_states: bool = False,
    axis_name: str | None = None,
    slots: Any = None,
    into_slots: Any = None,
    has_state: Any = None,
    pad_slot: int = PAD_SLOT,
    **arrays: Unpack[CallArrays],
) -> tuple[Any, ...]:
    """Return (y, final state) of a spec's recurrence over time, with gradients for every floating-point array.

    `spec` is what `minrnn_gen.compile` takes, or a kernel. With `all_states` a third value follows: the states after every
    step, each shaped like y; gradients do not go through them. Shapes and dtypes are those of a kernel's call (docs/python.md).
    The product with `weight` is JAX's own. Values of `lengths` and `cu_seqlens` are checked where they are known; tracers' are
    clipped to the steps of x. With `axis_name` x and resets are this device's pieces of time in a `jax.shard_map` over that
    axis; states, lengths and cu_seqlens are of the whole. A call has derivatives in forward mode, and gradients have gradients,
    but over an axis (docs/how-to/derivatives.md). slots, into_slots, has_state, pad_slot: as of a kernel's call, on a pool of
    states {name: [slots, H]}, which is returned as it is after the call. Raises BadInput for arguments that do not fit.
    """
    check_static(all_states, "all_states")
    if not isinstance(all_states, bool):
        raise BadInput(f"all_states is {kind_of(all_states)}; True or False is expected")
    pool = pool_arguments(slots, into_slots, pad_slot, has_state)
    if pool is not None:
        if all_states or axis_name is not None:
            what = "all_states" if all_states else "axis_name"
            raise BadInput(f"slots were given with {what}, but only whole final states go into the pool; leave one of them out")
        of_rows: Any = {name: array for name, array in arrays.items() if name != "state"}
        return on_rows(
            _of_one_direction(kernel_of(spec)),
            arrays.get("state"),
            pool,
            arrays.get("cu_seqlens"),
            lambda state: recurrence(spec, x, R, state=state, **of_rows),
        )
    for name in ("resets", "holds"):
        if (marks := arrays.get(name)) is not None:
            arrays[name] = as_array(marks if is_traced(marks) else as_marks(marks, name), name)
    reset_states, holds = arrays.pop("reset_states", None), arrays.pop("holds", None)
    arguments = call_arguments(x, R, arrays)
    if (kernel := kernel_by(_recipe(spec))).embedded is not None and not kernel.interface.products:
        return _embedded(kernel, arguments, all_states, axis_name, {"reset_states": reset_states, "holds": holds})
    if reset_states is not None or holds is not None:
        if axis_name is not None:
            what = "holds" if reset_states is None else "reset_states"
            raise BadInput(
                f"{what} was given with axis_name, which does not support it; leave axis_name out, or cut the sequences "
                "there by cu_seqlens"
            )
        spec, arguments = altered_call(kernel_by(_recipe(spec)), arguments, reset_states, holds)
    if (kernel := kernel_by(_recipe(spec))).embedded is not None:
        return _embedded(kernel, arguments, all_states, axis_name, {})
    if axis_name is not None:
        arguments = _of_piece(spec, arguments, axis_name, all_states)
    recipe, interface, flat, rows_and_time = _operands(spec, arguments)
    rows, time, sequences_count = rows_and_time
    if not (rows and time):
        return _of_nothing(interface, flat, rows, time, sequences_count, all_states)
    if axis_name is not None:
        carried = jnp.dtype(interface.precision.arithmetic_dtype)
        flat = with_initial_states(flat, interface, sequences_count, carried)
    request = Request("forward", tuple(array is not None for array in flat), recipe, keeps=all_states)
    operands = tuple(array for array in flat if array is not None)
    y, *states = bind(request, operands) if axis_name is None else run_over_time(request, axis_name, operands)
    count = len(interface.states)
    final = dict(zip(interface.states, states[:count], strict=True))
    if not all_states:
        return y, final
    return y, final, dict(zip(interface.states, map(jax.lax.stop_gradient, states[count:]), strict=True))


@shows_step
def step(
    spec: SpecLike,
    x_t: Any,
    R: Any = None,
    *,
    slots: Any = None,
    into_slots: Any = None,
    pad_slot: int = PAD_SLOT,
    **arrays: Unpack[StepArrays],
) -> tuple[Any, dict[str, Any]]:
    """Return (y_t, state) of one step, with gradients; x_t is x without its axis of time. Raises what `recurrence` does.

    slots, into_slots int32 or int64 [B], and pad_slot: as of a kernel's `step`, on a pool of states {name: [slots, H]}, which
    is returned, without gradients. Under `jax.jit` with the pool among `donate_argnums` it is updated in place, else copied.
    """
    arguments = step_arguments(x_t, R, arrays)
    pool = pool_arguments(slots, into_slots, pad_slot)
    if (kernel := kernel_by(_recipe(spec))).embedded is not None:
        if pool is not None:
            rows: Any = {name: array for name, array in arrays.items() if name != "state"}
            run = partial(step, kernel, x_t, R, **rows)
            return on_rows(_of_one_direction(kernel), arguments.state, pool, None, lambda state: run(state=state))
        embedding, inner = _of_embedded(kernel, _taken(kernel, arguments))
        named: Any = {name: getattr(inner, name) for name in StepArrays.__annotations__}
        y, state = step(kernel.embedded, inner.x, inner.R, **named)
        return embedding.y_of_step(y), embedding.by_name(state)
    plain = arguments if pool is None else arguments._replace(state=None)
    recipe, interface, flat, (rows, _, count) = _operands(spec, plain, single_step=True)
    if interface.directions:
        raise BadInput("step needs one direction, but the spec is bidirectional; call recurrence on whole sequences")
    if not rows:
        y, state_after = _of_nothing(interface, flat, rows, 0, count, False)
        return y.reshape(interface.step_shape(0)), state_after if pool is None else {**(arguments.state or {})}
    if pool is not None:
        states = _named(arguments.state, "state") or {}
        check_pool(interface, described, states)
        flat[interface.slots.states] = [states[name] for name in interface.states]
        for name, array in (("slots", slots), ("into_slots", into_slots)):
            flat.append(None if array is None else as_array(array, name))
            if array is not None:
                check_dtype(described(flat[-1], name), INTEGER_DTYPES)
                check_exact_shape(described(flat[-1], name), (rows,))
        flat.append(None)
    present, operands = tuple(array is not None for array in flat), tuple(array for array in flat if array is not None)
    is_plain = pool is None
    request = Request("step", present, recipe) if is_plain else Request("step_on_pool", present, recipe, pad_slot=pad_slot)
    y, *results = bind(request, operands)
    return y, dict(zip(interface.states, results, strict=True))


def kernel_of(spec: SpecLike) -> Kernel:
    """Return the kernel of a spec, as JAX's settings have it."""
    return kernel_by(_recipe(spec))


def _of_one_direction(kernel: Kernel) -> Interface:
    if kernel.interface.directions:
        raise BadInput("slots were given, but the spec is bidirectional; pass the states of the sequences, without slots")
    return kernel.interface


def _embedded(
    kernel: Kernel, arguments: CallArguments, all_states: bool, axis_name: str | None, altering: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the results of a kernel with projected units or inputs per step, by the kernel that serves it.

    `altering`: reset states and holds.
    """
    arguments = _taken(kernel, arguments)
    if kernel.folded is not None and not all_states and axis_name is None and not altering:
        inner, folding = kernel.folded
        if folding.serves(arguments):
            return _folded(inner, folding, arguments)
    embedding, (x, R, *others) = _of_embedded(kernel, arguments)
    assert kernel.embedded is not None
    named: Any = dict(zip(CallArguments._fields[2:], others, strict=True)) | altering
    y, final, *states = recurrence(kernel.embedded, x, R, all_states=all_states, axis_name=axis_name, **named)
    of_steps = [dict(zip(kernel.states, embedding.over_time(tuple(value.values())), strict=True)) for value in states]
    return embedding.y(y), embedding.by_name(final), *of_steps


def _folded(inner: Kernel, folding: Folding, arguments: CallArguments) -> tuple[Any, ...]:
    """Return the results of a kernel whose output product is folded into its other products."""
    folding = replace(folding, library=jnp)
    matrices = folding.parts(arguments.R)
    x, R, *others = folding.arguments(arguments, matrices)
    named: Any = dict(zip(CallArguments._fields[2:], others, strict=True))
    y, final = recurrence(inner, x, R, **named)
    output = inner.states[0]
    return folding.over_time(y, matrices[1]), final | {output: folding.last(final[output], matrices[1])}


def _of_embedded(kernel: Kernel, arguments: CallArguments) -> tuple[Embedding, CallArguments]:
    """Return the map to the kernel that serves one with projected units, and a call's arguments in that kernel's form."""
    assert isinstance(kernel.executor, EmbeddedExecutor)
    embedding = replace(kernel.executor.embedding, library=jnp)
    return embedding, embedding.arguments(arguments)


def _taken(kernel: Kernel, arguments: CallArguments) -> CallArguments:
    return checked_arrays(kernel.interface, joined(kernel.interface, arguments, jnp), as_array)


def _operands(
    spec: SpecLike, arguments: CallArguments, single_step: bool = False
) -> tuple[str, Interface, list[Any], tuple[int, int, int]]:
    """Return the recipe of the kernel, its interface, the arrays by slot, and rows, steps and sequences of the call.

    The x among them is projected, and all have the shapes and dtypes that kernels take.
    """
    kernel = kernel_by(_recipe(spec))
    arrays = arguments._replace(
        x=as_array(arguments.x, "x_t" if single_step else "x"),
        **{
            name: as_array(array, name)
            for name in ("R", "weight", "bias", "recurrent_bias")
            if (array := getattr(arguments, name)) is not None
        },
        lengths=as_integers(arguments.lengths, "lengths"),
        cu_seqlens=as_integers(arguments.cu_seqlens, "cu_seqlens"),
        parameters=_named(arguments.parameters, "parameters"),
        state=_named(arguments.state, "state"),
        shared=_named(arguments.shared, "shared"),
        inputs=_named(arguments.inputs, "inputs"),
    )
    interface = kernel.interface
    check_x64(interface.precision.name)
    call = check_call(interface, described, values_of, arrays, single_step=single_step)
    own = kernel_by(without_projection(kernel.recipe))
    carried = jnp.dtype(interface.precision.arithmetic_dtype)
    R, bias, recurrent_bias = arrays.R, arrays.bias, arrays.recurrent_bias
    shaped = arrays._replace(
        x=arrays.x if arrays.weight is None else _project(interface, arrays.x, arrays.weight, single_step),
        R=None if R is None else R.reshape(interface.R_shape),
        weight=None,
        bias=None if bias is None else bias.astype(carried).reshape(interface.shape(interface.gate_axes, 0, 0)),
        recurrent_bias=None
        if recurrent_bias is None
        else recurrent_bias.astype(carried).reshape(interface.recurrent_bias_shape),
        lengths=_within(arrays.lengths, call.time),
        cu_seqlens=_rising(arrays.cu_seqlens, call.time),
        parameters=None
        if arrays.parameters is None
        else {name: vector.astype(carried) for name, vector in arrays.parameters.items()},
        state=arrays.state or None,
    )
    flat = shaped.flat(interface)
    assert flat is not None
    return own.recipe, own.interface, flat, (call.rows, call.time, call.batch)


def _of_piece(spec: SpecLike, arguments: CallArguments, axis_name: str, all_states: bool) -> CallArguments:
    """Return a call with the boundaries of whole sequences replaced by those of this device's piece of time."""
    kernel = kernel_by(_recipe(spec))
    check_cell(kernel, all_states)
    x = as_array(arguments.x, "x")
    axes = kernel.interface.x_axes
    if x.ndim != len(axes):
        return arguments  # which is refused with all the others
    time = x.shape[axes.index("t")]
    return arguments._replace(
        **{
            name: local_boundaries(as_integers(getattr(arguments, name), name), axis_name, time)
            for name in ("lengths", "cu_seqlens")
        }
    )


def _recipe(spec: SpecLike) -> str:
    """Return the recipe of a spec; if the spec does not choose products in fp32, JAX's setting does."""
    if isinstance(spec, Kernel):
        return known(spec)
    check_static(spec, "spec")
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        check_static(value, f"spec['{key}']")
    loaded = load_spec(spec)
    recipe = recipe_of(loaded, cell_source_of(loaded))
    says_product = "fp32_product" in loaded.model_fields_set
    return _in_tf32(recipe) if loaded.precision == "fp32" and not says_product and multiplies_in_tf32() else recipe


@lru_cache(maxsize=256)
def _in_tf32(recipe: str) -> str:
    """Return the recipe of the same kernel with products in tf32; the same recipe where the cell has no products."""
    spec = spec_from(recipe)
    source = cell_source_of(spec)
    return recipe_of(load_spec(spec, fp32_product="tf32"), source) if has_recurrent_product(source) else recipe


def _project(interface: Interface, x: Any, weight: Any, single_step: bool) -> Any:
    """Return the pre-activations of x, in its dtype and layout."""
    gates = interface.shape(interface.gate_axes, 0, 0)
    if interface.layout == "BDT" and not single_step:
        product = jnp.einsum("ri,bit->brt", weight, x)
        return product.reshape(x.shape[0], *gates, x.shape[2])
    return jnp.dot(x, weight.T).reshape(*x.shape[:-1], *gates)


def _named(mapping: Any, what: str) -> Any:
    if not isinstance(mapping, Mapping):
        return mapping
    return {name: as_array(array, f"{what}['{name}']") for name, array in mapping.items()}


def check_x64(precision: str | None) -> None:
    """Refuse fp64 while JAX casts it."""
    if precision == "fp64" and not jax.config.jax_enable_x64:
        raise BadInput(
            "precision is fp64, but JAX's x64 mode is off; call jax.config.update('jax_enable_x64', True), or take fp32"
        )


def _within(lengths: Any, time: int) -> Any:
    return jnp.clip(lengths, 0, time) if is_traced(lengths) else lengths


def _rising(ends: Any, total: int) -> Any:
    """Return boundaries that are safe for a kernel whatever their values; valid ones are unchanged."""
    if not is_traced(ends):
        return ends
    return jax.lax.cummax(jnp.clip(ends, 0, total).at[0].set(0).at[-1].set(total))


def _of_nothing(interface: Interface, flat: list[Any], rows: int, time: int, count: int, all_states: bool) -> tuple[Any, ...]:
    """Return the results of a call without steps: the initial states, and arrays without elements."""
    carried = jnp.dtype(interface.precision.arithmetic_dtype)
    initial = flat[interface.slots.states]
    final = {
        name: jnp.zeros(interface.shape_of_state(name, count), carried) if state is None else state
        for name, state in zip(interface.states, initial, strict=True)
    }
    y = jnp.zeros(interface.y_shape(rows, time), flat[0].dtype)
    kept = {name: jnp.zeros(interface.states_shape(name, rows, time), carried) for name in interface.states}
    return (y, final, kept) if all_states else (y, final)
