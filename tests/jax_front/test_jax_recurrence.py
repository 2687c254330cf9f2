"""`front.recurrence` and `step`: what `lax.scan` over the equations gives, and what NumPy calls give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
CELLS = needed("support.cells_in_jax").CELLS
by_lax_scan = needed("support.cells_in_jax").by_lax_scan
_recipe = needed("minrnn_gen.jax.functional")._recipe

BATCH, TIME, HEADS, HIDDEN = 3, 7, 2, 8


def kernel_of(spec: dict[str, Any]) -> Kernel:
    """Return the kernel of a spec without compiling anything."""
    return kernel_by(_recipe(spec))


def drawn(kernel: Kernel, *, boundaries: str = "", batch: int = BATCH, time: int = TIME) -> dict[str, Any]:
    """Draw the arrays of a call, every one that the kernel takes; `boundaries` names an argument of sequences."""
    random, interface = np.random.default_rng(0), kernel.interface
    storage, carried = (numpy_dtype(getattr(interface.precision, f"{kind}_dtype")) for kind in ("storage", "arithmetic"))

    def normal(shape: tuple[int, ...], dtype: Any) -> Any:
        return (random.standard_normal(shape) / 2).astype(dtype)

    rows = 1 if boundaries == "cu_seqlens" else batch
    arrays: dict[str, Any] = {"x": normal(interface.shape(interface.x_axes, rows, time), storage)}
    if interface.input_size:
        arrays["weight"] = normal((interface.weight_rows, interface.input_size), storage)
    arrays["bias"] = normal(interface.shape(interface.gate_axes, 0, 0), carried)
    if interface.recurrent_gates:
        arrays["R"] = normal(interface.R_shape, storage)
    if interface.takes_recurrent_bias:
        arrays["recurrent_bias"] = normal(interface.recurrent_bias_shape, carried)
    if interface.parameters:
        arrays["parameters"] = {name: normal(interface.shape_of_parameter(name), carried) for name in interface.parameters}
    arrays["state"] = {name: normal(interface.shape_of_state(name, batch), carried) for name in interface.states}
    if interface.shared:
        of_group = interface.shape(interface.shared_axes, rows, time)
        arrays["shared"] = {name: normal(of_group, storage) for name in interface.shared}
    if boundaries == "resets":
        arrays["resets"] = random.random((rows, time)) < 0.3
    if boundaries == "lengths":
        arrays["lengths"] = np.array([time, 2, 0][:rows], np.int32)
    if boundaries == "cu_seqlens":
        arrays["cu_seqlens"] = np.array([0, 2, 2, time], np.int32)
    return arrays


def split(arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays with gradients, and those without."""
    without = {name: array for name, array in arrays.items() if name in ("resets", "lengths", "cu_seqlens")}
    return {name: array for name, array in arrays.items() if name not in without}, without


def near(actual: Any, expected: Any, tolerance: float = 1e-11) -> None:
    """Compare trees of arrays."""
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance), actual, expected)


def results_and_gradients(run: Any, arrays: Any, incoming: Any) -> Any:
    """Return the results of a function and the gradients of its arrays, by one program."""

    @jax.jit
    def both(arrays: Any, incoming: Any) -> Any:
        results, backward = jax.vjp(run, arrays)
        return results, backward(incoming)[0]

    return both(arrays, incoming)


@pytest.mark.parametrize("model", CELLS)
def test_values_and_gradients_are_those_of_lax_scan(model: str) -> None:
    by_lax_scan_too(model)


