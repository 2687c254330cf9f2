"""The arrays of a call that an embedding or a folding reshapes, checked before it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import check_one_axis
from minrnn_gen.call.known_names import known_names
from minrnn_gen.errors import BadInput

Shape = tuple[int, ...]
_REAL = ("float64", "float32", "float16", "bfloat16")


def checked_arrays(
    interface: Interface, arguments: CallArguments, take: Callable[[Any, str], Any], casts: bool = False
) -> CallArguments:
    """Return joined arguments with R, recurrent bias, parameters and states replaced by what `take` returns for their names.

    Other arguments are unchanged. `casts`: R is cast later, and may be of any dtype of real numbers. Raises BadInput, as
    `take` does, for a name that is missing or unknown, for another shape, and for another dtype of R.
    """
    if not interface.products:
        return arguments

    def of_shape(array: Any, name: str, *shapes: Shape) -> Any:
        array = take(array, name)
        if _shape(array) not in shapes:
            raise BadInput(f"{name} has shape {list(array.shape)}; {list(shapes[0])} is expected")
        return array

    def of_products(array: Any, name: str, is_joined: bool, shape: Shape, flat: Shape) -> Any:
        if array is None:
            return None
        if is_joined:
            check_one_axis(interface, name, _shape(take(array, name)))
        return of_shape(array, name, shape, *(() if is_joined else (flat,)))

    rows, R_shape, bias = interface.recurrent_rows, interface.R_shape, arguments.recurrent_bias
    if interface.takes_recurrent_bias:
        shape = interface.recurrent_bias_shape
        bias = of_products(bias, "recurrent_bias", interface.has_unequal_biases, shape, (rows,))
    parameters = known_names(arguments.parameters, interface.parameters, "parameters")
    for name in interface.parameters:
        if name not in parameters:
            raise BadInput(f"parameters lacks '{name}'; give all of {', '.join(interface.parameters)}")
        parameters[name] = of_shape(parameters[name], f"parameters['{name}']", interface.shape_of_parameter(name))
    states = known_names(arguments.state, interface.states, "state")
    for name in (name for name in interface.states if states.get(name) is not None):
        states[name] = take(states[name], f"state['{name}']")
        shape = interface.shape_of_state(name, _sequences(interface, arguments, states[name]))
        states[name] = of_shape(states[name], f"state['{name}']", shape)
    R = of_products(arguments.R, "R", interface.has_unequal_products, R_shape, (rows, R_shape[-1]))
    dtype, storage = str(getattr(R, "dtype", "")).removeprefix("torch."), interface.precision.storage_dtype
    if R is not None and dtype not in (_REAL if casts else (storage,)):
        raise BadInput(f"R has dtype {dtype}; {storage} is expected and nothing is cast silently")
    return arguments._replace(
        R=R,
        recurrent_bias=bias,
        parameters=parameters or None,
        state=states or None,
    )


def _sequences(interface: Interface, arguments: CallArguments, state: Any) -> Any:
    """Return how many sequences a call is of, as many as `state` has where x, or where they end, is refused later."""
    x, ends, own = _shape(arguments.x), arguments.cu_seqlens, _shape(state)
    of_ends = (len(ends),) if isinstance(ends, list | tuple) else _shape(ends)
    if ends is not None and len(of_ends) == 1:
        return of_ends[0] - 1
    if ends is None and len(x) in (len(interface.x_axes), len(interface.x_axes) - 1):
        is_step = len(x) < len(interface.x_axes)
        return x[0 if is_step else interface.x_axes.index("b")]
    return own[-2] if len(own) > 1 else 0


def _shape(array: Any) -> Shape:
    return tuple(getattr(array, "shape", ()))
