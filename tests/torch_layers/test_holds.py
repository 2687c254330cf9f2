"""Reset states and holds in functions and layers of torch on the CPU: values, gradients, compiled graphs, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.fronts import one_rank
from support.needed import needed

import minrnn_gen
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right
loops = needed("support.altered_calls")
RNN, recurrence, drawn, flat, looped = wing.RNN, wing.recurrence, loops.drawn, loops.flat, loops.looped

HIDDEN = 4


def as_tensors(call: dict[str, Any]) -> dict[str, Any]:
    return {
        name: as_tensors(value) if isinstance(value, dict) else torch.from_numpy(np.ascontiguousarray(value))
        for name, value in call.items()
    }


@pytest.mark.parametrize("case", loops.CASES, ids=lambda case: case.name)
def test_the_function_is_that_of_a_loop_with_all_gradients(case: Any) -> None:
    for kind, direction, of_each, holds in (
        ("ragged", "bidirectional", True, True),
        ("packed", "forward", True, False),
        ("plain", "reverse", False, True),
    ):
        kernel = minrnn_gen.compile({"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "direction": direction})
        problem = drawn(kernel.interface, kind, of_each, 4 + (kind == "plain"), holds)
        y, final, gradients = looped(kernel.interface, case, problem)
        call = as_tensors(problem.call)
        leaves = {name: leaf.requires_grad_() for name, leaf in flat(call).items() if leaf.is_floating_point()}
        got_y, got_final = recurrence(kernel, **call)
        np.testing.assert_allclose(got_y.detach(), y, rtol=1e-11, atol=1e-12)
        total = (got_y * torch.from_numpy(problem.dy)).sum()
        for name, last in final.items():
            np.testing.assert_allclose(got_final[name].detach(), last, rtol=1e-11, atol=1e-12)
            total = total + (got_final[name] * torch.from_numpy(problem.dstate[name])).sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
            got = torch.zeros_like(leaf) if gradient is None else gradient
            np.testing.assert_allclose(got, gradients[name], rtol=1e-9, atol=1e-10, err_msg=f"{kind} {name}")


def layer_of(model: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return RNN(model, 3, HIDDEN, dtype=torch.float64, **options)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("min_gru", {"bidirectional": True}),
        ("lstm", {"num_layers": 2}),
        ("ind_rnn", {"batch_first": False}),
        ("gru", {"heads": 2}),
    ],
)
def test_gradients_of_a_layer_are_those_of_differences(model: str, options: dict[str, Any]) -> None:
    layer = layer_of(model, **options)
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    resets = torch.rand(2, 4) < 0.5
    resets[0, 0] = resets[1, 2] = True
    holds = torch.rand(2, 4) < 0.3
    for shape in ((rows, 2 if layer.batch_first else 4, HIDDEN), (rows, HIDDEN)):
        states = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in layer.states]

        def call(x: Any, *states: Any) -> Any:
            y, last = layer(x, resets=resets, reset_states=states if len(states) > 1 else states[0], holds=holds)
            return (y, *last) if isinstance(last, tuple) else (y, last)

        assert gradients_are_right(call, (x, *states))


def test_a_layer_begins_as_a_call_with_an_initial_state_does() -> None:
    """Every episode by itself, from its state; and learned ones, the same for all sequences."""
    layer = layer_of("lstm", num_layers=2)
    x = torch.randn(1, 6, 3, dtype=torch.float64)
    states = tuple(torch.randn(2, HIDDEN, dtype=torch.float64) for _ in layer.states)
    resets = torch.tensor([[False, False, True, False, True, False]])
    y, last = layer(x, resets=resets, reset_states=states)
    begun = tuple(state[:, None] for state in states)
    pieces = [layer(x[:, :2]), layer(x[:, 2:4], begun), layer(x[:, 4:], begun)]
    torch.testing.assert_close(y, torch.cat([piece for piece, _ in pieces], 1))
    torch.testing.assert_close(last, pieces[-1][1])
    alone, _ = layer(x[0], resets=resets[0], reset_states=states)
    torch.testing.assert_close(alone, y[0])


def test_a_held_step_is_as_if_it_were_not_there() -> None:
    """But for y there, which is that of the states before it."""
    for model in ("lstm", "min_gru"):
        layer = layer_of(model)
        x = torch.randn(1, 6, 3, dtype=torch.float64)
        holds = torch.tensor([[True, False, True, True, False, True]])
        y, last = layer(x, holds=holds)
        expected, same = layer(x[:, [1, 4]])
        torch.testing.assert_close(y[:, 1:], expected[:, [0, 0, 0, 1, 1]])
        assert not y[:, 0].any()
        torch.testing.assert_close(last, same)
        torch.testing.assert_close(layer(x[0], holds=holds[0].int())[0], y[0])


def test_zeros_are_what_a_reset_without_states_is() -> None:
    for precision, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        layer = RNN("gru", 3, HIDDEN, dtype=precision)
        x, resets = torch.randn(2, 5, 3, dtype=precision), torch.rand(2, 5) < 0.4
        zeros = torch.zeros(1, HIDDEN)
        torch.testing.assert_close(
            layer(x, resets=resets, reset_states=zeros)[0], layer(x, resets=resets)[0], rtol=tolerance, atol=tolerance
        )


@pytest.fixture
def _own_graphs() -> Iterator[None]:
    """Forget the graphs of a test: dynamo compiles a function of this package a few times in a process, and no more."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_own_graphs")
