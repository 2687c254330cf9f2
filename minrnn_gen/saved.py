"""What a forward keeps for the backward."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.arguments import Call, Outputs
from minrnn_gen.errors import BadInput
from minrnn_gen.prepared import Played


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward that was run: the call, the same call with x projected (itself without a weight), and what was written.

    `played`: the same, where it can be played again.
    """

    call: Call
    projected: Call
    outputs: Outputs
    played: Played | None = None


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

    def open_for(self, kernel: object) -> Forward | Played:
        """Return the forward to the kernel that saved it; raises BadInput to any other."""
        if kernel is not self._kernel:
            raise BadInput("saved is of another kernel; give it to the backward of the kernel whose forward returned it")
        if self._forward is None:
            raise BadInput("saved was released; run the forward again")
        return self._forward
