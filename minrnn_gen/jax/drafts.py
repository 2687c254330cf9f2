"""`minrnn_gen.jax.cache`, `verify_draft` and `commit`: drafted steps that may be taken back, as functions of a cache."""

from __future__ import annotations

from typing import Any, Unpack

import jax.numpy as jnp

from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.joined import joined
from minrnn_gen.call.keywords import StepArrays, shows_step, step_arguments
from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.call.pool_checks import check_size_of_cache, dtype_of_cache, pool_arguments
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.jax.arrays import as_array
from minrnn_gen.jax.functional import SpecLike, kernel_of, step
from minrnn_gen.jax.slots import Cache, next_places


def cache(spec: SpecLike, slots: int, draft: int, dtype: Any = None) -> Cache:
    """Return zero states, one slot for each request, with drafts of at most `draft` steps: a tree of arrays.

    dtype: that of the states, by default that of the arithmetic. Raises BadInput for other sizes and dtypes, and for a spec in
    both directions.
    """
    interface = _of_one_direction(spec)
    check_size_of_cache(slots, "slots")
    check_size_of_cache(draft, "draft")
    asked = None if dtype is None else jnp.dtype(dtype).name
    named = dtype_of_cache(interface, asked, str(asked))
    shapes = {name: (slots, 1 + draft, *interface.shape_of_state(name, 1)[1:]) for name in interface.states}
    return Cache(
        places={name: jnp.zeros(shape, named) for name, shape in shapes.items()}, drafts=jnp.zeros((slots, 2), jnp.int32)
    )


@shows_step
def verify_draft(
    spec: SpecLike,
    x: Any,
    R: Any = None,
    *,
    cache: Cache,
    slots: Any,
    accepted: Any = None,
    pad_slot: int = PAD_SLOT,
    lengths: Any = None,
    **arrays: Unpack[StepArrays],
) -> tuple[Any, Cache]:
    """Run drafted steps from and into slots of a cache, and return (y, cache), as a kernel's `verify_draft` does.

    Under `jax.jit` with the cache donated its arrays are updated in place. A sequence with a slot that the cache lacks, or with
    more accepted steps than its last draft has, counts as padding. No gradients. Raises BadInput for arguments that do not fit.
    """
    kernel, interface = kernel_of(spec), _of_one_direction(spec)
    arguments = joined(interface, step_arguments(x, R, arrays), jnp)
    if arguments.state is not None:
        raise BadInput("state was given with a cache; sequences start from the states in their slots, so leave it out")
    pool_arguments(slots, None, pad_slot)
    places, x = _places_of(cache, interface), as_array(arguments.x, "x")
    if x.ndim != len(interface.x_axes):
        raise BadInput(f"x has shape {list(x.shape)}; [{', '.join(interface.x_axes)}] is expected")
    time, is_reverse = x.shape[interface.x_axes.index("t")], interface.runs_reversed[0]
    if not 0 < time < places:
        raise BadInput(f"x has {time} steps, but a draft of the cache has 1 to {places - 1}; make it with more")
    if is_reverse and lengths is not None:
        raise BadInput("lengths were given for a draft, but the spec is reverse; draft sequences of one length, or run forward")
    reads, writes, drafts = next_places(cache["drafts"], places, (slots, accepted, lengths), pad_slot, time)
    whole = {name: array.reshape(-1, *array.shape[2:]) for name, array in cache["places"].items()}
    of_call = {name: getattr(arguments, name) for name in ("weight", "bias", "recurrent_bias", "parameters")}
    y = {}
    for number, t in enumerate(range(time)[:: -1 if is_reverse else 1]):
        shared = {name: _at(array, interface.shared_axes, t) for name, array in (arguments.shared or {}).items()}
        inputs = {name: _at(array, interface.axes_of_input(name), t) for name, array in (arguments.inputs or {}).items()}
        streams: Any = {**of_call, "shared": shared or None, "inputs": inputs or None}
        rows = {"slots": reads[number], "into_slots": writes[number]}
        y[t], whole = step(kernel, _at(x, interface.x_axes, t), arguments.R, state=whole, **rows, **streams)
    after = {name: array.reshape(cache["places"][name].shape) for name, array in whole.items()}
    stacked = jnp.stack([y[t] for t in range(time)], Y_AXES[interface.layout].index("t"))
    return stacked, Cache(places=after, drafts=drafts)


def commit(cache: Cache, slots: Any, accepted: Any = None) -> Cache:
    """Return a cache in which the last draft of slots, int32 or int64 [B], is over, and `accepted` of its steps are kept.

    accepted: int32 or int64 [B], by default none. The state of such a slot is at place 0.
    """
    count, places = next(iter(cache["places"].values())).shape[:2]
    reads, writes, drafts = next_places(cache["drafts"], places, (slots, accepted, None), PAD_SLOT, 1, folds=True)
    source, target = jnp.maximum(reads[0], 0), jnp.where(writes[0] < 0, count * places, writes[0])
    after = {}
    for name, array in cache["places"].items():
        whole = array.reshape(-1, *array.shape[2:])
        after[name] = whole.at[target].set(whole[source], mode="drop").reshape(array.shape)
    return Cache(places=after, drafts=drafts)


def _of_one_direction(spec: SpecLike) -> Interface:
    interface = kernel_of(spec).interface
    if interface.directions:
        raise BadInput("a draft needs one direction, but the spec is bidirectional; call recurrence on whole sequences")
    return interface


def _places_of(cache: Any, interface: Interface) -> int:
    """Return how many places a slot of a cache has."""
    if not isinstance(cache, dict) or {*cache} != {"places", "drafts"} or {*cache["places"]} != {*interface.states}:
        raise BadInput(f"cache is {kind_of(cache)}; what cache(spec, slots, draft) of minrnn_gen.jax returns is expected")
    return int(cache["places"][interface.states[0]].shape[1])


def _at(array: Any, axes: str, t: int) -> Any:
    return jnp.take(as_array(array, "input"), t, axes.index("t"))
