"""Single steps of a kernel: on states that a caller passes from step to step, or in place on slots of a pool."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import joined
from minrnn_gen.call.keywords import StepArrays, shows_step, step_arguments
from minrnn_gen.call.pool import PAD_SLOT, PoolArguments
from minrnn_gen.call.pool_checks import pool_arguments
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.run.cache import Cache
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.verify import verify

State = dict[str, Any]
# An array of NumPy, CuPy or torch: results are in the library of x.
AnyArray = TypeVar("AnyArray")


class Steps:
    """Single steps of a kernel, by its executor."""

    _interface: Interface
    executor: Executor

    @shows_step
    def step(
        self,
        x_t: AnyArray,
        R: Any = None,
        *,
        slots: Any = None,
        into_slots: Any = None,
        pad_slot: int = PAD_SLOT,
        **arrays: Unpack[StepArrays],
    ) -> tuple[AnyArray, State]:
        """Run one step and return (y_t [B, H], state); x_t is x without its time axis: [B, G, H], or [B, I] with weight.

        For a reverse kernel it is the next earlier step.

        slots: int32 or int64 [B], of any stride. `state` is then a pool {name: [slots, H]} in the dtype of states or of
        storage, each slot contiguous and any stride apart: sequence b reads slot slots[b] and writes into_slots[b], the same by
        default, in place, and the state that is returned is the pool itself. A sequence in slot `pad_slot` is padding: its y is
        0, and it touches nothing of the pool; a sequence that writes into pad_slot drops its state. A sequence must not write a
        slot that another sequence writes or reads. Slots in host memory are checked; on a GPU, where they are not read back, a
        slot that the pool lacks counts as padding.

        Raises what a call does, and BadInput where the spec is bidirectional.
        """
        if self._interface.directions:
            raise BadInput("step needs one direction, but the spec is bidirectional; call the kernel on whole sequences")
        arguments = joined(self._interface, step_arguments(x_t, R, arrays))
        pool = pool_arguments(slots, into_slots, pad_slot)
        result = self.executor.step(arguments, pool)
        if pool is not None:
            return result.y, {**(arguments.state or {})}
        return result.y, dict(zip(self._interface.states, result.final, strict=True))

    @shows_step
    def verify_draft(
        self,
        x: AnyArray,
        R: Any = None,
        *,
        cache: Cache,
        slots: Any,
        accepted: Any = None,
        pad_slot: int = PAD_SLOT,
        lengths: Any = None,
        **arrays: Unpack[StepArrays],
    ) -> tuple[AnyArray, Cache]:
        """Run drafted steps that may be taken back, from and into slots of a cache; return (y, cache), x and y as of a call.

        cache: of this kernel, with at least that many draft steps. slots: as of `step`. accepted: int32 or int64 [B], of any
        stride: how many steps of the last draft of the slot are kept, by default none; the steps of x come after them. The next
        call, or `cache.commit`, says how many of these are kept; any other use of the slot requires `cache.commit` first.
        States are bit by bit those of single steps. lengths: int32 or int64 [B], the steps of each sequence; y is 0 beyond.

        On a GPU a sequence with a slot that the pool lacks, or with more accepted steps than the draft has, counts as padding.
        Raises what a step does, and BadInput for a cache of another kernel or a shorter draft.
        """
        if self._interface.directions:
            raise BadInput("a draft needs one direction, but the spec is bidirectional; call the kernel on whole sequences")
        if not isinstance(cache, Cache) or not cache.draft or cache.executor is not self.executor:
            raise BadInput(f"cache is {kind_of(cache)}; what cache(slots, draft) of this kernel returns is expected")
        pool_arguments(slots, None, pad_slot)
        arguments = joined(self._interface, step_arguments(x, R, arrays)._replace(lengths=lengths))
        return verify(self.executor, arguments, cache, slots, accepted, pad_slot), cache

    def _on_pool(
        self, executor: Executor, arguments: CallArguments, pool: PoolArguments, all_states: bool
    ) -> tuple[Any, State]:
        """Run over time on slots of a pool, and return y and the pool."""
        if self._interface.directions:
            raise BadInput("slots were given, but the spec is bidirectional; pass the states of the sequences, without slots")
        if all_states:
            raise BadInput("slots were given with all_states, but only final states go into the pool; leave one of them out")
        return executor.forward_on_pool(arguments, pool), {**(arguments.state or {})}

    def cache(self, slots: int, draft: int = 0, dtype: Any = None, *, like: Any = None) -> Cache:
        """Return a pool of zero states, one slot for each request: pass `cache.states` to `step` as `state`.

        Its arrays are in the library and on the device of `like`, by default NumPy's. dtype: the dtype of states, or of
        storage. draft: the steps of the longest draft that `verify_draft` will run, whose states the cache keeps. Raises
        BadInput for anything else, and where the spec is bidirectional.
        """
        if self._interface.directions:
            raise BadInput("a cache is of one direction, but the spec is bidirectional; call the kernel on whole sequences")
        return Cache.of(self.executor, slots, draft, dtype, like)
