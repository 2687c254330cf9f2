"""The arrays of one call, held against the contract of the kernel: shapes, dtypes, device, strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.arrays import Array, contiguous_strides
from minrnn_gen.errors import BadInput, nearest_name
from minrnn_gen.precision import Precision

Inspect = Callable[[Any, str], Array]

# The axes of x and y in each layout: batch, time, gate, hidden (channel), input.
X_AXES = {"BTD": "btgh", "TBD": "tbgh", "BDT": "bght"}
Y_AXES = {"BTD": "bth", "TBD": "tbh", "BDT": "bht"}
INPUT_AXES = {"BTD": "bti", "TBD": "tbi", "BDT": "bit"}
AXIS_NAMES = {"b": "batch", "t": "time", "g": "gates", "h": "hidden", "i": "input"}


@dataclass(frozen=True)
class Contract:
    """What a kernel accepts: the spec's sizes and the cell's names."""

    layout: str
    precision: Precision
    hidden_size: int
    input_size: int | None
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]

    @property
    def gate_count(self) -> int:
        return len(self.gates)


@dataclass(frozen=True)
class Call:
    """The checked arrays of one call.

    `x` has the axes `x_axes`, of which the projection may still be due (`weight`). Absent arrays are None; `parameters` and
    `initial` follow the cell's order. `batch` counts sequences, `time` the steps of x. `reverse`: time runs from the last step
    of each sequence to its first.
    """

    x: Array
    x_axes: str
    batch: int
    time: int
    weight: Array | None
    bias: Array | None
    parameters: tuple[Array, ...]
    initial: tuple[Array | None, ...]
    resets: Array | None = None
    lengths: Array | None = None
    cu_seqlens: Array | None = None
    reverse: bool = False


@dataclass(frozen=True)
class Outputs:
    """What a forward writes: y, the states after every step where they are `kept` (else empty), and the final states."""

    y: Array
    kept: tuple[Array, ...]
    final: tuple[Array, ...]


@dataclass(frozen=True)
class Gradients:
    """What a backward writes: the gradients of x and of the initial states, and, where they are asked for, the `sums`
    [parts, gates + parameters, B, H], whose sum over parts and batch is the gradient of bias and parameters."""

    dx: Array
    dinitial: tuple[Array, ...]
    sums: Array | None


def check_call(
    contract: Contract,
    inspect: Inspect,
    x: Any,
    *,
    weight: Any,
    bias: Any,
    parameters: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    single_step: bool,
) -> Call:
    """Check every array of a call; raises BadInput with one sentence naming the array, what it is and what it has to be."""
    sizes = {"g": contract.gate_count, "h": contract.hidden_size, "i": contract.input_size or 0}
    axes = (INPUT_AXES if contract.input_size else X_AXES)[contract.layout]
    if single_step:
        # One step has no time axis, and then every layout is the same memory.
        axes = "bi" if contract.input_size else "bgh"
    array = inspect(x, "x")
    _check_dtype(array, (contract.precision.storage_dtype,))
    found = _check_shape(array, axes, sizes)
    batch, time = found["b"], found.get("t", 1)
    _check_contiguous_axis(array, axes, contract)

    checked_weight = None
    if contract.input_size:
        if weight is None:
            raise BadInput(f"weight is missing; input_size is {contract.input_size}, so pass weight [gates * hidden, input]")
        checked_weight = inspect(weight, "weight")
        _check_dtype(checked_weight, (contract.precision.storage_dtype,))
        _check_exact_shape(checked_weight, (contract.gate_count * contract.hidden_size, contract.input_size))
        _check_contiguous(checked_weight)
        _check_contiguous(array)
    elif weight is not None:
        raise BadInput("weight was given, but the spec has no input_size; set input_size, or pass pre-activations alone")

    vector_dtypes = tuple(dict.fromkeys((contract.precision.storage_dtype, "float32")))
    checked_bias = None
    if bias is not None:
        checked_bias = inspect(bias, "bias")
        _check_dtype(checked_bias, vector_dtypes)
        pair = (contract.gate_count, contract.hidden_size)
        if checked_bias.shape != (math.prod(pair),):
            _check_exact_shape(checked_bias, pair)
        _check_contiguous(checked_bias)

    given = _named(parameters, contract.parameters, "parameters")
    missing = [name for name in contract.parameters if name not in given]
    if missing:
        raise BadInput(f"parameters is without '{missing[0]}'; the cell needs {', '.join(contract.parameters)}, each [hidden]")
    checked_parameters = tuple(
        _vector(inspect(given[name], f"parameters['{name}']"), vector_dtypes, (contract.hidden_size,))
        for name in contract.parameters
    )

    states = _named(state, contract.states, "state")
    absent = [name for name in contract.states if name not in states]
    if states and absent:
        raise BadInput(f"state is without '{absent[0]}'; give all of {', '.join(contract.states)}, or none for zeros")
    initial = tuple(
        _vector(
            inspect(states[name], f"state['{name}']"),
            (contract.precision.arithmetic_dtype,),
            (batch, contract.hidden_size),
        )
        if name in states
        else None
        for name in contract.states
    )

    for other in (checked_weight, checked_bias, *checked_parameters, *initial):
        if other is not None and other.device != array.device:
            raise BadInput(f"{other.name} is {_place(other)}, but x is {_place(array)}; move it there")
    return Call(array, axes, batch, time, checked_weight, checked_bias, checked_parameters, initial)


@dataclass(frozen=True)
class IncomingGradient:
    """The checked gradients that a backward starts from: of y, and of the final states in the cell's order."""

    dy: Array
    dfinal: tuple[Array | None, ...]


