"""Checks of a layer's definition and of its arguments; each refusal names the argument and both shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from minrnn_gen.errors import BadInput, nearest_name, shown
from minrnn_gen.layers.architecture import Architecture
from minrnn_gen.precision import why_unsupported
from minrnn_gen.torch.dtypes import PRECISIONS
from minrnn_gen.torch.layers.options import OPTIONS, keywords_of
from minrnn_gen.torch.tensors import autocasts, check_tensor, is_exporting, marks_in

# Far more than anybody trains; each layer needs kernels and named parameters.
LAYERS_LIMIT = 4096


def check_layer_arguments(
    layer: type,
    model: Any,
    input_size: Any,
    num_layers: Any,
    dropout: Any,
    proj_size: Any,
    device: Any,
    dtype: Any,
    flags: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Refuse invalid arguments that are not part of a spec; `flags`: the boolean arguments, `options`: further keywords."""
    for name in options:
        if name not in OPTIONS:
            known = keywords_of(layer)
            raise BadInput(f"{name} is no argument of a layer{nearest_name(name, known)}; allowed are {', '.join(known)}")
    if not isinstance(model, str | os.PathLike | Mapping):
        raise BadInput(f"model is {shown(model)}; a cell's name, the path of a cell file or a cell file's mapping is expected")
    if input_size is None:
        raise BadInput("input_size is None; an integer from 1 on is expected")
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or not 1 <= num_layers <= LAYERS_LIMIT:
        raise BadInput(f"num_layers is {shown(num_layers)}; an integer from 1 on, at most {LAYERS_LIMIT}, is expected")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise BadInput(f"dropout is {shown(dropout)}; a probability, 0 to 1, is expected")
    if isinstance(proj_size, bool) or not isinstance(proj_size, int) or proj_size:
        raise BadInput(
            f"proj_size is {shown(proj_size)}; only 0 is supported: give projection_size to a cell with projected units, "
            f"such as lstm_projected, or take minrnn_gen.torch.nn.LSTM"
        )
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise BadInput(f"{name} is {shown(flag)}; True or False is expected")
    check_made(device, dtype)


def refuse_positional(layer: type, more: Sequence[Any]) -> None:
    """Refuse arguments that torch.nn takes by position after `num_layers`."""
    if more:
        raise BadInput(
            f"{layer.__name__} got positional arguments after num_layers, where they are given by name, such as "
            f"bidirectional=True; the classes of minrnn_gen.torch.nn take them as those of torch.nn"
        )


def check_made(device: Any, dtype: Any) -> None:
    """Refuse a dtype without kernels, and anything that names no device; torch checks whether the device exists."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in PRECISIONS):
        why, allowed = why_unsupported(dtype), ", ".join(map(str, PRECISIONS))
        raise BadInput(f"dtype is {shown(dtype)}; one of {allowed} is expected, or None{why}")
    if device is None or isinstance(device, torch.device):
        return
    if isinstance(device, str):
        try:
            torch.device(device)
            return
        except RuntimeError:
            pass
    elif isinstance(device, int) and not isinstance(device, bool):
        return
    raise BadInput(f"device is {shown(device)}; a torch device, such as cpu or cuda:0, is expected, or None")


def check_forget_bias(made: Architecture, forget_bias: Any, bias: bool, dtype: Any) -> None:
    """Refuse a forget bias for a layer without one, and a value that the parameters' dtype cannot hold."""
    if forget_bias is None:
        return
    largest = torch.finfo(dtype or torch.get_default_dtype()).max
    is_number = isinstance(forget_bias, int | float) and not isinstance(forget_bias, bool)
    if not is_number or not abs(forget_bias) <= largest:  # nor NaN
        raise BadInput(f"forget_bias is {shown(forget_bias)}; a number of at most {largest:.3g}, or None, is expected")
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
    """Refuse a packed input of other features, with lengths in addition to its own, or while a program is exported."""
    if is_exporting():
        raise BadInput(
            "a PackedSequence was given to a layer that torch.export records, and its number of steps follows from values, "
            "which are not known then; give a layer of minrnn_gen.torch the padded input and its lengths"
        )
    data = packed.data
    check_tensor(data, "input.data")
    if data.dim() != 2 or data.shape[-1] != input_size:
        raise BadInput(f"input.data has shape {list(data.shape)}; [steps, {input_size}] is expected, the latter is input_size")
    if any(array is not None for array in sequences):
        raise BadInput("a PackedSequence has lengths of its own; give it without resets, lengths and cu_seqlens")


