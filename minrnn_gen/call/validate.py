"""A call's arrays held against the interface of the kernel: dtypes, shapes, strides, places, sequences.

Each refusal is one sentence that names the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call, CallArguments, IncomingGradient
from minrnn_gen.call.array import Array, as_numpy, contiguous_strides
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import check_one_axis, shown_shapes
from minrnn_gen.call.known_names import known_names
from minrnn_gen.call.sequences import Sequences, as_array
from minrnn_gen.errors import BadInput
from minrnn_gen.precision import precision_storing, why_unsupported

AXIS_NAMES = {"b": "batch", "t": "time", "d": "directions", "g": "gates", "h": "hidden", "i": "input", "k": "groups", "n": "n"}
# The axes of x whose sizes the caller chooses, call by call.
FREE_AXES = "bt"
INTEGER_DTYPES = ("int64", "int32")
_CAST = "; cast it, or compile with the precision of your data"

Inspect = Callable[[Any, str], Array]

ReadBack = Callable[[Array], Any]
"""Gives the values of an array on a GPU as a NumPy array, or None where they cannot be had now."""


def check_call(
    interface: Interface, inspect: Inspect, read_back: ReadBack, arguments: CallArguments, *, single_step: bool = False
) -> Call:
    """Check every array of a call; raises BadInput with one sentence naming the array, what it is and what it has to be.

    A single step has no time axis and no sequences; its x may have any strides, but a projection takes only contiguous x.
    """
    axes = interface.x_axes
    if single_step:
        # Without its time axis every layout is the same memory.
        axes = "bi" if interface.input_size else "bgh"
    x = inspect(arguments.x, "x")
    check_dtype(x, (interface.precision.storage_dtype,))
    sizes = dict(zip("dghi", interface.shape("dghi", 0, 0), strict=True))
    free = check_axes(x, axes, sizes)
    rows, time = free["b"], free.get("t", 1)
    if not single_step:
        check_innermost_axis(x, axes, interface.layout)
        if interface.input_size:
            check_contiguous(x)
    if single_step:
        sequences = Sequences(rows)
    else:
        sequences = check_sequences(
            inspect,
            read_back,
            x,
            rows,
            time,
            interface.layout,
            resets=arguments.resets,
            lengths=arguments.lengths,
            cu_seqlens=arguments.cu_seqlens,
        )
    call = Call(
        x=x,
        x_axes=axes,
        rows=rows,
        time=time,
        weight=_weight(interface, inspect, arguments.weight),
        bias=_bias(interface, inspect, arguments.bias),
        parameters=_parameters(interface, inspect, arguments.parameters),
        initial=_states(interface, inspect, arguments.state, sequences.count, "state", all_or_none=True),
        sequences=sequences,
        R=_recurrent_matrix(interface, inspect, arguments.R),
        recurrent_bias=_recurrent_bias(interface, inspect, arguments.recurrent_bias),
        shared=check_shared(interface, inspect, arguments.shared, rows, None if single_step else time),
        inputs=check_inputs(interface, inspect, arguments.inputs, rows, None if single_step else time),
    )
    for other in (
        call.R,
        call.weight,
        call.bias,
        call.recurrent_bias,
        *call.parameters,
        *call.initial,
        *call.shared,
        *call.inputs,
    ):
        if other is not None:
            check_place(other, x)
    return call


def check_gradient(
    interface: Interface, inspect: Inspect, y: Array, dy: Any, dstate: Mapping[str, Any] | None, batch: int
) -> IncomingGradient:
    """Check the arrays of a backward against `y` of its forward; raises BadInput as `check_call` does.

    `dy` may have any strides, but kernels take only the strides of y.
    """
    checked = inspect(dy, "dy")
    check_dtype(checked, (y.dtype,))
    check_exact_shape(checked, y.shape)
    dfinal = _states(interface, inspect, dstate, batch, "dstate")
    for other in (checked, *dfinal):
        if other is not None:
            check_place(other, replace(y, name="y"))
    return IncomingGradient(checked, dfinal)


def check_sequences(
    inspect: Callable[[Any, str], Array],
    read_back: ReadBack,
    x: Array,
    rows: int,
    time: int,
    layout: str,
    *,
    resets: Any,
    lengths: Any,
    cu_seqlens: Any,
) -> Sequences:
    """Check the sequences of an x with `rows` in its batch axis and `time` steps; raises BadInput with one sentence.

    `lengths` and `cu_seqlens` may be in host memory with an x on a GPU, or lists. Their values are checked too, unless
    `read_back` has none.
    """
    if lengths is not None and cu_seqlens is not None:
        raise BadInput(
            "lengths and cu_seqlens were both given; give lengths for padded sequences, or cu_seqlens for packed ones"
        )
    count, checked_resets, checked_lengths, checked_ends = rows, None, None, None
    if resets is not None:
        checked_resets = inspect(resets, "resets")
        check_dtype(checked_resets, ("bool",))
        check_exact_shape(checked_resets, (rows, time))
        check_place(checked_resets, x)
    if lengths is not None:
        checked_lengths = _integers(inspect(as_array(lengths, "lengths"), "lengths"), x)
        check_exact_shape(checked_lengths, (rows,))
        _check_lengths(_values(checked_lengths, read_back), time)
    if cu_seqlens is not None:
        if layout != "BTD":
            raise BadInput(f"cu_seqlens was given, but the layout is {layout}; packed sequences need layout BTD")
        if rows != 1:
            raise BadInput(f"cu_seqlens was given, but x has a batch of {rows}; packed sequences are one row, [1, total, ...]")
        checked_ends = _integers(inspect(as_array(cu_seqlens, "cu_seqlens"), "cu_seqlens"), x)
        if len(checked_ends.shape) != 1 or checked_ends.shape[0] < 1:
            raise BadInput(f"cu_seqlens has shape {list(checked_ends.shape)}; [sequences + 1] is expected")
        count = checked_ends.shape[0] - 1
        _check_ends(_values(checked_ends, read_back), time)
    return Sequences(count, checked_resets, checked_lengths, checked_ends)


def check_dtype(array: Array, allowed: tuple[str, ...]) -> None:
    """Refuse a dtype that is not in `allowed`."""
    if array.dtype not in allowed:
        why = why_unsupported(array.dtype) or _CAST if precision_storing(allowed[0]) else ""
        expected = " or ".join(allowed)
        raise BadInput(f"{array.name} has dtype {array.dtype}; {expected} is expected and nothing is cast silently{why}")


def check_exact_shape(array: Array, shape: tuple[int, ...]) -> None:
    """Refuse every shape but `shape`."""
    if array.shape != shape:
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {list(shape)} is expected")


def check_axes(array: Array, axes: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each of `axes`, letters of `AXIS_NAMES`; those that are not free must have their size in `sizes`."""
    fixed = [AXIS_NAMES[axis] if axis in FREE_AXES else f"{AXIS_NAMES[axis]}={sizes[axis]}" for axis in axes]
    wanted = f"[{', '.join(fixed)}]"
    if len(array.shape) != len(axes):
        raise BadInput(f"{array.name} has shape {list(array.shape)}; {len(axes)} axes {wanted} are expected")
    for axis, size in zip(axes, array.shape, strict=True):
        if axis not in FREE_AXES and size != sizes[axis]:
            raise BadInput(
                f"{array.name} has shape {list(array.shape)}; {wanted} is expected, but its {AXIS_NAMES[axis]} axis is {size}"
            )
    return dict(zip(axes, array.shape, strict=True))


