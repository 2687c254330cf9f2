"""Launches of dense kernels: arguments by the names of their signatures, and the buffers they need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import DENSE_X_AXES, DENSE_Y_AXES, STEP_X_AXES, ArrayNames
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu.cublas import WORKSPACE_BYTES
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.program.number import Loop, Number, bounds, divided_up, least
from minrnn_gen.run.launch import Launch, address_or_null, launch_in_grid, named, stride_values, vector_values
from minrnn_gen.run.slots import step_states

# Kernels count steps in an int, ahead of the current step (templates/persistent_forward.cu.j2).
PERSISTENT_STEPS_MAX = 2**31 - 64
# More than the struct `Call` of any cell takes: it has one or two pointers for each name of the cell.
CALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """The arguments of a kernel by the names of its parameters; `names`: the names of the cell's arrays."""

    names: ArrayNames
    values: Mapping[str, Any]

    def packed(self, plan: KernelPlan, suffix: str = "", **more: Any) -> tuple[Any, ...]:
        """Return the arguments, and `more` arguments of a single launch, in the order of an entry's signature."""
        return pack(signature(plan, self.names, suffix), {**self.values, **more})


def workspace_bytes_of(plan: KernelPlan, batch: int) -> int:
    """Return the bytes, all ones before the launch, through which blocks of a grid exchange outputs and R; 0 if none do."""
    return plan.group_exchange_bytes * _groups(plan, batch) + plan.packed_bytes * plan.problem.heads


def persistent_launches(
    plan: KernelPlan,
    call: Call,
    arguments: NamedArguments,
    workspace: Array | None,
    resident_blocks: int,
    loop: Loop = range,
) -> Iterator[Launch]:
    """Yield the launches of a persistent kernel, with a group of blocks for each head and tile of sequences.

    There is one launch, unless blocks of a grid wait for each other: these must all be resident, and the GPU holds
    `resident_blocks`. Raises BadInput for more steps than such a kernel counts, and for a GPU too small for a group.
    """
    most = PERSISTENT_STEPS_MAX // (1 + max(arguments.names.rounds, arguments.names.waits))
    if bounds(call.time)[0] > most:
        raise BadInput(f"x has {call.time} steps, but a persistent kernel counts to {most}; split the sequence")
    groups, grid_blocks = _groups(plan, call.batch), plan.grid_blocks
    if not plan.group_exchange_bytes:
        yield Launch(groups * plan.variables["cluster_blocks"], arguments.packed(plan))
        return
    at_once = _groups_at_once(plan, resident_blocks)
    exchanges = address_or_null(workspace)
    for first in loop(0, groups, at_once):
        packed = arguments.packed(plan, group_exchanges=exchanges, first_group=first)
        yield Launch(least(at_once, groups - first) * grid_blocks, packed)


def _groups_at_once(plan: KernelPlan, resident_blocks: int) -> int:
    """Return how many groups of blocks that exchange states fit one launch; raises BadInput where not even one fits."""
    # The GPU holds fewer blocks in clusters than its room suggests.
    at_once = least(resident_blocks, plan.launch.resident_blocks) // plan.grid_blocks
    if bounds(at_once)[1] < 1:
        raise BadInput(
            f"the kernel needs {plan.grid_blocks} blocks at once, but the GPU here holds {resident_blocks}; "
            f"compile it without 'gpu' on this machine, or with the profile of this GPU"
        )
    return at_once


def step_launch_of(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    outputs: Outputs,
    next_output: Array | None = None,
    workspace: Array | None = None,
    resident_blocks: int = 0,
) -> Launch:
    """Return the launch of `decode_step`, with blocks for each head and tile of sequences, writing `outputs`.

    On a pool it writes the state that R multiplies into `next_output`, since other blocks may still read its slots. Blocks that
    wait for each other exchange values through `workspace`, and take heads and tiles in turn where the GPU holds fewer at once.
    Raises BadInput for a batch that needs more blocks than a grid has, and for a GPU too small for a group.
    """
    groups, group_blocks = _groups(plan, call.batch), divided_up(plan.head_dim, plan.launch.channels_per_block)
    if plan.group_exchange_bytes:
        groups = least(groups, _groups_at_once(plan, resident_blocks))
    values = {
        "x": call.x.address,
        **_strides(call, "x", STEP_X_AXES, call.x, call.x_axes),
        **named("input", names.inputs, call.inputs),
        "R": address_or_null(call.R),
        **vector_values(names, call, recurrent=True),
        **step_states(names, call, outputs.final),
        **({} if next_output is None else {"next_output": next_output.address}),
        "y": outputs.y.address,
        "batch": call.batch,
        **({} if workspace is None else {"group_exchanges": workspace.address}),
    }
    return launch_in_grid(groups * group_blocks, pack(signature(plan, names), values))


