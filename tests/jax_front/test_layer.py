"""`front.RNN`: names, shapes and results of torch's layers, and what is its own."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
from support.needed import needed

from minrnn_gen.cell.files import library_names, vector_library_names
from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")


KEY = jax.random.key(0)


def numbers(layer: Any) -> dict[str, Any]:
    """Return parameters of a layer without a program that draws them."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(layer.init, KEY)
    return {name: (random.standard_normal(like.shape) / 4).astype(like.dtype) for name, like in shapes.items()}


@pytest.mark.parametrize(
    ("model", "layers", "bidirectional", "bias"), [("lstm", 1, False, True), ("gru", 2, True, True), ("lstm", 2, False, False)]
)
def test_a_layer_computes_what_torchs_does(model: str, layers: int, bidirectional: bool, bias: bool) -> None:
    import torch

    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[model]
    theirs = kind(5, 4, layers, bias=bias, batch_first=True, bidirectional=bidirectional).double()
    ours = front.RNN(model, 5, 4, layers, bias=bias, bidirectional=bidirectional, dtype=jnp.float64)
    params = {name: jnp.asarray(value.detach().numpy()) for name, value in theirs.named_parameters()}
    drawn = jax.eval_shape(ours.init, KEY)
    assert {name: array.shape for name, array in drawn.items()} == {name: array.shape for name, array in params.items()}
    x = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    output, hx = theirs(x)
    (output**2).sum().backward()

    def total(params: Any, x: Any) -> Any:
        y, final = ours.apply(params, x)
        return (y**2).sum(), (y, final)

    gradients, (y, final) = jax.jit(jax.grad(total, has_aux=True))(params, x.detach().numpy())
    np.testing.assert_allclose(y, output.detach(), atol=1e-12)
    for name, expected in zip(ours.states, hx if model == "lstm" else (hx,), strict=True):
        np.testing.assert_allclose(final[name], expected.detach(), atol=1e-12)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, atol=1e-10)


# Cells with n values per channel, their inputs S.*, and whether both directions run; of every day the first.
OF_N_VALUES = [
    ("selective", {"state_size": 3, "groups": 2}, True),
    *(
        pytest.param(*case, marks=pytest.mark.matrix_full)
        for case in (("gated_linear", {"state_size": 2}, False), ("s4d", {"state_size": 3}, True))
    ),
]


@pytest.mark.parametrize(("model", "sizes", "bidirectional"), OF_N_VALUES)
def test_a_layer_of_n_values_computes_what_the_torch_front_does(model: str, sizes: dict[str, int], bidirectional: bool) -> None:
    """Includes resets, initial states and all gradients, for the same weights."""
    torch, wing = pytest.importorskip("torch"), needed("minrnn_gen.torch")
    ours = front.RNN(model, 5, 4, 2, bidirectional=bidirectional, dtype=jnp.float64, **sizes)
    theirs = wing.RNN(model, 5, 4, 2, bidirectional=bidirectional, dtype=torch.float64, **sizes)
    params, random = numbers(ours), np.random.default_rng(0)
    assert {name: array.shape for name, array in params.items()} == {
        name: tuple(value.shape) for name, value in theirs.named_parameters()
    }
    theirs.load_state_dict({name: torch.tensor(np.array(array)) for name, array in params.items()})
    runs = 4 if bidirectional else 2
    arrays = [random.standard_normal(shape) for shape in ((3, 6, 5), (runs, 3, 4, sizes["state_size"]))]
    resets = random.random((3, 6)) < 0.3
    x, h = (torch.tensor(array, requires_grad=True) for array in arrays)
    y, last = theirs(x, h, resets=torch.tensor(resets))
    (y.square().sum() + last.sin().sum()).backward()

    def total(params: Any, x: Any, h: Any) -> Any:
        y, final = ours.apply(params, x, {"h": h}, resets=resets)
        return (y**2).sum() + jnp.sin(final["h"]).sum(), (y, final["h"])

    (of_params, *of_others), results = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(params, *arrays)
    for found, expected in zip((*results, *of_others), (y, last, x.grad, h.grad), strict=True):
        np.testing.assert_allclose(found, expected.detach(), atol=1e-10)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(of_params[name], parameter.grad, atol=1e-10)


@pytest.mark.parametrize("model", (*library_names(), *vector_library_names()))
def test_every_built_in_cell_has_the_parameters_of_the_torch_front(model: str) -> None:
    wing = needed("minrnn_gen.torch")
    options = {"state_size": 3} if model in vector_library_names() else {}
    ours, theirs = (one(model, 5, 4, 2, bidirectional=True, **options) for one in (front.RNN, wing.RNN))
    shapes = {name: tuple(value.shape) for name, value in theirs.named_parameters()}
    assert {name: array.shape for name, array in jax.eval_shape(ours.init, KEY).items()} == shapes


STEPPED = [("lstm", {}), ("rg_lru", {}), ("gated_linear", {"state_size": 3, "groups": 2})]


@pytest.mark.parametrize(("model", "sizes"), STEPPED)
def test_steps_go_on_from_a_prompt(model: str, sizes: dict[str, int]) -> None:
    layer = front.RNN(model, 5, 4, 2, **sizes)
    params, x = numbers(layer), np.random.default_rng(0).standard_normal((3, 6, 5), np.float32)

    @jax.jit
    def run(params: Any, x: Any) -> Any:
        whole, final = layer.apply(params, x)
        _, state = layer.apply(params, x[:, :4])
        steps = []
        for t in (4, 5):
            y_t, state = layer.step(params, x[:, t], state)
            steps.append(y_t)
        return whole[:, 4:], final, jnp.stack(steps, axis=1), state

    whole, final, steps, state = run(params, x)
    np.testing.assert_allclose(steps, whole, atol=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), state, final)


