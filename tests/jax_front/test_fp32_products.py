"""Products in fp32 as JAX is set to multiply: its programs name the kernels for it."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed

import minrnn_gen

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
multiplies_in_tf32 = needed("minrnn_gen.jax.fp32_precision").multiplies_in_tf32

LSTM = {"model": "lstm", "hidden_size": 8}
X, R = jnp.zeros((2, 3, 4, 8)), jnp.zeros((4, 1, 8, 8))
PRODUCTS = {
    "highest": "tf32x3",
    "float32": "tf32x3",
    "high": "tf32",
    "default": "tf32",
    None: "tf32",
    "TF32_TF32_F32_X3": "tf32x3",
}


def product_of(function: Any, *arguments: Any) -> str:
    """Return how the kernel multiplies that the program of a function calls."""
    (recipe,) = set(re.findall(r"recipe='(.*?)'", str(jax.make_jaxpr(function)(*arguments))))
    return str(json.loads(recipe).get("fp32_product", "tf32x3"))


@pytest.mark.parametrize("precision", one_in(2, PRODUCTS))
def test_functions_and_layers_follow_jax(precision: str | None) -> None:
    layer = front.RNN("lstm", 5, 8)
    params, inputs = layer.init(jax.random.key(0)), jnp.zeros((2, 3, 5), jnp.float32)
    x, weights = X.astype(jnp.float32), R.astype(jnp.float32)

    def total(x: Any) -> Any:
        return front.recurrence(LSTM, x, weights)[0].sum()

    with jax.default_matmul_precision(precision):
        said = {
            product_of(total, x),
            product_of(jax.grad(total), x),
            product_of(lambda x: front.step(LSTM, x, weights), x[:, 0]),
            product_of(lambda x: layer.apply(params, x), inputs),
            product_of(lambda x: layer.step(params, x), inputs[:, 0]),
        }
    assert said == {PRODUCTS[precision]}


def test_what_says_how_it_multiplies_is_kept() -> None:
    x, weights = X.astype(jnp.float32), R.astype(jnp.float32)
    for product in ("tf32", "tf32x3", "fma"):
        spec = {**LSTM, "fp32_product": product}
        kernel = minrnn_gen.compile(spec, gpu="h100")
        layer = front.RNN("lstm", 5, 8, fp32_product=product)
        params, inputs = layer.init(jax.random.key(0)), jnp.zeros((2, 3, 5), jnp.float32)
        for precision in ("highest", None):
            with jax.default_matmul_precision(precision):
                for given in (spec, kernel):
                    assert product_of(lambda x, given=given: front.recurrence(given, x, weights), x) == product
                assert product_of(lambda x, layer=layer, params=params: layer.apply(params, x), inputs) == product


def test_every_algorithm_of_jax_is_known() -> None:
    # More than tf32's 11 significant bits are asked for by what has several parts, or has float32 or more in it.
    for name in (*PRODUCTS, *jax.lax.DotAlgorithmPreset.__members__):
        with contextlib.suppress(ValueError), jax.default_matmul_precision(name):
            is_wide = name is not None and (name in ("highest", "float32") or "_X" in name or name[:3] in ("F32", "F64"))
            assert multiplies_in_tf32() is not is_wide
