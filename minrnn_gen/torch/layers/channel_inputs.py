"""The inputs X.* of layers, which no layer projects: those of each layer, in the cell's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minrnn_gen.call.known_names import known_names
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.layers.architecture import Architecture
from minrnn_gen.torch.tensors import check_tensor

ByName = Mapping[str, Any]


def inputs_of_layers(
    inputs: ByName | Sequence[ByName] | None, made: Architecture, lead: Sequence[int], channels: Sequence[int]
) -> tuple[tuple[Any, ...], ...]:
    """Return the inputs X.* of each layer in the cell's order, each [*lead, *channels].

    An input with one value per step comes as [*lead]. `inputs`: a mapping by name for all layers, or a list with a mapping for
    each layer. Raises BadInput for arguments that do not fit.
    """
    layers, names = len(made.names), made.inputs
    if inputs is None and not names:
        return ((),) * layers
    shapes = {name: tuple(lead) if name in made.step_inputs else (*lead, *channels) for name in names}
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != layers:
            raise BadInput(
                f"inputs has {len(inputs)} mappings; {layers} are expected, one for each layer, or one for all of them"
            )
        of_each = (_of_layer(of_layer, f"inputs[{layer}]", shapes) for layer, of_layer in enumerate(inputs))
        return tuple(tuple(_in_all(tensor, lead, channels) for tensor in of_layer) for of_layer in of_each)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise BadInput(
            f"inputs is {kind_of(inputs)}; a mapping of {', '.join(names) or 'nothing'}, or a list of them, is expected"
        )
    return (tuple(_in_all(tensor, lead, channels) for tensor in _of_layer(inputs, "inputs", shapes)),) * layers


def _in_all(tensor: Any, lead: Sequence[int], channels: Sequence[int]) -> Any:
    """Broadcast one value per step to all channels; return any other tensor as it is."""
    if tensor.dim() > len(lead):
        return tensor
    return tensor[(..., *(None for _ in channels))].expand(*lead, *channels).contiguous()


def _of_layer(inputs: ByName | None, what: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, ...]:
    tensors = known_names(inputs, tuple(shapes), what)
    for name, shape in shapes.items():
        if name not in tensors:
            raise BadInput(f"{what} lacks '{name}'; the cell reads X.{name}, so pass it, {list(shape)}")
        check_tensor(tensors[name], f"{what}['{name}']")
        if tuple(tensors[name].shape) != shape:
            raise BadInput(f"{what}['{name}'] has shape {list(tensors[name].shape)}; {list(shape)} is expected")
    return tuple(tensors[name] for name in shapes)
