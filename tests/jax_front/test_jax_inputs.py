"""Cells with inputs X.* in JAX: gradients, `vmap`, single steps and layers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
checks = pytest.importorskip("jax.test_util")
front = needed("minrnn_gen.jax")
cells = needed("support.input_cells")

BATCH, TIME, HIDDEN = 2, 3, 4
LEADS = {"BTD": (BATCH, TIME), "TBD": (TIME, BATCH), "BDT": (BATCH,)}
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    with jax.enable_x64(True):
        yield


def near(one: Any, other: Any) -> bool:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max()) <= TOLERANCE


@pytest.mark.parametrize(
    ("cell", "direction", "layout"),
    one_in(5, itertools.product((cells.GAPS, cells.HIGHWAY), ("forward", "bidirectional"), LEADS)),
)
def test_transformations(cell: dict[str, Any], layout: str, direction: str) -> None:
    random = np.random.default_rng(3)
    spec = {"model": cell, "hidden_size": HIDDEN, "precision": "fp64", "layout": layout, "direction": direction}
    runs = (2,) if direction == "bidirectional" else ()
    lead, tail = (*LEADS[layout], *runs), (TIME,) if layout == "BDT" else ()
    x = jnp.array(random.standard_normal((*lead, len(cell["gates"]), HIDDEN, *tail)))
    inputs = {name: jnp.array(random.standard_normal((*lead, HIDDEN, *tail))) for name in cell["inputs"]}
    R = jnp.array(random.standard_normal((*runs, 2, 1, HIDDEN, HIDDEN))) if cell is cells.GAPS else None
    parameters = {name: jnp.array(random.standard_normal((*runs, HIDDEN))) for name in cell["parameters"]}

    def called(x: Any, inputs: Any) -> Any:
        return front.recurrence(spec, x, R, parameters=parameters, inputs=inputs)[0]

    checks.check_grads(called, (x, inputs), 1, modes="rev")
    later = {name: values + 1 for name, values in inputs.items()}
    both = {name: jnp.stack([values, values + 1]) for name, values in inputs.items()}
    assert near(jax.vmap(called)(jnp.stack([x, x + 1]), both)[1], called(x + 1, later))
    assert near(jax.vmap(called, in_axes=(None, 0))(x, both)[1], called(x, later))


def test_steps_and_layers() -> None:
    layer = front.RNN(cells.GAPS, 3, HIDDEN, 2, precision="fp64")
    parameters, x = layer.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (BATCH, TIME, 3))
    inputs = {
        name: jax.random.normal(jax.random.key(2 + number), (BATCH, TIME, HIDDEN))
        for number, name in enumerate(cells.GAPS["inputs"])
    }
    y, _ = layer.apply(parameters, x, inputs=inputs)
    state = None
    for t in range(TIME):
        y_t, state = layer.step(parameters, x[:, t], state, inputs={name: values[:, t] for name, values in inputs.items()})
        assert near(y_t, y[:, t])
    checks.check_grads(lambda inputs: layer.apply(parameters, x, inputs=inputs)[0], (inputs,), 1, modes="rev")
    with pytest.raises(BadInput, match="inputs"):
        layer.apply(parameters, x)
