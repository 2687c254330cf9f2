"""Layers of exported kernels as operators of torch and of ONNX Runtime: schemas, and the files of libraries that have them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minrnn_gen import __version__
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.codegen.header import comment
from minrnn_gen.codegen.render import environment
from minrnn_gen.export.folder import written
from minrnn_gen.export.source import AXIS_WORDS

SCALAR_TYPES = {"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16"}
"""The dtypes of kernels by their names in torch's headers."""


# ONNX's numbers of the same dtypes.
_ONNX_TYPES = {"Float": 1, "Long": 7, "Bool": 9, "Half": 10, "Double": 11, "BFloat16": 16}


class OperatorInput(NamedTuple):
    """A tensor that an operator takes: its name, its array in a call of NAME.h, and its checks.

    `dtype` is a scalar type of torch's headers, `elements` the number of elements as an expression in C++; `layer` is None for
    arrays that all layers read.
    """

    name: str
    array: str
    dtype: str
    elements: str
    layer: int | None = None


class OperatorLayer(NamedTuple):
    """A layer of an operator: the name of its kernel in C, its interface, and its calls' arrays other than x."""

    kernel: str
    interface: Interface
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class ExportedOperator:
    """Layers on top of each other as an operator that takes and returns tensors alone.

    `sequences` names the call's arrays among resets, lengths and cu_seqlens. States have an axis of all layers where
    `is_stack`; with `all_states` the states after every step are results too, after y and the final states.
    """

    name: str
    layers: tuple[OperatorLayer, ...]
    sequences: tuple[str, ...]
    has_initial: bool
    is_stack: bool
    all_states: bool = False

    @property
    def interface(self) -> Interface:
        """The first layer's interface; layers differ only in input size."""
        return self.layers[0].interface

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        """The tensors it takes, in their order."""
        return (
            OperatorInput("x", "x", self.storage, ""),
            *(_SEQUENCES[name] for name in self.sequences),
            *(self._beside(place, array) for place, layer in enumerate(self.layers) for array in layer.arrays),
            *(self._initial(state) for state in (self.interface.states if self.has_initial else ())),
        )

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the tensors it returns."""
        states = self.interface.states
        final = tuple(f"final_{state}" for state in states)
        return ("y", *final, *(f"states_{state}" for state in (states if self.all_states else ())))

    @property
    def schema(self) -> str:
        """Its schema, without a namespace."""
        return schema_of(self.name, [tensor.name for tensor in self.inputs], len(self.results))

    @property
    def storage(self) -> str:
        """The dtype of x, R, weight, inputs S.* and y."""
        return SCALAR_TYPES[self.interface.precision.storage_dtype]

    @property
    def real(self) -> str:
        """The dtype of states and of all other parameters."""
        return SCALAR_TYPES[self.interface.precision.arithmetic_dtype]

    @property
    def hidden(self) -> int:
        """The channels of a state."""
        return self.interface.hidden_size

    @property
    def runs(self) -> int:
        """Directions of a layer."""
        return len(self.interface.runs_reversed)

    @property
    def states_axis(self) -> int:
        """The number of states of one kind in a sequence."""
        return len(self.layers) * self.runs

    @property
    def inner_outputs(self) -> tuple[str, ...]:
        """The outputs of all layers but the last."""
        return tuple(f"y_{layer}" for layer in range(len(self.layers) - 1))

    def output_of(self, layer: int) -> str:
        """Return the name of a layer's output."""
        return (*self.inner_outputs, "y")[layer]

    def dtype_of(self, result: str) -> str:
        """Return the dtype of a result or of a layer's output."""
        return self.real if result.startswith(("final_", "states_")) else self.storage

    def sizes_of(self, result: str) -> tuple[str, ...]:
        """Return the shape of a result or of a layer's output, as expressions of `rows`, `sequences` and `time`."""
        interface = self.interface
        kind, _, state = result.partition("_")
        if kind == "final":
            layers = (str(self.states_axis),) if self.is_stack or self.runs > 1 else ()
            values = (str(interface.state_size),) if state in interface.vector_states else ()
            return (*layers, "sequences", str(self.hidden), *values)
        sizes = {"b": "rows", "t": "time", "h": str(self.runs * self.hidden), "n": str(interface.state_size)}
        return tuple(sizes[axis] for axis in (interface.states_axes(state) if kind == "states" else Y_AXES[interface.layout]))

    def state_elements(self, state: str) -> int:
        """Return how many elements a sequence's state of one layer has."""
        values = self.interface.state_size if state in self.interface.vector_states else 1
        return self.runs * self.hidden * values

    @property
    def onnx_inputs(self) -> tuple[int, ...]:
        """The types of its inputs in ONNX."""
        return tuple(_ONNX_TYPES[tensor.dtype] for tensor in self.inputs)

    @property
    def onnx_outputs(self) -> tuple[int, ...]:
        """The types of its results in ONNX."""
        return tuple(_ONNX_TYPES[self.dtype_of(result)] for result in self.results)

    @property
    def boundaries(self) -> int | None:
        """The index of cu_seqlens among the inputs, None without it."""
        return [tensor.name for tensor in self.inputs].index("cu_seqlens") if "cu_seqlens" in self.sequences else None

    @property
    def x_axes(self) -> tuple[tuple[str, int | None], ...]:
        """The axes of x by their names in strides, each with its size where that is fixed."""
        interface = self.interface
        sizes = dict(zip(interface.x_axes, interface.shape(interface.x_axes, -1, -1), strict=True))
        return tuple((AXIS_WORDS[axis], None if axis in "bt" else sizes[axis]) for axis in interface.x_axes)

    def names_of(self, layer: int) -> list[tuple[str, str]]:
        """Return the arrays of a layer's call other than x and states, and the tensors that they are."""
        return [(tensor.array, tensor.name) for tensor in self.inputs if tensor.layer == layer or tensor.array in _SEQUENCES]

    def _initial(self, state: str) -> OperatorInput:
        name = f"initial_{state}"
        return OperatorInput(name, name, self.real, f"{len(self.layers) * self.state_elements(state)} * sequences")

    def _beside(self, layer: int, array: str) -> OperatorInput:
        interface = self.layers[layer].interface
        counts = {
            "R": math.prod(interface.R_shape),
            "weight": interface.weight_rows * (interface.input_size or 0),
            "bias": interface.weight_rows,
            "recurrent_bias": math.prod(interface.recurrent_bias_shape),
        }
        kind, _, name = array.partition("_")
        if kind == "shared":
            elements = f"rows * time * {math.prod((*interface.directions, interface.groups, interface.state_size))}"
            return OperatorInput(f"{array}_{layer}", array, self.storage, elements, layer)
        if kind == "input":
            elements = f"rows * time * {math.prod((*interface.directions, interface.hidden_size))}"
            return OperatorInput(f"{array}_{layer}", array, self.storage, elements, layer)
        count = counts[array] if array in counts else math.prod(interface.shape_of_parameter(name))
        dtype = self.storage if array in {"R", "weight"} else self.real
        return OperatorInput(f"{array}_{layer}", array, dtype, str(count), layer)


