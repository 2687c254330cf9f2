"""The recurrent mode of torchrl's LSTMModule and GRUModule, computed by the kernels here, without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minrnn_gen.compat.installed import Exchange
from minrnn_gen.errors import BadInput
from minrnn_gen.torch import nn as by_kernels

_REQUIREMENT = "torchrl==0.14.1"


def _lstm_module() -> Any:
    from torchrl.modules import LSTMModule

    return LSTMModule


def _gru_module() -> Any:
    from torchrl.modules import GRUModule

    return GRUModule


_LSTM, _GRU = Exchange(_lstm_module, _REQUIREMENT), Exchange(_gru_module, _REQUIREMENT)
_KERNELS: dict[type, type] = {
    torch.nn.LSTM: by_kernels.LSTM,
    torch.nn.GRU: by_kernels.GRU,
    by_kernels.LSTM: by_kernels.LSTM,
    by_kernels.GRU: by_kernels.GRU,
}


def install(*, end_states: bool = True) -> None:
    """Let the kernels compute every LSTMModule and GRUModule in recurrent mode, those made before too.

    With `recurrent_backend` "scan" or "triton" the marks `is_init` cut rows into sequences without padding. Each starts from
    the state passed at its first step, and gradients go through outputs and the states at the end of every sequence; sequence
    lengths are read from the device. With end_states=False the marks are `resets`: nothing is cut, states passed at marks after
    the first step must be 0 and get no gradients, and states of sequences that end before the last step come back as 0. With
    "pad" the library pads as before, and the kernels take the lengths. Single steps, `python_based` modules and `proj_size`
    stay torchrl's. `uninstall` takes it back. Raises ToolchainMissing where torchrl is not installed, or has other functions
    than version 0.14.
    """
    uninstall()
    _LSTM.install({"_lstm": _lstm_of(by_resets=not end_states)})
    _GRU.install({"_gru": _gru_of(by_resets=not end_states)})


def uninstall() -> None:
    """Give torchrl its own functions back."""
    _LSTM.uninstall()
    _GRU.uninstall()


def _lstm_of(by_resets: bool) -> Callable[..., tuple[Any, Any, Any]]:
    def _lstm(
        self: Any,
        input: Any,
        batch: Any,
        steps: Any,
        device: Any,
        dtype: Any,
        hidden0_in: Any = None,
        hidden1_in: Any = None,
        splits: Any = None,
        is_init: Any = None,
        backend: str = "pad",
    ) -> tuple[Any, Any, Any]:
        """Return (y [B, T, H], h, c), states [B, T, layers, H] after the last step of each sequence, 0 at all other steps.

        input [B, T, I]; hidden0_in, hidden1_in: the states before each step, zeros where None. is_init: bool [B, T], where a
        sequence starts; splits: lengths [B] instead.
        """
        initial = (hidden0_in, hidden1_in)
        if not _is_ours(self, self.lstm) or (hidden0_in is None) is not (hidden1_in is None):
            theirs = _LSTM.theirs("_lstm")
            return theirs(self, input, batch, steps, device, dtype, *initial, splits, is_init, backend)  # type: ignore[no-any-return]
        y, (h, c) = _sequences(self.lstm, input, () if hidden0_in is None else initial, splits, is_init, by_resets)
        return y, h, c

    return _lstm


def _gru_of(by_resets: bool) -> Callable[..., tuple[Any, Any]]:
    def _gru(
        self: Any,
        input: Any,
        batch: Any,
        steps: Any,
        device: Any,
        dtype: Any,
        hidden_in: Any = None,
        splits: Any = None,
        is_init: Any = None,
        backend: str = "pad",
    ) -> tuple[Any, Any]:
        """Return (y, h), as `_lstm` does for a cell of two states."""
        if not _is_ours(self, self.gru):
            theirs = _GRU.theirs("_gru")
            return theirs(self, input, batch, steps, device, dtype, hidden_in, splits, is_init, backend)  # type: ignore[no-any-return]
        y, (h,) = _sequences(self.gru, input, () if hidden_in is None else (hidden_in,), splits, is_init, by_resets)
        return y, h

    return _gru


def _is_ours(module: Any, layer: Any) -> bool:
    return module.recurrent_mode and type(layer) in _KERNELS and not layer.proj_size


def _sequences(
    layer: Any, x: Any, initial: Sequence[Any], splits: Any, is_init: Any, by_resets: bool
) -> tuple[Any, tuple[Any, ...]]:
    """Return y and each state after the last step of each sequence, 0 at all other steps."""
    batch, steps = x.shape[:2]
    rows: dict[str, Any] = {}
    ends = torch.arange(1, batch + 1, device=x.device) * steps - 1
    if is_init is None or by_resets:
        first = [state[:, 0] for state in initial]
        if splits is not None:
            rows, ends = {"lengths": splits}, ends - steps + splits
        elif is_init is not None:
            rows = {"resets": _later_marks(is_init, initial)}
        y, last = _run(layer, x, first, **rows)
    else:
        starts = is_init.clone()
        starts[:, 0] = True
        begins = starts.flatten().nonzero().squeeze(1)
        boundaries = torch.cat((begins, begins.new_tensor([batch * steps])))
        first, ends = [state.flatten(0, 1)[begins] for state in initial], boundaries[1:] - 1
        y, last = _run(layer, x.reshape(1, batch * steps, -1), first, cu_seqlens=boundaries)
        y = y.view(batch, steps, -1)
    return y, tuple(_at_ends(state.to(x.dtype), ends, batch, steps) for state in last)


def _run(layer: Any, x: Any, first: Sequence[Any], **rows: Any) -> tuple[Any, tuple[Any, ...]]:
    """Call the kernels of a layer of torch.nn; states [sequences, layers, H] come in, [layers, sequences, H] out."""
    by: Any = object.__new__(_KERNELS[type(layer)])
    by.__dict__.update(vars(layer))
    by.use_kernels()
    states = [state.transpose(0, 1) for state in first]
    hx = None if not states else states[0] if len(states) == 1 else tuple(states)
    return by._call(x, hx, **rows)  # type: ignore[no-any-return]


def _later_marks(is_init: Any, initial: Sequence[Any]) -> Any:
    """Return the marks except the first step's, whose state counts; raises BadInput where another mark has a nonzero state."""
    marks = is_init.clone()
    marks[:, 0] = False
    if initial and any(bool((state * marks[..., None, None]).any()) for state in initial):
        raise BadInput(
            "is_init marks a step that is given a state other than 0, but end_states=False resets to 0; call "
            "minrnn_gen.compat.torchrl.install() without it, which starts from the given state"
        )
    return marks


def _at_ends(last: Any, ends: Any, batch: int, steps: int) -> Any:
    """Return states [layers, sequences, H] at the flat steps where sequences end, [B, T, layers, H]."""
    states = last.transpose(0, 1)
    empty = states.new_zeros((batch * steps, *states.shape[1:]))
    return empty.index_copy(0, ends, states).unflatten(0, (batch, steps))
