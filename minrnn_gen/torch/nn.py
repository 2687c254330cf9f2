"""`minrnn_gen.torch.nn`: the recurrent classes of torch.nn, computed by the kernels.

Each class is a subclass of torch's class of its name: constructor, parameters, initialisation, state_dict, pickling and
messages of the constructor are torch's own. `isinstance(layer, torch.nn.LSTM)` therefore holds, as code that goes through a
model's modules expects it: to initialise weights, to group parameters, to freeze layers.

LSTMCell, GRUCell and RNNCell are torch's own. A call of one runs one step, two products and one pointwise kernel, which torch
launches from C++ in the time that a call from Python takes before its first launch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, TypedDict, Unpack

import torch
from torch.nn import GRUCell, LSTMCell, RNNCell
from torch.nn.utils.rnn import PackedSequence

from minrnn_gen.errors import BadInput, shown
from minrnn_gen.layers.architecture import Architecture, architecture_of
from minrnn_gen.torch.drop_in.autocast import layer_dtype, result_dtype
from minrnn_gen.torch.layers.cache import LayerCache
from minrnn_gen.torch.layers.decode import DecodingStack
from minrnn_gen.torch.layers.named import ELMAN_RELU
from minrnn_gen.torch.layers.options import Function
from minrnn_gen.torch.layers.set_later import Checks, Settled, check_flag, check_probability, check_size, check_size_or_zero
from minrnn_gen.torch.layers.stack import LayerStack
from minrnn_gen.torch.tensors import autocasts

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

_CELLS: dict[str, Any] = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "elman", "RNN_RELU": ELMAN_RELU}
_ARCHITECTURES_KEPT = 1024
# Arguments of calls of the layers of `minrnn_gen.torch` that torch.nn's lack.
_OF_CALLS = ("resets", "reset_states", "holds", "lengths", "cu_seqlens", "sequence_group", "head_group")


@functools.lru_cache(_ARCHITECTURES_KEPT)
def _architecture(
    mode: str,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool,
    batch_first: bool,
    bidirectional: bool,
    proj_size: int,
) -> Architecture:
    asked = {
        "model": "lstm_projected" if proj_size else _CELLS[mode],
        "projection_size": proj_size or None,
        "hidden_size": hidden_size,
        "layout": "BTD" if batch_first else "TBD",
        "direction": "bidirectional" if bidirectional else "forward",
    }
    made = architecture_of(
        asked,
        mode.partition("_")[0],
        input_size=input_size,
        num_layers=num_layers,
        directions=2 if bidirectional else 1,
        bias=bias,
        recurrent_bias=None,
        precision=None,
    )
    return _with_names_of_torch(made, hidden_size, proj_size) if proj_size else made


def _with_names_of_torch(made: Architecture, hidden_size: int, proj_size: int) -> Architecture:
    """Return the architecture of layers with `proj_size`: torch has the output's gates as one matrix and one bias."""
    layers, shapes = [], dict[str, tuple[int, ...]]()
    for layer in made.names:
        directed = []
        for names in layer:
            suffix = names.weight_ih.removeprefix("weight_ih")
            products, biases = (f"weight_hh{suffix}", f"weight_hr{suffix}"), names.product_biases and (f"bias_hh{suffix}",)
            of_run = {name: made.shapes[name] for name in (names.weight_ih, names.bias_ih) if name}
            of_run |= {products[0]: (4 * hidden_size, proj_size), products[1]: (proj_size, hidden_size)}
            shapes |= of_run | dict.fromkeys(biases, (4 * hidden_size,))
            directed.append(names._replace(products=products, product_biases=biases))
        layers.append(tuple(directed))
    folded = replace(made.folded, names=tuple(layers), shapes=shapes) if made.folded else None
    return replace(made, names=tuple(layers), shapes=shapes, folded=folded)


def _check_mode(value: Any, name: str) -> None:
    if not isinstance(value, str) or value not in _CELLS:
        raise BadInput(f"{name} is {shown(value)}; one of {', '.join(_CELLS)} is expected")


def _shown_with(*names: str) -> Callable[[Function], Function]:
    """Give a method torch.nn's signature: these names alone. The method refuses its further arguments."""

    def shown_with(function: Function) -> Function:
        signature = inspect.signature(function)
        shown_parameters = [signature.parameters[name] for name in ("self", *names)]
        function.__signature__ = signature.replace(parameters=shown_parameters)  # type: ignore[attr-defined]
        return function

    return shown_with


def _refuse_argument(layer: type, name: str) -> NoReturn:
    ours = {torch.nn.LSTM: "LSTM", torch.nn.GRU: "GRU", torch.nn.RNN: "Elman"}
    name_here = next(ours[base] for base in layer.__mro__ if base in ours)
    advice = f"minrnn_gen.torch.{name_here} takes it" if name in _OF_CALLS else "input and hx are expected"
    raise BadInput(f"{name} is no argument of a call of torch.nn.{layer.__name__}, which the kernels compute; {advice}")


