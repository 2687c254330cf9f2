"""torch's own settings of products in fp32 on a GPU, which the layers follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

Setting = Literal["rnn", "matmul"]
"""`torch.backends.cudnn.rnn`, for recurrent layers, or `torch.backends.cuda.matmul`, for all products outside cuDNN."""


def _by_allow_tf32(_backend: str, setting: str) -> str:
    """Return the precision of a setting in a torch that has only switches."""
    allowed = torch.backends.cudnn.allow_tf32 if setting == "rnn" else torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed else "none"


# What the properties `fp32_precision` read, in a tenth of their time.
_precision_of: Callable[[str, str], str] = getattr(torch._C, "_get_fp32_precision_getter", _by_allow_tf32)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _when_traced(setting: Setting) -> bool:
    """Answer the same to a compiler: a graph does not contain the settings, it keeps the answer from when it was traced."""
    return _precision_of("cuda", setting) == "tf32"


def multiplies_in_tf32(setting: Setting) -> bool:
    """Say whether torch multiplies fp32 in tf32 now."""
    if torch.compiler.is_compiling():
        return bool(_when_traced(setting))
    return _precision_of("cuda", setting) == "tf32"