@pytest.mark.parametrize("model", one_in(2, ["lstm", "min_gru"]))
def test_native_code_serves_programs_of_jax(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_CPU", "native")
    monkeypatch.setattr("minrnn_gen.layers.kernels._KERNELS", {})
    by_lax_scan_too(model)


def by_lax_scan_too(model: str) -> None:
    """Values and gradients of a cell in fp64, and those of its equations in lax.scan."""
    spec = {"model": model, "hidden_size": HIDDEN, "heads": HEADS if CELLS[model][3] else 1, "precision": "fp64"}
    arrays, sequences = split(drawn(kernel_of(spec), boundaries="resets"))

    def loss(run: Any) -> Any:
        def total(arrays: dict[str, Any]) -> Any:
            y, final = run(**arrays, **sequences)
            return (y**2).sum() + sum((array**3).sum() for array in final.values()), (y, final)

        return jax.jit(jax.value_and_grad(total, has_aux=True))(arrays)

    ours = loss(lambda **arrays: front.recurrence(spec, **arrays))
    near(ours, loss(lambda **arrays: by_lax_scan(model, **arrays)))


@pytest.mark.parametrize(
    ("spec", "boundaries"),
    [
        ({"model": "min_lstm", "precision": "bf16"}, "lengths"),
        ({"model": "rg_lru", "precision": "fp16", "layout": "TBD"}, "resets"),
        ({"model": "qrnn", "precision": "bf16", "layout": "BDT"}, ""),
        ({"model": "ind_rnn", "precision": "fp32"}, "cu_seqlens"),
        ({"model": "hgrn", "direction": "bidirectional"}, "lengths"),
        ({"model": "gru", "precision": "bf16", "direction": "reverse"}, "cu_seqlens"),
        ({"model": "slstm", "heads": 2, "layout": "TBD", "direction": "bidirectional"}, "resets"),
        ({"model": "lstm", "recurrent_bias": True, "precision": "fp16"}, "lengths"),
        ({"model": "selective", "state_size": 3, "groups": 2, "precision": "bf16"}, "resets"),
        ({"model": "gated_linear", "state_size": 4, "layout": "TBD", "direction": "bidirectional"}, "lengths"),
        ({"model": "s4d", "state_size": 2, "precision": "fp16", "input_size": None}, "cu_seqlens"),
    ],
    ids=str,
)
def test_everything_is_what_numpy_calls_return(spec: dict[str, Any], boundaries: str) -> None:
    """Bit by bit: the same code computes both."""
    spec = {"hidden_size": HIDDEN, **spec}
    kernel = kernel_of(spec)
    arrays, sequences = split(drawn(kernel, boundaries=boundaries))
    y, final, saved = kernel.forward(**arrays, **sequences)
    incoming = np.cos(y.astype(np.float32)).astype(y.dtype), {name: np.sin(array) for name, array in final.items()}
    expected = (y, final), kernel.backward(saved, *incoming)
    actual = results_and_gradients(lambda arrays: front.recurrence(spec, **arrays, **sequences), arrays, incoming)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize(("layout", "direction"), [("TBD", "forward"), ("BDT", "bidirectional")])
def test_the_projection_is_jax_own(layout: str, direction: str) -> None:
    spec = {
        "model": "gru",
        "hidden_size": HIDDEN,
        "input_size": 5,
        "layout": layout,
        "direction": direction,
        "precision": "fp64",
    }
    kernel = kernel_of(spec)
    arrays = drawn(kernel)
    y, final, saved = kernel.forward(**arrays)
    incoming = jax.tree.map(np.ones_like, (y, final))
    actual = results_and_gradients(lambda arrays: front.recurrence(spec, **arrays), arrays, incoming)
    near(actual, ((y, final), kernel.backward(saved, *incoming)))


def test_all_states_are_values_without_gradients() -> None:
    spec = {"model": "lstm", "hidden_size": HIDDEN, "precision": "fp64"}
    arrays = drawn(kernel_of(spec))

    def through_states(arrays: dict[str, Any]) -> Any:
        y, final, states = front.recurrence(spec, **arrays, all_states=True)
        return y.sum() + states["c"].sum(), (y, final, states)

    gradients, (y, final, states) = jax.jit(jax.grad(through_states, has_aux=True))(arrays)
    near(states["h"], y)
    near(np.asarray(states["c"])[:, -1], final["c"])
    near(gradients, jax.jit(jax.grad(lambda arrays: front.recurrence(spec, **arrays)[0].sum()))(arrays))


@pytest.mark.parametrize("layout", one_in(2, ["BDT", "BTD"]))
@pytest.mark.parametrize("cell", [{"model": "lstm", "input_size": 5}, {"model": "selective", "state_size": 3, "groups": 4}])
def test_steps_make_a_recurrence(layout: str, cell: dict[str, Any]) -> None:
    spec = {**cell, "hidden_size": HIDDEN, "layout": layout, "precision": "fp64"}
    kernel = kernel_of(spec)
    carried = kernel.states[-1]
    arrays = drawn(kernel)
    time = kernel.interface.x_axes.index("t")

    def by_steps(arrays: dict[str, Any]) -> Any:
        others = {name: array for name, array in arrays.items() if name not in ("x", "state", "shared")}
        of_group = kernel.interface.shared_axes.index("t")
        shared = {name: jnp.moveaxis(array, of_group, 0) for name, array in arrays.get("shared", {}).items()}
        steps = jnp.moveaxis(arrays["x"], time, 0), shared

        def body(state: Any, inputs: Any) -> Any:
            x_t, shared_t = inputs
            y_t, state = front.step(spec, x_t, state=state, shared=shared_t or None, **others)
            return state, y_t

        final, y = jax.lax.scan(body, arrays["state"], steps)
        return (y**2).sum() + (final[carried] ** 2).sum()

    def at_once(arrays: dict[str, Any]) -> Any:
        y, final = front.recurrence(spec, **arrays)
        return (y**2).sum() + (final[carried] ** 2).sum()

    near(jax.jit(jax.value_and_grad(by_steps))(arrays), jax.jit(jax.value_and_grad(at_once))(arrays))


@pytest.mark.parametrize(("batch", "time"), [(0, 4), (2, 0)])
@pytest.mark.parametrize("cell", [{"model": "lstm"}, {"model": "selective", "state_size": 3}], ids=str)
def test_calls_without_steps_return_initial_states(batch: int, time: int, cell: dict[str, Any]) -> None:
    spec = {**cell, "hidden_size": HIDDEN, "precision": "fp64"}
    kernel = kernel_of(spec)
    arrays, last = drawn(kernel, batch=batch, time=time), kernel.states[-1]

    def carried(arrays: dict[str, Any]) -> Any:
        y, final = front.recurrence(spec, **arrays)
        return final[last].sum(), (y, final)

    gradients, (y, final) = jax.jit(jax.grad(carried, has_aux=True))(arrays)
    assert y.shape == (batch, time, HIDDEN)
    near(final, arrays["state"])
    near(gradients["state"][last], np.ones(kernel.interface.shape_of_state(last, batch)))


def test_traced_boundaries_are_clipped_to_x() -> None:
    spec = {"model": "min_gru", "hidden_size": HIDDEN}
    arrays, _ = split(drawn(kernel_of(spec)))
    padded = jax.jit(lambda lengths: front.recurrence(spec, **arrays, lengths=lengths))
    near(padded(np.array([99, -3, 2])), padded(np.array([TIME, 0, 2])), 0)
    arrays["x"] = arrays["x"][:1]
    packed = jax.jit(lambda ends: front.recurrence(spec, **arrays, cu_seqlens=ends))
    near(packed(np.array([5, 4, 3, 1])), packed(np.array([0, 4, 4, TIME])), 0)


def test_a_kernel_serves_as_a_spec() -> None:
    kernel = kernel_of({"model": "min_gru", "hidden_size": HIDDEN})
    arrays = drawn(kernel)
    near(front.recurrence(kernel, **arrays)[0], kernel(**arrays)[0], 0)


def test_a_program_is_traced_without_a_compiler_and_runs_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its forward keeps states is known before; NumPy, which may need them after all, computes them once more."""
    native = needed("minrnn_gen.run.cpu.native")
    random = np.random.default_rng(1)
    hidden = 5  # of no other test: kernels that are compiled stay so
    shapes = (BATCH, TIME, 3, hidden), (3, 1, hidden, hidden), (BATCH, TIME, hidden)
    arrays = [random.standard_normal(shape) for shape in shapes]

    def gradients(precision: str, dtype: Any) -> list[Any]:
        def of(x: Any, R: Any, dy: Any) -> Any:
            y, backward = jax.vjp(lambda *leaves: front.recurrence(spec, *leaves)[0], x, R)
            return y, *backward(dy)

        spec = {"model": "gru", "hidden_size": hidden, "precision": precision}
        traced = jax.jit(of).trace(*(jnp.asarray(array, dtype) for array in arrays))
        calls.append("traced")
        return [np.asarray(one, np.float64) for one in traced.lower().compile()(*(jnp.asarray(one, dtype) for one in arrays))]

    calls: list[str] = []

    def fails(*_: Any) -> Any:
        calls.append("compiled")
        raise native.CompileFailed("the compiler fails")

    monkeypatch.setattr(native, "cpu_kernel", fails)
    found = gradients("fp32", jnp.float32)
    assert calls[0] == "traced"
    for one, exact in zip(found, gradients("fp64", jnp.float64), strict=True):
        np.testing.assert_allclose(one, exact, rtol=0, atol=64 * 2.0**-24 * np.abs(exact).max())
