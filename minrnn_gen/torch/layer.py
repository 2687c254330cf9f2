"""`minrnn_gen.torch.RNN`: layers of any cell, as torch's own recurrent layers are called."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from minrnn_gen.errors import BadInput
from minrnn_gen.torch import checks
from minrnn_gen.torch.architecture import Names, architecture_of
from minrnn_gen.torch.dispatch import refuse_tracing
from minrnn_gen.torch.dtypes import PRECISIONS, STATES, STORAGE
from minrnn_gen.torch.initial import DRAW, draw
from minrnn_gen.torch.kernel_operator import run
from minrnn_gen.torch.tensors import autocasts, check_tensor, integers_in

# Where the cell's own vectors begin among the parameters of a layer.
_VECTORS_FROM = len(Names._fields) - 1


class RNN(torch.nn.Module):
    """`num_layers` recurrent layers of one cell, in one direction or both, called like torch.nn.LSTM.

    model: a built-in cell, the path of a cell file, or a cell file's mapping. Parameters are torch's: `weight_ih_l{k}`
    [G * H, I], `weight_hh_l{k}` [Gr * H, H / heads], `bias_ih_l{k}` [G * H], `bias_hh_l{k}` [Gr * H], those of the reverse
    direction with the suffix `_reverse`, and the cell's own vectors `{name}_l{k}` [H]; gates are in the cell's order, which for
    lstm, gru and elman is torch's, so that a state_dict of theirs fits. Cells without a recurrent product have no *_hh.

    precision: fp64, fp32, fp16 or bf16; by default that of the input, or what autocast says. Given, the parameters may have
    another dtype and weights are cast. recurrent_bias: by default as `bias` where there is a recurrent product. forget_bias:
    what the input-side biases of gate f start with; by default like all others. options: further keys of the spec
    (`functions`, `fp32_product`, `scan_arithmetic`, `recurrent_gradient_clip`, `gpu`, and `batch` and `time` as hints).
    Raises BadInput where the spec is wrong. docs/torch.md has the differences to torch.nn.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Mapping[str, Any],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        heads: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        precision: str | None = None,
        recurrent_bias: bool | None = None,
        forget_bias: float | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        flags = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
        flags |= {} if recurrent_bias is None else {"recurrent_bias": recurrent_bias}
        checks.check_layer_arguments(model, input_size, num_layers, dropout, proj_size, device, dtype, flags, options)
        if dropout and num_layers == 1:
            warnings.warn(f"dropout={dropout} comes between layers, of which there is one: it does nothing", stacklevel=2)
        asked = {
            **options,
            "model": model if isinstance(model, Mapping) else os.fspath(model),
            "hidden_size": hidden_size,
            "heads": heads,
            "layout": "BTD" if batch_first else "TBD",
            "direction": "bidirectional" if bidirectional else "forward",
        }
        self._made = architecture_of(
            asked,
            input_size=input_size,
            num_layers=num_layers,
            directions=2 if bidirectional else 1,
            bias=bias,
            recurrent_bias=recurrent_bias,
            precision=precision,
        )
        self.model, self.input_size, self.hidden_size, self.num_layers = self._made.name, input_size, hidden_size, num_layers
        self.heads, self.bias, self.batch_first, self.dropout = heads, bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size, self.precision = bidirectional, proj_size, precision
        self.forget_bias = forget_bias
        checks.check_forget_bias(self._made, forget_bias, bias, dtype)
        for name, shape in self._made.shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states, in the order in which they are given and returned."""
        return self._made.states

    def reset_parameters(self) -> None:
        """Draw all parameters as torch's recurrent layers do, and then set what starts otherwise (docs/torch.md)."""
        with torch.no_grad():
            for parameter in self.parameters():
                draw(parameter, self.hidden_size)
            for name, vector in self._made.own_names.items():
                if (self.model, vector) in DRAW:
                    DRAW[self.model, vector](getattr(self, name))
            if self.forget_bias is not None:
                gate = self._made.gates.index("f")
                for names in self._directed():
                    getattr(self, str(names.bias_ih))[gate * self.hidden_size : (gate + 1) * self.hidden_size] = (
                        self.forget_bias
                    )

    def flatten_parameters(self) -> None:
        """Do nothing: there is no copy of the parameters to be made, as there is for cuDNN."""

    def extra_repr(self) -> str:
        """Return what the layer was made with, where it differs from the defaults."""
        said = [f"{self.model!r}", f"{self.input_size}", f"{self.hidden_size}"]
        defaults = {
            "num_layers": 1,
            "heads": 1,
            "bias": True,
            "batch_first": True,
            "dropout": 0.0,
            "bidirectional": False,
            "precision": None,
            "forget_bias": None,
        }
        said += [f"{name}={getattr(self, name)!r}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return ", ".join(said)

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        resets: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
    ) -> tuple[Any, Any]:
        """Return (output, h_n), of a cell of several states (output, (h_n, c_n, …)).

        input: [B, T, I] (without batch_first [T, B, I]), [T, I] without a batch, or a PackedSequence; output: the same with the
        channels of all directions, directions * H, last. hx and h_n: each state [num_layers * directions, B, H], float32
        (float64 of float64) whatever the input; hx may have the input's dtype too, and is zeros where None, or a tuple of None.
        resets, lengths and cu_seqlens are those of a kernel's call. Tensors on the meta device give results there.
        Raises BadInput for what does not fit.
        """
        refuse_tracing()
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, resets, lengths, cu_seqlens)
        check_tensor(input, "input")
        lengths, cu_seqlens = integers_in(lengths, "lengths"), integers_in(cu_seqlens, "cu_seqlens")
        batched = input.dim() == 3
        if not batched or input.shape[-1] != self.input_size:
            checks.check_input(input, self.input_size)
        batch_axis = 0 if self.batch_first else 1
        x = input if batched else input.unsqueeze(batch_axis)
        states: Sequence[Any] = ()
        if hx is not None:
            sequences = x.shape[batch_axis] if cu_seqlens is None else cu_seqlens.numel() - 1
            states = self._states(hx, sequences, batched)
        y, final = self._run(x, states, (resets, lengths, cu_seqlens))
        if not batched:
            y, final = y.squeeze(batch_axis), [state.squeeze(1) for state in final]
        return y, final[0] if len(final) == 1 else tuple(final)

    def _forward_packed(self, input: Any, hx: Any, resets: Any, lengths: Any, cu_seqlens: Any) -> tuple[Any, Any]:
        """Run sequences of several lengths side by side, in the order in which they are packed."""
        checks.check_packed(input, self.input_size, resets, lengths, cu_seqlens)
        data, batch_sizes, order, back = input
        x, step_counts = torch.nn.utils.rnn.pad_packed_sequence(PackedSequence(data, batch_sizes), self.batch_first)
        states = () if hx is None else self._states(hx, int(batch_sizes[0]), batched=True)
        if order is not None:
            states = [state.index_select(1, order) for state in states]
        y, final = self._run(x, states, (None, step_counts, None))
        packed = torch.nn.utils.rnn.pack_padded_sequence(y, step_counts, self.batch_first)
        if back is not None:
            final = [state.index_select(1, back) for state in final]
        output = PackedSequence(packed.data, batch_sizes, order, back)
        return output, final[0] if len(final) == 1 else tuple(final)

    def _states(self, hx: Any, sequences: int, batched: bool) -> Sequence[Any]:
        """Return the initial states, checked and with a batch axis."""
        states = checks.states_in(hx, self.states)
        if not states:
            return ()
        runs = self.num_layers * (2 if self.bidirectional else 1)
        shape = (runs, sequences, self.hidden_size) if batched else (runs, self.hidden_size)
        checks.check_states(states, self.states, shape)
        return states if batched else [state.unsqueeze(1) for state in states]

    def _run(self, x: Any, states: Sequence[Any], sequences: tuple[Any, Any, Any]) -> tuple[Any, Sequence[Any]]:
        """Run all layers; return the last one's output, and each state of all layers."""
        given_dtype = x.dtype
        x, precision, casts = self._in_precision(x)
        made = self._made
        if states:
            checks.check_state_dtypes(states, made.states, (STATES[precision], x.dtype, given_dtype))
            states = [state.to(STATES[precision]) for state in states]
        final: list[Any] = []
        for layer, recipe in enumerate(made.recipes[precision]):
            R, weight, bias, recurrent_bias, *own = self._parameters_of(layer)
            if casts:
                weight, R = weight.to(x.dtype), None if R is None else R.to(x.dtype)
                bias, recurrent_bias, *own = (_vector_beside(vector, x) for vector in (bias, recurrent_bias, *own))
            else:
                checks.check_beside(weight, made.names[layer][0].weight_ih, x)
            initial = self._states_of(states, layer) if states else (None,) * len(made.states)
            tensors = (x, R, weight, bias, recurrent_bias, *sequences, *own, *initial)
            x, *last = run(recipe, len(made.states), len(made.vectors), tensors)
            final.append(last)
            if layer + 1 < self.num_layers and self.dropout:
                x = torch.nn.functional.dropout(x, self.dropout, self.training)
        if self.num_layers == 1:
            return x, last if self.bidirectional else [state.unsqueeze(0) for state in last]
        together = torch.cat if self.bidirectional else torch.stack
        return x, [together(layers) for layers in zip(*final, strict=True)]

    def _in_precision(self, x: Any) -> tuple[Any, str, bool]:
        """Return x as the kernels take it, their precision, and whether weights are cast to it."""
        is_cast = autocasts(x) and x.dtype.is_floating_point and x.dtype is not torch.float64
        if self.precision is not None:
            dtype = STORAGE[self.precision]
            if x.dtype is not dtype and not is_cast:
                raise BadInput(f"input has dtype {x.dtype}, but the layer has precision {self.precision}; {dtype} is expected")
            return x.to(dtype), self.precision, True
        if is_cast:
            dtype = torch.get_autocast_dtype(x.device.type)
            return x.to(dtype), PRECISIONS[dtype], True
        precision = PRECISIONS.get(x.dtype)
        if precision is None or precision not in self._made.recipes:
            allowed = ", ".join(str(STORAGE[name]) for name in self._made.recipes)
            raise BadInput(f"input has dtype {x.dtype}; one of {allowed} is expected")
        return x, precision, False

    def _parameters_of(self, layer: int) -> list[Any]:
        """Return R, weight, bias and recurrent bias of a layer, None for what it has not, and its own vectors."""
        directed = [self._named(names.in_call_order) for names in self._made.names[layer]]
        if len(directed) == 1:
            return directed[0]
        pairs = enumerate(zip(*directed, strict=True))
        # Vectors of the cell have an axis of directions; of all others the rows of both lie behind each other.
        return [
            None if pair[0] is None else torch.stack(pair) if place >= _VECTORS_FROM else torch.cat(pair)
            for place, pair in pairs
        ]

    def _named(self, names: Sequence[str | None]) -> list[Any]:
        """Return the parameters of these names, from the module itself where something has been put in their place."""
        registered = self._parameters
        return [None if name is None else registered[name] if name in registered else getattr(self, name) for name in names]

    def _states_of(self, states: Sequence[Any], layer: int) -> list[Any]:
        """Return the initial states of a layer, with an axis of directions only where there are two."""
        if self.bidirectional:
            return [state[2 * layer : 2 * layer + 2] for state in states]
        return [state[layer] for state in states]

    def _directed(self) -> Iterator[Names]:
        return (names for layer in self._made.names for names in layer)


def _vector_beside(vector: Any, x: Any) -> Any:
    """Return a bias or a vector in a dtype that kernels take beside x: float32, or that of x itself."""
    return vector if vector is None or vector.dtype in (torch.float32, x.dtype) else vector.to(x.dtype)