def check_contiguous(array: Array) -> None:
    """Refuse strides that leave gaps or turn axes around."""
    if not array.is_contiguous:
        raise BadInput(
            f"{array.name} has strides {list(array.strides)}; {list(contiguous_strides(array.shape))} (contiguous) is expected"
        )


def check_innermost_axis(array: Array, axes: str, layout: str) -> None:
    """Refuse gaps along the last axis; the others may have any stride."""
    if math.prod(array.shape) and array.shape[-1] > 1 and array.strides[-1] != 1:
        raise BadInput(
            f"{array.name} has stride {array.strides[-1]} along its last axis ({AXIS_NAMES[axes[-1]]}); "
            f"layout {layout} needs stride 1 there"
        )


def check_plain(array: Array, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """Return a contiguous array of one of `dtypes` and of exactly `shape`; refuse any other."""
    check_dtype(array, dtypes)
    check_exact_shape(array, shape)
    check_contiguous(array)
    return array


def check_place(array: Array, beside: Array) -> None:
    """Refuse an array that is not in the same memory as `beside`."""
    if array.device != beside.device:
        raise BadInput(f"{array.name} is {_place(array)}, but {beside.name} is {_place(beside)}; move it there")


def _integers(array: Array, x: Array) -> Array:
    check_dtype(array, INTEGER_DTYPES)
    check_contiguous(array)
    if array.device is not None:
        check_place(array, x)
    return array


def _values(array: Array, read_back: ReadBack) -> Any:
    return as_numpy(array) if array.device is None else read_back(array)


def _check_lengths(values: Any, time: int) -> None:
    if values is None:
        return
    wrong = (values < 0) | (values > time)
    if wrong.any():
        place = int(wrong.argmax())
        raise BadInput(f"lengths[{place}] is {values[place]}; 0 to {time}, the time of x, is expected")


def _check_ends(values: Any, total: int) -> None:
    if values is None:
        return
    if values[0] != 0:
        raise BadInput(f"cu_seqlens starts with {values[0]}; 0 is expected, where the first sequence begins")
    falling = values[1:] < values[:-1]
    if falling.any():
        place = int(falling.argmax()) + 1
        raise BadInput(
            f"cu_seqlens[{place}] is {values[place]}, less than {values[place - 1]} before it; "
            f"each sequence must end where the next one begins"
        )
    if values[-1] != total:
        raise BadInput(f"cu_seqlens ends with {values[-1]}; {total}, the time of x, is expected")


def _weight(interface: Interface, inspect: Inspect, weight: Any) -> Array | None:
    if not interface.input_size:
        if weight is not None:
            raise BadInput("weight was given, but the spec has no input_size; set input_size, or pass pre-activations alone")
        return None
    if weight is None:
        raise BadInput(f"weight is missing; input_size is {interface.input_size}, so pass weight [gates * hidden, input]")
    storage = (interface.precision.storage_dtype,)
    return check_plain(inspect(weight, "weight"), storage, (interface.weight_rows, interface.input_size))


def _vector_dtypes(interface: Interface) -> tuple[str, ...]:
    return tuple(dict.fromkeys((interface.precision.storage_dtype, "float32")))


def _bias(interface: Interface, inspect: Inspect, bias: Any) -> Array | None:
    if bias is None:
        return None
    checked = inspect(bias, "bias")
    check_dtype(checked, _vector_dtypes(interface))
    if checked.shape != (interface.weight_rows,):
        check_exact_shape(checked, interface.shape(interface.gate_axes, 0, 0))
    check_contiguous(checked)
    return checked


def _recurrent_matrix(interface: Interface, inspect: Inspect, R: Any) -> Array | None:
    if not interface.recurrent_gates:
        _refuse(R, "R")
        return None
    if R is None:
        if interface.has_unequal_products:
            raise BadInput(f"R is missing; products multiply by it, so pass R = {{{shown_shapes(interface)}}}")
        axes = ", ".join((*("directions" for _ in interface.directions), "gates", "heads", "out", "in"))
        raise BadInput(f"R is missing; the cell multiplies its output by it, so pass R [{axes}] = {list(interface.R_shape)}")
    if interface.has_unequal_products:
        joined = inspect(R, "R")
        check_one_axis(interface, "R", joined.shape)
        return check_plain(joined, (interface.precision.storage_dtype,), interface.R_shape)
    checked = _unflattened(inspect(R, "R"), (interface.recurrent_rows, interface.R_shape[-1]), interface.R_shape)
    return check_plain(checked, (interface.precision.storage_dtype,), interface.R_shape)


def _recurrent_bias(interface: Interface, inspect: Inspect, recurrent_bias: Any) -> Array | None:
    if recurrent_bias is None:
        return None
    if not interface.recurrent_gates:
        _refuse(recurrent_bias, "recurrent_bias")
    if not interface.takes_recurrent_bias:
        raise BadInput("recurrent_bias was given, but the spec has recurrent_bias: false; set it to true, or leave it out")
    shape = interface.recurrent_bias_shape
    if interface.has_unequal_biases:
        joined = inspect(recurrent_bias, "recurrent_bias")
        check_one_axis(interface, "recurrent_bias", joined.shape)
        return check_plain(joined, _vector_dtypes(interface), shape)
    checked = _unflattened(inspect(recurrent_bias, "recurrent_bias"), (interface.recurrent_rows,), shape)
    return check_plain(checked, _vector_dtypes(interface), shape)


def _unflattened(array: Array, flat: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """View a `flat` array, as torch's layers store theirs, in its shape, and leave any other array as it is."""
    if array.shape != flat or not array.is_contiguous:
        return array
    return replace(array, shape=shape, strides=contiguous_strides(shape))


def _refuse(value: Any, name: str) -> None:
    if value is not None:
        raise BadInput(f"{name} was given, but the cell has no recurrent product; leave it out")


def _parameters(interface: Interface, inspect: Inspect, parameters: Mapping[str, Any] | None) -> tuple[Array, ...]:
    vectors = known_names(parameters, interface.parameters, "parameters")
    missing = [name for name in interface.parameters if name not in vectors]
    if missing:
        axes = "[2, hidden]" if interface.directions else "[hidden]"
        axes += f", with a last axis n for {', '.join(interface.vector_parameters)}" if interface.vector_parameters else ""
        raise BadInput(f"parameters lacks '{missing[0]}'; give a mapping with {', '.join(interface.parameters)}, each {axes}")
    dtypes = _vector_dtypes(interface)
    return tuple(
        check_plain(inspect(vectors[name], f"parameters['{name}']"), dtypes, interface.shape_of_parameter(name))
        for name in interface.parameters
    )


def _states(
    interface: Interface, inspect: Inspect, mapping: Mapping[str, Any] | None, batch: int, what: str, all_or_none: bool = False
) -> tuple[Array | None, ...]:
    states = known_names(mapping, interface.states, what)
    absent = [name for name in interface.states if name not in states]
    if all_or_none and states and absent:
        raise BadInput(f"{what} lacks '{absent[0]}'; give all of {', '.join(interface.states)}, or none for zeros")
    carried = (interface.precision.arithmetic_dtype,)
    return tuple(
        check_plain(inspect(states[name], f"{what}['{name}']"), carried, interface.shape_of_state(name, batch))
        if name in states
        else None
        for name in interface.states
    )


def _inspected(
    inspect: Inspect, what: str, letter: str, mapping: Mapping[str, Any] | None, axes: Mapping[str, str]
) -> tuple[Array, ...]:
    """Return the inputs of a cell that equations write with a letter; raises BadInput where one with `axes` is absent."""
    arrays = known_names(mapping, tuple(axes), what)
    for name in axes:
        if name not in arrays:
            shown_axes = ", ".join(AXIS_NAMES[axis] for axis in axes[name])
            raise BadInput(f"{what} lacks '{name}'; the cell reads {letter}.{name}, so pass it, [{shown_axes}]")
    return tuple(inspect(arrays[name], f"{what}['{name}']") for name in axes)


def check_shared(
    interface: Interface, inspect: Inspect, shared: Mapping[str, Any] | None, rows: int, time: int | None
) -> tuple[Array, ...]:
    """Return the inputs S.* of a call of `rows` x `time`, or of a single step (`time` None); raises BadInput."""
    axes = interface.shared_axes if time is not None else interface.shared_axes.replace("t", "")
    checked = _inspected(inspect, "shared", "S", shared, dict.fromkeys(interface.shared, axes))
    for array in checked:
        check_dtype(array, (interface.precision.storage_dtype,))
        check_exact_shape(array, interface.shape(axes, rows, time or 0))
        check_innermost_axis(array, axes, interface.layout)
    return checked


def check_inputs(
    interface: Interface, inspect: Inspect, inputs: Mapping[str, Any] | None, rows: int, time: int | None
) -> tuple[Array, ...]:
    """Return the inputs X.* of a call of `rows` x `time`, or of a single step (`time` None); raises BadInput."""
    axes = {name: interface.axes_of_input(name).replace("t", "t" if time is not None else "") for name in interface.inputs}
    checked = _inspected(inspect, "inputs", "X", inputs, axes)
    for name, array in zip(axes, checked, strict=True):
        check_dtype(array, (interface.precision.storage_dtype,))
        check_exact_shape(array, interface.shape(axes[name], rows, time or 0))
        if name not in interface.step_inputs:  # which are copied into all channels, whatever their strides
            check_contiguous(array)
    return checked


def _place(array: Array) -> str:
    return "in host memory" if array.device is None else f"on CUDA device {array.device}"
