"""The launch ABI of every kernel as data: its parameters in order, each with C type, shape, and where its value comes from.

Templates print these lists, and launches pack their arguments by the names in them. A list is composed of shared groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from minrnn_gen.codegen.parameter import Parameter, Signature
from minrnn_gen.codegen.signature_groups import (
    DENSE_X_AXES,
    DENSE_Y_AXES,
    SCAN_X_AXES,
    SCAN_Y_AXES,
    ArrayNames,
    Parameters,
    Variant,
    dinputs_in,
    input_array,
    inputs_in,
    named_arrays,
    output_array,
    recurrent_matrix,
    rows_of,
    scan_inputs,
    sizes_of,
    states_after_step,
    states_before_step,
    states_of,
    states_out_of,
    stride_names,
    strides_of,
    vectors_of,
    workspace_of,
    x_of_step,
)
from minrnn_gen.codegen.signature_slots import draft_places, joined_rows, move_slots
from minrnn_gen.codegen.signature_vectors import vector_backward, vector_forward, vector_step

if TYPE_CHECKING:
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
    from minrnn_gen.plan.kernel_plan import KernelPlan

# Entries of a kernel that takes a call step by step: `_begin` stores its parameters in a struct, which each `_step` reads.
BEGIN, STEP = "_begin", "_step"
# Signatures in use at once: kinds of kernels, times cells.
_SIGNATURES_HELD = 256


def names_of(lowered: Lowered | LoweredBackward | LoweredVectors | LoweredVectorsBackward) -> ArrayNames:
    """Return the names of the arrays of a lowered cell."""
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward

    if isinstance(lowered, LoweredVectors | LoweredVectorsBackward):
        vectors = lowered.vectors
        return ArrayNames(lowered.states, lowered.parameters, (), None, vectors.states, vectors.parameters, vectors.shared)
    from minrnn_gen.cell.lowering import LoweredScanBackward
    from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward

    saved: tuple[tuple[str, ...], str | None] = ((), None)
    if isinstance(lowered, LoweredScanBackward | LoweredStepsBackward):
        saved = lowered.read_states, lowered.output_state
    names = ArrayNames(lowered.states, lowered.parameters, *saved, inputs=lowered.inputs)
    if isinstance(lowered, LoweredSteps | LoweredStepsBackward):
        waits = len(lowered.whole.statistics) if lowered.whole else 0
        known = len(lowered.known_means) if isinstance(lowered, LoweredStepsBackward) else 0
        names = replace(names, rounds=len(lowered.rounds), waits=waits, known_means=known)
        names = replace(names, norm_parts=lowered.norm_parts, is_dual=lowered.dual is not None)
    return names


def suffixes_of(entry: str) -> tuple[str, ...]:
    """Return the suffixes of the entries that one kernel has: none, or `BEGIN` and `STEP`."""
    return (BEGIN, STEP) if (entry, BEGIN) in _KINDS else ("",)


def signature(plan: KernelPlan, names: ArrayNames, suffix: str = "") -> Signature:
    """Return the parameters of a kernel's entry."""
    variables = plan.variables
    has_workspace = bool(variables.get("lookback")) or variables.get("time_parts", 1) > 1 or plan.is_cooperative
    variant = Variant(
        plan.problem.layout, plan.problem.specialization.resets, plan.problem.specialization.states_out, has_workspace,
        variables.get("cluster_blocks", 1) > 1, plan.group_exchange_bytes > 0, plan.problem.specialization.pool,
        plan.problem.specialization.replays, plan.problem.specialization.products_added,
    )  # fmt: skip
    return _signature(plan.entry, suffix, variant, names)


def signature_context(plan: KernelPlan, names: ArrayNames) -> Signature | dict[str, Signature]:
    """Return the signature for a template: the entries by name if a kernel has two, and the struct `call`."""
    if suffixes_of(plan.entry) == ("",):
        return signature(plan, names)
    begin = signature(plan, names, BEGIN)
    return {"begin": begin, "step": signature(plan, names, STEP), "call": stored_in_call(begin)}


def stored_in_call(begin: Signature) -> Signature:
    """Return the parameters that a `_begin` stores in the struct `Call`: all except those that it alone reads."""
    forward = any(parameter.source == "outputs.y" for parameter in begin)
    left_out = {"scratch.call", "scratch.packed", "call.R", "call.initial" if forward else "incoming.dfinal"}
    return Signature(parameter for parameter in begin if parameter.source not in left_out)


