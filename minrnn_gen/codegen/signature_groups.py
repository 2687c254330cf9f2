"""Groups of parameters that signatures of kernels share: arrays by name, strides, sizes, states and sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from minrnn_gen.codegen.parameter import Parameter

# Names of arrays in use at once: kinds of kernels, times cells.
_NAMES_HELD = 256
# Axes, and how strides along them are called.
AXES = {"b": "batch", "t": "time", "g": "gate", "h": "channel", "k": "group", "n": "value", "p": "part"}
# Axes whose strides scans and diagonal kernels take, of arrays like x and like y; the last axis is contiguous.
SCAN_X_AXES = {"BTD": "btg", "TBD": "btg", "BDT": "bgh"}
SCAN_Y_AXES = {"BTD": "bt", "TBD": "bt", "BDT": "bh"}
# Axes whose strides kernels of dense cells take.
DENSE_X_AXES, DENSE_Y_AXES = "btgh", "bth"
# Axes whose strides a single step takes.
STEP_X_AXES = "bgh"


@dataclass(frozen=True, slots=True)
class ArrayNames:
    """Names of a cell's arrays in one pass, in the order in which a call has them.

    A backward reads `saved_states`, the states after each step; `output_state` among them is y. `vector_states`,
    `vector_parameters` and `shared`, the inputs S.*, have the axis n. `rounds` counts the rounds of products of other values
    than the previous output in a step, `waits` the waits of a step for means over units, and `known_means` the means of its
    forward that a backward reads, those over a head for each of its `norm_parts` parts. `inputs` are the inputs X.*. `is_dual`:
    states are dual numbers in a scan.
    """

    states: tuple[str, ...]
    parameters: tuple[str, ...]
    saved_states: tuple[str, ...] = ()
    output_state: str | None = None
    vector_states: tuple[str, ...] = ()
    vector_parameters: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    rounds: int = 0
    inputs: tuple[str, ...] = ()
    waits: int = 0
    known_means: int = 0
    norm_parts: int = 1
    is_dual: bool = False


@lru_cache(maxsize=_NAMES_HELD)
def named_arrays(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parameters of the arrays that a cell has by name, such as its final states."""
    return tuple(f"{prefix}_{name}" for name in names)


