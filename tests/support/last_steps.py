"""The last step of each sequence, which is its final state: not a number near it, the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.kernel import Kernel


def last_steps(interface: Interface, y: Any, lengths: Any = None) -> tuple[Any, Any]:
    """Return y at the last step of each run of a sequence [runs, B, H], and whether there is one [runs, B]."""
    axes = Y_AXES[interface.layout]
    rows = np.moveaxis(y, [axes.index(axis) for axis in "tbh"], (0, 1, 2))
    time, batch, _ = rows.shape
    counts = np.full(batch, time) if lengths is None else np.minimum(lengths, time)
    rows = rows.reshape(time, batch, len(interface.runs_reversed), interface.hidden_size)
    lasts = np.stack([np.zeros_like(counts) if is_reversed else counts - 1 for is_reversed in interface.runs_reversed])
    runs, sequences = np.ogrid[: len(lasts), :batch]
    padded = rows if time else np.zeros((1, *rows.shape[1:]), rows.dtype)
    return padded[lasts, sequences, runs], np.broadcast_to(counts > 0, lasts.shape)


def _are_same(first: Any, second: Any) -> bool:
    """Whether numbers and the signs of zeros are the same, and NaN stands where NaN does."""
    one, other = (
        array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).view(np.float64) for array in (first, second)
    )
    return np.array_equal(one, other, equal_nan=True) and bool(np.all((np.signbit(one) == np.signbit(other)) | np.isnan(one)))


def unlike_final_state(kernel: Kernel, arguments: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return what of a call's y and final states is not the same, empty where all is."""
    output = kernel.builder.lowered_backward.output_state
    if output is None:
        return ""
    last, has_steps = last_steps(kernel.interface, results["y"], arguments.get("lengths"))
    final = results[output].reshape(last.shape)
    if not _are_same(last[has_steps], final.astype(last.dtype)[has_steps]):
        return f"y at the last step is not the final {output}"
    initial = arguments.get("state", {}).get(output, np.zeros_like(final)).reshape(last.shape)
    if not _are_same(final[~has_steps], initial[~has_steps]):
        return f"the final {output} of no steps is not the initial one"
    return ""
