"""Rounds of products and norms on the GPU: in one launch and step by step, against the same cell in float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.device_arrays import moved
from support.norm_cells import GATES_TOGETHER, OF_BOTH, OF_PARTS, OF_ROUNDS
from support.round_cells import DEEP, OF_TWO_STATES, PRODUCT_ALONE, RESET_BEFORE
from support.waiting_steps import STEPS

import minrnn_gen
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.interpret.cases import Case, Inputs, inputs_of
from minrnn_gen.interpret.verify import backward_of, forward_of, share_of, step_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import error_allowed

pytestmark = pytest.mark.gpu

# Cell, units, heads, sequences, steps, and the rest of the spec: a block, clusters, a grid, warpgroups, no room for R on chip.
WAYS: list[tuple[dict[str, Any], int, int, int, int, dict[str, Any]]] = [
    (RESET_BEFORE, 32, 1, 3, 17, {"precision": "fp32"}),
    (RESET_BEFORE, 512, 1, 16, 40, {"precision": "bf16"}),
    (RESET_BEFORE, 512, 1, 16, 40, {"precision": "fp32"}),
    (RESET_BEFORE, 96, 1, 7, 30, {"precision": "fp64", "recurrent_gradient_clip": 0.05}),
    (RESET_BEFORE, 1536, 1, 96, 12, {"precision": "bf16"}),
    (RESET_BEFORE, 128, 1, 4, 30, {"precision": "fp32", "layout": "TBD", "direction": "reverse"}),
    (RESET_BEFORE, 48, 1, 4, 40, {"precision": "bf16", "layout": "BDT", "direction": "bidirectional"}),
    (RESET_BEFORE, 512, 1, 600, 8, {"precision": "bf16"}),
    (RESET_BEFORE, 1024, 1, 300, 6, {"precision": "fp32"}),
    (DEEP, 512, 2, 500, 8, {"precision": "fp16", "layout": "TBD", "direction": "reverse"}),
    (PRODUCT_ALONE, 1024, 1, 300, 6, {"precision": "bf16"}),
    (DEEP, 512, 1, 16, 40, {"precision": "bf16"}),
    (DEEP, 512, 8, 16, 64, {"precision": "bf16"}),
    (DEEP, 1024, 1, 2, 20, {"precision": "bf16"}),
    (DEEP, 64, 1, 300, 20, {"precision": "fp16", "input_size": 24}),
    (DEEP, 96, 2, 7, 30, {"precision": "fp64"}),
    (OF_TWO_STATES, 256, 1, 5, 33, {"precision": "bf16"}),
    (GATES_TOGETHER, 512, 1, 16, 40, {"precision": "bf16"}),
    # Means of many sequences, by warpgroups: lists, rounds, and blocks that split the columns of R.
    (GATES_TOGETHER, 512, 1, 600, 8, {"precision": "bf16"}),
    (OF_ROUNDS, 512, 1, 600, 8, {"precision": "fp16", "layout": "TBD", "direction": "reverse"}),
    (GATES_TOGETHER, 1024, 1, 300, 6, {"precision": "fp32", "fp32_product": "tf32"}),
    (GATES_TOGETHER, 1024, 8, 5, 70, {"precision": "fp32", "layout": "BDT", "direction": "bidirectional"}),
    (OF_BOTH, 96, 3, 7, 30, {"precision": "fp32", "recurrent_gradient_clip": 0.05}),
    (OF_ROUNDS, 700, 1, 4, 33, {"precision": "fp64", "input_size": 24}),
    # Means over parts of a head: several in a block, blocks of a part, of a grid, and step by step.
    (OF_PARTS, 64, 1, 5, 33, {"precision": "fp32"}),
    (OF_PARTS, 512, 1, 16, 40, {"precision": "bf16"}),
    (OF_PARTS, 1024, 1, 3, 20, {"precision": "bf16"}),
    (OF_PARTS, 600, 1, 4, 20, {"precision": "fp64"}),
]
REPEATS = 10_000


def results_of(kernel: Kernel, inputs: Inputs) -> dict[str, Any]:
    forward, saved = forward_of(kernel, inputs)
    return {**forward, **backward_of(kernel, inputs, saved)}


@pytest.mark.parametrize(("cell", "hidden", "heads", "batch", "time", "options"), WAYS)
def test_steps_of_several_stages_are_right_and_repeat_their_bits(
    cupy: ModuleType, cell: dict[str, Any], hidden: int, heads: int, batch: int, time: int, options: dict[str, Any]
) -> None:
    spec = {"model": cell, "hidden_size": hidden, "heads": heads, "batch": batch, "time": time, **options}
    kernel = minrnn_gen.compile(spec)
    exact = minrnn_gen.compile({**spec, "precision": "fp64"})
    inputs = inputs_of(kernel.interface, Case(batch, time))
    on_gpu = Inputs(*(moved(one, cupy.asarray) for one in (inputs.forward, inputs.dy, inputs.dstate, inputs.step)))
    found = moved(results_of(kernel, on_gpu), cupy.asnumpy)
    expected = results_of(exact, inputs.in_float64())
    slack = error_allowed(kernel.interface.precision)
    assert {name: share for name, one in expected.items() if (share := share_of(found[name], one, slack)) > 1} == {}
    again = moved(results_of(kernel, on_gpu), cupy.asnumpy)
    for name, one in found.items():
        np.testing.assert_array_equal(one, again[name], err_msg=name)


def test_many_steps_of_a_small_cell_end(cupy: ModuleType) -> None:
    """A hundred thousand exchanges, one after the other, in each pass."""
    kernel = minrnn_gen.compile({"model": DEEP, "hidden_size": 512, "precision": "bf16", "batch": 2, "time": 25_000})
    interface = kernel.interface
    rng = np.random.default_rng(0)
    storage = numpy_dtype(interface.precision.storage_dtype)
    x = cupy.asarray(rng.standard_normal((2, 25_000, 2, 512)).astype(np.float32)).astype(storage)
    R = cupy.asarray((rng.standard_normal((5, 1, 512, 512)) / 40).astype(storage))
    vectors = {"w": cupy.ones(512, storage)}
    y, _, saved = kernel.forward(x, R, parameters=vectors)
    gradients = kernel.backward(saved, cupy.ones_like(y))
    assert bool(cupy.isfinite(y.astype("float32")).all()) and bool(cupy.isfinite(gradients["x"].astype("float32")).all())


@pytest.mark.parametrize(("cell", "hidden", "heads", "batch", "options"), STEPS)
def test_a_single_step_waits_within_one_launch(
    cupy: ModuleType, cell: Any, hidden: int, heads: int, batch: int, options: dict[str, Any]
) -> None:
    """Right, by the kernel meant, and with the same bits in every launch, however many follow each other."""
    spec = {"model": cell, "hidden_size": hidden, "heads": heads, "batch": batch, "training": False, **options}
    kernel = minrnn_gen.compile(spec)
    inputs = inputs_of(kernel.interface, Case(batch, 1))
    on_gpu = Inputs(*(moved(one, cupy.asarray) for one in (inputs.forward, inputs.dy, inputs.dstate, inputs.step)))
    first = dict(step_of(kernel, on_gpu))
    expected = dict(step_of(minrnn_gen.compile({**spec, "precision": "fp64"}), inputs.in_float64()))
    found, slack = moved(first, cupy.asnumpy), error_allowed(kernel.interface.precision)
    assert {name: share for name, one in expected.items() if (share := share_of(found[name], one, slack)) > 1} == {}
    plans = (kernel.embedded or kernel).plans
    assert {plan.name for key, plan in plans.items() if key.kernel_pass == "step"} == {"decode_rounds"}
    differs = cupy.zeros((), cupy.int64)
    for _ in range(REPEATS):
        for name, again in dict(step_of(kernel, on_gpu)).items():
            differs += (again.view(cupy.uint8) != first[name].view(cupy.uint8)).sum()
    assert int(differs) == 0
