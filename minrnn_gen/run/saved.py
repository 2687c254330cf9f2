"""Arrays that a forward saves for its backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays, keyed
from minrnn_gen.call.results import ForwardResult
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.run.recording.replay import Replay, Trace


@dataclass(frozen=True, slots=True)
class Forward:
    """A completed forward: the call, the same call with x projected (itself where the projection is not kept), and its outputs.

    `replay`: the replay of the forward, if it has one.
    """

    call: Call
    projected: Call
    outputs: Outputs
    replay: ForwardReplay | None = None

    @property
    def written(self) -> ForwardResult:
        """The results as the package describes arrays."""
        is_kept = self.call.weight is not None and self.projected is not self.call
        outputs, projected = self.outputs, self.projected.x if is_kept else None
        return ForwardResult(outputs.y, outputs.kept, outputs.final, projected, outputs.products)

    @property
    def result(self) -> ForwardResult:
        """The results as arrays of a library."""
        return self.written.mapped(owner_of) if self.replay is None else self.replay.result


ForwardReplay = Replay[ForwardResult, Forward]


def owner_of(array: Array) -> Any:
    """Return the library's own array."""
    return array.owner


class Saved:
    """The arrays of one forward that its backward reads; any number of backwards may use it, until `release`.

    It holds the caller's arrays, y and, with `all_states`, the states themselves, not copies: writing into them changes the
    gradients. It also holds the pre-activations of an input projection, and states other than y.
    """

    def __init__(self, origin: object, result: ForwardResult, forward: Forward | ForwardReplay) -> None:
        """Save a forward and its results; `origin`: the object that ran it."""
        self._origin = origin
        self._held: tuple[ForwardResult, Forward | ForwardReplay] | None = (result, forward)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise BadInput(
            "saved holds the arrays of a forward of this process and is neither pickled nor copied; pickle the kernel and the "
            "arguments, and run the forward again"
        )

    def release(self) -> None:
        """Release the arrays; from now on a backward with this object is an error."""
        self._held = None

    def arrays(self) -> tuple[Any, ...]:
        """Return the saved arrays other than the call's and y: states after every step, products, pre-activations, if any.

        Together with the call's arrays and y, they suffice for `Executor.restore`.
        """
        return self._opened()[0].saved

    def final(self) -> tuple[Any, ...]:
        """Return the final states, which a forward with `all_states` does not return itself; not for a restored forward."""
        return self._opened()[0].final

    def open_for(self, origin: object) -> Forward | ForwardReplay:
        """Return the forward to the object that ran it; raises BadInput for any other."""
        if origin is not self._origin:
            raise BadInput("saved is of another kernel; give it to the backward of the kernel whose forward returned it")
        return self._opened()[1]

    def _opened(self) -> tuple[ForwardResult, Forward | ForwardReplay]:
        if self._held is None:
            raise BadInput("saved was released; run the forward again")
        return self._held


def restored_replay(
    trace: Trace[ForwardResult, Forward] | None, call: KeyedArrays | None, y: Any, saved: Sequence[Any]
) -> ForwardReplay | None:
    """Return a replay of a forward as its trace would have left it, from the arrays of its call, its y and `Saved.arrays`.

    Final states, which no backward reads, are missing. Returns None without a trace, and for arrays unlike those that it
    allocates.
    """
    results = None if trace is None or call is None else keyed((), [y, *saved])
    if trace is None or call is None or results is None or len(saved) != len(trace.slots.saved):
        return None
    arrays = call.arrays + [None] * len(trace.allocations)
    addresses = call.addresses + [0] * len(trace.allocations)
    slots = (trace.slots.y, *trace.slots.saved)
    for slot, array, address in zip(slots, results.arrays, results.addresses, strict=True):
        allocation = trace.allocations[slot - len(call.arrays)]
        fits = (array.shape, array.dtype, address % WIDEST_COPY_BYTES) == (allocation.shape, allocation.dtype, 0)
        if not (fits and _is_contiguous(array)):
            return None
        arrays[slot], addresses[slot] = array, address
    return Replay(trace, arrays, addresses)


def _is_contiguous(array: Any) -> bool:
    return bool(array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous)
