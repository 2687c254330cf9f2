"""Reset states and holds on the CPU target: against loops written by hand, forward and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.everyday import one_in
from support.examples import examples
from support.host_kernels import CODES, computed_by
from support.needed import needed

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

# The loops compute their gradients by torch's autograd.
loops = needed("support.altered_calls")
HIDDEN = 6


@pytest.fixture(scope="module", params=CODES)  # hypothesis takes no fixture of a function
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with computed_by(request.param, tmp_path_factory) as name:
        yield name


def check(kernel: Kernel, case: Any, kind: str, of_each: bool, seed: int, holds: bool = False) -> None:
    problem = loops.drawn(kernel.interface, kind, of_each, seed, holds)
    y = loops.check(kernel, case, problem, {"rtol": 1e-11, "atol": 1e-12}, {"rtol": 1e-9, "atol": 1e-10})
    again, _ = kernel.reference(**problem.call)
    np.testing.assert_allclose(again, y, rtol=1e-11, atol=1e-12)


@given(st.data())
@settings(max_examples=examples(3), deadline=None)
@pytest.mark.usefixtures("code")
def test_a_call_is_that_of_a_loop(data: st.DataObject) -> None:
    """Forward and all gradients, in every direction and layout, with lengths or packed sequences."""
    case = data.draw(st.sampled_from(loops.CASES))
    kind = data.draw(st.sampled_from(["plain", "ragged", "packed"]))
    layout = "BTD" if kind == "packed" else data.draw(st.sampled_from(["BTD", "TBD", "BDT"]))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    spec = {"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "layout": layout, "direction": direction}
    check(
        minrnn_gen.compile(spec), case, kind, data.draw(st.booleans()), data.draw(st.integers(0, 99)), data.draw(st.booleans())
    )


@pytest.mark.parametrize("case", one_in(4, loops.CASES), ids=lambda case: case.name)
@pytest.mark.parametrize("kind", one_in(2, ["ragged", "packed"]))
@pytest.mark.usefixtures("code")
def test_every_class_of_cells_begins_from_them_in_both_directions(case: Any, kind: str) -> None:
    heads = 2 if case.name in ("lstm", "gru") else 1
    spec = {"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "direction": "bidirectional", "heads": heads}
    for of_each in (True, False):
        check(minrnn_gen.compile(spec), case, kind, of_each, 6 + of_each, holds=of_each)


@pytest.mark.parametrize(
    ("model", "clip"), one_in(4, [("lstm", 0.05), ("min_gru", None), ("gru_reset_before", 0.05), ("ind_rnn", None)])
)
def test_states_of_zeros_are_what_resets_alone_begin_from(model: str, clip: float | None) -> None:
    """All gradients too, also where those of later steps are clipped; and the states after every step."""
    spec = {"model": model, "hidden_size": HIDDEN, "precision": "fp64", "recurrent_gradient_clip": clip}
    kernel = minrnn_gen.compile({name: value for name, value in spec.items() if value is not None})
    problem = loops.drawn(kernel.interface, "plain", True, 2)
    zeros = {name: np.zeros_like(state) for name, state in problem.call.pop("reset_states").items()}
    y, states, saved = kernel.forward(**problem.call, all_states=True)
    same_y, same_states, same_saved = kernel.forward(**problem.call, reset_states=zeros, all_states=True)
    np.testing.assert_allclose(same_y, y, rtol=1e-12, atol=1e-13)
    for name, state in states.items():
        np.testing.assert_allclose(same_states[name], state, rtol=1e-12, atol=1e-13)
    expected = loops.flat(kernel.backward(saved, problem.dy, problem.dstate))
    got = loops.flat(kernel.backward(same_saved, problem.dy, problem.dstate))
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_states_are_rounded_to_the_storage_dtype(precision: str) -> None:
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": HIDDEN, "precision": precision})
    problem = loops.drawn(kernel.interface, "plain", False, 2)
    y, _, saved = kernel.forward(**problem.call)
    gradients = kernel.backward(saved, problem.dy)
    assert gradients["reset_states"]["h"].dtype == np.float32
    narrow = problem.call["reset_states"]["h"].astype(problem.dy.dtype)
    again, _, saved = kernel.forward(**{**problem.call, "reset_states": {"h": narrow}})
    np.testing.assert_array_equal(again, y)
    assert kernel.backward(saved, problem.dy)["reset_states"]["h"].dtype == narrow.dtype


def test_tensors_of_torch_have_results_of_torch() -> None:
    import torch

    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"})
    problem = loops.drawn(kernel.interface, "packed", True, 4)
    y, _, saved = kernel.forward(**problem.call)
    call = {
        name: {key: torch.from_numpy(array) for key, array in value.items()}
        if isinstance(value, dict)
        else torch.from_numpy(value)
        for name, value in problem.call.items()
    }
    tensor, _, saved_tensors = kernel.forward(**call)
    np.testing.assert_array_equal(tensor.numpy(), y)
    expected = kernel.backward(saved, problem.dy)["reset_states"]
    for name, gradient in kernel.backward(saved_tensors, torch.from_numpy(problem.dy))["reset_states"].items():
        np.testing.assert_allclose(gradient.numpy(), expected[name], rtol=1e-12, atol=1e-13)


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"})
    call = loops.drawn(kernel.interface, "plain", True, 3).call
    states = call["reset_states"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"resets": None}, "reset_states was given without resets; give resets, which mark the steps that begin from them"),
        ({"reset_states": {"h": states["h"]}}, "reset_states lacks 'c'; give all of h, c, or leave it out for zeros"),
        ({"reset_states": {**states, "d": states["h"]}}, "reset_states has an unknown name 'd'; allowed are h, c"),
        ({"reset_states": [states["h"]]}, "reset_states is a list; a mapping of h, c is expected"),
        (
            {"reset_states": {**states, "c": states["c"][:2]}},
            r"reset_states\['c'\] has shape \[2, 6\]; \[3, 6\] is expected, or \[6\]",
        ),
        ({"reset_states": {**states, "c": states["c"].astype(np.float32)}}, r"reset_states\['c'\] has dtype float32; float64"),
        ({"resets": call["resets"][:, :3]}, r"resets has shape \[3, 3\]; \[3, 6\] is expected"),
        ({"resets": call["resets"][0]}, r"resets has shape \[6\]; \[3, 6\] is expected"),
        ({"holds": call["resets"][:, :3]}, r"holds has shape \[3, 3\]; \[3, 6\] is expected, \[batch, time\]"),
        ({"holds": call["x"][..., 0, 0]}, "holds has dtype float64 and values other than 0 and 1"),
        ({"inputs": {"m": states["h"]}}, "inputs has an unknown name 'm'; this cell has no inputs"),
    ]
    for changed, why in wrong:
        with pytest.raises(BadInput, match=why) as refused:
            kernel(**{**call, **changed})
        assert "\n" not in str(refused.value)
    log = minrnn_gen.compile({"model": "min_gru_log", "hidden_size": HIDDEN, "precision": "fp64", "scan_arithmetic": "log"})
    wide = minrnn_gen.compile({"model": "s4d", "hidden_size": HIDDEN, "precision": "fp64", "state_size": 2})
    narrow = minrnn_gen.compile({"model": "lstm_projected", "hidden_size": HIDDEN, "precision": "fp64", "projection_size": 2})
    for refusing, why in (
        (narrow, "the cell lstm_projected has the axis p"),
        (log, "scan_arithmetic: log"),
        (wide, "the cell s4d has the axis n"),
    ):
        with pytest.raises(BadInput, match=f"reset_states was given, but .*{why}.*; give zeros, or split"):
            refusing(call["x"], resets=call["resets"], reset_states=states)
        with pytest.raises(BadInput, match=f"holds was given, but .*{why}.*; take the held steps out of the sequences"):
            refusing(call["x"], holds=call["resets"])
    other = minrnn_gen.compile({"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64", "heads": 2})
    with pytest.raises(BadInput, match="saved is of another kernel"):
        other.backward(kernel.forward(**call)[2], call["x"][:, :, 0])