@lru_cache(maxsize=_SIGNATURES_HELD)
def _signature(entry: str, suffix: str, variant: Variant, names: ArrayNames) -> Signature:
    return Signature(_KINDS[entry, suffix](variant, names))


def _scan_forward(variant: Variant, names: ArrayNames, is_scan: bool = False) -> Parameters:
    yield from scan_inputs(variant, names, is_scan and names.is_dual)
    yield output_array("y", "storage_t", rows_of("y", variant.layout), "outputs.y")
    yield from strides_of("y", SCAN_Y_AXES[variant.layout], "outputs.y")
    if variant.states_out != "none":
        for name in named_arrays("kept", names.states):
            comment = "[as y], the state after each step, strides as y"
            yield output_array(name, variant.kept_type, comment, "outputs.kept", is_of_cell=True)
    yield from states_out_of("final", names, "outputs.final")
    yield from workspace_of(variant)
    yield from sizes_of("batch", "time")


def _projected_forward(_: Variant, names: ArrayNames) -> Parameters:
    yield input_array("x", "storage_t", "[batch, time, INPUT_SIZE]", "call.x")
    yield input_array("weight", "storage_t", "[GATES, HIDDEN_SIZE, INPUT_SIZE]", "call.weight")
    yield from vectors_of(names, recurrent=False)
    yield from states_of("initial", names, "call.initial")
    yield output_array("y", "storage_t", "[batch, time, HIDDEN_SIZE]", "outputs.y")
    yield output_array("preactivations", "storage_t", "[batch, time, GATES, HIDDEN_SIZE] or null", "launch.preactivations")
    yield from states_out_of("final", names, "outputs.final")
    yield output_array("workspace_bytes", "unsigned char", "[bytes], all ones", "launch.workspace")
    yield from sizes_of("batch", "time")


def _scan_backward(variant: Variant, names: ArrayNames, is_scan: bool = False) -> Parameters:
    is_dual = is_scan and names.is_dual
    yield from scan_inputs(variant, names, is_dual)
    for name in named_arrays("saved", names.saved_states):
        comment = "[as dy], the state after each step, strides as dy"
        yield input_array(name, "storage_t", comment, "arrays.read_states", is_of_cell=True)
    yield input_array("dy", "storage_t", rows_of("y", variant.layout), "incoming.dy")
    yield from strides_of("y", SCAN_Y_AXES[variant.layout], "incoming.dy")
    yield from states_of("dfinal", names, "incoming.dfinal")
    yield output_array("dx", "storage_t", rows_of("x", variant.layout), "gradients.dx")
    if is_dual:
        yield output_array("dx_moved", "storage_t", "[as x_moved] or null, strides as dx", "gradients.dx")
    yield from strides_of("dx", SCAN_X_AXES[variant.layout], "gradients.dx")
    yield from dinputs_in(names, "[as y]")
    yield from states_out_of("dinitial", names, "gradients.dinitial")
    parts, summed = "1", "over time"
    if variant.has_workspace:
        parts, summed = "parts", "over the steps of a part: a tile, or a block of the column"
    elif variant.in_clusters:
        parts, summed = "CLUSTER_BLOCKS", "over the steps of a block"
    yield output_array("sums", "compute_t", f"[{parts}, SUMS, batch, HIDDEN_SIZE], {summed}, or null", "gradients.sums")
    yield from workspace_of(variant)
    yield from sizes_of("batch", "time")


def _single_step(variant: Variant, names: ArrayNames, recurrent: bool) -> Parameters:
    yield from x_of_step()
    yield from inputs_in(names, "[batch, HIDDEN_SIZE]")
    if recurrent:
        yield from recurrent_matrix()
    yield from vectors_of(names, recurrent)
    yield from states_before_step(variant, names)
    yield output_array("y", "storage_t", "[batch, HIDDEN_SIZE], contiguous", "outputs.y")
    yield from states_after_step(variant, names)
    if recurrent and variant.pool != "none":
        other = "[batch, HIDDEN_SIZE]: the output's state, whose slots other blocks may still read"
        yield output_array("next_output", "compute_t", other, "launch.next_output")
    yield from sizes_of("batch")
    if variant.in_grid:
        yield _group_exchanges()


