"""Bugs that this project's kernels once had are found when they come back.

Each is an older state of a few lines, put back into the text of a kernel as it is today, or into what launches it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.emulated_calls import kernel_of
from support.everyday import one_in
from support.small_problems import Prepared, prepare, problems_of

from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import Array
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.problem import alignment_of
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.run.scan import runs as scan

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

SEEDS = 20
ONE_GATE = {"name": "one_gate", "equations": "h[t] = 0.5 * h[t-1] + W.a"}


def prepared(family: str, name: str, kernel_pass: str, call: str) -> Prepared:
    wanted = (f"{family} {name}", kernel_pass, call)
    return prepare(
        next(problem for problem in problems_of(family) if (problem.name, problem.kernel_pass, problem.call) == wanted)
    )


def with_older(problem: Prepared, now: str, once: str) -> dict[str, str]:
    """Return the kernels' texts with `once` in place of `now`, a pattern."""

    texts = [text for text, plan in problem.texts.items() if plan in problem.plans]
    older = {text: re.sub(now, once, text, flags=re.S) for text in texts if re.search(now, text, flags=re.S)}
    assert older, f"nothing is like {now}"
    # It may take less shared memory than the plan has.
    return {
        text: one.replace("sizeof(Shared) == SHARED_BYTES", "sizeof(Shared) <= SHARED_BYTES") for text, one in older.items()
    }


def first_found(problem: Prepared, now: str, once: str) -> str:
    """Return what is wrong with the older text under the first seed that shows something."""
    others = with_older(problem, now, once)
    return next(filter(None, (problem.run(seed, others) for seed in range(SEEDS))), "")


def test_zero_times_nan_is_nan() -> None:
    """Until "A reset holds in compositions", a NaN of before a reset came through it where steps are composed."""
    problem = prepared("channels", "one warp", "forward", "resets")
    arguments = dict(problem.inputs.forward)
    # The first step of a segment: within one, states pass from step to step.
    sequence, step = 2, problem.plans[0].variables["steps_per_lane"]
    arguments["resets"] = arguments["resets"].copy()
    arguments["resets"][sequence, step] = True
    arguments["x"] = arguments["x"].copy()
    arguments["x"][sequence, step - 1] = np.nan
    problem.inputs = replace(problem.inputs, forward=arguments)
    expected, _ = problem.kernel.reference(**arguments)
    assert np.isfinite(expected[sequence, step]).all()
    np.testing.assert_array_equal(np.isnan(problem.results_with(0, {})["y"]), np.isnan(expected))
    now, once = r"is_constant\(\) \? b : both\.b", "both.b"
    assert np.isnan(problem.results_with(0, with_older(problem, now, once))["y"]).sum() > np.isnan(expected).sum()


@pytest.mark.parametrize("kernel_pass", one_in(2, ["forward", "backward"]))
def test_one_tile_in_flight_too_few(kernel_pass: str) -> None:
    """One tile fewer in flight was enough until a copy was issued as soon as its stage had been read."""
    problem = prepared("channels", "tickets", kernel_pass, "long")
    assert first_found(problem, r"TILES_IN_FLIGHT = STAGES \+ 2", "TILES_IN_FLIGHT = STAGES + 1").startswith("race")


def test_a_wait_for_a_copy_too_few() -> None:
    """Until "A cluster reads its next tiles while it exchanges states", a slot was free before the next tile was read."""
    problem = prepared("channels", "cluster", "backward", "long")
    assert first_found(problem, "wait_copy_groups<STAGES - 2>", "wait_copy_groups<STAGES - 1>").startswith("race")


@pytest.mark.matrix_full
def test_a_row_that_nobody_writes() -> None:
    """Until the backward of a dense cell "clears no memory that it writes", others had put zeros into its last row."""
    problem = prepared("recurrent", "block", "backward", "long")
    last_row = r"if \(count\[c\] > 0 && !goes_on\) \{ +// no step follows that.*?\n        \}\n"
    assert first_found(problem, last_row, "").startswith("wrong: nan")


def test_the_squares_of_a_block_twice() -> None:
    """Where lanes share the means of uneven numbers of blocks, some merged the squares of the last block once more."""
    problem = prepared("recurrent", "norms of nine blocks", "forward", "resets")
    assert first_found(problem, r"if \(!exists\) part\[n\]\.squares = compute_t\(0\);", "").startswith("wrong")


def test_a_step_with_a_reset_taken_for_one_without() -> None:
    """Until "Take resets into account in rounds of a backward at large batch", steps between first and last had none."""
    problem = prepared("large", "rounds of warpgroups", "backward", "whole resets")
    assert first_found(problem, r" && !reset_bits\.any\(\)", "").startswith("wrong")


def older_alignment_of_call(*arrays: Array) -> int:
    offsets = [pointer_divisor(array.pointer) for array in arrays]
    for array in arrays:
        outer = zip(array.strides[:-1], array.shape[:-1], strict=True)
        offsets += [stride * array.itemsize for stride, size in outer if size > 1]
    return max(alignment_of(*offsets), arrays[0].itemsize)


@pytest.mark.parametrize(("layout", "shape"), one_in(2, [("BTD", (1, 1, 1, 3)), ("BDT", (1, 1, 1, 3))]))
def test_a_row_alone_copied_beyond_its_end(layout: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until "A copy's width divides the run it is part of", rows of 12 bytes were copied and stored 16 bytes at a time."""
    x = np.ones(shape, np.float32)

    def run() -> None:
        kernel_of(model=ONE_GATE, layout=layout, hidden_size=3 if layout == "BTD" else 1, training=False)(x)

    run()
    monkeypatch.setattr(scan, "alignment_of_call", older_alignment_of_call)
    with pytest.raises(KernelMisbehaved, match="out of bounds"):
        run()


def test_lengths_of_32_bits_read_as_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until "Lengths are beside x again", a backward from arrays alone took int32 lengths for the int64 that kernels read."""
    kernel = kernel_of(model="min_gru", hidden_size=8)
    x, lengths = np.ones((3, 5, 2, 8), np.float32), np.array([2, 0, 5], np.int32)
    y, _, saved = kernel.forward(x, lengths=lengths)

    def backward() -> Any:
        from_arrays = kernel.executor.restore(CallArguments(x, lengths=lengths), y, saved.arrays())
        return kernel.backward(from_arrays, np.ones_like(y))["x"]

    np.testing.assert_array_equal(backward(), kernel.backward(saved, np.ones_like(y))["x"])
    monkeypatch.setattr(GpuRun, "with_sequences_beside_x", lambda _run, call: call)
    with pytest.raises(KernelMisbehaved, match="out of bounds"):
        backward()
