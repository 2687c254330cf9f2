"""What a layer is made of and called with, held against what it is; each refusal names the argument and both shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minrnn_gen.errors import BadInput, nearest_name, shown
from minrnn_gen.torch.architecture import Architecture

# The keys of a spec for which a layer has no arguments of its own.
OPTIONS = ("functions", "fp32_product", "scan_arithmetic", "recurrent_gradient_clip", "gpu", "batch", "time")


def check_layer_arguments(num_layers: Any, dropout: Any, proj_size: Any, options: Mapping[str, Any]) -> None:
    """Refuse what no spec says."""
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or num_layers < 1:
        raise BadInput(f"num_layers is {shown(num_layers)}; an integer from 1 on is expected")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadInput(f"dropout is {shown(dropout)}; a probability, 0 to 1, is expected")
    if proj_size:
        raise BadInput(
            f"proj_size is {shown(proj_size)}; only 0 is supported, since R multiplies the output of hidden_size itself; put a "
            f"torch.nn.Linear behind the layer"
        )
    for name in options:
        if name not in OPTIONS:
            raise BadInput(
                f"{name} is no argument of a layer{nearest_name(name, OPTIONS)}; further ones are {', '.join(OPTIONS)}"
            )


def check_forget_bias(made: Architecture, forget_bias: Any, bias: bool) -> None:
    """Refuse a start for what is not there."""
    if forget_bias is None:
        return
    if isinstance(forget_bias, bool) or not isinstance(forget_bias, int | float):
        raise BadInput(f"forget_bias is {shown(forget_bias)}; a number or None is expected")
    if "f" not in made.gates:
        raise BadInput(f"forget_bias was given, but {made.name} has gates {', '.join(made.gates)} and no f; leave it out")
    if not bias:
        raise BadInput("forget_bias was given, but bias is False; leave one of them out")


def check_input(input: Any, input_size: int) -> None:
    """Refuse an input of other axes or features."""
    if input.dim() not in (2, 3):
        raise BadInput(f"input has shape {list(input.shape)}; 3 axes are expected, or 2 without a batch")
    if input.shape[-1] != input_size:
        wanted = [*input.shape[:-1], input_size]
        raise BadInput(f"input has shape {list(input.shape)}, but input_size is {input_size}; {wanted} is expected")


def check_packed(packed: Any, input_size: int, *sequences: Any) -> None:
    """Refuse a packed input of other features, or with lengths beside its own."""
    data = packed.data
    if data.dim() != 2 or data.shape[-1] != input_size:
        raise BadInput(f"input.data has shape {list(data.shape)}; [steps, {input_size}] is expected, the latter is input_size")
    if any(array is not None for array in sequences):
        raise BadInput("a PackedSequence has lengths of its own; give it without resets, lengths and cu_seqlens")


def check_states(states: Sequence[Any], names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Refuse initial states of other number or shape."""
    if len(states) != len(names):
        wanted = f"a tuple of {len(names)}, {', '.join(names)}," if len(names) > 1 else "a tensor"
        raise BadInput(f"hx has {len(states)} states; {wanted} is expected")
    for name, state in zip(names, states, strict=True):
        if tuple(state.shape) != shape:
            axes = ["num_layers * directions", *(["batch"] if len(shape) == 3 else []), "hidden_size"]
            raise BadInput(f"hx of state {name} has shape {list(state.shape)}; {list(shape)} is expected, [{', '.join(axes)}]")


def check_beside(parameter: Any, name: str, x: Any) -> None:
    """Refuse an input that is elsewhere than the parameters, or of another dtype."""
    if parameter.dtype is not x.dtype:
        raise BadInput(
            f"input has dtype {x.dtype}, but parameter {name} has {parameter.dtype}; cast one of them, use autocast, or make "
            f"the layer with a precision"
        )
    if parameter.device != x.device:
        raise BadInput(f"input is on {x.device}, but parameter {name} is on {parameter.device}; move one of them")