def _dense_inputs(names: ArrayNames, takes_R: bool) -> Parameters:
    """Leading parameters of both passes of dense kernels."""
    yield input_array("x", "storage_t", "[batch or 1, time, GATES, HIDDEN_SIZE], strides below", "call.x")
    yield from strides_of("x", DENSE_X_AXES, "call.x")
    yield from inputs_in(names, "[batch or 1, time, HIDDEN_SIZE]")
    if takes_R:
        yield from recurrent_matrix()
    yield from vectors_of(names, recurrent=True)
    yield from states_of("initial", names, "call.initial")
    yield input_array("resets", "bool", "[batch or 1, time] or null, strides below", "call.sequences.resets")
    yield from strides_of("resets", "bt", "call.sequences.resets")
    begins = "[batch] or null for 0: the first row of x and y of each sequence"
    yield input_array("begins", "int64", begins, "call.sequences.cu_seqlens")
    yield input_array("ends", "int64", "[batch] or null for time: the row after the last one", "call.sequences.lengths")


def _dense_forward(names: ArrayNames, kept_type: str, kept_comment: str) -> Parameters:
    yield from _dense_inputs(names, takes_R=True)
    yield output_array("y", "storage_t", "[batch or 1, time, HIDDEN_SIZE], strides below", "outputs.y")
    yield from strides_of("y", DENSE_Y_AXES, "outputs.y")
    for name in named_arrays("kept", names.states):
        comment = f"[batch or 1, time, HIDDEN_SIZE], the strides of y{kept_comment}"
        yield output_array(name, kept_type, comment, "outputs.kept", is_of_cell=True)


def _dense_saved(names: ArrayNames) -> Parameters:
    """The states after each step that a backward reads."""
    for name in names.saved_states:
        is_output = name == names.output_state
        after = f"after each step{': y' if is_output else ''}, strides below"
        element = "storage_t" if is_output else "compute_t"
        comment = f"[batch or 1, time, HIDDEN_SIZE] {after}"
        yield input_array(f"saved_{name}", element, comment, "arrays.read_states", is_of_cell=True)
    yield from strides_of("y", DENSE_Y_AXES, "arrays.read_states")


_MEAN_ROWS = "[rows, HEADS, means in whole rows]: those"
_PRODUCT_ROWS, _FIRST_PRODUCTS = "[rows, HEADS, PRODUCTS, HEAD_DIM]", "[batch, HEADS, PRODUCTS, HEAD_DIM]"


def _dense_products() -> Parameters:
    """The products of all steps, which a backward recomputed."""
    rows = f"{_PRODUCT_ROWS}: R by the output of each row, strides below"
    yield input_array("products", "storage_t", rows, "arrays.apart")
    yield input_array("first_products", "storage_t", f"{_FIRST_PRODUCTS}: R by the initial output", "arrays.apart")
    for name, _ in stride_names("row", "bt"):
        yield Parameter(name, "int64", "in rows", "arrays.apart")


def _dense_backward(variant: Variant, names: ArrayNames, takes_R: bool) -> Parameters:
    yield from _dense_inputs(names, takes_R)
    yield from _dense_saved(names)
    yield input_array("dy", "storage_t", "[batch or 1, time, HIDDEN_SIZE], strides below", "incoming.dy")
    yield from strides_of("dy", DENSE_Y_AXES, "incoming.dy")
    yield from states_of("dfinal", names, "incoming.dfinal")
    if not variant.products_added:
        yield from _dense_products()
    yield output_array("dx", "storage_t", "[batch or 1, time, GATES, HIDDEN_SIZE], strides below", "gradients.dx")
    yield from strides_of("dx", DENSE_X_AXES, "gradients.dx")
    yield from dinputs_in(names, "[batch or 1, time, HIDDEN_SIZE]")
    if not variant.products_added:
        of_rows = f"{_PRODUCT_ROWS}: at the row whose output was multiplied"
        yield output_array("dproducts", "storage_t", of_rows, "arrays.apart")
        yield output_array("first_dproducts", "storage_t", f"{_FIRST_PRODUCTS}: of the initial output", "arrays.apart")
    yield from states_out_of("dinitial", names, "gradients.dinitial")
    sums = "[GATES + PRODUCTS + PARAMETERS, batch, HIDDEN_SIZE] over time, or null"
    yield output_array("sums", "compute_t", sums, "gradients.sums")