def test_initial_numbers() -> None:
    params = front.RNN("lstm", 5, 16, forget_bias=1.0, dtype=jnp.bfloat16).init(KEY)
    assert all(array.dtype == jnp.bfloat16 for array in params.values())
    assert (np.asarray(params["bias_ih_l0"])[16:32] == 1).all() and np.abs(np.asarray(params["weight_ih_l0"])).max() <= 0.25
    queries = front.RNN("gated_linear", 5, 16, state_size=4).init(KEY)["weight_shared_l0"]
    assert np.abs(np.asarray(queries)[:8]).max() > 0.2 and 0.1 < np.abs(np.asarray(queries)[8:]).max() <= 0.125
    scan = front.RNN("selective", 5, 64, state_size=4, dtype=jnp.bfloat16).init(KEY)
    assert scan["a_l0"].dtype == scan["bias_ih_l0"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.exp(np.asarray(scan["a_l0"], np.float32)), np.tile([1, 2, 3, 4], (64, 1)), rtol=0.01)
    steps = np.log1p(np.exp(np.asarray(scan["bias_ih_l0"], np.float32)[:64]))
    assert 0.0009 < steps.min() < 0.01 < steps.max() < 0.102 and (np.asarray(scan["d_l0"]) == 1).all()
    decay = front.RNN("rg_lru", 5, 16).init(KEY)["decay_l0"]
    coefficient = np.exp(-8 * np.log1p(np.exp(np.asarray(decay))))
    assert (coefficient > 0.899).all() and (coefficient < 0.9991).all()


def test_a_precision_casts_weights_and_leaves_their_gradients() -> None:
    layer = front.RNN("gru", 5, 4, precision="bf16")
    params, x = numbers(layer), jnp.ones((2, 3, 5), jnp.bfloat16)
    y, final = jax.eval_shape(layer.apply, params, x)
    assert (y.dtype, final["h"].dtype) == (jnp.bfloat16, jnp.float32)
    gradients = jax.jit(jax.grad(lambda params: layer.apply(params, x)[0].astype(jnp.float32).sum()))(params)
    assert all(array.dtype == jnp.float32 and np.asarray(array).any() for array in gradients.values())


def test_dropout_is_between_layers_and_needs_a_key() -> None:
    layer = front.RNN("min_gru", 5, 64, 2, dropout=0.5)
    params, x = numbers(layer), np.ones((2, 3, 5), np.float32)
    plain, dropped = jax.jit(lambda: (layer.apply(params, x)[0], layer.apply(params, x, key=KEY)[0]))()
    assert not np.array_equal(plain, dropped) and np.isfinite(dropped).all()


ENSEMBLES = [("lstm", {}), ("selective", {"state_size": 3})]


@pytest.mark.parametrize(("model", "sizes"), ENSEMBLES)
def test_layers_under_vmap_are_an_ensemble(model: str, sizes: dict[str, int]) -> None:
    layer = front.RNN(model, 5, 4, 2, **sizes)
    params = jax.tree.map(np.asarray, jax.jit(jax.vmap(layer.init))(jax.random.split(KEY, 3)))
    x = np.random.default_rng(0).standard_normal((2, 6, 5), np.float32)
    y, _ = jax.jit(jax.vmap(layer.apply, (0, None)))(params, x)
    run = jax.jit(layer.apply)
    for index in range(3):
        own: dict[str, Any] = {name: array[index] for name, array in params.items()}
        np.testing.assert_allclose(np.asarray(y)[index], run(own, x)[0], atol=1e-5)


def test_a_layer_says_what_it_is() -> None:
    layer = front.RNN("lstm", 5, 4, 2, bidirectional=True, forget_bias=1.0, functions="accurate")
    said = "RNN('lstm', input_size=5, hidden_size=4, num_layers=2, bidirectional=True, forget_bias=1.0, functions='accurate')"
    assert repr(layer) == said
    assert repr(front.RNN("min_gru", 3, 4)) == "RNN('min_gru', input_size=3, hidden_size=4)"


def test_numbers_0_and_1_are_resets() -> None:
    layer, random = front.RNN("min_gru", 3, 4), np.random.default_rng(0)
    x, done = random.standard_normal((2, 5, 3)).astype(np.float32), random.random((2, 5)) < 0.4
    expected, _ = layer.apply(numbers(layer), x, resets=done)
    for dtype in "fdbBhHiIqQ":
        found, _ = layer.apply(numbers(layer), x, resets=done.astype(dtype))
        assert np.array_equal(found, expected), dtype
    with pytest.raises(BadInput, match="resets has dtype int64 and values other than 0 and 1"):
        layer.apply(numbers(layer), x, resets=done.astype(np.int64) + 2**32)  # 0 and 1 as int32, which JAX would make of them
    found, _ = layer.apply(numbers(layer), x, resets=jnp.asarray(done).astype(jnp.uint8))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", sorted(inspect.signature(front.RNN).parameters.keys() - {"options"} | {"functions", "gpu"}))
def test_setting_what_the_constructor_takes_is_refused(name: str) -> None:
    layer = front.RNN("lstm", 5, 4, 2)
    kept = dict(vars(layer))
    with pytest.raises(BadInput, match=f"^{name} cannot be set to 1 after the layer was made; make another"):
        setattr(layer, name, 1)
    assert vars(layer) == kept


def test_a_subclass_has_attributes_of_its_own() -> None:
    class Named(front.RNN):
        def __init__(self, name: str) -> None:
            super().__init__("min_gru", 3, 4)
            self.name, self.batch = name, 8

    layer = copy.deepcopy(original := Named("encoder"))
    assert (layer.name, layer.batch, repr(layer)) == ("encoder", 8, repr(original))
