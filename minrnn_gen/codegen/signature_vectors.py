"""Signatures of the kernels for n values per channel."""

from __future__ import annotations

from minrnn_gen.codegen.parameter import Parameter
from minrnn_gen.codegen.signature_groups import (
    SCAN_X_AXES,
    SCAN_Y_AXES,
    ArrayNames,
    Parameters,
    Variant,
    input_array,
    output_array,
    pools_of,
    rows_of,
    scan_inputs,
    sizes_of,
    states_after_step,
    states_before_step,
    states_of,
    states_out_of,
    strides_of,
    vectors_of,
    workspace_of,
    x_of_step,
)

# Axes whose strides kernels for n values per channel take: of inputs S.*, of partial sums of their gradients, and of states
# after every step.
SHARED_AXES, STEP_SHARED_AXES, DSHARED_AXES, KEPT_AXES = "btkn", "bkn", "pbtkn", "bthn"
# Axes of x and y of drafts.
DRAFT_X_AXES, DRAFT_Y_AXES = "btgh", "bth"


def _shared_inputs(names: ArrayNames, axes: str) -> Parameters:
    """Yield the inputs S.*, each with its own strides: which of its axes is contiguous depends on the layout."""
    shape = "[batch, time, GROUPS, STATE_SIZE]" if "t" in axes else "[batch, GROUPS, STATE_SIZE]"
    for name in names.shared:
        yield input_array(f"shared_{name}", "storage_t", f"{shape}, strides below", "call.shared", is_of_cell=True)
        yield from strides_of(f"strides_{name}", axes, "call.shared", is_of_cell=True)


def vector_forward(variant: Variant, names: ArrayNames) -> Parameters:
    """Yield the parameters of a forward."""
    yield from scan_inputs(variant, names)
    yield from _shared_inputs(names, SHARED_AXES)
    yield output_array("y", "storage_t", rows_of("y", variant.layout), "outputs.y")
    yield from strides_of("y", SCAN_Y_AXES[variant.layout], "outputs.y")
    if variant.states_out != "none":
        for name in names.states:
            comment = "[as y], the state after each step, strides as y"
            if name in names.vector_states:
                comment = "[as y, with STATE_SIZE after the channels], the state after each step, strides below"
            yield output_array(f"kept_{name}", "compute_t", comment, "outputs.kept", is_of_cell=True)
        yield from strides_of("states", KEPT_AXES, "outputs.kept")
    yield from states_out_of("final", names, "outputs.final")
    yield from workspace_of(variant)
    yield from sizes_of("batch", "time")


def vector_backward(variant: Variant, names: ArrayNames) -> Parameters:
    """Yield the parameters of a backward."""
    yield from scan_inputs(variant, names)
    yield from _shared_inputs(names, SHARED_AXES)
    yield input_array("dy", "storage_t", rows_of("y", variant.layout), "incoming.dy")
    yield from strides_of("y", SCAN_Y_AXES[variant.layout], "incoming.dy")
    yield from states_of("dfinal", names, "incoming.dfinal")
    yield output_array("dx", "storage_t", rows_of("x", variant.layout), "gradients.dx")
    yield from strides_of("dx", SCAN_X_AXES[variant.layout], "gradients.dx")
    for name in names.shared:
        comment = "[GROUP_BLOCKS, batch, time, GROUPS, STATE_SIZE], over the channels of a block, strides below"
        yield output_array(f"dshared_{name}", "compute_t", comment, "gradients.dshared", is_of_cell=True)
        yield from strides_of(f"dstrides_{name}", DSHARED_AXES, "gradients.dshared", is_of_cell=True)
    yield from states_out_of("dinitial", names, "gradients.dinitial")
    comment = "[TIME_PARTS, batch, HIDDEN_SIZE, STATE_SIZE], over the time of a part, or null"
    for name in names.vector_parameters:
        yield output_array(f"dparameter_{name}", "compute_t", comment, "gradients.vectors", is_of_cell=True)
    comment = "[TIME_PARTS, GATES + NARROW_PARAMETERS, batch, HIDDEN_SIZE], over the time of a part, or null"
    yield output_array("sums", "compute_t", comment, "gradients.sums")
    comment = "[tiles, STATE_ROWS, HIDDEN_SIZE, LANES], the states at the start of each tile"
    yield Parameter("checkpoints", "compute_t*", comment, "launch.checkpoints")
    if variant.has_workspace:
        comment = "[TIME_PARTS, columns, 3, STATE_ROWS, THREADS], what a part makes of states and of their gradients"
        yield Parameter("part_ends", "compute_t*", comment, "launch.part_ends")
        yield Parameter("phase", "int64", "0: to the ends of parts; 1: the gradients", "launch.phase")
    yield from sizes_of("batch", "time")


def vector_step(variant: Variant, names: ArrayNames) -> Parameters:
    """Yield the parameters of a single step, or of one that runs a draft."""
    if variant.replays:
        yield from _vector_draft(names)
        return
    yield from x_of_step()
    yield from vectors_of(names, recurrent=False)
    yield from states_before_step(variant, names)
    yield from _shared_inputs(names, STEP_SHARED_AXES)
    yield output_array("y", "storage_t", "[batch, HIDDEN_SIZE], contiguous", "outputs.y")
    yield from states_after_step(variant, names)
    yield from sizes_of("batch")


def _vector_draft(names: ArrayNames) -> Parameters:
    yield input_array("x", "storage_t", "[batch, time, GATES, HIDDEN_SIZE], strides below", "call.x")
    yield from strides_of("x", DRAFT_X_AXES, "call.x")
    yield from vectors_of(names, recurrent=False)
    yield from pools_of(names)
    yield input_array("starts", "int64", "[3, batch]: slot or -1, first place of inputs, steps to run again", "launch.starts")
    yield input_array("lengths", "int64", "[batch]: steps of each sequence, or null for time", "draft.lengths")
    yield from _shared_inputs(names, SHARED_AXES)
    yield output_array("kept_x", "storage_t", "[slot_count, places, GATES, HIDDEN_SIZE]: x of drafts", "draft.inputs")
    for name in names.shared:
        comment = "[slot_count, places, GROUPS, STATE_SIZE], of drafts"
        yield output_array(f"kept_{name}", "storage_t", comment, "draft.inputs", is_of_cell=True)
    yield output_array("y", "storage_t", "[batch, time, HIDDEN_SIZE], strides below", "outputs.y")
    yield from strides_of("y", DRAFT_Y_AXES, "outputs.y")
    yield Parameter("places", "int64", "of the inputs of a slot", "draft.places")
    yield from sizes_of("batch", "time")