def test_compiled_graphs_have_them_without_a_break() -> None:
    layer = layer_of("min_gru")
    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"})
    x, resets = torch.randn(2, 5, 3, dtype=torch.float64), torch.rand(2, 5) < 0.4
    state = torch.randn(1, HIDDEN, dtype=torch.float64, requires_grad=True)
    call = as_tensors(drawn(kernel.interface, "plain", True, 3).call)

    def of_layer(state: Any) -> Any:
        return layer(x, resets=resets, reset_states=state, holds=~resets)[0].square().sum()

    def of_function(call: Any) -> Any:
        return recurrence(kernel, **call)[0]

    compiled = torch.compile(of_layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(state), of_layer(state))
    expected, got = (torch.autograd.grad(run(state), state) for run in (of_layer, compiled))
    torch.testing.assert_close(got, expected)
    compiled = torch.compile(of_function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(call), of_function(call))


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    layer = layer_of("lstm")
    kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"})
    x, resets = torch.randn(2, 5, 3, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.bool)
    state = torch.zeros(1, HIDDEN, dtype=torch.float64)
    of_layer: list[tuple[Any, Any, str]] = [
        ((state, state), None, "reset_states was given without resets; give resets"),
        (state, resets, "reset_states has 1 state; a tuple of 2 tensors, h, c, is expected"),
        ((state, None), resets, "reset_states has 1 state; a tuple of 2 tensors"),
        ({"h": state, "c": state}, resets, "reset_states is a mapping; a tuple of 2 tensors"),
        ((state, state[:, :2]), resets, r"reset_states of state c has shape \[1, 2\]; \[1, 2, 4\] or \[1, 4\] is expected"),
        ((state, state.to(torch.int64)), resets, "reset_states of state c has dtype torch.int64; torch.float64 is expected"),
    ]
    for states, marks, why in of_layer:
        with pytest.raises(BadInput, match=why) as refused:
            layer(x, resets=marks, reset_states=states)
        assert "\n" not in str(refused.value)
    of_holds: list[tuple[Any, str]] = [
        (resets[:, :2], r"holds has shape \[2, 2\]; \[2, 5\] is expected, the shape of input without its features"),
        ([True], "holds is a list; a torch tensor is expected"),
        (resets + 2, "holds has dtype torch.int64 and values other than 0 and 1"),
    ]
    for holds, why in of_holds:
        with pytest.raises(BadInput, match=why):
            layer(x, holds=holds)
    packed = torch.nn.utils.rnn.pack_sequence([x[0]])
    with pytest.raises(BadInput, match="a PackedSequence was given with reset_states or holds"):
        layer(packed, holds=resets)
    narrow = RNN("lstm_projected", 3, HIDDEN, dtype=torch.float64, projection_size=2)
    projected = minrnn_gen.compile(
        {"model": "lstm_projected", "hidden_size": HIDDEN, "precision": "fp64", "projection_size": 2}
    )
    for keywords, why in (({"holds": resets}, "holds"), ({"resets": resets, "reset_states": (state, state)}, "reset_states")):
        for refusing in (narrow, partial(recurrence, projected)):
            with pytest.raises(BadInput, match=f"{why} was given, but the cell lstm_projected has the axis p"):
                refusing(x, **keywords)
    call = as_tensors(drawn(kernel.interface, "plain", True, 3).call)
    of_function: list[tuple[dict[str, Any], str]] = [
        ({"resets": None}, "reset_states was given without resets; give resets"),
        ({"reset_states": {"h": call["reset_states"]["h"]}}, "reset_states lacks 'c'; give all of h, c"),
        ({"reset_states": {**call["reset_states"], "d": None}}, "reset_states has an unknown name 'd'; allowed are h, c"),
        ({"reset_states": {"h": state, "c": state}}, r"reset_states\['h'\] has shape \[1, 4\]; \[3, 4\] is expected, or \[4\]"),
        ({"holds": call["resets"][:2]}, r"holds has shape \[2, 6\]; \[3, 6\] is expected, \[batch, time\]"),
        ({"holds": call["x"][..., 0, 0].to(torch.complex64)}, "holds has dtype torch.complex64; torch.bool is expected"),
        ({"reset_states": {"h": state.float(), "c": state}}, r"reset_states\['h'\] has dtype torch.float32"),
    ]
    for wrong, why in of_function:
        with pytest.raises(BadInput, match=why) as refused:
            recurrence(kernel, **{**call, **wrong})
        assert "\n" not in str(refused.value)
    of_each = as_tensors(drawn(kernel.interface, "packed", True, 3).call)
    with one_rank() as group, pytest.raises(BadInput, match="for each sequence of cu_seqlens with a sequence_group") as refused:
        recurrence(kernel, **of_each, sequence_group=group)
    assert "\n" not in str(refused.value)
    with pytest.raises(TypeError, match="reset_states"):
        kernel.step(call["x"][:, 0], reset_states=call["reset_states"])