def _group_exchanges() -> Parameter:
    return Parameter("group_exchanges", "GridExchange*", "[HEADS * tiles of sequences], all ones", "launch.workspace")


def _groups(variant: Variant) -> Parameters:
    """Parameters of blocks that exchange operands over a grid."""
    if variant.in_grid:
        yield _group_exchanges()
        yield Parameter("first_group", "int64", "", "launch.first_group")


def _persistent_forward(variant: Variant, names: ArrayNames) -> Parameters:
    yield from _dense_forward(names, variant.kept_type, ", or null; absent where none are kept")
    yield from states_out_of("final", names, "outputs.final")
    yield from sizes_of("batch", "time")
    yield from _groups(variant)


def _persistent_backward(variant: Variant, names: ArrayNames) -> Parameters:
    yield from _dense_backward(variant, names, takes_R=True)
    if names.known_means:
        yield input_array("means_of_steps", "compute_t", f"{_MEAN_ROWS} over units of the forward", "arrays.means")
    yield Parameter("clip", "compute_t", "of an output's gradient from later steps, 0 for none", "spec.recurrent_gradient_clip")
    yield from sizes_of("batch", "time")
    beside = "bit 0: an earlier piece has rows before the first; bit 1: a later piece has run, and its sums continue here"
    yield Parameter("neighbours", "unsigned", beside, "arrays.neighbours")
    yield from _groups(variant)


def _call(comment: str) -> Parameters:
    yield Parameter("call", "Call* __restrict__", "[1]", "scratch.call")
    yield Parameter("first_step", "int64", comment, "launch.first_step")


def _stepwise_sizes() -> Parameters:
    yield from sizes_of("batch")
    yield Parameter("time", "int64", "steps of the longest sequence", "call.time")
    yield from sizes_of("reverse")


def _stepwise_forward(_: Variant, names: ArrayNames) -> Parameters:
    yield from _call("of the chunk")
    yield from _dense_forward(names, "void", ", or null")
    yield Parameter("keeps_storage", "int64", "else compute_t", "launch.keeps_storage")
    yield from states_out_of("final", names, "outputs.final")
    yield output_array("state", "compute_t", "[STATES, batch, HIDDEN_SIZE]", "scratch.state")
    yield output_array("hidden", "storage_t", "[batch, HIDDEN_SIZE]: the operand of the next product", "scratch.hidden")
    packed = "[HEADS, PRODUCTS, HEAD_DIM (out), HEAD_DIM (in)]: R, head by head"
    yield output_array("packed", "storage_t", packed, "scratch.packed")
    yield input_array("product", "compute_t", "[batch, HEADS, PRODUCTS, HEAD_DIM]: hidden by R", "scratch.product")
    yield from _stepwise_sizes()


def _stepwise_backward(variant: Variant, names: ArrayNames) -> Parameters:
    yield from _call("of the chunk, from the last step of time on")
    yield from _dense_backward(variant, names, takes_R=False)
    yield output_array("dstate", "compute_t", "[STATES, batch, HIDDEN_SIZE]", "scratch.dstate")
    dhidden = "[batch, HIDDEN_SIZE]: R transposed by dproduct of the later step"
    yield input_array("dhidden", "compute_t", dhidden, "scratch.dhidden")
    yield output_array(
        "dproduct", "storage_t", "[batch, HEADS, PRODUCTS, HEAD_DIM]: the operand of the next product", "scratch.dproduct"
    )
    if names.rounds:
        of_rounds = "[ROUNDS_OF_PRODUCTS, batch, HIDDEN_SIZE]: R transposed by dproduct of each round"
        yield input_array("dargument", "compute_t", of_rounds, "scratch.dargument")
    yield Parameter("clip", "compute_t", "of an output's gradient from later steps, 0 for none", "spec.recurrent_gradient_clip")
    yield from _stepwise_sizes()


