"""Products with R in the form of cuBLAS: of one step, of all steps at once, and of gradients; for all gates, or for some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.cell.rounds import places_by_round
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.program.number import Loop


@dataclass(frozen=True)
class GateRounds:
    """The gates of R by operand, as ranges of neighbours: `of_output` for the previous output, `rounds` for arguments."""

    of_output: tuple[range, ...]
    rounds: tuple[tuple[range, ...], ...]

    @classmethod
    def of(cls, interface: Interface, rounds: tuple[tuple[str, ...], ...]) -> GateRounds:
        """Return the gates of a cell, from the names of the gates in its rounds."""
        of_output, *others = map(_runs, places_by_round(interface.recurrent_gates, rounds))
        return cls(of_output, tuple(others))


def _runs(places: tuple[int, ...]) -> tuple[range, ...]:
    groups = (tuple(group) for _, group in groupby(enumerate(sorted(places)), lambda item: item[1] - item[0]))
    return tuple(range(group[0][1], group[-1][1] + 1) for group in groups)


def step_products(
    interface: Interface, scratch: Scratch, batch: int, backward: bool, gates: tuple[range, ...], number: int = 0
) -> tuple[Product, ...]:
    """Return the products of R in one round of a step: with its `hidden`, or with the gradients of such products.

    `number`: the round, from 1 on; 0 for the product of the outputs.
    """
    storage, arithmetic = interface.precision.storage_dtype, interface.precision.arithmetic_dtype
    storage_bytes, arithmetic_bytes = interface.precision.storage_bytes, interface.precision.arithmetic_bytes
    hidden, size = interface.hidden_size, interface.head_dim
    all_rows, in_tf32 = len(interface.recurrent_gates) * size, interface.precision.multiplies_in_tf32
    made = []
    for run in gates:
        rows, first = len(run) * size, run.start * size
        right = _packed(interface, scratch["packed"], run)
        if backward:
            left = Matrix(scratch["dproduct"] + first * storage_bytes, storage, interface.heads * all_rows, all_rows)
            to = scratch["dargument"] + (number - 1) * batch * hidden * arithmetic_bytes if number else scratch["dhidden"]
            result = Matrix(to, arithmetic, hidden, size)
            right = Matrix(right.pointer, storage, size, all_rows * size)
            adds = run is not gates[0]
            made.append(Product(batch, size, rows, left, right, result, interface.heads, adds=adds, in_tf32=in_tf32))
            continue
        left = Matrix(scratch["hidden"], storage, hidden, size)
        result = Matrix(scratch["product"] + first * arithmetic_bytes, arithmetic, interface.heads * all_rows, all_rows)
        made.append(Product(batch, rows, size, left, right, result, interface.heads, in_tf32=in_tf32))
    return tuple(made)


def _packed(interface: Interface, pointer: int, gates: range) -> Matrix:
    size = interface.head_dim
    rows = len(interface.recurrent_gates) * size
    first_bytes = gates.start * size * size * interface.precision.storage_bytes
    return Matrix(pointer + first_bytes, interface.precision.storage_dtype, size, rows * size, transposed=True)


def row_products(
    interface: Interface, layout: str, packed: int, y: Array, products: Array, gates: tuple[range, ...], loop: Loop = range
) -> Iterator[Product]:
    """Yield the products with R of all outputs in `y`, of one direction; `products` [rows, heads, gates of R, head_dim]."""
    size, width = interface.head_dim, interface.hidden_size * len(interface.recurrent_gates)
    rows, in_tf32 = len(interface.recurrent_gates) * size, interface.precision.multiplies_in_tf32
    for first, count, left in _rows_of(interface, layout, y, loop):
        for run in gates:
            place = first * width + run.start * size
            result = Matrix(products.address + place * products.itemsize, products.dtype, width, rows)
            right = _packed(interface, packed, run)
            yield Product(count, len(run) * size, size, left, right, result, interface.heads, in_tf32=in_tf32)


def recurrent_gradient(
    interface: Interface, layout: str, y: Array, dproducts: Array, dR: Array, gates: tuple[range, ...], loop: Loop = range
) -> Iterator[Product]:
    """Yield the products that add up to the gradient of R, `dR` [heads, gates of R * head_dim, head_dim], packed as R is."""
    size, width = interface.head_dim, interface.hidden_size * len(interface.recurrent_gates)
    rows, in_tf32 = len(interface.recurrent_gates) * size, interface.precision.multiplies_in_tf32
    for first, count, right in _rows_of(interface, layout, y, loop):
        for run in gates:
            pointer = dproducts.address + (first * width + run.start * size) * dproducts.itemsize
            left = Matrix(pointer, dproducts.dtype, width, rows, transposed=True)
            result = Matrix(dR.pointer + run.start * size * size * dR.itemsize, dR.dtype, size, rows * size)
            heads = interface.heads
            yield Product(len(run) * size, size, count, left, right, result, heads, adds=True, in_tf32=in_tf32)


def _rows_of(interface: Interface, layout: str, y: Array, loop: Loop) -> Iterator[tuple[int, int, Matrix]]:
    """Yield (first row, rows, the first head's matrix of their outputs [rows, head_dim]) for each part of `y`."""
    size = interface.head_dim
    if layout != "BDT":
        yield 0, y.shape[0] * y.shape[1], Matrix(y.pointer, y.dtype, y.strides[1], size * y.strides[2])
        return
    batch, _, time = y.shape
    step = y.strides[0] * y.itemsize
    for row in loop(0, batch):
        pointer = y.address + row * step
        yield row * time, time, Matrix(pointer, y.dtype, y.strides[1], size * y.strides[1], transposed=True)


def one_sequence(rows: Array) -> Array:
    """View arguments [rows, hidden] as the y of one sequence in layout BTD."""
    return replace(rows, shape=(1, *rows.shape), strides=(rows.shape[0] * rows.strides[0], *rows.strides))


def as_rows(initial: Array) -> Array:
    """View the initial output [batch, hidden] as the y of one sequence in layout BTD: a row of products for each sequence."""
    return replace(initial, shape=(1, *initial.shape), strides=(initial.shape[0] * initial.strides[0], *initial.strides))
