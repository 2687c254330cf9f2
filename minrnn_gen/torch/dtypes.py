"""Dtypes of torch and the names of precisions."""

from __future__ import annotations

import torch

from minrnn_gen.precision import PRECISION_NAMES, precision_of


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype of this name."""
    return getattr(torch, name)


STORAGE: dict[str, torch.dtype] = {name: dtype_of(precision_of(name).storage_dtype) for name in PRECISION_NAMES}
PRECISIONS: dict[torch.dtype, str] = {dtype: name for name, dtype in STORAGE.items()}
STATES: dict[str, torch.dtype] = {name: dtype_of(precision_of(name).arithmetic_dtype) for name in PRECISION_NAMES}