def states_in(hx: Any, names: tuple[str, ...]) -> Sequence[Any]:
    """Return the initial states of `hx` in the order of `names`, an empty sequence where all are None."""
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    if len(states) != len(names):
        wanted = f"a tuple of {len(names)}, {', '.join(names)}," if len(names) > 1 else "a tensor"
        raise BadInput(f"hx has {len(states)} state{'s' * (len(states) != 1)}; {wanted} is expected")
    absent = [name for name, state in zip(names, states, strict=True) if state is None]
    if absent and len(absent) < len(names):
        raise BadInput(f"hx of state {absent[0]} is None; give all of {', '.join(names)}, or None for zeros")
    return () if absent else states


def check_states(states: Sequence[Any], shapes: Mapping[str, tuple[int, ...]], batched: bool) -> None:
    """Refuse initial states of other shapes than these, by name."""
    for (name, shape), state in zip(shapes.items(), states, strict=True):
        check_tensor(state, f"hx of state {name}")
        if tuple(state.shape) != shape:
            axes = ["num_layers * directions", *(["batch"] if batched else []), "hidden_size", "state_size"][: len(shape)]
            raise BadInput(f"hx of state {name} has shape {list(state.shape)}; {list(shape)} is expected, [{', '.join(axes)}]")


def check_state_dtypes(states: Sequence[Any], names: tuple[str, ...], allowed: Sequence[torch.dtype], what: str = "hx") -> None:
    """Refuse states, of `hx` or of another argument, in a dtype that is not `allowed`."""
    for name, state in zip(names, states, strict=True):
        if state.dtype not in allowed:
            expected = " or ".join(map(str, dict.fromkeys(allowed)))
            raise BadInput(f"{what} of state {name} has dtype {state.dtype}; {expected} is expected")


def check_beside(parameter: Any, name: str, x: Any) -> None:
    """Refuse an input on another device than the parameters, or of another dtype."""
    if parameter.dtype is not x.dtype:
        advice = dtype_advice(parameter, x, "input", ", or make the layer with a precision")
        why = why_unsupported(x.dtype) or why_unsupported(parameter.dtype)
        raise BadInput(f"input has dtype {x.dtype}, but parameter {name} has {parameter.dtype}; {advice}{why}")
    check_device_beside(parameter, name, x, "input")


def dtype_advice(parameter: Any, x: Any, argument: str, other: str = "") -> str:
    """Say what to do with an argument of another dtype than a parameter; `other` is a further remedy."""
    if autocasts(x):
        return f"autocast does not cast float64: cast {argument if x.dtype is torch.float64 else 'the parameters'} to float32"
    helps = torch.float64 not in (parameter.dtype, x.dtype)
    return f"cast one of them{', use autocast' if helps and other else ' or use autocast' if helps else ''}{other}"


def check_weight(weight: Any, name: str, shape: tuple[int, ...], x: Any, casts: bool) -> None:
    """Refuse a weight of another shape, on another device than x, or of another dtype unless the layer `casts`."""
    if tuple(weight.shape) != shape:
        raise BadInput(f"parameter {name} has shape {list(weight.shape)}; {list(shape)} is expected")
    if casts:
        check_device_beside(weight, name, x, "input")
    else:
        check_beside(weight, name, x)


def check_device_beside(parameter: Any, name: str, x: Any, argument: str) -> None:
    """Refuse an argument on another device than the parameters."""
    if parameter.device != x.device:
        raise BadInput(f"{argument} is on {x.device}, but parameter {name} is on {parameter.device}; move one of them")


def marks_beside(input: Any, marks: Any, name: str, batch_first: bool) -> Any:
    """Return resets or holds, of the shape of an input without its features, as [batch, time]; None stays None."""
    if marks is None:
        return None
    check_tensor(marks, name)
    marks = marks_in(marks, name)
    wanted = input.shape[:-1]
    if marks.shape != wanted:
        raise BadInput(
            f"{name} has shape {list(marks.shape)}; {list(wanted)} is expected, the shape of input without its features"
        )
    if marks.dim() == 1:
        return marks.unsqueeze(0)
    return marks if batch_first else marks.t()
