"""What a forward keeps for the backward."""

from __future__ import annotations

from minrnn_gen.arguments import Call
from minrnn_gen.arrays import Array
from minrnn_gen.errors import BadInput


class Saved:
    """The arrays of one forward that its backward reads; any number of backwards may use it, until `release`.

    It holds the caller's arrays and y themselves, not copies: whoever writes into them changes the gradients.
    """

    def __init__(self, kernel: object, call: Call, y: Array) -> None:
        self._kernel = kernel
        self._kept: tuple[Call, Array] | None = (call, y)

    def release(self) -> None:
        """Let go of the arrays; a backward with this object is an error from now on."""
        self._kept = None

    def open_for(self, kernel: object) -> tuple[Call, Array]:
        """Return the call and its y to the kernel that saved them; raises BadInput to any other."""
        if kernel is not self._kernel:
            raise BadInput("saved is of another kernel; give it to the backward of the kernel whose forward returned it")
        if self._kept is None:
            raise BadInput("saved was released; run the forward again")
        return self._kept