class ByKernels(Settled, LayerStack):
    """A class of torch.nn whose calls run kernels. `torch_class`: torch's own class, which `use_torch` restores."""

    torch_class: ClassVar[type]
    _checks: ClassVar[Checks] = {
        "mode": _check_mode,
        "dropout": check_probability,
        "proj_size": check_size_or_zero,
        **dict.fromkeys(("batch_first", "bias", "bidirectional"), check_flag),
        **dict.fromkeys(("input_size", "hidden_size", "num_layers"), check_size),
    }
    # torch reads `mode` in calls, and this in its constructor alone.
    _fixed: ClassVar[frozenset[str]] = frozenset({"nonlinearity"})
    mode: str
    bias: bool

    def use_kernels(self) -> None:
        """Choose the kernels for the module's attributes; raises BadInput where there are none."""
        raise NotImplementedError

    def use_torch(self) -> None:
        """Give the module torch's own class again."""
        self.__dict__.pop("_made", None)
        self.__class__ = self.torch_class

    def __getstate__(self) -> dict[str, Any]:
        # Without the architecture: a saved layer is independent of this package's internals.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_made"}

    def __setstate__(self, d: dict[str, Any]) -> None:
        super().__setstate__(d)  # type: ignore[misc]
        self.use_kernels()


class _Layer(DecodingStack, ByKernels):
    """One of LSTM, GRU and RNN."""

    _has_narrow_states: ClassVar[bool] = True
    proj_size: int
    _flat_weights_names: list[str]

    def use_kernels(self) -> None:
        sizes = self.input_size, self.hidden_size, self.num_layers
        if self.proj_size and self.mode != "LSTM":
            raise BadInput(f"proj_size is {self.proj_size}, which only LSTM has; set it to 0")
        flags = self.bias, self.batch_first, bool(self.bidirectional)
        self._made = _architecture(self.mode, *sizes, *flags, self.proj_size)
        self.__dict__.pop("_flat_weights", None)

    def _settle(self, name: str) -> None:
        self.use_kernels()
        for parameter in self._made.shapes:
            if not hasattr(self, parameter):
                raise BadInput(
                    f"{name} is {shown(getattr(self, name))}, but the layer lacks {parameter}; register it "
                    f"first, or make another layer"
                )

    def use_torch(self) -> None:
        super().use_torch()
        self._init_flat_weights()  # type: ignore[attr-defined]

    @property
    def _flat_weights(self) -> list[Any]:
        """The current parameters; torch's own list would keep replaced ones alive."""
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, _: list[Any]) -> None:
        pass

    def flatten_parameters(self) -> None:
        """Do nothing: unlike cuDNN, the kernels need no flat copy of the parameters."""

    def step(self, x_t: Any, state: Any = None, **keywords: Any) -> tuple[Any, Any]:
        """Return (y_t, state) of one step more, all in the dtype of y_t, as torch.nn has them; otherwise as of `RNN`."""
        y, states = super().step(x_t, state, **keywords)
        if isinstance(states, LayerCache):
            return y, states
        return y, tuple(last.to(y.dtype) for last in states) if isinstance(states, tuple) else states.to(y.dtype)

    @_shown_with("input", "hx")
    def forward(self, input: Any, hx: Any = None, **unknown: Any) -> tuple[Any, Any]:
        """Return (output, h_n), of LSTM (output, (h_n, c_n)), all in the dtype in which torch.nn returns them."""
        if unknown:
            _refuse_argument(type(self), next(iter(unknown)))
        output, states = self._call(input, hx)
        is_packed = isinstance(output, PackedSequence)
        y, x = (output.data, input.data) if is_packed else (output, input)
        dtype = y.dtype
        if autocasts(x) and x.dtype is not torch.float64:
            last = hx[-1] if isinstance(hx, (tuple, list)) else hx
            dtype = result_dtype(self.mode, x, last, dtype, is_whole=not is_packed)
            if y.dtype is not dtype:
                output = output._replace(data=y.to(dtype)) if is_packed else y.to(dtype)
        if states[0].dtype is not dtype:
            states = tuple(state.to(dtype) for state in states)
        return output, states if len(states) > 1 else states[0]

    def _autocast_dtype(self, x: Any) -> torch.dtype:
        return layer_dtype(x)


class _OfLSTM(TypedDict, total=False):
    """Refusals of other layers, in torch's own words."""

    proj_size: int


class LSTM(_Layer, torch.nn.LSTM):
    """torch.nn.LSTM with all its arguments, computed by the kernels of `lstm`, or of `lstm_projected` with proj_size."""

    torch_class = torch.nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device=device,
            dtype=dtype,
        )
        self.use_kernels()


class GRU(_Layer, torch.nn.GRU):
    """torch.nn.GRU with all its arguments, computed by the kernels of `gru`."""

    torch_class = torch.nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        **refused: Unpack[_OfLSTM],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            **refused,
        )
        self.use_kernels()


class RNN(_Layer, torch.nn.RNN):
    """torch.nn.RNN with all its arguments, computed by the kernels of `elman`, or of the same cell with relu."""

    torch_class = torch.nn.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        **refused: Unpack[_OfLSTM],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            nonlinearity,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            **refused,
        )
        self.use_kernels()
