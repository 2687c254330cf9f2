"""`minrnn_gen.torch.RNN`: layers of any cell, as torch's own recurrent layers are called."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Never, Unpack, cast

import torch

from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.layers.architecture import architecture_of
from minrnn_gen.layers.kernels import recipe_in_layout
from minrnn_gen.precision import named_precision
from minrnn_gen.torch.layers import checks
from minrnn_gen.torch.layers.cache import LayerCache
from minrnn_gen.torch.layers.decode import DecodingStack
from minrnn_gen.torch.layers.initial import begin, draw
from minrnn_gen.torch.layers.options import KEYWORDS, SpecOptions, shows_options
from minrnn_gen.torch.layers.set_later import Checks, Settled, check_flag, check_probability

# Keywords of a constructor that a subclass may well have as attributes of its own; no result depends on them.
_FREE = {"device", "dtype", "batch", "time"}


class RNN(DecodingStack, Settled, torch.nn.Module):
    """`num_layers` recurrent layers of one cell, in one direction or both, called like torch.nn.LSTM.

    model: a built-in cell, the path of a cell file, or a cell file's mapping. Parameters are torch's: `weight_ih_l{k}` [G * H,
    I], `weight_hh_l{k}` [Gr * H, H / heads], `bias_ih_l{k}` [G * H], `bias_hh_l{k}` [Gr * H], those of the reverse direction
    with the suffix `_reverse`, and the cell's own vectors `{name}_l{k}` [H]; gates are in the cell's order, which for lstm, gru
    and elman is torch's, so that a state_dict of theirs fits. Cells without a recurrent product have no *_hh.

    Cells with n values per channel take `state_size`, which is n, and `groups`. Vectors listed with n are [H, n]. The inputs
    S.* are projections of the layer's input by `weight_shared_l{k}` [S * groups * n, I] and `bias_shared_l{k}`.

    precision: fp64, fp32, fp16 or bf16; by default the input's, or autocast's. If set, the parameters may have another dtype
    and weights are cast. recurrent_bias: by default as `bias` where there is a recurrent product. forget_bias: what the
    input-side biases of gate f start with; by default like all others. options: further keys of the spec (`functions`,
    `fp32_product`, `scan_arithmetic`, `recurrent_gradient_clip`, `state_size`, `groups`, `gpu`, and `batch` and `time` as
    hints). `batch_first`, `dropout` and `forget_bias` may be set later; setting any other of these is refused. Raises BadInput
    where the spec is wrong. docs/torch.md has the differences to torch.nn.
    """

    _checks: ClassVar[Checks] = {
        "batch_first": check_flag,
        "dropout": check_probability,
        "forget_bias": lambda _value, _name: None,
    }
    _fixed: ClassVar[frozenset[str]] = frozenset(
        {"model", "input_size", "hidden_size", "num_layers", *KEYWORDS} - {*_checks} - _FREE
    )

    @shows_options
    def __init__(
        self,
        model: str | os.PathLike[str] | Mapping[str, Any],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *more: Never,
        heads: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        precision: str | torch.dtype | None = None,
        recurrent_bias: bool | None = None,
        forget_bias: float | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Unpack[SpecOptions],
    ) -> None:
        checks.refuse_positional(type(self), more)
        super().__init__()
        precision = cast("str | None", named_precision(precision))
        flags = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
        flags |= {} if recurrent_bias is None else {"recurrent_bias": recurrent_bias}
        checks.check_layer_arguments(
            type(self), model, input_size, num_layers, dropout, proj_size, device, dtype, flags, options
        )
        if dropout and num_layers == 1:
            warnings.warn(f"dropout={dropout} comes between layers, of which there is one: it does nothing", stacklevel=2)
        asked = {
            **{name: value for name, value in options.items() if name != "fp32_product" or value is not None},
            "model": model if isinstance(model, Mapping) else os.fspath(model),
            "hidden_size": hidden_size,
            "heads": heads,
            "layout": "BTD" if batch_first else "TBD",
            "direction": "bidirectional" if bidirectional else "forward",
        }
        made = architecture_of(
            asked,
            type(self).__name__,
            input_size=input_size,
            num_layers=num_layers,
            directions=2 if bidirectional else 1,
            bias=bias,
            recurrent_bias=recurrent_bias,
            precision=precision,
        )
        self.model, self.input_size, self.hidden_size, self.num_layers = made.name, input_size, hidden_size, num_layers
        self.heads, self.bias, self.batch_first, self.dropout = heads, bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size, self.precision = bidirectional, proj_size, precision
        self.forget_bias, self.state_size, self.groups = forget_bias, options.get("state_size"), options.get("groups")
        self.projection_size = options.get("projection_size")
        checks.check_forget_bias(made, forget_bias, bias, dtype)
        for name, shape in made.shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self._made = made
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters as torch's recurrent layers do, then set the exceptions (docs/torch.md)."""
        with torch.no_grad():
            for parameter in self.parameters():
                draw(parameter, self.hidden_size)
            for name, start in self._made.vector_starts.items():
                begin(getattr(self, name), start)
            for name, rows, factor in self._made.scaled_inputs:
                getattr(self, name)[rows] *= factor
            for name, gate, gate_start in self._made.gate_starts(self.forget_bias):
                biases = getattr(self, name)[gate * self.hidden_size : (gate + 1) * self.hidden_size]
                if callable(gate_start):
                    begin(biases, gate_start)
                else:
                    biases.fill_(gate_start)

    def _settle(self, name: str) -> None:
        made = self._made
        if name == "forget_bias":
            checks.check_forget_bias(made, self.forget_bias, self.bias, next(self.parameters()).dtype)
        elif name == "batch_first":
            layout = "BTD" if self.batch_first else "TBD"
            self._made = replace(
                made,
                recipes={
                    precision: tuple(recipe_in_layout(recipe, layout) for recipe in recipes)
                    for precision, recipes in made.recipes.items()
                },
                tf32_recipes=tuple(recipe_in_layout(recipe, layout) for recipe in made.tf32_recipes),
            )

    def flatten_parameters(self) -> None:
        """Do nothing: unlike cuDNN, the kernels need no flat copy of the parameters."""

    def extra_repr(self) -> str:
        """Return the arguments that the layer was made with, where it differs from the defaults."""
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
            "state_size": None,
            "groups": None,
            "projection_size": None,
        }
        said += [f"{name}={getattr(self, name)!r}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return ", ".join(said)

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        resets: Any = None,
        reset_states: Any = None,
        holds: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        sequence_group: Any = None,
        head_group: Any = None,
        inputs: Any = None,
        cache: LayerCache | None = None,
        slots: Any = None,
        into_slots: Any = None,
        has_state: Any = None,
        pad_slot: int = PAD_SLOT,
    ) -> tuple[Any, Any]:
        """Return (output, h_n), or (output, (h_n, c_n, …)) for a cell of several states.

        input: [B, T, I] (without batch_first [T, B, I]), [T, I] without a batch, or a PackedSequence; output: the same with the
        channels of all directions, directions * H, last. hx and h_n: each state [num_layers * directions, B, H], with n values
        per channel [num_layers * directions, B, H, n], float32 (float64 of float64) whatever the input; hx may have the input's
        dtype too, and is zeros where None, or a tuple of None. resets: bool, or numbers 0 and 1, of the shape of input without
        I; reset_states: from which all states begin there instead of zeros, like hx, or each [num_layers * directions, H] for
        all sequences; holds: like resets, steps that leave all states as they are; lengths and cu_seqlens are those of a
        kernel's call. inputs: of a cell with inputs X.*, each by name in the shape of input with hidden_size instead of I (in
        both directions [B, T, 2, hidden_size]), the same for all layers, or a list with a mapping for each layer. Tensors on
        the meta device give results there. sequence_group: a process group whose ranks split time; head_group: a process group
        whose ranks split heads (docs/how-to/several-gpus.md). cache, slots, into_slots, pad_slot: as of `step`, instead of hx;
        the cache is returned. Where has_state, bool [B], is False, a sequence begins with zeros. Such a call has no gradients
        and no dropout. Raises BadInput for arguments that do not fit.
        """
        if cache is not None or slots is not None or into_slots is not None or has_state is not None:
            rows, others = (slots, into_slots, has_state, pad_slot), {"hx": hx, "sequence_group": sequence_group}
            others["head_group"] = head_group
            marked, ends = (resets, reset_states, holds), (lengths, cu_seqlens)
            return self._call_on_cache(input, marked, ends, inputs, cache, rows, others)
        output, states = self._call(
            input, hx, resets, lengths, cu_seqlens, sequence_group, head_group, inputs, reset_states, holds
        )
        return output, states[0] if len(states) == 1 else states
