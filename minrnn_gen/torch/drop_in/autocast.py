"""Dtypes in which torch.nn's recurrent layers compute and return under autocast.

On CUDA its layers are one call of cuDNN, which autocast gives float16 whatever its own dtype is. On the CPU they are composed
of smaller functions, and autocast casts only the products: the states that a step adds to keep their dtype.
"""

from __future__ import annotations

from typing import Any

import torch

# The first cuDNN by which torch runs layers of bfloat16.
_CUDNN_WITH_BF16 = 91300


def layer_dtype(x: Any) -> torch.dtype:
    """Return the dtype in which torch.nn's layers of several steps compute under autocast."""
    return torch.float16 if x.is_cuda and _by_cudnn(x) else torch.get_autocast_dtype(x.device.type)


def _by_cudnn(x: Any) -> bool:
    """Say whether torch hands a layer's call to cuDNN."""
    if torch.compiler.is_compiling():
        return True
    library = torch.backends.cudnn
    if not library.enabled or not library.is_available() or not x.numel():
        return False
    return x.dtype is not torch.bfloat16 or library.version() >= _CUDNN_WITH_BF16


def result_dtype(mode: str, x: Any, state: Any, computed: torch.dtype, *, is_whole: bool) -> torch.dtype:
    """Return the dtype of torch.nn's results under autocast for an input x and the last initial state, which may be None.

    `computed`: the dtype of the products; `is_whole`: for a layer whose input is no PackedSequence.
    """
    if x.device.type != "cpu" or mode.startswith("RNN"):
        return computed
    if mode == "LSTM" and is_whole and x.dtype in (torch.float32, torch.bfloat16):
        return computed  # one call of oneDNN
    return torch.promote_types(computed, x.dtype if state is None else state.dtype)
