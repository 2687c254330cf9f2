"""The modules of `minGRU-pytorch`, computed by the kernels here instead of by cumulative sums of logarithms."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from minrnn_gen.api import compile_arguments
from minrnn_gen.compat.installed import Exchange
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.operators.calls import arithmetic_dtype, storage_dtype
from minrnn_gen.torch.operators.functional import recurrence

_REQUIREMENT = "minGRU-pytorch==0.2.1"


def _min_gru_class() -> Any:
    from minGRU_pytorch.minGRU import minGRU

    return minGRU


def _min_lstm_class() -> Any:
    from minGRU_pytorch.minLSTM import minLSTM

    return minLSTM


_MIN_GRU, _MIN_LSTM = Exchange(_min_gru_class, _REQUIREMENT), Exchange(_min_lstm_class, _REQUIREMENT)
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


def install() -> None:
    """Let the kernels here compute `minGRU` and `minLSTM` of `minGRU-pytorch`, modules made before too; with gradients.

    Parameters, shapes and the forms of calls stay. A sequence in pieces gives the same as the whole sequence, even where
    minGRU-pytorch passes the state of a minLSTM through g once more. `uninstall` takes it back. Raises ToolchainMissing where
    the package is not installed or has other modules than version 0.2.1. Source: Feng et al., arXiv 2410.01201.
    """
    _MIN_GRU.install({"forward": _min_gru})
    _MIN_LSTM.install({"forward": _min_lstm})


def uninstall() -> None:
    """Give the modules their own functions back."""
    _MIN_GRU.uninstall()
    _MIN_LSTM.uninstall()


def _min_gru(self: Any, x: Any, prev_hidden: Any = None, return_next_prev_hidden: bool = False) -> Any:
    """Return y [B, T, D], and h after the last step [B, 1, D inner] if requested."""
    hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
    return _run(self, "min_gru_log", (gate, hidden), prev_hidden, return_next_prev_hidden)


def _min_lstm(self: Any, x: Any, prev_hidden: Any = None, return_next_prev_hidden: bool = False) -> Any:
    """Return y [B, T, D], and h after the last step [B, 1, D inner] if requested."""
    hidden, forget, enter = self.to_hidden_and_f_i_gate(x).chunk(3, dim=-1)
    return _run(self, "min_lstm_log", (forget, enter, hidden), prev_hidden, return_next_prev_hidden)


def _run(self: Any, model: str, gates: tuple[Any, ...], previous: Any, returns_last: bool) -> Any:
    x = torch.stack(gates, 2)
    kernel = _kernel(model, x.shape[-1], _PRECISIONS[x.dtype])
    state = None if previous is None else {"h": previous[:, -1].to(arithmetic_dtype(kernel))}
    h, final = recurrence(kernel, x.to(storage_dtype(kernel)), state=state)
    y = self.to_out(h)
    return (y, final["h"].unsqueeze(1).to(h.dtype)) if returns_last else y


@cache
def _kernel(model: str, hidden_size: int, precision: str) -> Kernel:
    return compile_arguments({"model": model, "hidden_size": hidden_size, "precision": precision}, "minGRU_pytorch")
