"""States that resets begin from, on the CPU target: against loops written by hand, forward and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_store import native_store
from support.uncompiled_kernels import nothing_compiled

import minrnn_gen
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.kernel import Kernel

# The loops compute their gradients by torch's autograd.
loops = pytest.importorskip("support.reset_states")
HIDDEN = 6


@pytest.fixture(scope="module", params=["numpy", "native"])
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with nothing_compiled(), native_store(tmp_path_factory, MINRNN_CPU=request.param):
        if request.param == "native" and (why := why_no_native_code()):
            pytest.skip(why)
        yield request.param


def check(kernel: Kernel, case: Any, kind: str, of_each: bool, seed: int) -> None:
    problem = loops.drawn(kernel.interface, kind, of_each, seed)
    y, final, gradients = loops.looped(kernel.interface, case.step, problem)
    got_y, got_final, saved = kernel.forward(**problem.call)
    np.testing.assert_allclose(got_y, y, rtol=1e-11, atol=1e-12)
    for name, last in final.items():
        np.testing.assert_allclose(got_final[name], last, rtol=1e-11, atol=1e-12)
    got = loops.flat(kernel.backward(saved, problem.dy, problem.dstate))
    assert {*got} == {*gradients}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-9, atol=1e-10, err_msg=name)
    again, _ = kernel.reference(**problem.call)
    np.testing.assert_allclose(again, y, rtol=1e-11, atol=1e-12)


@given(st.data())
@settings(max_examples=20, deadline=None)
@pytest.mark.usefixtures("code")
def test_a_call_is_that_of_a_loop(data: st.DataObject) -> None:
    """Forward and all gradients, in every direction and layout, with lengths or packed sequences."""
    case = data.draw(st.sampled_from(loops.CASES))
    kind = data.draw(st.sampled_from(["plain", "ragged", "packed"]))
    layout = "BTD" if kind == "packed" else data.draw(st.sampled_from(["BTD", "TBD", "BDT"]))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    spec = {"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "layout": layout, "direction": direction}
    check(minrnn_gen.compile(spec), case, kind, data.draw(st.booleans()), data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("case", loops.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", ["ragged", "packed"])
@pytest.mark.usefixtures("code")
def test_every_class_of_cells_begins_from_them_in_both_directions(case: Any, kind: str) -> None:
    heads = 2 if case.name in ("lstm", "gru") else 1
    spec = {"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "direction": "bidirectional", "heads": heads}
    for of_each in (True, False):
        check(minrnn_gen.compile(spec), case, kind, of_each, 7)
