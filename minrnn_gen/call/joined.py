"""R and its bias for products of several shapes: given by gate, and then one array for everything that a call is passed to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import is_tensor
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.product_shapes import ranges_of
from minrnn_gen.errors import BadInput, kind_of, nearest_name


def joined(interface: Interface, arguments: CallArguments, library: Any = None) -> CallArguments:
    """Return the arguments with R and its bias in one array each, if they came as {gate: array}.

    `library`: the module of the arrays' library, where it is known. Raises BadInput for a gate that is missing or unknown, and
    for an array of another shape.
    """
    R, recurrent_bias = arguments.R, arguments.recurrent_bias
    if isinstance(R, Mapping) and interface.recurrent_gates:
        R = _joined_R(interface, R, library)
    if isinstance(recurrent_bias, Mapping) and interface.recurrent_gates:
        recurrent_bias = _joined_bias(interface, recurrent_bias, library)
    if R is arguments.R and recurrent_bias is arguments.recurrent_bias:
        return arguments
    return arguments._replace(R=R, recurrent_bias=recurrent_bias)


def _joined_R(interface: Interface, matrices: Mapping[str, Any], library: Any) -> Any:
    """Return the matrices {gate: [N, Dout, Din]}, those of both directions [2, N, Dout, Din], as one array."""
    if not interface.has_unequal_products:
        raise _one_shape("R", interface.R_shape)
    shapes = dict(zip(interface.recurrent_gates, interface.product_shapes, strict=True))
    return _joined(interface, "R", matrices, {gate: tuple(shape) for gate, shape in shapes.items()}, {}, library)


def _joined_bias(interface: Interface, biases: Mapping[str, Any], library: Any) -> Any:
    """Return the biases {gate: [N, Dout]}, those of both directions [2, N, Dout], as one array, 0 for gates without one."""
    if not interface.has_unequal_biases:
        raise _one_shape("recurrent_bias", interface.recurrent_bias_shape)
    shapes = dict(zip(interface.recurrent_gates, interface.product_shapes, strict=True))
    biased = {gate: (shape.heads, shape.out) for gate, shape in shapes.items() if gate not in interface.unbiased}
    return _joined(
        interface, "recurrent_bias", biases, biased, {gate: shapes[gate].rows for gate in interface.unbiased}, library
    )


def _joined(
    interface: Interface,
    name: str,
    arrays: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    zeros: Mapping[str, int],
    library: Any,
) -> Any:
    for gate in arrays:
        if gate not in shapes:
            allowed = ", ".join(shapes)
            raise BadInput(f"{name} has an unknown gate {gate!r}{nearest_name(gate, shapes)}; allowed are {allowed}")
    for gate, shape in shapes.items():
        expected = (*interface.directions, *shape)
        if gate not in arrays:
            raise BadInput(f"{name} lacks {gate!r}; pass {name} = {{{_shown(shapes)}}}")
        if not hasattr(arrays[gate], "shape"):
            raise BadInput(f"{name}[{gate!r}] is {kind_of(arrays[gate])}; a NumPy, CuPy, torch or JAX array is expected")
        if tuple(arrays[gate].shape) != expected:
            raise BadInput(f"{name}[{gate!r}] has shape {list(arrays[gate].shape)}; {list(expected)} is expected")
    like = arrays[next(iter(shapes))]
    flat = [
        zeros_like(like, (*interface.directions, zeros[gate]))
        if gate in zeros
        else arrays[gate].reshape((*interface.directions, -1))
        for gate in interface.recurrent_gates
    ]
    return (library or library_of(like)).concatenate(flat, axis=-1)


def by_gate(interface: Interface, R: Any) -> dict[str, Any]:
    """Return R, or its gradient, of one array as {gate: [N, Dout, Din]}."""
    shapes = interface.product_shapes
    parts = zip(interface.recurrent_gates, shapes, ranges_of([shape.elements for shape in shapes]), strict=True)
    return {gate: R[..., part].reshape((*interface.directions, *shape)) for gate, shape, part in parts}


def biases_by_gate(interface: Interface, bias: Any) -> dict[str, Any]:
    """Return the bias, or its gradient, of one array as {gate: [N, Dout]}, without those that have none."""
    shapes = interface.product_shapes
    parts = zip(interface.recurrent_gates, shapes, ranges_of([shape.rows for shape in shapes]), strict=True)
    return {
        gate: bias[..., part].reshape((*interface.directions, shape.heads, shape.out))
        for gate, shape, part in parts
        if gate not in interface.unbiased
    }


def bias_of_sums(interface: Interface, sums: Any, first: int) -> Any:
    """Return the gradient of the recurrent bias from sums [runs, rows, units], whose rows begin at `first`."""
    rows = sums[:, first : first + len(interface.recurrent_gates)]
    if not interface.has_unequal_biases:
        return rows
    of_gates = [rows[:, number, : shape.rows] for number, shape in enumerate(interface.product_shapes)]
    for number, gate in enumerate(interface.recurrent_gates):
        if gate in interface.unbiased:
            of_gates[number] = zeros_like(of_gates[number], tuple(of_gates[number].shape))
    return library_of(sums).concatenate(of_gates, axis=-1)


def check_one_axis(interface: Interface, name: str, shape: tuple[int, ...]) -> None:
    """Refuse R, or a bias, of a shape that is neither joined nor laid out so."""
    if len(shape) == 1 + len(interface.directions):
        return
    count = len({*interface.product_shapes})
    words = {2: "two", 3: "three", 4: "four"}.get(count, str(count))
    gates = ", ".join(f'"{gate}": …' for gate in (interface.recurrent_gates[0], interface.recurrent_gates[-1]))
    raise BadInput(f"{name} is one array, but the products of {interface.model} have {words} shapes; give {{{gates}}}")


def shown_shapes(interface: Interface) -> str:
    """Return the shape of each gate's matrix, for people."""
    pairs = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
    return _shown({gate: (*interface.directions, *shape) for gate, shape in pairs})


def _one_shape(name: str, shape: tuple[int, ...]) -> BadInput:
    return BadInput(f"{name} is a mapping, but all products have one shape; give one array {list(shape)}")


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{gate!r}: {list(shape)}" for gate, shape in shapes.items())


def library_of(array: Any) -> Any:
    """Return the module of an array's library that has `concatenate`."""
    root = type(array).__module__.partition(".")[0]
    if root in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy
    if root in ("numpy", "cupy"):
        return sys.modules[root]
    return sys.modules["torch"] if is_tensor(array) else sys.modules["numpy"]


def zeros_like(like: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros of a shape in the library, dtype and on the device of another array."""
    return like.new_zeros(shape) if is_tensor(like) else library_of(like).zeros(shape, like.dtype)


def contiguous(array: Any) -> Any:
    """Return an array without gaps, itself where it has none; of JAX it is as it is."""
    if is_tensor(array):
        return array.contiguous()
    return library_of(array).ascontiguousarray(array) if hasattr(library_of(array), "ascontiguousarray") else array
