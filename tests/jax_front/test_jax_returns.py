"""`gae`, `vtrace` and `lambda_returns` of JAX: the papers' sums, under transformations too, and rlax's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import returns_oracle as oracle
from support.needed import needed
from support.returns_oracle import Drawn, over

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")

KEYWORDS: dict[str, Any] = {"gamma": 0.97, "lmbda": 0.9}
THRESHOLDS = {"rho_thresh": 1.2, "c_thresh": 0.9, "pg_rho_thresh": 1.1}


def assert_equal(found: Any, expected: Any, roundoffs: float = 64) -> None:
    """Sums of ten terms of size 1 to 10, in two orders."""
    for one, other in zip(found, expected, strict=True):
        bound = roundoffs * float(jnp.finfo(one.dtype).eps) * max(1.0, np.abs(other).max())
        assert one.shape == other.shape
        assert np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max() <= bound


@pytest.mark.parametrize(("shape", "axis"), [((3, 9), 1), ((9, 3), 0)])
def test_values_are_the_papers_sums(shape: tuple[int, ...], axis: int) -> None:
    drawn = Drawn(shape, axis)
    steps = (drawn.done, drawn.terminated)
    factors = (drawn.gamma, drawn.lmbda)
    keywords: dict[str, Any] = {"gamma": drawn.gamma, "lmbda": drawn.lmbda, "axis": axis}
    arrays = (drawn.reward, drawn.value, drawn.next_value)
    assert_equal(
        jax.jit(lambda *all_: front.gae(*all_, **keywords))(*arrays, *steps),
        over(oracle.gae, (*arrays, *steps, *factors), axis),
    )
    found = front.lambda_returns(drawn.reward, drawn.next_value, *steps, **keywords)
    assert_equal([found], over(oracle.lambda_returns, (drawn.reward, drawn.next_value, *steps, *factors), axis))
    found = front.vtrace(drawn.log_rho, *arrays, *steps, **keywords, **THRESHOLDS)
    expected = over(oracle.vtrace, (drawn.log_rho, *arrays, *steps, *factors), axis, tuple(THRESHOLDS.values()))
    assert_equal(found, expected)
    whole = front.gae(drawn.reward, drawn.value, drawn.following, drawn.done, **keywords)
    assert_equal(front.gae(drawn.reward, drawn.value, drawn.last, drawn.done, **keywords), whole)


def test_gradients_and_vmap_of_one_trajectory_are_those_of_lax_scan() -> None:
    drawn = Drawn((3, 9), 1)

    def by_scan(r: Any, v: Any, last: Any, done: Any) -> Any:
        return front.gae(r, v, last, done, **KEYWORDS, axis=0)[0]

    def by_lax_scan(r: Any, v: Any, last: Any, done: Any) -> Any:
        def step(carried: Any, x: Any) -> Any:
            advantage, following = carried
            reward, value, goes_on = x
            delta = reward + 0.97 * goes_on * following - value
            advantage = delta + 0.97 * 0.9 * goes_on * advantage
            return (advantage, value), advantage

        return jax.lax.scan(step, (jnp.zeros_like(last), last), (r, v, 1.0 - done), reverse=True)[1]

    results = []
    for function in (by_scan, by_lax_scan):
        mapped = jax.vmap(function)
        loss = jax.value_and_grad(lambda *x, mapped=mapped: jnp.sin(mapped(*x, drawn.done)).sum(), (0, 1, 2))
        value, gradients = jax.jit(loss)(drawn.reward, drawn.value, drawn.last)
        results.append([value, *gradients])
    assert_equal(*results)


def test_bfloat16_is_rounded_once() -> None:
    drawn = Drawn((3, 9), 1)
    rounded = [jnp.asarray(one, jnp.bfloat16) for one in (drawn.reward, drawn.value, drawn.next_value)]
    found = front.gae(*rounded, drawn.done, **KEYWORDS)
    assert found[0].dtype == jnp.bfloat16
    assert_equal(found, front.gae(*(one.astype(jnp.float32) for one in rounded), drawn.done, **KEYWORDS), 1)


def test_what_has_no_meaning_is_refused() -> None:
    r = jnp.zeros((3, 9))
    with pytest.raises(BadInput, match="terminated is given, but next_value is of the last step only"):
        front.gae(r, r, r[:, -1], r > 0, r > 0, **KEYWORDS)
    with pytest.raises(
        BadInput, match=r"done has dtype float\d\d and values that are not known yet; give done\.astype\(bool\)"
    ):
        jax.jit(lambda r, done: front.gae(r, r, r, done, **KEYWORDS))(r, r)
    with pytest.raises(BadInput, match=r"value has shape \[3, 8\]; \[3, 9\] is expected"):
        front.gae(r, r[:, 1:], r, **KEYWORDS)
    with pytest.raises(BadInput, match="reward has no axes; an array with an axis of time is expected"):
        front.lambda_returns(r.sum(), r, **KEYWORDS)
    with pytest.raises(BadInput, match="reward has dtype int32"):
        front.lambda_returns(r.astype(jnp.int32), r, **KEYWORDS)


def test_values_are_rlaxs() -> None:
    rlax = pytest.importorskip("rlax", reason="rlax is not installed")
    drawn = Drawn((9,), 0)
    # Its discounts are 0 where an episode ends in a terminal state; the value of a step's state is that of the step before.
    discount = 0.97 * ~drawn.done
    r, v, nv, rho = drawn.reward, drawn.value, drawn.following, np.exp(drawn.log_rho)
    done, axis = drawn.done, {"axis": 0}
    expected = rlax.truncated_generalized_advantage_estimation(r, discount, 0.9, np.append(v, nv[-1]))
    assert_equal([front.gae(r, v, nv, done, **KEYWORDS, **axis)[0]], [expected])
    assert_equal([front.gae(r, v, nv, gamma=discount, lmbda=0.9, **axis)[0]], [expected])
    expected = rlax.lambda_returns(r, discount, nv, 0.9)
    assert_equal([front.lambda_returns(r, nv, gamma=discount, lmbda=0.9, **axis)], [expected])
    expected = rlax.vtrace_td_error_and_advantage(v, nv, r, discount, rho, 0.9, 1.2, 1.1)
    advantage, target = front.vtrace(
        drawn.log_rho, r, v, nv, gamma=discount, lmbda=0.9, rho_thresh=1.2, pg_rho_thresh=1.1, **axis
    )
    assert_equal([target - v, advantage], [expected.errors, expected.pg_advantage])
