"""Wrong arguments of the JAX front: one sentence each, when the program is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")

SPEC = {"model": "min_gru", "hidden_size": 4}
X = np.zeros((2, 3, 2, 4), np.float32)
recurrence, step, scan, RNN = front.recurrence, front.step, front.scan, front.RNN
LAYER, OF_N_VALUES = RNN("lstm", 5, 4), RNN("s4d", 5, 4, state_size=2)
X_OF_LAYER = np.zeros((2, 3, 5), np.float32)
KEY = np.zeros(2, np.uint32)


def params(**changed: Any) -> dict[str, Any]:
    """Return parameters of the layer, some of them others."""
    return {**zeros_of(LAYER), **changed}


def zeros_of(layer: Any) -> dict[str, Any]:
    return {name: np.zeros(array.shape, np.float32) for name, array in jax.eval_shape(layer.init, KEY).items()}


def apply(changed: dict[str, Any] | None = None, state: Any = None, **keywords: Any) -> Any:
    return LAYER.apply(params(**(changed or {})), X_OF_LAYER, state, **keywords)


def traced(call: Callable[[Any], Any], value: Any = 4) -> Callable[[], Any]:
    """Return a call of `call` with a tracer."""
    return lambda: jax.jit(call)(value)


def total(x: Any) -> Any:
    return recurrence(SPEC, x)[0].sum()


def without_x64(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with jax.enable_x64(False):
            return call()

    return run


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: jax.jit(lambda axis: scan(X, X, axis=axis))(1), "axis is a tracer, but decides what is computed"),
    (lambda: jax.jit(lambda flag: recurrence(SPEC, X, all_states=flag))(True), "all_states is a tracer"),
    (lambda: jax.jit(lambda spec: recurrence(spec, X))(4), "spec is a tracer"),
    (lambda: jax.jit(lambda size: recurrence({**SPEC, "hidden_size": size}, X))(4), r"spec\['hidden_size'\] is a tracer, but"),
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
    (lambda: recurrence(SPEC, X, resets=X + 2), "resets has dtype float32 and values other than 0 and 1; bool"),
    (traced(lambda resets: recurrence(SPEC, X, resets=resets), X[..., 0, 0]), "resets has dtype float32; bool is expected"),
    (lambda: recurrence(SPEC, X, state={"g": X}), "state has an unknown name 'g'; allowed are h"),
    (lambda: recurrence(SPEC, X, all_states=1), "all_states is an int; True or False is expected"),
    (lambda: step({**SPEC, "direction": "bidirectional"}, X[:, 0]), "step needs one direction"),
    (lambda: jax.grad(lambda x: recurrence({**SPEC, "training": False}, x)[0].sum())(X), "the spec says training: false"),
    (lambda: RNN("lstm", 5, 4, num_layer=2), r"num_layer is no argument of a layer \(did you mean 'num_layers'\?\)"),
    (lambda: RNN("lstm", 5, 4, headz=2), r"headz is no argument of a layer \(did you mean 'heads'\?\)"),
    (lambda: RNN("lstm", 5, 4, 0), "num_layers is 0"),
    (lambda: RNN("gru", 5, 4, forget_bias=1.0), "forget_bias was given, but gru has no bias of a gate f"),
    (lambda: LAYER.apply({}, X), "params lacks 'weight_ih_l0'"),
    (lambda: LAYER.apply(params(), np.zeros((2, 3, 5))), "x has dtype float64, but params"),
    (lambda: apply({"weight_ih_l0": [0.0]}), r"params\['weight_ih_l0'\] is a list; a JAX or NumPy array is expected"),
    (lambda: apply({"bias_ih_l0": np.zeros(3, np.float32)}), r"params\['bias_ih_l0'\] has shape \[3\]; \[16\] is expected"),
    (lambda: apply({"bias_ih_l1": X}), "params has an unknown name 'bias_ih_l1' .did you mean 'bias_ih_l0'"),
    (lambda: LAYER.apply(None, X_OF_LAYER), "params is a NoneType; a mapping is expected"),
    (
        lambda: apply(state=X),
        r"state is an ndarray; a mapping is expected, as the second result is: \{'h': \[1, batch, 4\], 'c': \[1, batch, 4\]\}",
    ),
    (lambda: apply(state=(X, X)), "state is a tuple; a mapping is expected"),
    (lambda: apply(state={"h": 1.0}), r"state\['h'\] is a float; a JAX or NumPy array is expected"),
    (lambda: apply(state={"h": X[0, 0, 0]}), r"state\['h'\] has shape \[4\]; \[1, batch, 4\] is expected"),
    (
        lambda: OF_N_VALUES.apply(zeros_of(OF_N_VALUES), X_OF_LAYER, {"h": X[:1, :2, 0]}),
        r"state\['h'\] has shape \[1, 2, 4\]; \[1, batch, 4, 2\] is expected",
    ),
    (lambda: RNN("selective", 5, 4), "RNN: state_size: the cell selective has n values"),
    (lambda: RNN("lstm", 5, 4, state_size=2), "RNN: state_size: 2 is given, but nothing of the cell"),
    (lambda: apply(state={"hx": X[:1, :2, 0]}), "state has an unknown name 'hx'; allowed are h, c .did you mean 'h'"),
    (lambda: apply(state={"h": X[:1, :2, 0]}), "state lacks 'c'"),
    (lambda: LAYER.step(params(), X_OF_LAYER), "x has shape|x_t has shape"),
    (lambda: apply(key=7), "key is an int; a key is expected, such as jax.random.key"),
    (lambda: LAYER.init(None), "key is a NoneType; a key is expected"),
    (lambda: LAYER.init(np.zeros((3, 2), np.uint32)), r"key has shape \[3, 2\] and dtype uint32; a key is expected"),
    (lambda: RNN("lstm", 5, 4, dtype="floaty"), "dtype is 'floaty'; float64, float32, float16, bfloat16 is expected"),
    (lambda: RNN("lstm", 5, 4, dtype=np.int32), "dtype is .*int32.*; float64, float32, float16, bfloat16 is expected"),
    (lambda: RNN("lstm", 5, 4, forget_bias="1"), "forget_bias is '1'; a number is expected"),
    (without_x64(lambda: RNN("lstm", 5, 4, dtype=float).init(KEY)), "precision is fp64, but JAX's x64 mode is off"),
    (
        without_x64(lambda: RNN("lstm", 5, 4, precision="fp64").apply(params(), X_OF_LAYER)),
        "precision is fp64, but JAX's x64 mode is off",
    ),
    *(
        (
            traced(lambda value, name=name: RNN("lstm", **{"input_size": 5, "hidden_size": 4, name: value})),
            f"{name} is a tracer",
        )
        for name in ("hidden_size", "heads", "bias", "bidirectional", "forget_bias", "recurrent_bias", "batch")
    ),
    (traced(lambda model: RNN(model, 5, 4)), "model is a tracer"),
    (traced(lambda length: recurrence(SPEC, X, lengths=[length, length])), "lengths is a list with a tracer in it"),
    (traced(lambda state: recurrence(SPEC, X, state=state)), "state is a DynamicJaxprTracer; a mapping of h is expected"),
    (lambda: recurrence(SPEC, np.array(["a"])), "x has dtype <U1, which JAX does not have; numbers are expected"),
    (lambda: recurrence(SPEC, np.array([None])), "x has dtype object, which JAX does not have"),
    (lambda: recurrence(SPEC, np.ma.array(X)), "x is a MaskedArray; a JAX or NumPy array is expected"),
    (lambda: recurrence(SPEC, jax.random.key(0)), r"x has dtype key<.*>; float32 is expected"),
    (lambda: recurrence(SPEC, X.astype(int)), "x has dtype int64; float32 is expected"),
    (lambda: recurrence(SPEC, X[..., :3]), "x has shape"),
    (lambda: recurrence(SPEC, X, state={"h": X[0]}), r"state\['h'\] has shape \[3, 2, 4\]; \[2, 4\] is expected"),
    (lambda: recurrence(SPEC, X, state=X), "state is an ndarray; a mapping of h is expected"),
    (lambda: recurrence(3, X), "3 is given where a spec is needed"),
    (lambda: recurrence({**SPEC, "gpu": "h2000"}, X), "<dict>: gpu: no GPU profile is called 'h2000'"),
    (lambda: scan(X, X[:1]), r"b has shape \[1, 3, 2, 4\]; that of a"),
    (lambda: scan(X.astype(int), X.astype(int)), "a has dtype int64; one of float64"),
    (lambda: jax.jvp(jax.grad(lambda x: jax.jvp(jax.grad(total), (x,), (x,))[1].sum()), (X,), (X,)), "a third derivative"),
    (
        lambda: jax.hessian(lambda x: scan(x, x)[0].sum())(X),
        "a gradient of a gradient, or a derivative in forward mode, was asked for",
    ),
    (
        lambda: jax.jit(total).trace(X).lower(lowering_platforms=("cuda",)),
        "a program for CUDA is compiled where JAX has no GPU",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), CASES, ids=[sentence[:30] for _, sentence in CASES])
def test_is_refused_in_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^{sentence}") as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("argument", ["x", "R", "state", "lengths", "params"])
def test_tensors_of_torch_are_refused(argument: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    calls: dict[str, Callable[[], Any]] = {
        "x": lambda: recurrence(SPEC, torch.zeros(2, 3, 2, 4)),
        "R": lambda: recurrence({**SPEC, "model": "lstm"}, np.zeros((2, 3, 4, 4), np.float32), torch.zeros(4, 1, 4, 4)),
        "state": lambda: recurrence(SPEC, X, state={"h": torch.zeros(2, 4)}),
        "lengths": lambda: recurrence(SPEC, X, lengths=torch.tensor([1, 2])),
        "params": lambda: apply({"weight_ih_l0": torch.zeros(16, 5)}),
    }
    with pytest.raises(BadInput, match=rf"^{argument}(\['\w+'\])? is a Tensor; a JAX or NumPy array is expected$"):
        calls[argument]()


def test_numpys_arrays_go_with_those_of_jax() -> None:
    y, state = apply(
        {"bias_ih_l0": jnp.zeros(16, jnp.float32)},
        {"h": np.zeros((1, 2, 4), np.float32), "c": jnp.zeros((1, 2, 4), jnp.float32)},
    )
    assert isinstance(y, jax.Array) and {array.shape for array in state.values()} == {(1, 2, 4)}


@pytest.mark.parametrize(
    "call",
    [
        lambda: jax.jvp(lambda a: scan(a, a)[0].sum(), (X,), (X,)),
        lambda: recurrence(SPEC, X, hx=X),
        lambda: step(SPEC, X[:, 0], resets=X),
        lambda: scan(X, X, dim=1),
        lambda: LAYER.apply(params(), X_OF_LAYER, reset=X),
    ],
)
def test_the_sentence_is_jaxs_or_pythons(call: Callable[[], Any]) -> None:
    """JAX refuses forward mode through a rule for gradients, and Python a keyword that a function does not have."""
    with pytest.raises(TypeError, match=r"forward-mode autodiff \(jvp\)|got an unexpected keyword argument") as refused:
        call()
    assert "\n" not in str(refused.value).strip()