def _backward_arguments(_: Variant, names: ArrayNames) -> Parameters:
    yield from _dense_inputs(names, takes_R=False)
    yield from _dense_saved(names)
    yield from _dense_products()
    yield output_array("arguments", "storage_t", "[rows, HIDDEN_SIZE]: what is multiplied in this round", "arrays.arguments")
    if names.known_means:
        yield output_array("means", "compute_t", f"{_MEAN_ROWS}, after the last round", "arrays.means")
    yield Parameter("round", "int", "from 1 on", "launch.round")
    yield from _stepwise_sizes()


def _dropout(_: Variant, __: ArrayNames) -> Parameters:
    rows = "[rows, row_length], row_stride apart"
    # Not restricted: gradients are dropped in place.
    yield Parameter("source", "const storage_t*", rows, "launch.source")
    yield input_array("mask", "bool", f"{rows}: what is kept", "launch.mask")
    yield Parameter("target", "storage_t*", f"{rows}: source or another array", "launch.target")
    for name in ("row_stride", "rows", "row_length"):
        yield Parameter(name, "int64", "", f"launch.{name}")
    yield Parameter("scale", "compute_t", "of what is kept", "launch.scale")


def _filter(reads: tuple[str, ...], writes: tuple[str, ...]) -> Parameters:
    """Yield the parameters of a filter: rows, coefficients of each channel, and states, which may be null if they are read."""
    shapes = {
        "b": "[channels, ORDER + 1]",
        "a": "[channels, ORDER + 1]",
        "zi": "[rows, ORDER] or null",
        "dzf": "[rows, ORDER] or null",
    }
    shapes |= {
        "zf": "[rows, ORDER]",
        "dzi": "[rows, ORDER]",
        "db": "[rows, tiles, ORDER + 1]",
        "da": "[rows, tiles, ORDER + 1]",
    }
    for name in (*reads, *writes):
        element = "double" if name in shapes else "storage_t"
        make = input_array if name in reads else output_array
        yield make(name, element, shapes.get(name, "[rows, time]"), f"launch.{name}")
    yield output_array("workspace_bytes", "unsigned char", "[bytes], all ones", "launch.workspace")
    for name in ("rows", "time", "channels"):
        yield Parameter(name, "int64", "", f"launch.{name}")


# The parameters of every `_step`, whose call is in the struct.
STEP_SIGNATURE = Signature((
    Parameter("call", "const Call* __restrict__", "[1]", "scratch.call"),
    Parameter("step_in_chunk", "int", "", "launch.step_in_chunk"),
))  # fmt: skip
_KINDS: Mapping[tuple[str, str], Callable[[Variant, ArrayNames], Parameters]] = {
    ("scan_forward", ""): partial(_scan_forward, is_scan=True),
    ("scan_backward", ""): partial(_scan_backward, is_scan=True),
    ("projected_forward", ""): _projected_forward,
    ("diagonal_forward", ""): _scan_forward,
    ("diagonal_backward", ""): _scan_backward,
    ("scan_step", ""): partial(_single_step, recurrent=False),
    ("diagonal_step", ""): partial(_single_step, recurrent=False),
    ("backward_arguments", ""): _backward_arguments,
    ("normed_arguments", ""): _backward_arguments,
    ("dropout", ""): _dropout,
    ("joined", ""): joined_rows,
    ("slots", ""): move_slots,
    ("drafts", ""): draft_places,
    ("filter_forward", ""): lambda *_: _filter(("x", "b", "a", "zi"), ("y", "zf")),
    ("filter_backward", ""): lambda *_: _filter(("x", "y", "dy", "b", "a", "dzf"), ("dx", "db", "da", "dzi")),
    ("vector_forward", ""): vector_forward,
    ("vector_backward", ""): vector_backward,
    ("vector_step", ""): vector_step,
    ("decode_step", ""): partial(_single_step, recurrent=True),
    ("persistent_forward", ""): _persistent_forward,
    ("persistent_backward", ""): _persistent_backward,
    ("large_batch_forward", ""): _persistent_forward,
    ("large_batch_backward", ""): _persistent_backward,
    ("stepwise_forward", BEGIN): _stepwise_forward,
    ("stepwise_backward", BEGIN): _stepwise_backward,
    ("normed_forward", BEGIN): _stepwise_forward,
    ("normed_backward", BEGIN): _stepwise_backward,
    **{
        (f"{kind}_{way}", STEP): lambda *_: STEP_SIGNATURE for kind in ("stepwise", "normed") for way in ("forward", "backward")
    },
}
