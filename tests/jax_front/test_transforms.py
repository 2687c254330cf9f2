"""Transformations of JAX over a recurrence: jit, vmap, checkpoint, scan, and what they leave behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
by_lax_scan = needed("support.cells_in_jax").by_lax_scan
target = needed("minrnn_gen.jax.target")
bind = needed("minrnn_gen.jax.primitive").bind
CallSite = needed("minrnn_gen.jax.request").CallSite
Request = needed("minrnn_gen.jax.request").Request

LSTM = {"model": "lstm", "hidden_size": 4, "heads": 2, "precision": "fp64"}
COUNT, BATCH, TIME, HIDDEN = 3, 2, 5, 4
RANDOM = np.random.default_rng(0)
X, R = RANDOM.standard_normal((BATCH, TIME, 4, HIDDEN)), RANDOM.standard_normal((4, 2, 2, 2))
RESETS = RANDOM.random((BATCH, TIME)) < 0.3


def near(actual: Any, expected: Any) -> None:
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11), actual, expected)


def several(array: Any) -> Any:
    """Return a few variants of an array."""
    return np.stack([np.roll(array, index, axis=-1) for index in range(COUNT)])


def loss(x: Any, R: Any, resets: Any) -> Any:
    y, final = front.recurrence(LSTM, x, R, resets=resets)
    return (y**2).sum() + final["c"].sum()


def loss_by_scan(x: Any, R: Any, resets: Any) -> Any:
    y, final = by_lax_scan("lstm", x, R, resets=resets)
    return (y**2).sum() + final["c"].sum()


def each(arrays: Any, axes: Any) -> list[Any]:
    """Return the elements of arrays with a mapped first axis; the others go with all of them."""
    return [
        [array if axis is None else array[index] for array, axis in zip(arrays, axes, strict=True)] for index in range(COUNT)
    ]


@pytest.mark.parametrize("axes", [(0, None, 0), (None, 0, None), (0, 0, 0)], ids=str)
def test_gradients_under_vmap(axes: tuple[int | None, ...]) -> None:
    """Gradients of each element by itself, for weights that all share too; and of the sum over all, where they add up."""
    arrays = [array if axis is None else several(array) for array, axis in zip((X, R, RESETS), axes, strict=True)]
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    by_element = [gradient(*element) for element in each(arrays, axes)]
    expected = [np.stack(parts) for parts in zip(*by_element, strict=True)]

    @jax.jit
    def of_both(*arrays: Any) -> Any:
        total = jax.grad(lambda *arrays: jax.vmap(loss, axes)(*arrays).sum(), (0, 1))
        return jax.vmap(jax.grad(loss, (0, 1)), axes)(*arrays), total(*arrays)

    of_elements, of_sum = of_both(*arrays)
    near(of_elements, tuple(expected))
    near(of_sum, tuple(array if axis == 0 else array.sum(0) for array, axis in zip(expected, axes, strict=False)))


@pytest.mark.parametrize(
    ("spec", "maps_weights"),
    [
        ({"model": "rg_lru", "direction": "bidirectional", "layout": "TBD"}, False),
        ({"model": "gru", "direction": "bidirectional", "layout": "BDT"}, True),
        ({"model": "qrnn", "layout": "BTD", "direction": "reverse"}, False),
        ({"model": "selective", "state_size": 3, "groups": 2, "layout": "BDT"}, True),
        ({"model": "s4d", "state_size": 3, "direction": "bidirectional"}, True),
        ({"model": "gated_linear", "state_size": 2, "groups": 4, "layout": "TBD"}, False),
    ],
    ids=str,
)
def test_vmap_is_one_element_after_another(spec: dict[str, Any], maps_weights: bool) -> None:
    from test_jax_recurrence import drawn, kernel_of

    spec = {**spec, "hidden_size": 4, "precision": "fp64"}
    arrays = jax.tree.map(several, drawn(kernel_of(spec), batch=2, time=3))
    weights = {name: arrays.pop(name) for name in ("R", "parameters", "recurrent_bias") if name in arrays}
    if not maps_weights:
        weights = jax.tree.map(lambda array: array[0], weights)

    @jax.jit
    def gradients(arrays: Any, weights: Any) -> Any:
        def total(arrays: Any, weights: Any) -> Any:
            y, final = front.recurrence(spec, **arrays, **weights)
            return (y**2).sum() + sum((array**3).sum() for array in final.values()), y

        return jax.value_and_grad(total, (0, 1), has_aux=True)(arrays, weights)

    mapped = jax.jit(jax.vmap(gradients, (0, 0 if maps_weights else None)))(arrays, weights)
    for index in range(COUNT):
        own = jax.tree.map(lambda array, index=index: array[index], (arrays, weights if maps_weights else {}))
        expected = gradients(own[0], own[1] if maps_weights else weights)
        near(jax.tree.map(lambda array, index=index: np.asarray(array)[index], mapped), expected)


def test_packed_sequences_and_steps_under_vmap() -> None:
    ends = np.array([0, 2, TIME], np.int32)
    x = several(X[:1])
    run = jax.jit(lambda x: front.recurrence(LSTM, x, R, cu_seqlens=ends))
    packed = jax.jit(jax.vmap(run))
    near(packed(x), jax.tree.map(lambda *parts: np.stack(parts), *map(run, x)))
    step = jax.jit(lambda x_t, R: front.step(LSTM, x_t, R)[0])
    elements = x[:, :, 0], several(R)
    near(jax.jit(jax.vmap(step))(*elements), np.stack([step(*element) for element in zip(*elements, strict=True)]))


def test_vmap_of_no_elements_returns_none() -> None:
    """Nothing is run, and nothing of it fails, whatever is mapped."""
    a, x, R0 = np.ones((0, 2, 5, 3)), np.zeros((0, *X.shape)), np.zeros((0, *R.shape))
    y, _ = jax.vmap(front.scan)(a, a)
    assert y.shape == a.shape
    for axes, arrays in (((0, None), (x, R)), ((None, 0), (X, R0)), ((0, 0), (x, R0))):
        value, gradients = jax.vmap(jax.value_and_grad(lambda x, R: loss(x, R, RESETS), (0, 1)), axes)(*arrays)
        assert value.shape == (0,) and [one.shape for one in gradients] == [x.shape, R0.shape]
    assert jax.vmap(lambda x: front.lfilter(x, np.ones(2), np.ones(2)))(a).shape == a.shape


def test_shard_map_over_the_batch() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("batch",))
    rows, whole = jax.sharding.PartitionSpec("batch"), jax.sharding.PartitionSpec()

    def run(x: Any, R: Any) -> Any:
        return front.recurrence(LSTM, x, R)[0]

    sharded = jax.shard_map(run, mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=False)
    totals = (lambda *arrays, run=run: (run(*arrays) ** 2).sum() for run in (sharded, run))
    near(*(jax.jit(jax.value_and_grad(total, (0, 1)))(X, R) for total in totals))


def test_checkpoint_computes_the_same_again() -> None:
    kept, again = (jax.jit(jax.grad(run, (0, 1)))(X, R, RESETS) for run in (loss, jax.checkpoint(loss)))
    jax.tree.map(np.testing.assert_array_equal, again, kept)


def test_a_scan_carries_states_over_pieces() -> None:
    """Gradients go through the states from piece to piece: those of the whole."""
    x = RANDOM.standard_normal((BATCH, 4 * TIME, 4, HIDDEN))

    def by_pieces(x: Any, R: Any) -> Any:
        pieces = jnp.moveaxis(x.reshape(BATCH, 4, TIME, 4, HIDDEN), 1, 0)
        initial = {name: jnp.zeros((BATCH, HIDDEN)) for name in "hc"}

        def body(state: Any, piece: Any) -> Any:
            y, state = front.recurrence(LSTM, piece, R, state=state)
            return state, (y**2).sum()

        final, losses = jax.lax.scan(jax.checkpoint(body), initial, pieces)
        return losses.sum() + final["c"].sum()

    near(jax.jit(jax.value_and_grad(by_pieces, (0, 1)))(x, R), jax.jit(jax.value_and_grad(loss_by_scan, (0, 1)))(x, R, None))


def test_tracing_again_registers_nothing() -> None:
    def run(x: Any) -> Any:
        return front.recurrence({"model": "min_gru", "hidden_size": HIDDEN, "precision": "fp64"}, x)[0]

    x = X[:, :, :2]
    jax.jit(run)(x)
    calls, targets = len(target._HOST_CALLS), target.serve_by_c.cache_info().misses
    for _ in range(100):
        jax.jit(lambda x: run(x)).lower(x)
    assert (len(target._HOST_CALLS), target.serve_by_c.cache_info().misses) == (calls, targets)


def test_programs_name_their_calls_by_text() -> None:
    """A program is cached and exported, and any process finds its calls."""
    text = jax.jit(loss).lower(X, R, RESETS).as_text()
    assert text.count("custom_call @minrnn_gen") == 1 and "lstm" in text
    site = CallSite(Request("forward", (True, False), "{}", keeps=True), (((1, 2), "float32"),))
    assert CallSite.of(site.text()) == site


def test_an_error_while_running_is_one_sentence() -> None:
    present = (True, *(False for _ in range(5)), True, False, False)
    request = Request("forward", present, '{"hidden_size":4,"model":"min_gru"}')
    with pytest.raises(Exception, match=r"lengths\[0\] is 9; 0 to 5, the time of x, is expected"):
        jax.block_until_ready(bind(request, (np.zeros((1, TIME, 2, HIDDEN), np.float32), np.array([9], np.int32))))


def test_derivatives_of_gradients_are_those_of_plain_equations() -> None:
    along = np.linspace(-1, 1, X.size, dtype=X.dtype).reshape(X.shape)

    def products(loss: Any) -> Any:
        def gradient(x: Any, R: Any) -> Any:
            return jax.grad(loss, (0, 1))(x, R, RESETS)

        forward = jax.jvp(gradient, (X, R), (along, R))[1]
        reverse = jax.grad(lambda x, R: sum((one * one).sum() for one in gradient(x, R)), (0, 1))(X, R)
        return forward, reverse, jax.vmap(lambda v: jax.jvp(lambda x: gradient(x, R), (X,), (v,))[1])(np.stack([along, X]))

    pairs = (jax.tree.leaves(jax.jit(lambda of=of: products(of))()) for of in (loss, loss_by_scan))
    for product, expected in zip(*pairs, strict=True):
        np.testing.assert_allclose(product, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_derivatives_of_a_call_in_forward_mode_are_those_of_plain_equations() -> None:
    along = np.linspace(-1, 1, X.size, dtype=X.dtype).reshape(X.shape)

    def derivatives(run: Any) -> Any:
        def of_x(v: Any) -> Any:
            return jax.jvp(lambda x: run(x, R)[0], (X,), (v,))[1]

        return jax.jvp(run, (X, R), (along, R)), jax.jacfwd(run, 1)(X, R), jax.vmap(of_x)(np.stack([along, X]))

    def ours(x: Any, R: Any) -> Any:
        return front.recurrence(LSTM, x, R, resets=RESETS)

    near(*(jax.jit(lambda run=run: derivatives(run))() for run in (ours, lambda *of: by_lax_scan("lstm", *of, resets=RESETS))))


@pytest.mark.matrix_full
def test_a_step_has_derivatives_in_both_modes() -> None:
    def run(step: Any) -> Any:
        return jax.jvp(step, (X[:, 0], R), (X[:, 1], R)), jax.grad(lambda *of: (step(*of) ** 2).sum(), (0, 1))(X[:, 0], R)

    near(
        run(lambda x, R: front.step(LSTM, x, R)[0]),
        run(lambda x, R: by_lax_scan("lstm", x[:, None], R)[0][:, 0]),
    )
