"""The HGRN operators of flash-linear-attention, served by the raw scan here, and by a cell where sequences are joined."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from minrnn_gen.api import compile_arguments
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import PRECISIONS, STATES
from minrnn_gen.torch.operators.functional import recurrence
from minrnn_gen.torch.operators.raw_scan import scan
from minrnn_gen.torch.tensors import check_devices, check_shape, integers_in

_CELL = {"name": "log_gated", "gates": ["g", "x"], "states": ["h"], "equations": "h[t] = exp(W.g) * h[t-1] + W.x"}


def fused_recurrent_hgrn(
    x: Any, g: Any, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None
) -> tuple[Any, Any]:
    """Return (o, final state if requested else None) of o[t] = exp(g[t]) o[t-1] + x[t], with gradients of all three.

    x, g and o [B, T, D], g the logarithm of the gate; initial_state [B, D], zeros where None. cu_seqlens [S + 1], int32 or
    int64: sequence s is the steps cu_seqlens[s] to cu_seqlens[s + 1] of x [1, total, D], and states are [S, D]. o has the dtype
    of x, the final state the arithmetic's: float32, or float64. Where g has another dtype than x, the wider dtype is used.
    Raises BadInput for tensors that do not fit.
    """
    check_shape(x, "x", ("batch" if cu_seqlens is None else 1, "time", "channels"))
    check_shape(g, "g", tuple(x.shape))
    ends = integers_in(cu_seqlens, "cu_seqlens")
    sequences = x.shape[0] if ends is None else ends.numel() - 1
    if initial_state is not None:
        check_shape(initial_state, "initial_state", (sequences, x.shape[2]))
    check_devices({"x": x, "g": g, "initial_state": initial_state})
    wider = torch.promote_types(x.dtype, g.dtype)
    precision = PRECISIONS[wider]
    state = None if initial_state is None else initial_state.to(STATES[precision])
    wide_x, log_gate = x.to(wider), g.to(wider)
    if ends is None:
        o, final = scan(log_gate, wide_x, state, log_a=True)
    else:
        o, final = _joined(precision, torch.stack((log_gate, wide_x), dim=2), state, ends)
    return o.to(x.dtype), final if output_final_state else None


# flash-linear-attention has two algorithms for this function.
chunk_hgrn = fused_recurrent_hgrn


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _joined(precision: str, gates: Any, state: Any, cu_seqlens: Any) -> tuple[Any, Any]:
    """Return (o, final state) of packed sequences, gates [1, total, 2, D]."""
    named = None if state is None else {"h": state}
    o, final = recurrence(_kernel(gates.shape[3], precision), gates, state=named, cu_seqlens=cu_seqlens)
    return o, final["h"]


@cache
def _kernel(channels: int, precision: str) -> Kernel:
    return compile_arguments({"model": _CELL, "hidden_size": channels, "precision": precision}, "hgrn")
