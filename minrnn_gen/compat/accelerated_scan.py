"""accelerated_scan's function, served by the raw scan here."""

from __future__ import annotations

from typing import Any

from minrnn_gen.errors import BadInput
from minrnn_gen.torch.raw_scan import scan as raw_scan
from minrnn_gen.torch.tensors import check_tensor


def scan(gates: Any, tokens: Any) -> Any:
    """Return h[t] = gates[t] h[t-1] + tokens[t] from h = 0 on, with gradients of both.

    gates, tokens and the result [B, C, T], of one dtype: float64, float32, float16, bfloat16, complex64 or complex128. T may be
    any, and strides too. Raises BadInput for tensors that do not fit.
    """
    for name, tensor in (("gates", gates), ("tokens", tokens)):
        check_tensor(tensor, name)
        if tensor.dim() != 3:
            raise BadInput(f"{name} has shape {list(tensor.shape)}; 3 axes [batch, channels, time] are expected")
    if gates.shape != tokens.shape:
        raise BadInput(f"tokens has shape {list(tokens.shape)}; that of gates, {list(gates.shape)}, is expected")
    return raw_scan(gates, tokens, axis=2)[0]
