"""The launch ABI of every kernel as data: its parameters in order, each with C type, shape, and where its value comes from.

Templates print these lists, and launches pack their arguments by the names in them. A list is composed of groups that kernels
share, so that a further kind of array has one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from minrnn_gen.codegen.parameter import Parameter, Signature

if TYPE_CHECKING:
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
    from minrnn_gen.plan.kernel_plan import KernelPlan

# Entries of a kernel that takes a call step by step: `_begin` stores its parameters in a struct, which each `_step` reads.
BEGIN, STEP = "_begin", "_step"
# Signatures in use at once: kinds of kernels, times cells.
_SIGNATURES_HELD = 256
# Axes, and how strides along them are called.
AXES = {"b": "batch", "t": "time", "g": "gate", "h": "channel", "k": "group", "n": "value", "p": "part"}
# Axes whose strides scans and diagonal kernels take, of arrays like x and like y; the last axis is contiguous.
SCAN_X_AXES = {"BTD": "btg", "TBD": "btg", "BDT": "bgh"}
SCAN_Y_AXES = {"BTD": "bt", "TBD": "bt", "BDT": "bh"}
# Axes whose strides kernels of dense cells take.
DENSE_X_AXES, DENSE_Y_AXES = "btgh", "bth"
# Axes whose strides a single step takes.
STEP_X_AXES = "bgh"
# Axes whose strides kernels for n values per channel take: of inputs S.*, of partial sums of their gradients, and of states
# after every step.
SHARED_AXES, STEP_SHARED_AXES, DSHARED_AXES, KEPT_AXES = "btkn", "bkn", "pbtkn", "bthn"


@dataclass(frozen=True, slots=True)
class ArrayNames:
    """Names of a cell's arrays in one pass, in the order in which a call has them.

    A backward reads `saved_states`, the states after each step, of which `output_state` is y. Those of `vector_states` and
    `vector_parameters` have the axis n, and so have the inputs S.*, `shared`.
    """

    states: tuple[str, ...]
    parameters: tuple[str, ...]
    saved_states: tuple[str, ...] = ()
    output_state: str | None = None
    vector_states: tuple[str, ...] = ()
    vector_parameters: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def names_of(lowered: Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward) -> ArrayNames:
    """Return the names of the arrays of a lowered cell."""
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward

    if isinstance(lowered, LoweredVectors | LoweredVectorsBackward):
        vectors = lowered.vectors
        return ArrayNames(lowered.states, lowered.parameters, (), None, vectors.states, vectors.parameters, vectors.shared)
    from minrnn_gen.cell.lowering import LoweredScanBackward
    from minrnn_gen.cell.lowering_steps import LoweredStepsBackward

    if isinstance(lowered, LoweredScanBackward | LoweredStepsBackward):
        return ArrayNames(lowered.states, lowered.parameters, lowered.read_states, lowered.output_state)
    return ArrayNames(lowered.states, lowered.parameters)


@lru_cache(maxsize=_SIGNATURES_HELD)
def named_arrays(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parameters of the arrays that a cell has by name, such as its final states."""
    return tuple(f"{prefix}_{name}" for name in names)


