"""The inputs X.* of layers, which no layer projects: those of each layer, in the cell's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minrnn_gen.call.validate import known_names
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.torch.tensors import check_tensor

ByName = Mapping[str, Any]


def inputs_of_layers(
    inputs: ByName | Sequence[ByName] | None, names: Sequence[str], layers: int, shape: Sequence[int]
) -> tuple[tuple[Any, ...], ...]:
    """Return the inputs X.* of `names` of each layer, each of `shape`.

    `inputs`: those of every layer by name, or a list with those of each layer. Raises BadInput for arguments that do not fit.
    """
    if isinstance(inputs, list | tuple):
        if len(inputs) != layers:
            raise BadInput(
                f"inputs has {len(inputs)} mappings; {layers} are expected, one for each layer, or one for all of them"
            )
        return tuple(_of_layer(of_layer, f"inputs[{layer}]", names, shape) for layer, of_layer in enumerate(inputs))
    if inputs is not None and not isinstance(inputs, Mapping):
        raise BadInput(
            f"inputs is {kind_of(inputs)}; a mapping of {', '.join(names) or 'nothing'}, or a list of them, is expected"
        )
    return (_of_layer(inputs, "inputs", names, shape),) * layers


def _of_layer(inputs: ByName | None, what: str, names: Sequence[str], shape: Sequence[int]) -> tuple[Any, ...]:
    tensors = known_names(inputs, tuple(names), what)
    for name in names:
        if name not in tensors:
            raise BadInput(f"{what} is without '{name}'; the cell reads X.{name}, so pass it, {list(shape)}")
        check_tensor(tensors[name], f"{what}['{name}']")
        if tuple(tensors[name].shape) != tuple(shape):
            raise BadInput(f"{what}['{name}'] has shape {list(tensors[name].shape)}; {list(shape)} is expected")
    return tuple(tensors[name] for name in names)
