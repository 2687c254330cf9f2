"""The kernels of FlashRNN's functions."""

from __future__ import annotations

from functools import cache

from minrnn_gen.api import compile_arguments
from minrnn_gen.kernel import Kernel


@cache
def kernel_of(function: str, heads: int, hidden_size: int, precision: str, gradient_clip: float | None) -> Kernel:
    """Return the kernel of a function; made once."""
    sizes = {"hidden_size": hidden_size, "heads": heads, "precision": precision}
    return compile_arguments({"model": function, **sizes, "recurrent_gradient_clip": gradient_clip}, "flashrnn")
