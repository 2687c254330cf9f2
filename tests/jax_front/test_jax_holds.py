"""Reset states and holds in JAX on the CPU: values and gradients under jit, of functions and layers, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
kernels = needed("minrnn_gen.layers.kernels")
loops = needed("support.altered_calls")

HIDDEN = 4


@pytest.mark.parametrize("case", one_in(2, loops.CASES), ids=lambda case: case.name)
def test_the_function_is_that_of_a_loop_with_all_gradients(case: Any) -> None:
    for kind, direction, of_each in (
        ("ragged", "bidirectional", False),
        ("packed", "reverse", True),
    ):
        spec = {"model": case.model, "hidden_size": HIDDEN, "precision": "fp64", "direction": direction}
        interface = kernels.kernel_by(front.functional._recipe(spec)).interface
        problem = loops.drawn(interface, kind, of_each, 4, holds=True)
        y, final, gradients = loops.looped(interface, case, problem)
        fixed = {name: value for name, value in problem.call.items() if name in loops.WHOLE}
        moved = {name: value for name, value in problem.call.items() if name not in loops.WHOLE}

        def total(moved: Any, spec: Any = spec, fixed: Any = fixed, problem: Any = problem) -> Any:
            y, final = front.recurrence(spec, **moved, **fixed)
            return (y * problem.dy).sum() + sum((final[name] * problem.dstate[name]).sum() for name in final), (y, final)

        found, (got_y, got_final) = jax.jit(jax.grad(total, has_aux=True))(moved)
        np.testing.assert_allclose(got_y, y, rtol=1e-11, atol=1e-12)
        for name, last in final.items():
            np.testing.assert_allclose(got_final[name], last, rtol=1e-11, atol=1e-12)
        for name, gradient in loops.flat(found).items():
            np.testing.assert_allclose(gradient, gradients[name], rtol=1e-9, atol=1e-10, err_msg=f"{kind} {name}")


@pytest.mark.parametrize("bidirectional", one_in(2, [False, True]))
def test_a_layer_begins_each_episode_from_its_states(bidirectional: bool) -> None:
    """As many calls as there are episodes have the same results; `vmap` over states gives those of each."""
    layer = front.RNN("lstm", 3, HIDDEN, 2, bidirectional=bidirectional, dtype=jnp.float64)
    params = layer.init(jax.random.key(0))
    random = np.random.default_rng(0)
    x, rows = random.standard_normal((1, 6, 3)), 4 if bidirectional else 2
    states = {name: random.standard_normal((rows, HIDDEN)) for name in layer.states}
    resets = np.array([[True, False, False, False, False, False]])
    y, final = layer.apply(params, x, resets=resets, reset_states=states)
    if not bidirectional:
        expected, last = layer.apply(params, x, {name: state[:, None] for name, state in states.items()})
        np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)
        for name, state in last.items():
            np.testing.assert_allclose(final[name], state, rtol=1e-11, atol=1e-12)
    each = {name: np.broadcast_to(state[:, None], (rows, 1, HIDDEN)) for name, state in states.items()}
    np.testing.assert_allclose(layer.apply(params, x, resets=resets, reset_states=each)[0], y, rtol=1e-12, atol=1e-13)
    two = {name: np.stack([state, 2 * state]) for name, state in states.items()}
    of_two = jax.vmap(lambda states: layer.apply(params, x, resets=resets, reset_states=states)[0])(two)
    np.testing.assert_allclose(of_two[0], y, rtol=1e-11, atol=1e-12)
    holds = np.array([[False, True, True, True, True, True]])
    last, held = layer.apply(params, x, resets=resets, reset_states=states, holds=holds)
    np.testing.assert_allclose(last[:, 5, :HIDDEN], last[:, 0, :HIDDEN], rtol=1e-12, atol=1e-13)
    assert {*held} == {*final}


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    spec = {"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"}
    interface = kernels.kernel_by(front.functional._recipe(spec)).interface
    call = loops.drawn(interface, "plain", True, 3).call
    states = call["reset_states"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"resets": None}, "reset_states was given without resets; give resets"),
        ({"reset_states": {"h": states["h"]}}, "reset_states lacks 'c'; give all of h, c"),
        (
            {"reset_states": {**states, "c": states["c"][:2]}},
            r"reset_states\['c'\] has shape \[2, 4\]; \[3, 4\] is expected, or \[4\]",
        ),
        ({"reset_states": {**states, "c": states["c"].astype(np.float32)}}, r"reset_states\['c'\] has dtype float32"),
        ({"axis_name": "t"}, "reset_states was given with axis_name"),
        ({"holds": call["resets"][:2]}, r"holds has shape \[2, 6\]; \[3, 6\] is expected, \[batch, time\]"),
        ({"holds": call["x"][..., 0, 0]}, "holds has dtype float64 and values other than 0 and 1"),
    ]
    for changed, why in wrong:
        with pytest.raises(BadInput, match=why) as refused:
            front.recurrence(spec, **{**call, **changed})
        assert "\n" not in str(refused.value)
    narrow = front.RNN("lstm_projected", 3, HIDDEN, dtype=jnp.float64, projection_size=2)
    with pytest.raises(BadInput, match="holds was given, but the cell lstm_projected has the axis p"):
        narrow.apply(narrow.init(jax.random.key(0)), np.zeros((2, 3, 3)), holds=np.zeros((2, 3), bool))
    layer = front.RNN("lstm", 3, HIDDEN, dtype=jnp.float64)
    params = layer.init(jax.random.key(0))
    with pytest.raises(BadInput, match=r"reset_states\['h'\] has shape \[4\]"):
        layer.apply(
            params, np.zeros((2, 3, 3)), resets=np.zeros((2, 3), bool), reset_states={"h": np.zeros(4), "c": np.zeros(4)}
        )