@lru_cache(maxsize=_SIGNATURES_HELD)
def stride_names(array: str, axes: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters that are strides of an array along `axes`, each with its axis."""
    return tuple((f"{array}_{AXES[axis]}_stride", axis) for axis in axes)


def suffixes_of(entry: str) -> tuple[str, ...]:
    """Return the suffixes of the entries that one kernel has: none, or `BEGIN` and `STEP`."""
    return (BEGIN, STEP) if (entry, BEGIN) in _KINDS else ("",)


def signature(plan: KernelPlan, names: ArrayNames, suffix: str = "") -> Signature:
    """Return the parameters of a kernel's entry."""
    variables = plan.variables
    variant = _Variant(
        plan.layout, plan.specialization.resets, plan.specialization.states_out, bool(variables.get("lookback")),
        variables.get("cluster_blocks", 1) > 1, plan.group_exchange_bytes > 0,
    )  # fmt: skip
    return _signature(plan.entry, suffix, variant, names)


def signature_context(plan: KernelPlan, names: ArrayNames) -> Signature | dict[str, Signature]:
    """Return the signature as a template reads it: of a kernel with two entries each by its name, and the struct `call`."""
    if suffixes_of(plan.entry) == ("",):
        return signature(plan, names)
    begin = signature(plan, names, BEGIN)
    return {"begin": begin, "step": signature(plan, names, STEP), "call": stored_in_call(begin)}


def stored_in_call(begin: Signature) -> Signature:
    """Return those parameters of a `_begin` that it stores in the struct `Call`: all that it does not read alone."""
    forward = any(parameter.source == "outputs.y" for parameter in begin)
    left_out = {"scratch.call", "scratch.packed", "call.R", "call.initial" if forward else "incoming.dfinal"}
    return Signature(parameter for parameter in begin if parameter.source not in left_out)


class _Variant(NamedTuple):
    """What a signature depends on beside the names of the cell: the layout, and properties of the plan."""

    layout: str
    resets: bool
    states_out: str
    lookback: bool
    in_clusters: bool
    in_grid: bool

    @property
    def kept_type(self) -> str:
        return "storage_t" if self.states_out == "storage" else "compute_t"


_Parameters = Iterable[Parameter]


@lru_cache(maxsize=_SIGNATURES_HELD)
def _signature(entry: str, suffix: str, variant: _Variant, names: ArrayNames) -> Signature:
    return Signature(_KINDS[entry, suffix](variant, names))


def _input(name: str, element: str, comment: str, source: str, is_of_cell: bool = False) -> Parameter:
    return Parameter(name, f"const {element}* __restrict__", comment, source, is_of_cell)


def _output(name: str, element: str, comment: str, source: str, is_of_cell: bool = False) -> Parameter:
    return Parameter(name, f"{element}* __restrict__", comment, source, is_of_cell)


def _strides(array: str, axes: str, source: str, is_of_cell: bool = False) -> _Parameters:
    for name, _ in stride_names(array, axes):
        yield Parameter(name, "int64", "", source, is_of_cell)


def _sizes(*names: str) -> _Parameters:
    for name in names:
        yield Parameter(name, "int64", "", f"call.{name}")


def _x_of_step() -> _Parameters:
    yield _input("x", "storage_t", "[batch, GATES, HIDDEN_SIZE], strides below", "call.x")
    yield from _strides("x", STEP_X_AXES, "call.x")


def _R() -> _Parameters:
    yield _input("R", "storage_t", "[PRODUCTS, HEADS, HEAD_DIM (out), HEAD_DIM (in)]", "call.R")


def _vectors(names: ArrayNames, recurrent: bool) -> _Parameters:
    """Biases and parameters, each in float32 or the storage type, as a mask says."""
    yield _input("bias", "void", "[GATES, HIDDEN_SIZE] or null", "call.bias")
    if recurrent:
        yield _input("recurrent_bias", "void", "[PRODUCTS, HIDDEN_SIZE] or null", "call.recurrent_bias")
    for name in names.parameters:
        comment = f"[{_channels(name in names.vector_parameters)}]"
        yield _input(f"parameter_{name}", "void", comment, "call.parameters", is_of_cell=True)
    behind = "bit 1: recurrent_bias is; bit 2 + p" if recurrent else "bit 1 + p"
    yield Parameter(
        "float32_vectors", "unsigned", f"bit 0: bias is float32; {behind}: parameter p is", "launch.float32_vectors"
    )


def _states(prefix: str, names: ArrayNames, source: str) -> _Parameters:
    """Initial states or the gradients of final ones, read once."""
    for name in names.states:
        comment = f"[batch, {_channels(name in names.vector_states)}] or null for zeros"
        yield _input(f"{prefix}_{name}", "compute_t", comment, source, is_of_cell=True)


def _states_out(prefix: str, names: ArrayNames, source: str) -> _Parameters:
    """Final states or the gradients of initial ones, written once."""
    for name in names.states:
        comment = f"[batch, {_channels(name in names.vector_states)}]"
        yield _output(f"{prefix}_{name}", "compute_t", comment, source, is_of_cell=True)


def _channels(is_wide: bool) -> str:
    """The axes of what each channel has: n values or one."""
    return "HIDDEN_SIZE, STATE_SIZE" if is_wide else "HIDDEN_SIZE"


def _rows(axes: str, layout: str) -> str:
    """The comment of an array of a scan: axes of x or y in the layout of the kernel."""
    time_last = layout == "BDT"
    sizes = {"x": ("GATES", "HIDDEN_SIZE"), "y": ("HIDDEN_SIZE",)}[axes]
    shape = ("batch", *sizes, "time") if time_last else ("batch", "time", *sizes)
    return f"[{', '.join(shape)}], strides below, {'time' if time_last else 'channels'} contiguous"


def _scan_inputs(variant: _Variant, names: ArrayNames) -> _Parameters:
    """What both passes of scans and diagonal kernels begin with."""
    yield _input("x", "storage_t", _rows("x", variant.layout), "call.x")
    yield from _strides("x", SCAN_X_AXES[variant.layout], "call.x")
    yield from _vectors(names, recurrent=False)
    yield from _states("initial", names, "call.initial")
    if variant.resets:
        yield _input("resets", "bool", "[batch, time], strides below", "call.sequences.resets")
        yield from _strides("resets", "bt", "call.sequences.resets")
    if variant.layout == "BDT":
        yield _input("ends", "int64", "[batch], the length of each sequence, or null for time", "call.sequences.lengths")
        return
    yield _input("begins", "int64", "[batch], the first row of each sequence, or null for 0", "call.sequences.cu_seqlens")
    yield _input("ends", "int64", "[batch], the row behind its last one, or null for time", "call.sequences.lengths")


def _workspace(variant: _Variant) -> _Parameters:
    if variant.lookback:
        yield _output("workspace_bytes", "unsigned char", "[bytes], all ones", "launch.workspace")


def _scan_forward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _scan_inputs(variant, names)
    yield _output("y", "storage_t", _rows("y", variant.layout), "outputs.y")
    yield from _strides("y", SCAN_Y_AXES[variant.layout], "outputs.y")
    if variant.states_out != "none":
        for name in named_arrays("kept", names.states):
            comment = "[as y], the state after each step, strides as y"
            yield _output(name, variant.kept_type, comment, "outputs.kept", is_of_cell=True)
    yield from _states_out("final", names, "outputs.final")
    yield from _workspace(variant)
    yield from _sizes("batch", "time")


def _scan_backward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _scan_inputs(variant, names)
    for name in named_arrays("saved", names.saved_states):
        comment = "[as dy], the state after each step, strides as dy"
        yield _input(name, "storage_t", comment, "arrays.read_states", is_of_cell=True)
    yield _input("dy", "storage_t", _rows("y", variant.layout), "incoming.dy")
    yield from _strides("y", SCAN_Y_AXES[variant.layout], "incoming.dy")
    yield from _states("dfinal", names, "incoming.dfinal")
    yield _output("dx", "storage_t", _rows("x", variant.layout), "gradients.dx")
    yield from _strides("dx", SCAN_X_AXES[variant.layout], "gradients.dx")
    yield from _states_out("dinitial", names, "gradients.dinitial")
    parts, summed = "1", "over time"
    if variant.lookback:
        parts, summed = "tiles", "over the steps of a tile"
    elif variant.in_clusters:
        parts, summed = "CLUSTER_BLOCKS", "over the steps of a block"
    yield _output("sums", "compute_t", f"[{parts}, SUMS, batch, HIDDEN_SIZE], {summed}, or null", "gradients.sums")
    yield from _workspace(variant)
    yield from _sizes("batch", "time")


def _shared_inputs(names: ArrayNames, axes: str) -> _Parameters:
    """The inputs S.*, each with its own strides: which of its axes is contiguous depends on the layout."""
    shape = "[batch, time, GROUPS, STATE_SIZE]" if "t" in axes else "[batch, GROUPS, STATE_SIZE]"
    for name in names.shared:
        yield _input(f"shared_{name}", "storage_t", f"{shape}, strides below", "call.shared", is_of_cell=True)
        yield from _strides(f"shared_{name}", axes, "call.shared", is_of_cell=True)


def _vector_forward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _scan_inputs(variant, names)
    yield from _shared_inputs(names, SHARED_AXES)
    yield _output("y", "storage_t", _rows("y", variant.layout), "outputs.y")
    yield from _strides("y", SCAN_Y_AXES[variant.layout], "outputs.y")
    if variant.states_out != "none":
        for name in names.states:
            comment = "[as y], the state after each step, strides as y"
            if name in names.vector_states:
                comment = "[as y, with STATE_SIZE behind the channels], the state after each step, strides below"
            yield _output(f"kept_{name}", "compute_t", comment, "outputs.kept", is_of_cell=True)
        yield from _strides("kept", KEPT_AXES, "outputs.kept")
    yield from _states_out("final", names, "outputs.final")
    yield from _sizes("batch", "time")


def _vector_backward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _scan_inputs(variant, names)
    yield from _shared_inputs(names, SHARED_AXES)
    yield _input("dy", "storage_t", _rows("y", variant.layout), "incoming.dy")
    yield from _strides("y", SCAN_Y_AXES[variant.layout], "incoming.dy")
    yield from _states("dfinal", names, "incoming.dfinal")
    yield _output("dx", "storage_t", _rows("x", variant.layout), "gradients.dx")
    yield from _strides("dx", SCAN_X_AXES[variant.layout], "gradients.dx")
    for name in names.shared:
        comment = "[GROUP_BLOCKS, batch, time, GROUPS, STATE_SIZE], over the channels of a block, strides below"
        yield _output(f"dshared_{name}", "compute_t", comment, "gradients.dshared", is_of_cell=True)
        yield from _strides(f"dshared_{name}", DSHARED_AXES, "gradients.dshared", is_of_cell=True)
    yield from _states_out("dinitial", names, "gradients.dinitial")
    for name in names.vector_parameters:
        comment = "[batch, HIDDEN_SIZE, STATE_SIZE], over time, or null"
        yield _output(f"dparameter_{name}", "compute_t", comment, "gradients.vectors", is_of_cell=True)
    comment = "[GATES + NARROW_PARAMETERS, batch, HIDDEN_SIZE], over time, or null"
    yield _output("sums", "compute_t", comment, "gradients.sums")
    comment = "[tiles, STATE_ROWS, HIDDEN_SIZE, LANES], the states at the begin of each tile"
    yield Parameter("checkpoints", "compute_t*", comment, "launch.checkpoints")
    yield from _sizes("batch", "time")


def _vector_step(_: _Variant, names: ArrayNames) -> _Parameters:
    yield from _x_of_step()
    yield from _vectors(names, recurrent=False)
    yield from _states("initial", names, "call.initial")
    yield from _shared_inputs(names, STEP_SHARED_AXES)
    yield _output("y", "storage_t", "[batch, HIDDEN_SIZE], contiguous", "outputs.y")
    yield from _states_out("final", names, "outputs.final")
    yield from _sizes("batch")


def _single_step(names: ArrayNames, recurrent: bool) -> _Parameters:
    yield from _x_of_step()
    if recurrent:
        yield from _R()
    yield from _vectors(names, recurrent)
    yield from _states("initial", names, "call.initial")
    yield _output("y", "storage_t", "[batch, HIDDEN_SIZE], contiguous", "outputs.y")
    yield from _states_out("final", names, "outputs.final")
    yield from _sizes("batch")


def _dense_inputs(names: ArrayNames, takes_R: bool) -> _Parameters:
    """What both passes of kernels of dense cells begin with."""
    yield _input("x", "storage_t", "[batch or 1, time, GATES, HIDDEN_SIZE], strides below", "call.x")
    yield from _strides("x", DENSE_X_AXES, "call.x")
    if takes_R:
        yield from _R()
    yield from _vectors(names, recurrent=True)
    yield from _states("initial", names, "call.initial")
    yield _input("resets", "bool", "[batch or 1, time] or null, strides below", "call.sequences.resets")
    yield from _strides("resets", "bt", "call.sequences.resets")
    begins = "[batch] or null for 0: the first row of x and y of each sequence"
    yield _input("begins", "int64", begins, "call.sequences.cu_seqlens")
    yield _input("ends", "int64", "[batch] or null for time: behind the last one", "call.sequences.lengths")


def _dense_forward(names: ArrayNames, kept_type: str, kept_comment: str) -> _Parameters:
    yield from _dense_inputs(names, takes_R=True)
    yield _output("y", "storage_t", "[batch or 1, time, HIDDEN_SIZE], strides below", "outputs.y")
    yield from _strides("y", DENSE_Y_AXES, "outputs.y")
    for name in named_arrays("kept", names.states):
        comment = f"[batch or 1, time, HIDDEN_SIZE], the strides of y{kept_comment}"
        yield _output(name, kept_type, comment, "outputs.kept", is_of_cell=True)


def _dense_backward(names: ArrayNames, takes_R: bool) -> _Parameters:
    yield from _dense_inputs(names, takes_R)
    for name in names.saved_states:
        is_output = name == names.output_state
        after = f"after each step{': y' if is_output else ''}, strides below"
        element = "storage_t" if is_output else "compute_t"
        comment = f"[batch or 1, time, HIDDEN_SIZE] {after}"
        yield _input(f"saved_{name}", element, comment, "arrays.read_states", is_of_cell=True)
    yield from _strides("y", DENSE_Y_AXES, "arrays.read_states")
    yield _input("dy", "storage_t", "[batch or 1, time, HIDDEN_SIZE], strides below", "incoming.dy")
    yield from _strides("dy", DENSE_Y_AXES, "incoming.dy")
    yield from _states("dfinal", names, "incoming.dfinal")
    rows, first = "[rows, HEADS, PRODUCTS, HEAD_DIM]", "[batch, HEADS, PRODUCTS, HEAD_DIM]"
    yield _input("products", "compute_t", f"{rows}: R by the output of each row, strides below", "arrays.products")
    yield _input("first_products", "compute_t", f"{first}: R by the initial output", "arrays.first_products")
    for name, _ in stride_names("row", "bt"):
        yield Parameter(name, "int64", "in rows", "arrays.products")
    yield _output("dx", "storage_t", "[batch or 1, time, GATES, HIDDEN_SIZE], strides below", "gradients.dx")
    yield from _strides("dx", DENSE_X_AXES, "gradients.dx")
    yield _output("dproducts", "storage_t", f"{rows}: at the row whose output was multiplied", "arrays.dproducts")
    yield _output("first_dproducts", "storage_t", f"{first}: of the initial output", "arrays.first_dproducts")
    yield from _states_out("dinitial", names, "gradients.dinitial")
    sums = "[GATES + PRODUCTS + PARAMETERS, batch, HIDDEN_SIZE] over time, or null"
    yield _output("sums", "compute_t", sums, "gradients.sums")


def _groups(variant: _Variant) -> _Parameters:
    """What blocks need that exchange operands over a grid."""
    if variant.in_grid:
        yield Parameter("group_exchanges", "GridExchange*", "[HEADS * tiles of sequences], all ones", "launch.workspace")
        yield Parameter("first_group", "int64", "", "launch.first_group")


def _persistent_forward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _dense_forward(names, variant.kept_type, "; not there where none are kept")
    yield from _states_out("final", names, "outputs.final")
    yield from _sizes("batch", "time")
    yield from _groups(variant)


def _persistent_backward(variant: _Variant, names: ArrayNames) -> _Parameters:
    yield from _dense_backward(names, takes_R=True)
    yield Parameter("clip", "compute_t", "of an output's gradient from later steps, 0 for none", "spec.recurrent_gradient_clip")
    yield from _sizes("batch", "time")
    yield from _groups(variant)


def _call(comment: str) -> _Parameters:
    yield Parameter("call", "Call* __restrict__", "[1]", "scratch.call")
    yield Parameter("first_step", "int64", comment, "launch.first_step")


def _stepwise_sizes() -> _Parameters:
    yield from _sizes("batch")
    yield Parameter("time", "int64", "steps of the longest sequence", "call.time")
    yield from _sizes("reverse")


def _stepwise_forward(_: _Variant, names: ArrayNames) -> _Parameters:
    yield from _call("of the chunk")
    yield from _dense_forward(names, "void", ", or null")
    yield Parameter("keeps_storage", "int64", "else compute_t", "launch.keeps_storage")
    yield from _states_out("final", names, "outputs.final")
    yield _output("state", "compute_t", "[STATES, batch, HIDDEN_SIZE]", "scratch.state")
    yield _output("hidden", "storage_t", "[batch, HIDDEN_SIZE]: what is multiplied next", "scratch.hidden")
    packed = "[HEADS, PRODUCTS, HEAD_DIM (out), HEAD_DIM (in)]: R, head by head"
    yield _output("packed", "storage_t", packed, "scratch.packed")
    yield _input("product", "compute_t", "[batch, HEADS, PRODUCTS, HEAD_DIM]: hidden by R", "scratch.product")
    yield from _stepwise_sizes()


def _stepwise_backward(_: _Variant, names: ArrayNames) -> _Parameters:
    yield from _call("of the chunk, from the last step of time on")
    yield from _dense_backward(names, takes_R=False)
    yield _output("dstate", "compute_t", "[STATES, batch, HIDDEN_SIZE]", "scratch.dstate")
    dhidden = "[batch, HIDDEN_SIZE]: R transposed by dproduct of the later step"
    yield _input("dhidden", "compute_t", dhidden, "scratch.dhidden")
    yield _output("dproduct", "storage_t", "[batch, HEADS, PRODUCTS, HEAD_DIM]: what is multiplied next", "scratch.dproduct")
    yield Parameter("clip", "compute_t", "of an output's gradient from later steps, 0 for none", "spec.recurrent_gradient_clip")
    yield from _stepwise_sizes()


# The parameters of every `_step`, whose call is in the struct.
STEP_SIGNATURE = Signature((
    Parameter("call", "const Call* __restrict__", "[1]", "scratch.call"),
    Parameter("step_in_chunk", "int", "", "launch.step_in_chunk"),
))  # fmt: skip
_KINDS: Mapping[tuple[str, str], Callable[[_Variant, ArrayNames], _Parameters]] = {
    ("scan_forward", ""): _scan_forward,
    ("scan_backward", ""): _scan_backward,
    ("diagonal_forward", ""): _scan_forward,
    ("diagonal_backward", ""): _scan_backward,
    ("scan_step", ""): lambda _, names: _single_step(names, recurrent=False),
    ("diagonal_step", ""): lambda _, names: _single_step(names, recurrent=False),
    ("vector_forward", ""): _vector_forward,
    ("vector_backward", ""): _vector_backward,
    ("vector_step", ""): _vector_step,
    ("decode_step", ""): lambda _, names: _single_step(names, recurrent=True),
    ("persistent_forward", ""): _persistent_forward,
    ("persistent_backward", ""): _persistent_backward,
    ("large_batch_forward", ""): _persistent_forward,
    ("large_batch_backward", ""): _persistent_backward,
    ("stepwise_forward", BEGIN): _stepwise_forward,
    ("stepwise_forward", STEP): lambda *_: STEP_SIGNATURE,
    ("stepwise_backward", BEGIN): _stepwise_backward,
    ("stepwise_backward", STEP): lambda *_: STEP_SIGNATURE,
}
