"""Wrong arguments of the JAX front: one sentence each, when the program is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = pytest.importorskip("minrnn_gen.jax")

SPEC = {"model": "min_gru", "hidden_size": 4}
X = np.zeros((2, 3, 2, 4), np.float32)
recurrence, step, scan, RNN = front.recurrence, front.step, front.scan, front.RNN
LAYER = RNN("lstm", 5, 4)


def without_x64(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with jax.enable_x64(False):
            return call()

    return run


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: jax.jit(lambda axis: scan(X, X, axis=axis))(1), "axis is a tracer, but decides what is computed"),
    (lambda: jax.jit(lambda flag: recurrence(SPEC, X, all_states=flag))(True), "all_states is a tracer"),
    (lambda: jax.jit(lambda spec: recurrence(spec, X))(4), "spec is a tracer"),
    (lambda: jax.jit(lambda size: recurrence({**SPEC, "hidden_size": size}, X))(4), "<dict>: hidden_size: a .*Tracer is given"),
    (without_x64(lambda: recurrence({**SPEC, "precision": "fp64"}, X.astype(float))), "x has dtype float64, which JAX casts"),
    (
        without_x64(lambda: recurrence({**SPEC, "precision": "fp64"}, jnp.asarray(X))),
        "precision is fp64, but JAX's x64 mode is off",
    ),
    (without_x64(lambda: scan(X.astype(complex), X.astype(complex))), "a has dtype complex128, which JAX casts"),
    (lambda: recurrence(SPEC, X.astype(float)), "x has dtype float64; float32 is expected"),
    (lambda: recurrence(SPEC, [1.0]), "x is a list; a JAX or NumPy array is expected"),
    (lambda: recurrence(SPEC, X, np.zeros(3)), "R was given, but the cell has no recurrent product"),
    (lambda: recurrence(SPEC, X, lengths=[4, 1]), r"lengths\[0\] is 4; 0 to 3, the time of x"),
    (lambda: recurrence(SPEC, X, lengths=np.zeros(2, np.float32)), "lengths has dtype float32; int32 or int64"),
    (lambda: recurrence(SPEC, X[:1], cu_seqlens=[0, 2]), "cu_seqlens ends with 2; 3, the time of x, is expected"),
    (lambda: recurrence(SPEC, X, resets=X), "resets has dtype float32; bool is expected"),
    (lambda: recurrence(SPEC, X, state={"g": X}), "state has an unknown name 'g'; allowed are h"),
    (lambda: recurrence(SPEC, X, all_states=1), "all_states is a int; True or False is expected"),
    (lambda: step({**SPEC, "direction": "bidirectional"}, X[:, 0]), "step needs one direction"),
    (lambda: jax.grad(lambda x: recurrence({**SPEC, "training": False}, x)[0].sum())(X), "the spec says training: false"),
    (lambda: RNN("lstm", 5, 4, num_layer=2), r"num_layer is no argument of a layer \(did you mean 'num_layers'\?\)"),
    (lambda: RNN("lstm", 5, 4, headz=2), r"headz is no argument of a layer \(did you mean 'heads'\?\)"),
    (lambda: RNN("lstm", 5, 4, 0), "num_layers is 0"),
    (lambda: RNN("gru", 5, 4, forget_bias=1.0), "forget_bias was given, but gru has no bias of a gate f"),
    (lambda: LAYER.apply({}, X), "params is without 'weight_ih_l0'"),
    (
        lambda: LAYER.apply(jax.eval_shape(LAYER.init, np.zeros(2, np.uint32)), np.zeros((2, 3, 5))),
        "x has dtype float64, but params",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), CASES, ids=[sentence[:30] for _, sentence in CASES])
def test_is_refused_in_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^{sentence}") as refused:
        call()
    assert "\n" not in str(refused.value)
