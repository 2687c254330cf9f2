"""The built-in cells as layers of their own names."""

from __future__ import annotations

from typing import Any, ClassVar, Never, Unpack

from minrnn_gen.errors import BadInput, constructed_by_own_name, shown
from minrnn_gen.torch.layers.checks import refuse_positional
from minrnn_gen.torch.layers.layer import RNN
from minrnn_gen.torch.layers.options import LayerOptions, shows_options


class _OfCell(RNN):
    """Layers of one built-in cell; arguments beyond the model are those of `RNN`."""

    cell: ClassVar[str]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        constructed_by_own_name(cls)

    @shows_options
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *more: Never, **options: Unpack[LayerOptions]
    ) -> None:
        refuse_positional(type(self), more)
        super().__init__(self.cell, input_size, hidden_size, num_layers, **options)

    def extra_repr(self) -> str:
        """Return the arguments that the layer was made with, without the cell that it is called after."""
        return super().extra_repr().removeprefix(f"{self.cell!r}, ")


class MinGRU(_OfCell):
    """arXiv 2410.01201."""

    cell = "min_gru"


class MinGRULog(_OfCell):
    """The log-space model of `MinGRU`, its appendix B."""

    cell = "min_gru_log"


class MinGRUTanh(_OfCell):
    """`MinGRU` with a candidate tanh."""

    cell = "min_gru_tanh"


class MinLSTM(_OfCell):
    """arXiv 2410.01201."""

    cell = "min_lstm"


class MinLSTMLog(_OfCell):
    """The log-space model of `MinLSTM`."""

    cell = "min_lstm_log"


class HGRN(_OfCell):
    """arXiv 2311.04823."""

    cell = "hgrn"


class RGLRU(_OfCell):
    """arXiv 2402.19427; its vector `decay` starts as there."""

    cell = "rg_lru"


class QRNN(_OfCell):
    """arXiv 1611.01576, from pre-activations of one step."""

    cell = "qrnn"


class IndRNN(_OfCell):
    """arXiv 1803.04831."""

    cell = "ind_rnn"


class LSTM(_OfCell):
    """As torch.nn.LSTM, whose state_dict fits."""

    cell = "lstm"


class GRU(_OfCell):
    """As torch.nn.GRU, whose state_dict fits."""

    cell = "gru"


class SLSTM(_OfCell):
    """arXiv 2405.04517; states h, c, n, m."""

    cell = "slstm"


class PeepholeLSTM(_OfCell):
    """The LSTM of arXiv 1308.0850, with vectors `p_i`, `p_f` and `p_o`."""

    cell = "peephole_lstm"


class LIF(_OfCell):
    """Spiking neurons, arXiv 1901.09948; the output is their spikes, 0 or 1, and the states are s, m."""

    cell = "lif"


class RecurrentLIF(_OfCell):
    """`LIF` whose spikes are an input of the next step."""

    cell = "recurrent_lif"


# torch.nn.RNN has two cells; the built-in one is the first.
ELMAN_RELU = {"name": "elman_relu", "equations": "h[t] = relu(W.h + R.h)"}


class Elman(RNN):
    """As torch.nn.RNN, whose state_dict fits; nonlinearity: "tanh" or "relu"."""

    _fixed: ClassVar[frozenset[str]] = RNN._fixed | {"nonlinearity"}

    @shows_options
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *more: Never,
        nonlinearity: str = "tanh",
        **options: Unpack[LayerOptions],
    ) -> None:
        refuse_positional(type(self), more)
        if nonlinearity not in ("tanh", "relu"):
            raise BadInput(f"nonlinearity is {shown(nonlinearity)}; tanh or relu is expected")
        super().__init__("elman" if nonlinearity == "tanh" else ELMAN_RELU, input_size, hidden_size, num_layers, **options)
