"""The parameters of kernels that serve pools of states, or join rows, and serve no pass of a cell."""

from __future__ import annotations

from minrnn_gen.codegen.parameter import Parameter
from minrnn_gen.codegen.signature_groups import (
    ArrayNames,
    Parameters,
    Variant,
    channel_axes,
    input_array,
    output_array,
    sizes_of,
    slot_numbers,
    slots_of,
    stride_names,
    strides_of,
)


def move_slots(_: Variant, names: ArrayNames) -> Parameters:
    """Yield the parameters of the kernel that moves states between a pool and rows."""
    yield from slots_of(names)
    for name in names.states:
        comment = f"[batch, {channel_axes(name in names.vector_states)}], or null: not moved"
        yield output_array(f"rows_{name}", "compute_t", comment, "launch.rows", is_of_cell=True)
        yield Parameter(f"width_{name}", "int64", "", "launch.rows", is_of_cell=True)
    yield input_array("has_state", "bool", "[batch]: false for zeros, or null", "call.pool")
    yield output_array("y", "storage_t", "[rows, units of y] or null, places below", "outputs.y")
    yield input_array("begins", "int64", "[batch + 1], the first row of each sequence, or null", "call.sequences.cu_seqlens")
    for name in ("y_values", "y_inner", "y_outer_stride", "y_row_stride"):
        yield Parameter(name, "int64", "", "outputs.y")
    yield Parameter("writes", "int64", "0: from the pool into rows; 1: back, and y of padded rows is 0", "launch.writes")
    yield from sizes_of("batch")


def draft_places(_: Variant, __: ArrayNames) -> Parameters:
    """Yield the parameters of the kernel that finds the places of the states of drafted steps."""
    yield from slot_numbers()
    yield input_array("accepted", "void", "[batch], int64 by bit 2 of wide_slots: steps kept, or null", "draft.accepted")
    yield Parameter("accepted_stride", "int64", "", "draft.accepted")
    yield input_array("lengths", "int64", "[batch]: steps of each sequence, or null for time", "draft.lengths")
    yield output_array("drafts", "int64", "[slot_count, 2]: the first place of the last draft, and its steps", "draft.drafts")
    for name in ("reads", "writes"):
        comment = f"[time, batch]: the place that each step {name}, -1 for none; or null"
        yield output_array(name, "int64", comment, f"launch.{name}")
    comment = "[3, batch]: slot or -1, first place of the steps, and what is kept before them; or null"
    yield output_array("starts", "int64", comment, "launch.starts")
    yield Parameter("places", "int64", "of each slot", "draft.places")
    yield Parameter("folds", "int64", "1: what is kept goes to place 0, and the draft is over", "draft.folds")
    yield Parameter("keeps", "int64", "1: the draft is noted in drafts", "launch.keeps")
    yield from sizes_of("batch", "time")


def joined_rows(_variant: Variant, _names: ArrayNames) -> Parameters:
    """Yield the parameters of the kernel that joins rows of two matrices."""
    for side in ("left", "right"):
        yield input_array(side, "storage_t", f"[batch or 1, time, {side}_size], strides below", f"launch.{side}")
        yield from strides_of(side, "bt", f"launch.{side}")
    yield input_array(
        "first_right", "storage_t", "[sequences, right_size] or null for 0: before the first step", "launch.right"
    )
    yield input_array("resets", "bool", "[batch or 1, time] or null, strides below", "call.sequences.resets")
    yield from strides_of("resets", "bt", "call.sequences.resets")
    begins = "[sequences + 1] or null: the first row of each sequence, where batch is 1"
    yield input_array("begins", "int64", begins, "call.sequences.cu_seqlens")
    yield input_array("ends", "int64", "[batch] or null for time: steps of each sequence", "call.sequences.lengths")
    yield output_array("target", "storage_t", "[rows, left_size + right_size]", "launch.target")
    for name, _ in stride_names("row", "bt"):
        yield Parameter(name, "int64", "in rows", "launch.target")
    for side in ("left", "right"):
        yield Parameter(f"{side}_size", "int64", "", f"launch.{side}")
    yield Parameter("resets_only", "int64", "1: rows without a reset stay as they are", "launch.resets_only")
    shift = "steps from the row of right to that of left: 1, against time -1, of matrices 0"
    yield Parameter("shift", "int64", shift, "launch.shift")
    yield from sizes_of("batch", "time")
    yield Parameter("sequences", "int64", "of begins", "launch.sequences")