_SEQUENCES = {
    "resets": OperatorInput("resets", "resets", "Bool", "rows * time"),
    "lengths": OperatorInput("lengths", "lengths", "Long", "sequences"),
    "cu_seqlens": OperatorInput("cu_seqlens", "cu_seqlens", "Long", "sequences + 1"),
}


def schema_of(name: str, inputs: Sequence[str], results: int) -> str:
    """Return the schema of an operator of tensors alone."""
    return f"{name}({', '.join(f'Tensor {tensor}' for tensor in inputs)}) -> ({', '.join(['Tensor'] * results)})"


def write_operators(folder: str | os.PathLike[str], name: str, operators: Sequence[ExportedOperator]) -> tuple[Path, ...]:
    """Write NAME.cpp, NAME_onnx.c and a build file for their libraries; the operators' kernels lie in folders next to them."""
    kernels = {layer.kernel: layer.interface for operator in operators for layer in operator.layers}
    header = (f"Layers of minrnn_gen as operators of torch, exported by minrnn-gen {__version__}.",)
    files = {
        f"{name}.cpp": _rendered("operators.cpp.j2", name, header, operators=operators, kernels=tuple(kernels)),
        f"{name}_onnx.c": _rendered("operators_onnx.c.j2", name, header, operators=operators, kernels=tuple(kernels)),
        "CMakeLists.txt": _rendered("operators.CMakeLists.txt.j2", name, header, kernels=tuple(kernels)),
    }
    return written(Path(folder), files)


def _rendered(template: str, name: str, header: tuple[str, ...], **context: object) -> str:
    return environment().get_template(f"export/{template}").render(library=name, header=tuple(map(comment, header)), **context)
