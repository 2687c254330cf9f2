"""What a forward keeps for the backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import Call, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import Reading, read
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.run.replay import Played, Tape


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward that was run: the call, the same call with x projected (itself without a weight), and what was written.

    `played`: the same, where it can be played again.
    """

    call: Call
    projected: Call
    outputs: Outputs
    played: Played | None = None

    @property
    def written(self) -> tuple[Array, ...]:
        """What a backward reads beside the call and y: the states that were kept, then pre-activations that were projected."""
        return (*self.outputs.kept, *(() if self.call.weight is None else (self.projected.x,)))


class Saved:
    """The arrays of one forward that its backward reads; any number of backwards may use it, until `release`.

    It holds the caller's arrays, y and, with `all_states`, the states themselves, not copies: whoever writes into them changes
    the gradients. Beside them it holds the pre-activations of an input projection, and states that y does not have.
    """

    def __init__(self, kernel: object, forward: Forward | Played) -> None:
        self._kernel = kernel
        self._forward: Forward | Played | None = forward

    def release(self) -> None:
        """Let go of the arrays; a backward with this object is an error from now on."""
        self._forward = None

    def arrays(self) -> tuple[Any, ...]:
        """Return what is held beside the arrays of the call and y: states after every step, and pre-activations, if any.

        With the former they are all that `Kernel.saved_from` needs. Pre-activations of host arrays are in NumPy.
        """
        before = self._opened()
        if isinstance(before, Played):
            forward: Forward = before.tape.notes
            return tuple(before.arrays[one.address.number or 0] for one in forward.written)  # all of them have numbers
        return tuple(one.owner for one in before.written)

    def final(self) -> tuple[Any, ...]:
        """Return the final states, which a forward with `all_states` returns no other way; only of what a forward returned."""
        before = self._opened()
        forward: Forward = before.tape.notes if isinstance(before, Played) else before
        if isinstance(before, Played):
            return tuple(before.arrays[one.address.number or 0] for one in forward.outputs.final)  # all of them have numbers
        return tuple(one.owner for one in forward.outputs.final)

    def open_for(self, kernel: object) -> Forward | Played:
        """Return the forward to the kernel that saved it; raises BadInput to any other."""
        if kernel is not self._kernel:
            raise BadInput("saved is of another kernel; give it to the backward of the kernel whose forward returned it")
        return self._opened()

    def _opened(self) -> Forward | Played:
        if self._forward is None:
            raise BadInput("saved was released; run the forward again")
        return self._forward


def played_again(tape: Tape | None, reading: Reading | None, y: Any, written: Sequence[Any]) -> Played | None:
    """Return the run of a forward as its tape would have left it, from what it read and what `Saved.arrays` gave.

    Final states, which no backward reads, are missing. None without a tape, and for arrays that are not as it allocates them.
    """
    results = None if tape is None or reading is None else read((), (y, *written))
    if tape is None or reading is None or results is None:
        return None
    arrays = reading.arrays + [None] * len(tape.allocations)
    addresses = reading.addresses + [0] * len(tape.allocations)
    forward: Forward = tape.notes
    for one, array, address in zip((forward.outputs.y, *forward.written), results.arrays, results.addresses, strict=True):
        number = one.address.number
        assert number is not None
        wanted = tape.allocations[number - len(reading.arrays)]
        fits = (array.shape, array.dtype, address % WIDEST_COPY_BYTES) == (wanted.shape, wanted.dtype, 0)
        if not (fits and _is_contiguous(array)):
            return None
        arrays[number], addresses[number] = array, address
    return Played(tape, arrays, addresses)


def _is_contiguous(array: Any) -> bool:
    return bool(array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous)
