"""A scan over the last axis, whose errors name arrays as the caller does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minrnn_gen.errors import BadInput
from minrnn_gen.precision import precision_storing, why_unsupported
from minrnn_gen.torch.operators.raw_scan import scan
from minrnn_gen.torch.tensors import autocasts, check_devices, check_tensor


def scan_channels(arrays: Mapping[str, Any], reverse: bool = False) -> Any:
    """Return the scan of coefficients and values [B, C, T], which are `arrays` by name; raises BadInput."""
    for name, tensor in arrays.items():
        check_tensor(tensor, name)
        if tensor.dim() != 3:
            raise BadInput(f"{name} has shape {list(tensor.shape)}; 3 axes [batch, channels, time] are expected")
        if precision_storing(str(tensor.dtype).removeprefix("torch.")) is None:
            raise BadInput(
                f"{name} has dtype {tensor.dtype}; float64, float32, float16, bfloat16, complex64 or complex128 is "
                f"expected{why_unsupported(tensor.dtype)}"
            )
    check_devices(arrays)
    (first, a), (second, b) = arrays.items()
    if a.shape != b.shape:
        raise BadInput(f"{second} has shape {list(b.shape)}; that of {first}, {list(a.shape)}, is expected")
    if a.dtype is not b.dtype and not autocasts(a):
        raise BadInput(f"{second} has dtype {b.dtype}; that of {first}, {a.dtype}, is expected")
    return scan(a, b, axis=2, reverse=reverse)[0]