@lru_cache(maxsize=_NAMES_HELD)
def stride_names(array: str, axes: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters that are strides of an array along `axes`, each with its axis."""
    return tuple((f"{array}_{AXES[axis]}_stride", axis) for axis in axes)


class Variant(NamedTuple):
    """Properties that a signature depends on in addition to the cell's names: the layout and fields of the plan."""

    layout: str
    resets: bool
    states_out: str
    has_workspace: bool
    in_clusters: bool
    in_grid: bool
    pool: str = "none"
    replays: bool = False
    products_added: bool = False

    @property
    def kept_type(self) -> str:
        return "storage_t" if self.states_out == "storage" else "compute_t"


Parameters = Iterable[Parameter]


def own_gates(count: int) -> int:
    """Return how many of a number of gates lie in x itself, where their tangents, the others, may lie in another array."""
    return (count + 1) // 2


def input_array(name: str, element: str, comment: str, source: str, is_of_cell: bool = False) -> Parameter:
    """Return the parameter of an array that a kernel reads."""
    return Parameter(name, f"const {element}* __restrict__", comment, source, is_of_cell)


def output_array(name: str, element: str, comment: str, source: str, is_of_cell: bool = False) -> Parameter:
    """Return the parameter of an array that a kernel writes."""
    return Parameter(name, f"{element}* __restrict__", comment, source, is_of_cell)


def strides_of(array: str, axes: str, source: str, is_of_cell: bool = False) -> Parameters:
    """Yield the strides of an array along `axes`."""
    for name, _ in stride_names(array, axes):
        yield Parameter(name, "int64", "", source, is_of_cell)


def inputs_in(names: ArrayNames, shape: str) -> Parameters:
    """Yield the inputs X.*, which lie in memory as y does."""
    for name in names.inputs:
        yield input_array(f"input_{name}", "storage_t", f"{shape}, strides as y", "call.inputs", is_of_cell=True)


def dinputs_in(names: ArrayNames, shape: str) -> Parameters:
    """Yield the gradients of the inputs X.*, written by a backward."""
    for name in names.inputs:
        yield output_array(f"dinput_{name}", "storage_t", f"{shape}, strides as y", "gradients.dinputs", is_of_cell=True)


def sizes_of(*names: str) -> Parameters:
    """Yield the sizes of a call with these names."""
    for name in names:
        yield Parameter(name, "int64", "", f"call.{name}")


def workspace_of(variant: Variant) -> Parameters:
    """Yield the memory through which blocks pass states, if they do."""
    if variant.has_workspace:
        yield output_array("workspace_bytes", "unsigned char", "[bytes], all ones", "launch.workspace")


def x_of_step() -> Parameters:
    """Yield x of a single step."""
    yield input_array("x", "storage_t", "[batch, GATES, HIDDEN_SIZE], strides below", "call.x")
    yield from strides_of("x", STEP_X_AXES, "call.x")


def recurrent_matrix() -> Parameters:
    """Yield R."""
    yield input_array("R", "storage_t", "[PRODUCTS, HEADS, HEAD_DIM (out), HEAD_DIM (in)]", "call.R")


def vectors_of(names: ArrayNames, recurrent: bool) -> Parameters:
    """Yield biases and parameters, each in float32 or the storage type, as a mask says."""
    yield input_array("bias", "void", "[GATES, HIDDEN_SIZE] or null", "call.bias")
    if recurrent:
        yield input_array("recurrent_bias", "void", "[PRODUCTS, HIDDEN_SIZE] or null", "call.recurrent_bias")
    for name in names.parameters:
        comment = f"[{channel_axes(name in names.vector_parameters)}]"
        yield input_array(f"parameter_{name}", "void", comment, "call.parameters", is_of_cell=True)
    behind = "bit 1: recurrent_bias is; bit 2 + p" if recurrent else "bit 1 + p"
    yield Parameter(
        "float32_vectors", "unsigned", f"bit 0: bias is float32; {behind}: parameter p is", "launch.float32_vectors"
    )


def states_of(prefix: str, names: ArrayNames, source: str) -> Parameters:
    """Yield initial states or the gradients of final ones, read once."""
    for name in names.states:
        comment = f"[batch, {channel_axes(name in names.vector_states)}] or null for zeros"
        yield input_array(f"{prefix}_{name}", "compute_t", comment, source, is_of_cell=True)


def states_out_of(prefix: str, names: ArrayNames, source: str) -> Parameters:
    """Yield final states or the gradients of initial ones, written once."""
    for name in names.states:
        comment = f"[batch, {channel_axes(name in names.vector_states)}]"
        yield output_array(f"{prefix}_{name}", "compute_t", comment, source, is_of_cell=True)


def slots_of(names: ArrayNames) -> Parameters:
    """Yield a pool of states, written in place, and which slots of it each sequence reads and writes."""
    yield from pools_of(names)
    yield from slot_numbers()


def pools_of(names: ArrayNames) -> Parameters:
    """Yield a pool of states, written in place."""
    for name in names.states:
        comment = f"[slot_count, {channel_axes(name in names.vector_states)}], each slot without gaps"
        yield Parameter(f"pool_{name}", "pool_t*", comment, "call.initial", is_of_cell=True)
        yield Parameter(f"slot_stride_{name}", "int64", "", "call.initial", is_of_cell=True)


def slot_numbers() -> Parameters:
    """Yield which slots of a pool each sequence reads and writes."""
    yield input_array("slots", "void", "[batch], int32 or int64: what each sequence reads", "call.pool")
    yield input_array("into_slots", "void", "[batch], int32 or int64: what it writes", "call.pool")
    yield Parameter("wide_slots", "unsigned", "bit 0: slots are int64; bit 1: into_slots are", "call.pool")
    for name in ("slots_stride", "into_slots_stride", "slot_count", "pad_slot"):
        yield Parameter(name, "int64", "", "call.pool")


def states_before_step(variant: Variant, names: ArrayNames) -> Parameters:
    """Yield the states that a single step reads: of its sequences, or of a pool, where it writes them too."""
    return states_of("initial", names, "call.initial") if variant.pool == "none" else slots_of(names)


def states_after_step(variant: Variant, names: ArrayNames) -> Parameters:
    """Yield the final states that a single step writes; a pool has its states in place."""
    return states_out_of("final", names, "outputs.final") if variant.pool == "none" else ()


def channel_axes(is_wide: bool) -> str:
    """Return the axes of an array per channel, with n values or one."""
    return "HIDDEN_SIZE, STATE_SIZE" if is_wide else "HIDDEN_SIZE"


def rows_of(axes: str, layout: str) -> str:
    """Return the comment of an array of a scan: axes of x or y in the layout of the kernel."""
    time_last = layout == "BDT"
    sizes = {"x": ("GATES", "HIDDEN_SIZE"), "y": ("HIDDEN_SIZE",)}[axes]
    shape = ("batch", *sizes, "time") if time_last else ("batch", "time", *sizes)
    return f"[{', '.join(shape)}], strides below, {'time' if time_last else 'channels'} contiguous"


def scan_inputs(variant: Variant, names: ArrayNames, is_dual: bool = False) -> Parameters:
    """Yield the leading parameters of both passes of scans and diagonal kernels; `is_dual`: of a scan over dual numbers."""
    yield input_array("x", "storage_t", rows_of("x", variant.layout), "call.x")
    if is_dual:
        yield input_array("x_moved", "storage_t", "[as x] from gate OWN_GATES on, in x or apart, strides as x", "call.x")
    yield from strides_of("x", SCAN_X_AXES[variant.layout], "call.x")
    yield from inputs_in(names, "[as y]")
    yield from vectors_of(names, recurrent=False)
    yield from states_of("initial", names, "call.initial")
    if variant.resets:
        yield input_array("resets", "bool", "[batch, time], strides below", "call.sequences.resets")
        yield from strides_of("resets", "bt", "call.sequences.resets")
    if variant.layout == "BDT":
        yield input_array("ends", "int64", "[batch], the length of each sequence, or null for time", "call.sequences.lengths")
        return
    yield input_array("begins", "int64", "[batch], the first row of each sequence, or null for 0", "call.sequences.cu_seqlens")
    yield input_array("ends", "int64", "[batch], the row after its last one, or null for time", "call.sequences.lengths")
