"""A pool of the states of Mamba and FalconMamba models in `transformers`, whose requests come and go by slots."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from minrnn_gen.compat import transformers_mamba
from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.torch.tensors import check_tensor

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

MODELS = ("mamba", "falcon_mamba")


class SlotCache:
    """The states of `slots` requests of a model: those of its convolutions and of its scans, zeros to begin with.

    `rows` gives the cache of one batch, for the model's `cache_params`. Each state has one row more, which padding writes.
    """

    def __init__(self, model: Any, slots: int, dtype: torch.dtype = torch.float32) -> None:
        """Make the pool for a MambaForCausalLM, MambaModel or their FalconMamba likes; dtype: that of the scans' states.

        Raises BadInput for other models and sizes.
        """
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in MODELS:
            raise BadInput(f"model is {kind_of(model)}; a Mamba or FalconMamba model of transformers is expected")
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise BadInput(f"slots is {shown(slots)}; a positive integer is expected")
        made, layers = {"device": model.device}, range(config.num_hidden_layers)
        lead = (slots + 1, config.intermediate_size)
        self.slots = slots
        self.convolutions = [torch.zeros(*lead, config.conv_kernel, dtype=model.dtype, **made) for _ in layers]
        self.states = [torch.zeros(*lead, config.state_size, dtype=dtype, **made) for _ in layers]

    def rows(self, slots: Any, begins: bool) -> Cache:
        """Return the cache of a batch whose row b is the request in slot slots[b], int64 [B]; -1 is padding.

        With `begins`, the rows are new requests, and the model is called with their prompts; without, with one token of each.
        Raises BadInput for slots of another dtype, and in host memory for slots that the pool lacks or has twice.
        """
        if not transformers_mamba.is_installed():
            raise BadInput("the steps of transformers have no slots; call minrnn_gen.compat.transformers_mamba.install() first")
        check_tensor(slots, "slots")
        if slots.dtype is not torch.int64 or slots.dim() != 1:
            raise BadInput(f"slots is {slots.dtype} {list(slots.shape)}; torch.int64 [batch] is expected")
        if slots.device.type == "cpu":
            live = slots[slots != -1]
            if ((live < 0) | (live >= self.slots)).any() or live.unique().numel() < live.numel():
                raise BadInput(f"slots is {slots.tolist()}; different slots of 0 to {self.slots - 1}, or -1, are expected")
        beyond = torch.where(slots < 0, self.slots, slots)
        from transformers.cache_utils import Cache

        rows, pairs = _rows_of_layer(), zip(self.convolutions, self.states, strict=True)
        return Cache(layers=[rows(convolution, states, slots, beyond, begins) for convolution, states in pairs])

    def copy(self, source: int, target: int) -> None:
        """Copy all states of a slot to another one, for a prompt that requests share."""
        for pool in (*self.convolutions, *self.states):
            pool[target] = pool[source]


@cache
def _rows_of_layer() -> Any:
    """Return `_Rows` as a layer of transformers' caches."""
    from transformers.cache_utils import LinearAttentionLayer

    return type("RowsOfLayer", (_Rows, LinearAttentionLayer), {})


class _Rows:
    """The states of one layer for a batch, in slots."""

    conv_states: Any
    recurrent_states: Any
    has_previous_state: Any

    def __init__(self, convolution: Any, states: Any, slots: Any, beyond: Any, begins: bool) -> None:
        super().__init__()
        self._convolution, self._states, self._beyond = convolution, states, beyond
        pool = states[:-1]
        setattr(pool, transformers_mamba.SLOTS, slots)
        self.conv_states[0], self.recurrent_states[0] = convolution, pool
        self.has_previous_state[0], self._begins = not begins, begins
        self.record_past = True  # so that single tokens come to `update_conv_state` too

    def update_conv_state(self, conv_states: Any, *_: Any, **__: Any) -> Any:
        """Return the inputs of the convolution, with those before them, and keep the last ones in the slots."""
        width = self._convolution.shape[-1]
        if self.has_previous_state[0]:
            before = self._convolution[self._beyond]
        else:
            before = conv_states.new_zeros(*conv_states.shape[:-1], width)
            self.has_previous_state[0] = True
        whole = torch.cat([before, conv_states], -1)
        self._convolution[self._beyond] = whole[..., -width:]
        return whole

    def update_recurrent_state(self, recurrent_states: Any, *_: Any, **__: Any) -> Any:
        """Keep the states after a prompt in the slots; raises BadInput for rows that have states, which its scan ignores."""
        if not self._begins:
            raise BadInput(
                "a call with several tokens starts from zero states, but its rows have states; give one token at a time"
            )
        self._states[self._beyond] = recurrent_states.to(self._states.dtype)
        return recurrent_states
