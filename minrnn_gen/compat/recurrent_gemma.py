"""The recurrence of RecurrentGemma in `transformers`, computed by the kernels here instead of by a loop over time."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.compat.installed import Exchange
from minrnn_gen.torch.operators.raw_scan import scan


def _layer() -> Any:
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    return RecurrentGemmaRglru


_EXCHANGE = Exchange(_layer, "transformers==5.23.0")


def install() -> None:
    """Let the scan kernels here compute the RG-LRU of every RecurrentGemma model, those made before too.

    Forward and gradients, resets and the state of the cache included; a single token stays theirs. `uninstall` takes it back.
    Raises ToolchainMissing where `transformers` is not installed, or has other functions than version 5.23.
    Source: De et al., Griffin, arXiv 2402.19427.
    """
    _EXCHANGE.install({"_rnn_scan": _rnn_scan})


def uninstall() -> None:
    """Give `transformers` its loop back."""
    _EXCHANGE.uninstall()


def _rnn_scan(
    _self: Any,
    hidden_states: Any,
    recurrent_gate: Any,
    reset: Any,
    recurrent_states: Any,
    acc_dtype: Any = torch.float32,
) -> tuple[Any, Any]:
    """Return (h after every step [B, T, D], the last one [B, D]) of h[t] = a[t] h[t-1] + x[t], a = 0 at resets [B, T, 1]."""
    a = recurrent_gate * ~reset
    arithmetic = torch.promote_types(hidden_states.dtype, torch.float32)
    h0 = None if recurrent_states is None else recurrent_states.to(a.device, arithmetic)
    if hidden_states.shape[1] == 1:
        # One pointwise step of torch's.
        h = hidden_states.to(arithmetic) if h0 is None else a.to(arithmetic) * h0[:, None] + hidden_states
        return h.to(hidden_states.dtype), h[:, 0].to(acc_dtype)
    y, final = scan(a.to(hidden_states.dtype), hidden_states, h0)
    return y, final.to(acc_dtype)
