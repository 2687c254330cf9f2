"""The arrays of one call, held against the contract of the kernel: shapes, dtypes, device, strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.interface import Contract
from minrnn_gen.call.key import Reading
from minrnn_gen.call.sequences import ReadBack, Sequences, check_sequences
from minrnn_gen.call.validate import (
    check_axes,
    check_contiguous,
    check_dtype,
    check_exact_shape,
    check_innermost_axis,
    check_place,
    check_plain,
)
from minrnn_gen.errors import BadInput, nearest_name

Inspect = Callable[[Any, str], Array]


class Given(NamedTuple):
    """What a caller gave, not checked yet; None where nothing was given."""

    x: Any
    R: Any = None
    weight: Any = None
    bias: Any = None
    recurrent_bias: Any = None
    parameters: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    resets: Any = None
    lengths: Any = None
    cu_seqlens: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """The checked arrays of one call.

    `x` has the axes `x_axes`, of which the projection may still be due (`weight`); `rows` and `time` are the sizes of its batch
    and time axes. Absent arrays are None; `parameters` and `initial` follow the cell's order. `reverse`, of a call of one
    direction: time runs from the last step of each sequence to its first. `reading`: how these arrays were read, which then
    have the numbers that they have there. A dense cell, and no other, has `R`, and a `recurrent_bias` where one was given.
    """

    x: Array
    x_axes: str
    rows: int
    time: int
    weight: Array | None
    bias: Array | None
    parameters: tuple[Array, ...]
    initial: tuple[Array | None, ...]
    sequences: Sequences
    reverse: bool = False
    reading: Reading | None = None
    R: Array | None = None
    recurrent_bias: Array | None = None

    @property
    def batch(self) -> int:
        """How many sequences there are, which states have one row each for."""
        return self.sequences.count


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward writes: y, the states after every step where they are `kept` (else empty), and the final states."""

    y: Array
    kept: tuple[Array, ...]
    final: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class IncomingGradient:
    """The gradients that a backward starts from: of y, and of the final states in the cell's order, None for zeros.

    `reading`: how they and the arrays of the forward were read.
    """

    dy: Array
    dfinal: tuple[Array | None, ...]
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward of one direction writes: the gradients of x and of the initial states, and, where asked for, `sums`.

    The sum of `sums` [parts, gates + recurrent gates + parameters, batch, H] over parts and batch is the gradient of bias,
    recurrent bias and parameters.
    """

    dx: Array
    dinitial: tuple[Array, ...]
    sums: Array | None


def check_call(contract: Contract, inspect: Inspect, read_back: ReadBack, given: Given, *, single_step: bool = False) -> Call:
    """Check every array of a call; raises BadInput with one sentence naming the array, what it is and what it has to be.

    A single step has no time axis and no sequences.
    """
    axes = contract.x_axes
    if single_step:
        # Without its time axis every layout is the same memory.
        axes = "bi" if contract.input_size else "bgh"
    x = inspect(given.x, "x")
    check_dtype(x, (contract.precision.storage_dtype,))
    sizes = dict(zip("dghi", contract.shape("dghi", 0, 0), strict=True))
    found = check_axes(x, axes, sizes)
    rows, time = found["b"], found.get("t", 1)
    if not single_step:
        check_innermost_axis(x, axes, contract.layout)
    if single_step:
        sequences = Sequences(rows)
    else:
        sequences = check_sequences(
            inspect,
            read_back,
            x,
            rows,
            time,
            contract.layout,
            resets=given.resets,
            lengths=given.lengths,
            cu_seqlens=given.cu_seqlens,
        )
    call = Call(
        x=x,
        x_axes=axes,
        rows=rows,
        time=time,
        weight=_weight(contract, inspect, x, given.weight),
        bias=_bias(contract, inspect, given.bias),
        parameters=_parameters(contract, inspect, given.parameters),
        initial=_states(contract, inspect, given.state, sequences.count, "state", all_or_none=True),
        sequences=sequences,
        R=_recurrent_matrix(contract, inspect, given.R),
        recurrent_bias=_recurrent_bias(contract, inspect, given.recurrent_bias),
    )
    for other in (call.R, call.weight, call.bias, call.recurrent_bias, *call.parameters, *call.initial):
        if other is not None:
            check_place(other, x)
    return call


def check_gradient(
    contract: Contract, inspect: Inspect, y: Array, dy: Any, dstate: Mapping[str, Any] | None, batch: int
) -> IncomingGradient:
    """Check the arrays of a backward against `y` of its forward; raises BadInput as `check_call` does."""
    checked = check_plain(inspect(dy, "dy"), (y.dtype,), y.shape)
    dfinal = _states(contract, inspect, dstate, batch, "dstate")
    for other in (checked, *dfinal):
        if other is not None:
            check_place(other, replace(y, name="y"))
    return IncomingGradient(checked, dfinal)


def _weight(contract: Contract, inspect: Inspect, x: Array, weight: Any) -> Array | None:
    if not contract.input_size:
        if weight is not None:
            raise BadInput("weight was given, but the spec has no input_size; set input_size, or pass pre-activations alone")
        return None
    if weight is None:
        raise BadInput(f"weight is missing; input_size is {contract.input_size}, so pass weight [gates * hidden, input]")
    storage = (contract.precision.storage_dtype,)
    checked = check_plain(inspect(weight, "weight"), storage, (contract.weight_rows, contract.input_size))
    check_contiguous(x)
    return checked


def _vector_dtypes(contract: Contract) -> tuple[str, ...]:
    return tuple(dict.fromkeys((contract.precision.storage_dtype, "float32")))


def _bias(contract: Contract, inspect: Inspect, bias: Any) -> Array | None:
    if bias is None:
        return None
    checked = inspect(bias, "bias")
    check_dtype(checked, _vector_dtypes(contract))
    if checked.shape != (contract.weight_rows,):
        check_exact_shape(checked, contract.shape(contract.gate_axes, 0, 0))
    check_contiguous(checked)
    return checked


def _recurrent_matrix(contract: Contract, inspect: Inspect, R: Any) -> Array | None:
    if not contract.recurrent_gates:
        _refuse(R, "R")
        return None
    if R is None:
        axes = ", ".join((*("directions" for _ in contract.directions), "gates", "heads", "out", "in"))
        raise BadInput(f"R is missing; the cell multiplies its output by it, so pass R [{axes}] = {list(contract.R_shape)}")
    checked = _unflattened(inspect(R, "R"), (contract.recurrent_rows, contract.head_dim), contract.R_shape)
    return check_plain(checked, (contract.precision.storage_dtype,), contract.R_shape)


def _recurrent_bias(contract: Contract, inspect: Inspect, recurrent_bias: Any) -> Array | None:
    if recurrent_bias is None:
        return None
    if not contract.recurrent_gates:
        _refuse(recurrent_bias, "recurrent_bias")
    if not contract.takes_recurrent_bias:
        raise BadInput("recurrent_bias was given, but the spec has recurrent_bias: false; set it to true, or leave it out")
    shape = contract.recurrent_bias_shape
    checked = _unflattened(inspect(recurrent_bias, "recurrent_bias"), (contract.recurrent_rows,), shape)
    return check_plain(checked, _vector_dtypes(contract), shape)


def _unflattened(array: Array, flat: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """View an array that is `flat`, as the layers of torch have theirs, in its shape, and leave any other as it is."""
    if array.shape != flat or not array.is_contiguous:
        return array
    return replace(array, shape=shape, strides=contiguous_strides(shape))


def _refuse(value: Any, name: str) -> None:
    if value is not None:
        raise BadInput(f"{name} was given, but the cell has no recurrent product; leave it out")


def _parameters(contract: Contract, inspect: Inspect, parameters: Mapping[str, Any] | None) -> tuple[Array, ...]:
    given = _named(parameters, contract.parameters, "parameters")
    missing = [name for name in contract.parameters if name not in given]
    if missing:
        axes = "[2, hidden]" if contract.directions else "[hidden]"
        raise BadInput(f"parameters is without '{missing[0]}'; the cell needs {', '.join(contract.parameters)}, each {axes}")
    return tuple(
        check_plain(inspect(given[name], f"parameters['{name}']"), _vector_dtypes(contract), contract.parameter_shape)
        for name in contract.parameters
    )


def _states(
    contract: Contract, inspect: Inspect, given: Mapping[str, Any] | None, batch: int, what: str, all_or_none: bool = False
) -> tuple[Array | None, ...]:
    states = _named(given, contract.states, what)
    absent = [name for name in contract.states if name not in states]
    if all_or_none and states and absent:
        raise BadInput(f"{what} is without '{absent[0]}'; give all of {', '.join(contract.states)}, or none for zeros")
    carried, shape = (contract.precision.arithmetic_dtype,), contract.state_shape(batch)
    return tuple(
        check_plain(inspect(states[name], f"{what}['{name}']"), carried, shape) if name in states else None
        for name in contract.states
    )


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
