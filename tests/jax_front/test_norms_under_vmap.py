"""vmap over weights folds them into heads, unless means over all heads make these depend on each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed
from support.norm_cells import GATES_TOGETHER, OF_BOTH

jax = pytest.importorskip("jax")
front = needed("minrnn_gen.jax")


@pytest.mark.parametrize("document", [GATES_TOGETHER, OF_BOTH], ids=lambda document: document["name"])
def test_elements_of_a_vmap_are_calls_of_their_own(document: dict[str, Any]) -> None:
    random, hidden = np.random.default_rng(0), 6
    spec = {"model": document, "hidden_size": hidden, "heads": 2, "precision": "fp32"}
    gates, products = (4, 4) if document is GATES_TOGETHER else (3, 2)
    x = random.standard_normal((3, 2, 4, gates, hidden)).astype(np.float32)
    R = random.standard_normal((3, products, 2, 3, 3)).astype(np.float32)
    parameters = {name: np.ones(hidden, np.float32) for name in document["parameters"]}
    bias = np.zeros((products, 2, 3), np.float32) if document.get("recurrent_bias") else None

    def run(x: Any, R: Any) -> Any:
        return front.recurrence(spec, x, R, parameters=parameters, recurrent_bias=bias)[0]

    together = jax.vmap(run)(x, R)
    for element in range(3):
        np.testing.assert_allclose(together[element], run(x[element], R[element]), rtol=2e-5, atol=2e-5)