def check_gradient(
    contract: Contract, inspect: Inspect, y: Array, dy: Any, dstate: Mapping[str, Any] | None, batch: int
) -> IncomingGradient:
    """Check the arrays of a backward against `y` of its forward; raises BadInput as `check_call` does."""
    checked = _vector(inspect(dy, "dy"), (y.dtype,), y.shape)
    states = _named(dstate, contract.states, "dstate")
    carried, shape = (contract.precision.arithmetic_dtype,), (batch, contract.hidden_size)
    dfinal = tuple(
        _vector(inspect(states[name], f"dstate['{name}']"), carried, shape) if name in states else None
        for name in contract.states
    )
    for other in (checked, *dfinal):
        if other is not None and other.device != y.device:
            raise BadInput(f"{other.name} is {_place(other)}, but y is {_place(y)}; move it there")
    return IncomingGradient(checked, dfinal)


def _named(given: Mapping[str, Any] | None, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadInput(f"{what} is a {type(given).__name__}; a mapping of {', '.join(names) or 'nothing'} is expected")
    for name in given:
        if name not in names:
            allowed = f"allowed are {', '.join(names)}" if names else f"this cell has no {what}"
            raise BadInput(f"{what} has an unknown name {name!r}; {allowed}{nearest_name(name, names)}")
    return dict(given)


def _vector(array: Array, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    _check_dtype(array, dtypes)
    _check_exact_shape(array, shape)
    _check_contiguous(array)
    return array


def _check_dtype(array: Array, allowed: tuple[str, ...]) -> None:
    if array.dtype not in allowed:
        raise BadInput(f"{array.name} has dtype {array.dtype}; {' or '.join(allowed)} is expected and nothing is cast silently")


def _check_exact_shape(array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {list(shape)} is expected")


def _check_shape(array: Array, axes: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each axis; the batch and time axes are free."""
    fixed = [f"{AXIS_NAMES[axis]}={sizes[axis]}" if axis in "ghi" else AXIS_NAMES[axis] for axis in axes]
    wanted = f"[{', '.join(fixed)}]"
    if len(array.shape) != len(axes):
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {len(axes)} axes {wanted} are expected")
    for axis, size in zip(axes, array.shape, strict=True):
        if axis in "ghi" and size != sizes[axis]:
            raise BadInput(
                f"{array.name} has shape {list(array.shape)}; {wanted} is expected, but its {AXIS_NAMES[axis]} axis is {size}"
            )
    return dict(zip(axes, array.shape, strict=True))


def _check_contiguous(array: Array) -> None:
    if not array.is_contiguous:
        raise BadInput(
            f"{array.name} has strides {list(array.strides)}; {list(contiguous_strides(array.shape))} (contiguous) is expected"
        )


def _check_contiguous_axis(array: Array, axes: str, contract: Contract) -> None:
    """The innermost axis must be contiguous; the others may have any stride (a single step may have any at all)."""
    if "t" not in axes or math.prod(array.shape) == 0:
        return
    if array.shape[-1] > 1 and array.strides[-1] != 1:
        raise BadInput(
            f"{array.name} has stride {array.strides[-1]} along its last axis ({AXIS_NAMES[axes[-1]]}); "
            f"layout {contract.layout} needs stride 1 there"
        )


def _place(array: Array) -> str:
    return "in host memory" if array.device is None else f"on CUDA device {array.device}"
