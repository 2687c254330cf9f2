"""The selective scans of the Mamba models in `transformers`, computed by the kernels here instead of by a loop over time."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from minrnn_gen.compat import mamba_ssm
from minrnn_gen.compat.installed import Exchange
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.torch.operators.dispatch import refuse_transforms


def _module(model: str) -> Any:
    from transformers.models.falcon_mamba import modeling_falcon_mamba
    from transformers.models.jamba import modeling_jamba
    from transformers.models.mamba import modeling_mamba
    from transformers.models.zamba import modeling_zamba

    return {"mamba": modeling_mamba, "falcon_mamba": modeling_falcon_mamba, "jamba": modeling_jamba, "zamba": modeling_zamba}[
        model
    ]


# An attribute of the states that a single step is called with where they are a pool: the slot of each row.
SLOTS = "minrnn_gen_slots"
# Models whose training tries mamba_ssm's whole block first.
_WITH_BLOCKS = ("mamba", "falcon_mamba")
_EXCHANGES = {model: Exchange(partial(_module, model), "transformers==5.23.0") for model in (*_WITH_BLOCKS, "jamba", "zamba")}


def install() -> None:
    """Let the kernels here compute the selective scans of Mamba, FalconMamba, Jamba and Zamba models, those made before too.

    Forward and gradients, the state of the cache, and single tokens. Convolutions and projections stay theirs. `uninstall`
    takes it back. Raises ToolchainMissing where `transformers` is not installed, or has other functions than version 5.23.
    Source: Gu and Dao, Mamba, arXiv 2312.00752.
    """
    scans = {"mamba_selective_scan": _scan, "mamba_selective_state_update": _step}
    try:
        for model, exchange in _EXCHANGES.items():
            exchange.install(scans | ({"mamba_inner_fn": _no_block} if model in _WITH_BLOCKS else {}))
    except ToolchainMissing:
        uninstall()  # all models or none
        raise


def uninstall() -> None:
    """Give `transformers` its loops back."""
    for exchange in _EXCHANGES.values():
        exchange.uninstall()


def is_installed() -> bool:
    """Say whether the kernels here compute the scans of these models."""
    return all(exchange.is_installed for exchange in _EXCHANGES.values())


def _no_block(*_arguments: Any, **_named: Any) -> None:
    """Return no function for the whole block: mamba_ssm's does not mask padding, and normalizes FalconMamba's Δ elsewhere."""


def _scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
    **_kwargs: Any,
) -> Any:
    """Call `selective_scan_fn`; as in transformers, the choice between its loops and further keywords have no effect."""
    del use_mambapy, use_associative_scan
    return mamba_ssm.selective_scan_fn(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


def _step(
    state: Any,
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    z: Any = None,
    **_kwargs: Any,
) -> Any:
    """Return out [batch, dim], and write the state: that of each row, or those in the slots of a `SlotCache`."""
    slots = getattr(state, SLOTS, None)
    if slots is not None:
        with torch.no_grad():
            arrays = (state, hidden_states, dt, A, B, C, D, z, dt_bias)
            return mamba_ssm.selective_state_update(*arrays, dt_softplus, state_batch_indices=slots)
    if not torch.is_grad_enabled():
        return mamba_ssm.selective_state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)
    # A step with gradients is a scan of one step, which writes into the state.
    refuse_transforms(state, hidden_states, dt, A, B, C)
    u, delta, gate, b, c = (None if tensor is None else tensor.unsqueeze(-1) for tensor in (hidden_states, dt, z, B, C))
    out, last = mamba_ssm.selective_scan_fn(u, delta, A, b, c, D, gate, dt_bias, dt_softplus, True, initial_state=state.clone())
    state.copy_(last)
    return out.squeeze(-1)
