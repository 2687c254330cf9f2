"""Recurrent layers to train with, torch.nn's among them, and the kernels' recurrence and the raw scan with gradients."""

from minrnn_gen.errors import INSTALL_TORCH, TorchMissing, needing

with needing("torch", "minrnn_gen.torch", INSTALL_TORCH, TorchMissing):
    from minrnn_gen.torch import nn
    from minrnn_gen.torch.drop_in.replacement import replace
    from minrnn_gen.torch.layers.layer import RNN
    from minrnn_gen.torch.layers.named import (
        GRU,
        HGRN,
        LIF,
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
        PeepholeLSTM,
        RecurrentLIF,
    )
    from minrnn_gen.torch.layers.selective_scan import SelectiveScan
    from minrnn_gen.torch.operators.exported_program import export_operators
    from minrnn_gen.torch.operators.filters import lfilter, sosfilt
    from minrnn_gen.torch.operators.functional import recurrence
    from minrnn_gen.torch.operators.onnx_translations import onnx_translations
    from minrnn_gen.torch.operators.raw_scan import scan
    from minrnn_gen.torch.operators.returns import gae, lambda_returns, vtrace
    from minrnn_gen.torch.sequence_group.gradients import sum_gradients
    from minrnn_gen.torch.sequence_group.group import HeadGroup, SequenceGroup
    from minrnn_gen.torch.sequence_group.tuned import tune_sequence_group

__all__ = [
    "GRU",
    "HGRN",
    "LIF",
    "LSTM",
    "QRNN",
    "RGLRU",
    "RNN",
    "SLSTM",
    "Elman",
    "HeadGroup",
    "IndRNN",
    "MinGRU",
    "MinGRULog",
    "MinGRUTanh",
    "MinLSTM",
    "MinLSTMLog",
    "PeepholeLSTM",
    "RecurrentLIF",
    "SelectiveScan",
    "SequenceGroup",
    "export_operators",
    "gae",
    "lambda_returns",
    "lfilter",
    "nn",
    "onnx_translations",
    "recurrence",
    "replace",
    "scan",
    "sosfilt",
    "sum_gradients",
    "tune_sequence_group",
    "vtrace",
]
