"""What the kernels of dense cells are called with, and what they need besides: the signatures of their templates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu.cublas import WORKSPACE_BYTES, Matrix, Product
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.run.scan_launch import Launch, launch_in_grid, mask_of, pointers_of

# Steps are counted in an int (templates/persistent_forward.cu.j2), which counts ahead of the one that is walked.
PERSISTENT_STEPS_MAX = 2**31 - 64
# More than the struct `Call` of any cell takes, whose pointers are one or two for each of its names.
CALL_BYTES = 4096


def workspace_bytes_of(plan: KernelPlan, batch: int) -> int:
    """Return the bytes, all ones before the launch, through which the blocks of a grid hand outputs on; 0 where none do.

    A group of blocks has two operands, of even and of odd steps, each word of 4 bytes with its step.
    """
    return 2 * plan.shared_map["operand"] * _groups(plan, batch) if plan.variables["grid_blocks"] > 1 else 0


def persistent_launches(
    plan: KernelPlan, call: Call, arguments: tuple[Any, ...], workspace: Array | None, resident_blocks: int
) -> list[Launch]:
    """Return the launches of a persistent kernel, with a group of blocks for each head and tile of sequences.

    One, unless blocks of a grid wait for each other: of those the GPU has to hold all at once, and it holds `resident_blocks`.
    Raises BadInput for a time that such a kernel does not count to, and for a GPU that does not hold a group.
    """
    if call.time > PERSISTENT_STEPS_MAX:
        raise BadInput(f"x has {call.time} steps, but a persistent kernel counts to {PERSISTENT_STEPS_MAX}; split the sequence")
    groups, grid_blocks = _groups(plan, call.batch), plan.variables["grid_blocks"]
    if grid_blocks == 1:
        return [Launch(groups * plan.variables["cluster_blocks"], arguments)]
    at_once = resident_blocks // grid_blocks
    if not at_once:
        raise BadInput(
            f"the kernel needs {grid_blocks} blocks at once, but the GPU here holds {resident_blocks}; "
            f"compile it without 'gpu' on this machine, or with the profile of this GPU"
        )
    behind = pointers_of((workspace,))
    return [
        Launch(min(at_once, groups - first) * grid_blocks, (*arguments, *behind, first)) for first in range(0, groups, at_once)
    ]


def step_launch_of(plan: KernelPlan, call: Call, outputs: Outputs) -> Launch:
    """Return the launch of `decode_step`, with blocks for each head and tile of sequences, writing `outputs`.

    Raises BadInput for a batch that needs more blocks than a grid has.
    """
    vectors = (call.bias, call.recurrent_bias, *call.parameters)
    head_blocks = -(-plan.hidden_size // plan.heads // plan.channels_per_block)
    blocks = plan.heads * head_blocks * -(-call.batch // plan.variables["batch_tile"])
    arguments = (
        call.x.address,
        *_strides(call, call.x, call.x_axes, "bgh"),
        *pointers_of((call.R, *vectors)),
        mask_of(vectors),
        *pointers_of(call.initial),
        outputs.y.address,
        *pointers_of(outputs.final),
        call.batch,
    )
    return launch_in_grid(blocks, arguments)


def _groups(plan: KernelPlan, batch: int) -> int:
    return plan.heads * -(-batch // plan.variables["batch_tile"])


def scratch_sizes(interface: Interface, batch: int, backward: bool) -> dict[str, int]:
    """Return the bytes of each piece of memory that the steps of `batch` sequences share."""
    storage, arithmetic = interface.precision.storage_bytes, interface.precision.arithmetic_bytes
    outputs, states = batch * interface.hidden_size, batch * interface.hidden_size * len(interface.states)
    products = outputs * len(interface.recurrent_gates)
    sizes = {
        "call": CALL_BYTES,
        "packed": math.prod(interface.R_shape[-4:]) * storage,
        "cublas": WORKSPACE_BYTES,
    }
    if backward:
        return sizes | {"dstate": states * arithmetic, "dhidden": outputs * arithmetic, "dproduct": products * storage}
    return sizes | {"state": states * arithmetic, "hidden": outputs * storage, "product": products * arithmetic}


def step_product(interface: Interface, scratch: Scratch, batch: int, backward: bool) -> Product:
    """Return the product before each step: of the outputs with R, or of the gradients of such products with it."""
    storage, arithmetic = interface.precision.storage_dtype, interface.precision.arithmetic_dtype
    hidden, size = interface.hidden_size, interface.head_dim
    rows = len(interface.recurrent_gates) * size
    if backward:
        left = Matrix(scratch["dproduct"], storage, interface.heads * rows, rows)
        right = Matrix(scratch["packed"], storage, size, rows * size)
        return Product(batch, size, rows, left, right, Matrix(scratch["dhidden"], arithmetic, hidden, size), interface.heads)
    left = Matrix(scratch["hidden"], storage, hidden, size)
    result = Matrix(scratch["product"], arithmetic, interface.heads * rows, rows)
    return Product(batch, rows, size, left, _packed(interface, scratch["packed"]), result, interface.heads)


def _packed(interface: Interface, pointer: int) -> Matrix:
    size = interface.head_dim
    rows = len(interface.recurrent_gates) * size
    return Matrix(pointer, interface.precision.storage_dtype, size, rows * size, transposed=True)


def row_products(interface: Interface, layout: str, packed: int, y: Array, products: Array) -> list[Product]:
    """Return the products with R of all outputs in `y`, of one direction; `products` [rows, heads, gates of R, head_dim]."""
    size, rows = interface.head_dim, len(interface.recurrent_gates) * interface.head_dim
    right, width = _packed(interface, packed), interface.heads * rows

    def result(first_row: int) -> Matrix:
        return Matrix(products.pointer + first_row * width * products.itemsize, products.dtype, width, rows)

    return [
        Product(count, rows, size, left, right, result(first), interface.heads)
        for first, count, left in _rows_of(interface, layout, y)
    ]


def recurrent_gradient(interface: Interface, layout: str, y: Array, dproducts: Array, dR: Array) -> list[Product]:
    """Return the products that add up to the gradient of R, `dR` [heads, gates of R * head_dim, head_dim], packed as R is."""
    size, rows = interface.head_dim, len(interface.recurrent_gates) * interface.head_dim
    width, result = interface.heads * rows, Matrix(dR.pointer, dR.dtype, size, rows * size)

    def left(first_row: int) -> Matrix:
        pointer = dproducts.pointer + first_row * width * dproducts.itemsize
        return Matrix(pointer, dproducts.dtype, width, rows, transposed=True)

    return [
        Product(rows, size, count, left(first), right, result, interface.heads, adds=True)
        for first, count, right in _rows_of(interface, layout, y)
    ]


def _rows_of(interface: Interface, layout: str, y: Array) -> list[tuple[int, int, Matrix]]:
    """Return (first row, rows, the matrix of their outputs [rows, head_dim] of the first head) for each part of `y`."""
    size = interface.head_dim
    if layout != "BDT":
        count = y.shape[0] * y.shape[1]
        return [(0, count, Matrix(y.pointer, y.dtype, y.strides[1], size * y.strides[2]))]
    batch, _, time = y.shape
    step = y.strides[0] * y.itemsize
    return [
        (one * time, time, Matrix(y.pointer + one * step, y.dtype, y.strides[1], size * y.strides[1], transposed=True))
        for one in range(batch)
    ]


def forward_arguments(
    call: Call, layout: str, outputs: Outputs, kept_is_storage: bool, scratch: Scratch | None, single_step: bool = False
) -> tuple[Any, ...]:
    """Return the arguments of `stepwise_forward_begin` behind the first step; without a scratch of `persistent_forward`."""
    kept = outputs.kept or (None,) * len(outputs.final)
    return (
        *_inputs(call, (call.R,)),
        outputs.y.address,
        *_strides(call, outputs.y, "bh" if single_step else Y_AXES[layout], "bth"),
        *pointers_of(kept),
        *((int(kept_is_storage),) if scratch else ()),
        *pointers_of(outputs.final),
        *((scratch[name] for name in ("state", "hidden", "packed", "product")) if scratch else ()),
        call.batch,
        call.time,
        *((int(call.reverse),) if scratch else ()),
    )


@dataclass(frozen=True, slots=True)
class BackwardArrays:
    """What a backward of one direction works on beside the call: see templates/stepwise_backward.cu.j2.

    `read_states` are the states after each step that it reads; `products` [rows, heads, gates of R, head_dim] and
    `first_products` [batch, ...] those of all outputs and of the initial one; `dproducts` and `first_dproducts` the gradients.
    """

    read_states: tuple[Array, ...]
    incoming: IncomingGradient
    products: Array
    first_products: Array
    gradients: Gradients
    dproducts: Array
    first_dproducts: Array


def backward_arguments(
    call: Call, layout: str, arrays: BackwardArrays, clip: float, scratch: Scratch | None
) -> tuple[Any, ...]:
    """Return the arguments of `stepwise_backward_begin` behind the first step; without a scratch `persistent_backward`."""
    import numpy

    gradients, dy = arrays.gradients, arrays.incoming.dy
    real = numpy.float64 if arrays.products.dtype == "float64" else numpy.float32
    is_packed = call.sequences.cu_seqlens is not None
    rows = (0, 1) if is_packed else {"BTD": (call.time, 1), "TBD": (1, call.rows), "BDT": (call.time, 1)}[layout]
    states = arrays.read_states
    return (
        *_inputs(call, () if scratch else (call.R,)),
        *pointers_of(states),
        *(_strides(call, states[0], Y_AXES[layout], "bth") if states else (0, 0, 0)),
        dy.address,
        *_strides(call, dy, Y_AXES[layout], "bth"),
        *pointers_of(arrays.incoming.dfinal),
        *pointers_of((arrays.products, arrays.first_products)),
        *rows,
        gradients.dx.address,
        *_strides(call, gradients.dx, call.x_axes, "btgh"),
        *pointers_of((arrays.dproducts, arrays.first_dproducts)),
        *pointers_of(gradients.dinitial),
        *pointers_of((gradients.sums,)),
        *((scratch[name] for name in ("dstate", "dhidden", "dproduct")) if scratch else ()),
        real(clip),
        call.batch,
        call.time,
        *((int(call.reverse),) if scratch else ()),
    )


def _inputs(call: Call, matrices: tuple[Array | None, ...]) -> tuple[Any, ...]:
    """x, `matrices`, the vectors, the initial states, and where sequences begin, end and start anew."""
    sequences = call.sequences
    resets: tuple[int, ...] = (0, 0, 0)
    if sequences.resets is not None:
        resets = (sequences.resets.address, *_strides(call, sequences.resets, "bt", "bt"))
    begins, ends = pointers_of((sequences.cu_seqlens, sequences.lengths))
    if sequences.cu_seqlens is not None:
        # Each sequence ends where the next one begins.
        ends = begins + sequences.cu_seqlens.itemsize
    vectors = (call.bias, call.recurrent_bias, *call.parameters)
    return (
        call.x.address,
        *_strides(call, call.x, call.x_axes, "btgh"),
        *pointers_of(matrices),
        *pointers_of(vectors),
        mask_of(vectors),
        *pointers_of(call.initial),
        *resets,
        begins,
        ends,
    )


def _strides(call: Call, array: Array, axes: str, wanted: str) -> tuple[int, ...]:
    """The strides of `wanted` axes, 0 for those that an array does not have, and between sequences that are packed."""
    strides = dict(zip(axes, array.strides, strict=True))
    if call.sequences.cu_seqlens is not None:
        strides["b"] = 0
    return tuple(strides.get(axis, 0) for axis in wanted)