def _groups(plan: KernelPlan, batch: int) -> int:
    return plan.problem.heads * divided_up(batch, plan.group_sequences)


def blocks_of_rows(plan: KernelPlan, rows: Number) -> Number:
    """Return the blocks of a kernel that takes units apart, or all of a head where means are over them, for steps of `rows`."""
    of_row = plan.launch.partition.get("blocks_of_step")
    return rows * of_row if of_row else divided_up(rows * plan.problem.hidden_size, plan.launch.threads)


def arguments_launch(
    plan: KernelPlan,
    names: ArrayNames,
    call: Call,
    layout: str,
    arrays: BackwardArrays,
    number: int,
    arguments: Array | None = None,
) -> Launch:
    """Return the launch that writes the operands of round `number`, of all steps of a call of one direction.

    The number after the last round's writes the means over units instead.
    """
    blocks = blocks_of_rows(plan, call.batch * call.time)
    values = {
        **_inputs(names, call),
        **_left_by_forward(names, call, layout, arrays),
        "arguments": address_or_null(arguments),
        **_means("means", names, arrays),
        "round": number,
        "batch": call.batch,
        "time": call.time,
        "reverse": int(call.reverse),
    }
    return launch_in_grid(blocks, pack(signature(plan, names), values))


def scratch_sizes(interface: Interface, batch: int, backward: bool, rounds: int = 0) -> dict[str, int]:
    """Return the bytes of each buffer that the steps of `batch` sequences share, including those of `rounds` of products."""
    storage, arithmetic = interface.precision.storage_bytes, interface.precision.arithmetic_bytes
    outputs, states = batch * interface.hidden_size, batch * interface.hidden_size * len(interface.states)
    products, of_rounds = outputs * len(interface.recurrent_gates), rounds * outputs * arithmetic
    sizes = {
        "call": CALL_BYTES,
        "packed": math.prod(interface.R_shape[-4:]) * storage,
        "cublas": WORKSPACE_BYTES,
    }
    if backward:
        sizes |= {"dstate": states * arithmetic, "dhidden": outputs * arithmetic, "dproduct": products * storage}
        return sizes | ({"dargument": of_rounds} if rounds else {})
    return sizes | {"state": states * arithmetic, "hidden": outputs * storage, "product": products * arithmetic}


def forward_arguments(
    names: ArrayNames,
    call: Call,
    layout: str,
    outputs: Outputs,
    kept: Mapping[str, Array | None],
    kept_is_storage: bool,
    scratch: Scratch | None,
    single_step: bool = False,
) -> NamedArguments:
    """Return the arguments of a persistent forward; with a scratch of `stepwise_forward_begin`, without its first two."""
    values = {
        **_inputs(names, call),
        "R": address_or_null(call.R),
        "y": outputs.y.address,
        **_strides(call, "y", DENSE_Y_AXES, outputs.y, "bh" if single_step else Y_AXES[layout]),
        **named("kept", names.states, [kept[name] for name in names.states]),
        **named("final", names.states, outputs.final),
        "batch": call.batch,
        "time": call.time,
    }
    if scratch:
        values |= {"keeps_storage": int(kept_is_storage), "reverse": int(call.reverse)}
        values |= {name: scratch[name] for name in ("state", "hidden", "packed", "product")}
    return NamedArguments(names, values)


@dataclass(frozen=True, slots=True)
class ProductArrays:
    """Products of R with the outputs of one direction, which a backward reads, and their gradients, which it writes.

    `products` [rows, heads, gates of R, head_dim] and `first_products` [batch, ...]: the products of all outputs and of the
    initial output; `dproducts` and `first_dproducts`: their gradients. `row_strides`: from a sequence and from a step to the
    next, in rows.
    """

    products: Array
    first_products: Array
    dproducts: Array
    first_dproducts: Array
    row_strides: tuple[int, int]

    def narrowed(self, start: int, count: int) -> ProductArrays:
        """View `count` rows from `start` on."""
        products, dproducts = (array.narrowed(0, start, count) for array in (self.products, self.dproducts))
        return replace(self, products=products, dproducts=dproducts)


@dataclass(frozen=True, slots=True)
class BackwardArrays:
    """Scratch of a backward of one direction, in addition to the call's arrays: see templates/stepwise_backward.cu.j2.

    `read_states`: the states after each step that it reads. `apart`: the products with R, None where pre-activations include
    them. `arguments` [rows, hidden]: the operands of each round's products, instead of the output. `means` [rows, heads, ..]:
    the forward's means over units, where a kernel reads them. In a piece of time, all arrays begin at its first step; `earlier`
    and `later` say whether a piece precedes and follows it. The piece reads the rows of an earlier piece, and continues the
    sums of a later one.
    """

    read_states: tuple[Array, ...]
    incoming: IncomingGradient
    gradients: Gradients
    apart: ProductArrays | None = None
    arguments: tuple[Array, ...] = ()
    means: Array | None = None
    earlier: bool = False
    later: bool = False

    @property
    def neighbours(self) -> int:
        """The neighbouring pieces as bits, see templates/persistent_backward.cu.j2."""
        return self.earlier | self.later << 1


