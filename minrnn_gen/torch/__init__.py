"""Recurrent layers to train with, and the kernels' recurrence and the raw scan as functions that autograd knows."""

from minrnn_gen.torch.functional import recurrence
from minrnn_gen.torch.layer import RNN
from minrnn_gen.torch.layers import (
    GRU,
    HGRN,
    LSTM,
    QRNN,
    RGLRU,
    SLSTM,
    Elman,
    IndRNN,
    MinGRU,
    MinGRULog,
    MinGRUTanh,
    MinLSTM,
    MinLSTMLog,
)
from minrnn_gen.torch.raw_scan import scan

__all__ = [
    "GRU",
    "HGRN",
    "LSTM",
    "QRNN",
    "RGLRU",
    "RNN",
    "SLSTM",
    "Elman",
    "IndRNN",
    "MinGRU",
    "MinGRULog",
    "MinGRUTanh",
    "MinLSTM",
    "MinLSTMLog",
    "recurrence",
    "scan",
]
