"""accelerated_scan.warp."""

from __future__ import annotations

from typing import Any

from minrnn_gen.compat.accelerated_scan.channels import scan_channels


def scan(gates: Any, tokens: Any) -> Any:
    """Return h[t] = gates[t] h[t-1] + tokens[t] from h = 0 on, with gradients of both.

    gates, tokens and the result [B, C, T], of one dtype: float64, float32, float16, bfloat16, complex64 or complex128. T may be
    any, and strides too. Raises BadInput for tensors that do not fit.
    """
    return scan_channels({"gates": gates, "tokens": tokens})