def row_strides_of(call: Call, layout: str) -> tuple[int, int]:
    """Return how many rows of products lie from a sequence and from a step to the next."""
    if call.sequences.cu_seqlens is not None:
        return 0, 1
    return {"BTD": (call.time, 1), "TBD": (1, call.rows), "BDT": (call.time, 1)}[layout]


def backward_arguments(
    names: ArrayNames, call: Call, layout: str, arrays: BackwardArrays, clip: float, scratch: Scratch | None
) -> NamedArguments:
    """Return the arguments of a persistent backward; with a scratch of `stepwise_backward_begin`, without its first two."""
    import numpy

    gradients, dy, apart = arrays.gradients, arrays.incoming.dy, arrays.apart
    clip_type = numpy.float64 if dy.dtype == "float64" else numpy.float32
    values = {
        **_inputs(names, call),
        **_left_by_forward(names, call, layout, arrays),
        "dy": dy.address,
        **_strides(call, "dy", DENSE_Y_AXES, dy, Y_AXES[layout]),
        **named("dfinal", names.states, arrays.incoming.dfinal),
        "dx": gradients.dx.address,
        **_strides(call, "dx", DENSE_X_AXES, gradients.dx, call.x_axes),
        **named("dinput", names.inputs, gradients.dinputs),
        **({"dproducts": apart.dproducts.address, "first_dproducts": apart.first_dproducts.address} if apart else {}),
        **named("dinitial", names.states, gradients.dinitial),
        "sums": address_or_null(gradients.sums),
        "clip": clip_type(clip),
        "batch": call.batch,
        "time": call.time,
    }
    if scratch:
        shared = ("dstate", "dhidden", "dproduct", *(("dargument",) if names.rounds else ()))
        values |= {name: scratch[name] for name in shared} | {"reverse": int(call.reverse)}
    else:
        values |= {"R": address_or_null(call.R), "neighbours": numpy.uint32(arrays.neighbours)}
        values |= _means("means_of_steps", names, arrays)
    return NamedArguments(names, values)


def _means(name: str, names: ArrayNames, arrays: BackwardArrays) -> dict[str, Any]:
    return {name: address_or_null(arrays.means)} if names.known_means else {}


def _left_by_forward(names: ArrayNames, call: Call, layout: str, arrays: BackwardArrays) -> dict[str, Any]:
    """The states after each step that a backward reads, and the recomputed products, if these are apart."""
    states, apart = arrays.read_states, arrays.apart
    like_y = next(iter((*states, *call.inputs)), None)
    values = {
        **named("saved", names.saved_states, states),
        **_strides(call, "y", DENSE_Y_AXES, like_y, Y_AXES[layout]),
    }
    if apart:
        values |= {"products": apart.products.address, "first_products": apart.first_products.address}
        values |= stride_values("row", "bt", dict(zip("bt", apart.row_strides, strict=True)))
    return values


def _inputs(names: ArrayNames, call: Call) -> dict[str, Any]:
    """x, the vectors, the initial states, and the begins, ends and resets of sequences."""
    sequences = call.sequences
    begins, ends = address_or_null(sequences.cu_seqlens), address_or_null(sequences.lengths)
    if sequences.cu_seqlens is not None:
        # Each sequence ends where the next one begins.
        ends = begins + sequences.cu_seqlens.itemsize
    return {
        "x": call.x.address,
        **_strides(call, "x", DENSE_X_AXES, call.x, call.x_axes),
        **named("input", names.inputs, call.inputs),
        **vector_values(names, call, recurrent=True),
        **named("initial", names.states, call.initial),
        "resets": address_or_null(sequences.resets),
        **_strides(call, "resets", "bt", sequences.resets, "bt"),
        "begins": begins,
        "ends": ends,
    }


def _strides(call: Call, name: str, wanted: str, array: Array | None, axes: str) -> dict[str, int]:
    """The strides of `wanted` axes, 0 for axes that an array lacks, and between packed sequences."""
    by_axis = dict.fromkeys(wanted, 0)
    if array is not None:
        by_axis |= dict(zip(axes, array.strides, strict=True))
    if call.sequences.cu_seqlens is not None:
        by_axis["b"] = 0
    return stride_values(name, wanted, by_axis)
