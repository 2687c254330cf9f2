"""The JAX front on a GPU: what CuPy calls return, bit by bit, and captured graphs without Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needed import needed
from test_jax_recurrence import BATCH, HIDDEN, drawn, kernel_of, split

from minrnn_gen.kernel import Kernel

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
by_lax_scan = needed("support.cells_in_jax").by_lax_scan
target = needed("minrnn_gen.jax.target")

pytestmark = pytest.mark.gpu


def to_cupy(tree: Any) -> Any:
    import cupy

    return jax.tree.map(cupy.asarray, tree)


def to_numpy(tree: Any) -> Any:
    return jax.tree.map(lambda array: array.get() if hasattr(array, "get") else np.asarray(array), tree)


def almost_equal(actual: Any, expected: Any) -> None:
    """Compare sums of the same numbers in another order."""
    roundoff = jnp.finfo(expected.dtype).eps
    actual, expected = (np.asarray(array, np.float64) for array in (actual, expected))
    np.testing.assert_allclose(actual, expected, rtol=64 * roundoff, atol=64 * roundoff * np.abs(expected).max())


def calls_by(by_c: bool) -> Any:
    """Return the handler in C, which has all that was recorded, or nothing of it where Python is to run calls."""
    from minrnn_gen.jax.c_handler import c_handler, why_no_c_handler

    handler = c_handler()
    if handler is None:
        return pytest.skip(why_no_c_handler()) if by_c else None
    if not by_c:
        handler.withdraw_all()
    return handler


@pytest.mark.parametrize("by_c", [True, False])
@pytest.mark.parametrize(
    ("spec", "boundaries"),
    [
        ({"model": "lstm", "precision": "bf16", "heads": 2}, ""),
        ({"model": "lstm", "precision": "fp32", "recurrent_bias": True}, "lengths"),
        ({"model": "gru", "precision": "fp16"}, "resets"),
        ({"model": "gru", "precision": "fp64", "direction": "bidirectional"}, "lengths"),
        ({"model": "slstm", "precision": "bf16", "layout": "TBD"}, "resets"),
        ({"model": "elman", "precision": "fp32", "layout": "BDT"}, ""),
        ({"model": "min_gru", "precision": "bf16"}, "cu_seqlens"),
        ({"model": "qrnn", "precision": "bf16", "direction": "reverse"}, "resets"),
        ({"model": "rg_lru", "precision": "fp32", "layout": "BDT", "direction": "bidirectional"}, "lengths"),
        ({"model": "ind_rnn", "precision": "fp16"}, "resets"),
        ({"model": "selective", "state_size": 16, "precision": "bf16"}, "resets"),
        ({"model": "s4d", "state_size": 4, "precision": "fp32", "layout": "BDT"}, "lengths"),
        ({"model": "gated_linear", "state_size": 32, "groups": 2, "direction": "bidirectional"}, ""),
    ],
    ids=str,
)
def test_everything_is_what_cupy_calls_return(spec: dict[str, Any], boundaries: str, by_c: bool) -> None:
    check_beside_cupy({"hidden_size": 8 * HIDDEN, **spec}, boundaries, by_c, batch=BATCH, time=33)


@pytest.mark.parametrize("by_c", [True, False])
def test_scans_of_all_blocks_together_are_what_cupy_calls_return(by_c: bool) -> None:
    """Launched together, and from the second run on out of XLA's graph, in which a fill of the workspace is before each."""
    spec = {"model": "min_gru", "hidden_size": 256, "precision": "bf16"}
    kernel = check_beside_cupy(spec, "", by_c, batch=1, time=65536)
    strategies = {(key.kernel_pass, plan.strategy) for key, plan in kernel.plans.items()}
    assert {("forward", "cooperative"), ("backward", "cooperative")} <= strategies


def check_beside_cupy(spec: dict[str, Any], boundaries: str, by_c: bool, batch: int, time: int) -> Kernel:
    """Compare a call and its gradients with those of a kernel on CuPy's arrays, which is returned."""
    target._DEVICE_CALLS.clear()  # recorded anew, and published
    kernel = kernel_of(spec)
    arrays, sequences = split(drawn(kernel, boundaries=boundaries, batch=batch, time=time))
    if "cu_seqlens" in sequences:
        sequences["cu_seqlens"][-1] = time

    @jax.jit
    def ours(arrays: Any, sequences: Any, dy: Any, dstate: Any) -> Any:
        results, backward = jax.vjp(lambda arrays: front.recurrence(spec, **arrays, **sequences), arrays)
        return results, backward((dy, dstate))[0]

    y, final, saved = kernel.forward(**to_cupy(arrays), **to_cupy(sequences))
    dy = np.cos(y.get().astype(np.float32)).astype(y.dtype)
    dstate = {name: np.sin(array.get()) for name, array in final.items()}
    expected = to_numpy(((y, final), kernel.backward(saved, to_cupy(dy), to_cupy(dstate))))
    by_xla = {name: expected[1].pop(name) for name in ("bias", "recurrent_bias", "parameters", "shared") if name in expected[1]}
    compiled = ours.lower(arrays, sequences, dy, dstate).compile()
    handler = calls_by(by_c)
    before = 0 if handler is None else handler.served
    for _ in range(3):
        results, gradients = to_numpy(compiled(arrays, sequences, dy, dstate))
        # The last sums of these are XLA's, in an order of its own.
        jax.tree.map(almost_equal, {name: gradients.pop(name) for name in by_xla}, by_xla)
        jax.tree.map(np.testing.assert_array_equal, (results, gradients), expected)
    assert (0 if handler is None else handler.served) > before if by_c else handler is None or handler.served == before
    return kernel


@pytest.mark.parametrize("model", ["lstm", "gru", "min_gru"])
def test_values_and_gradients_are_those_of_lax_scan(model: str) -> None:
    spec = {"model": model, "hidden_size": 64, "precision": "fp64"}
    arrays, sequences = split(drawn(kernel_of(spec), boundaries="resets", time=20))

    def gradients(run: Any) -> Any:
        def total(arrays: Any) -> Any:
            y, final = run(**arrays, **sequences)
            return (y**2).sum() + sum((array**3).sum() for array in final.values()), (y, final)

        return jax.jit(jax.value_and_grad(total, has_aux=True))(arrays)

    ours = gradients(lambda **arrays: front.recurrence(spec, **arrays))
    expected = gradients(lambda **arrays: by_lax_scan(model, **arrays))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9), ours, expected)


@pytest.mark.parametrize("model", ["lstm", "gru", "min_gru"])
def test_derivatives_along_tangents_are_those_of_lax_scan(model: str) -> None:
    """In forward mode, of gradients in both modes, and a batch of Hessian-vector products."""
    spec = {"model": model, "hidden_size": 64, "precision": "fp64"}
    arrays, sequences = split(drawn(kernel_of(spec), boundaries="resets", time=20))
    along = jax.tree.map(lambda array: np.cos(np.arange(array.size, dtype=array.dtype)).reshape(array.shape), arrays)

    def derivatives(run: Any) -> Any:
        def loss(arrays: Any) -> Any:
            y, final = run(**arrays, **sequences)
            return (y**2).sum() + sum((array**3).sum() for array in final.values())

        def product(along: Any) -> Any:
            return jax.jvp(jax.grad(loss), (arrays,), (along,))[1]

        batch = jax.tree.map(lambda *pair: jnp.stack(pair), along, arrays)
        reverse = jax.vjp(jax.grad(loss), arrays)[1](along)[0]
        return jax.jvp(loss, (arrays,), (along,)), product(along), reverse, jax.vmap(product)(batch)

    ours = jax.jit(lambda: derivatives(lambda **arrays: front.recurrence(spec, **arrays)))()
    expected = jax.jit(lambda: derivatives(lambda **arrays: by_lax_scan(model, **arrays)))()
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9 * np.abs(other).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_raw_scans_are_those_of_cupy(dtype: str) -> None:
    import minrnn_gen

    random = np.random.default_rng(0)
    a, b = (np.asarray(jnp.asarray(random.standard_normal((2, 50, 64)) / 2, dtype)) for _ in range(2))
    y, final = minrnn_gen.scan(*to_cupy((a, b)))
    ours = jax.jit(front.scan)(a, b)
    jax.tree.map(np.testing.assert_array_equal, to_numpy(ours), to_numpy((y, final)))
    gradients = jax.jit(jax.grad(lambda a, b: (front.scan(a, b)[0] ** 2).sum().real.astype(jnp.float32), (0, 1)))(a, b)
    assert all(np.isfinite(np.asarray(array, np.complex64)).all() for array in gradients)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("time", [3, 4099])
def test_filters_are_those_of_cupy_arrays(dtype: str, time: int) -> None:
    """In float64 without x64: coefficients are widened within the program."""
    from minrnn_gen.raw_scan.filters import run_filter, run_filter_backward

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 3, time)), dtype)
    a = np.stack([2 * np.poly(rng.uniform(-0.99, 0.99, 3)) for _ in range(3)]).astype("f")
    b, zi = (rng.standard_normal(shape).astype("f") for shape in ((3, 4), (2, 3, 3)))
    y, zf = jax.jit(front.lfilter)(x, a, b, zi)
    wide = [np.asarray(x).astype("f"), *(one.astype("d") for one in (b, a, zi))]
    expected, last = run_filter(*to_cupy(wide))
    np.testing.assert_array_equal(y, np.asarray(jnp.asarray(expected.get(), dtype)))
    np.testing.assert_array_equal(zf, last.get().astype("f"))

    def total(*arrays: Any) -> Any:
        y, zf = front.lfilter(*arrays)
        return y.astype(jnp.float32).sum() + zf.sum()

    found = jax.jit(jax.grad(total, (0, 1, 2, 3)))(x, a, b, zi)
    ones = np.ones_like(wide[0]), np.ones_like(wide[3])
    dx, db, da, dzi = run_filter_backward(*to_cupy((wide[0], expected.get(), *wide[1:3], *ones)))
    for gradient, one in zip(found, (dx, da, db, dzi), strict=True):
        almost_equal(gradient, jnp.asarray(one.get(), gradient.dtype))


def test_steps_ensembles_and_pieces() -> None:
    spec = {"model": "lstm", "hidden_size": 64, "precision": "fp64"}
    arrays = drawn(kernel_of(spec), time=8)
    x, R, state = (arrays[name] for name in ("x", "R", "state"))
    y, final = jax.jit(lambda x: front.recurrence(spec, x, R, state=state))(x)

    def body(state: Any, x_t: Any) -> Any:
        y_t, state = front.step(spec, x_t, R, state=state)
        return state, y_t

    last, steps = jax.jit(lambda x: jax.lax.scan(body, state, jnp.moveaxis(x, 1, 0)))(x)
    np.testing.assert_allclose(jnp.moveaxis(steps, 0, 1), y, atol=1e-12)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-12), last, final)
    several = np.stack([R, R[::-1], -R])
    together = jax.jit(jax.vmap(lambda R: front.recurrence(spec, x, R)[0]))(several)
    for index, own in enumerate(several):
        np.testing.assert_allclose(together[index], front.recurrence(spec, x, own)[0], atol=1e-12)


CAPTURED = """
import jax, jax.numpy as jnp, numpy as np
import minrnn_gen.jax
from minrnn_gen.jax.c_handler import c_handler
from minrnn_gen.jax.device import DeviceCall

calls, run = [], DeviceCall.run
DeviceCall.run = lambda self, *arguments: (calls.append(1), run(self, *arguments))[1]
spec = {"model": "lstm", "hidden_size": 128, "precision": "fp32"}

@jax.jit
def train(R, x):
    loss, gradient = jax.value_and_grad(lambda R: (minrnn_gen.jax.recurrence(spec, x, R)[0] ** 2).mean())(R)
    return R - 0.1 * gradient, loss

R, x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 1, 128, 128)) / 12, jnp.float32), jnp.ones((16, 64, 4, 128))
losses = []
for _ in range(100):
    R, loss = train(R, x)
    losses.append(float(loss))
print(len(calls) + (handler.served if (handler := c_handler()) else 0), losses[0] > losses[-1], bool(np.isfinite(losses).all()))
"""


@pytest.mark.parametrize("by", ["c", "python"])
def test_replays_of_captured_graphs_call_no_handler(by: str) -> None:
    """A training step runs two calls; XLA captures both, once for each set of addresses that its allocator gives."""
    root = Path(__file__).resolve().parents[2]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_graph_min_graph_size=1"
    environment = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "MINRNN_JAX": by}
    program = [sys.executable, "-c", CAPTURED]
    answer = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    calls, falls, is_finite = answer.stdout.split()
    assert (falls, is_finite) == ("True", "True")
    assert int(calls) < 100, "200 without capture"


def test_tracing_again_records_nothing_and_memory_stays() -> None:
    import cupy

    spec = {"model": "min_gru", "hidden_size": 64}
    x = jnp.ones((2, 16, 2, 64), jnp.float32)
    jax.block_until_ready(jax.jit(lambda x: front.recurrence(spec, x)[0])(x))
    recorded, held = len(target._DEVICE_CALLS), cupy.get_default_memory_pool().total_bytes()
    for _ in range(100):
        run = jax.jit(lambda x: front.recurrence(spec, x)[0])
        jax.block_until_ready(run(x))
    for _ in range(1000):
        y = run(x)
    jax.block_until_ready(y)
    assert (len(target._DEVICE_CALLS), cupy.get_default_memory_pool().total_bytes()) == (recorded, held)


def test_a_spec_for_another_gpu_is_refused() -> None:
    from minrnn_gen.errors import BadInput
    from minrnn_gen.gpu.device import live_device

    here = live_device()
    assert here is not None
    other = "t4" if here.compute_capability != "7.5" else "h200"
    spec = {"model": "min_gru", "hidden_size": 64, "gpu": other}
    with pytest.raises(BadInput, match=r"the kernel was compiled for sm_\d+a? but the arrays are on a GPU of sm_\d+"):
        jax.jit(lambda x: front.recurrence(spec, x)[0])(jnp.ones((2, 16, 2, 64), jnp.float32))


@pytest.mark.alone
def test_a_small_call_takes_the_host_ten_microseconds_in_c() -> None:
    """Beside a program of one addition, since XLA's own part is in both; in turns, since the clock of a processor moves."""
    handler = calls_by(by_c=True)
    target._DEVICE_CALLS.clear()
    x = jnp.ones((16, 16, 2, 64), jnp.float32)
    plain = jax.jit(lambda x: x + 1)
    ours = jax.jit(lambda x: front.recurrence({"model": "min_gru", "hidden_size": 64}, x)[0])

    def microseconds(call: Any) -> float:
        started = time.perf_counter()
        for _ in range(100):
            y = call(x)
        taken = (time.perf_counter() - started) * 1e4
        jax.block_until_ready(y)
        return taken

    def least_of_both() -> list[float]:
        jax.block_until_ready((plain(x), ours(x)))
        return [min(rounds) for rounds in zip(*((microseconds(plain), microseconds(ours)) for _ in range(15)), strict=True)]

    beside_c, by_c = least_of_both()
    served = handler.served
    handler.withdraw_all()
    beside_python, by_python = least_of_both()
    print(f"by C {by_c:.1f} beside {beside_c:.1f}, by Python {by_python:.1f} beside {beside_python:.1f} us")
    assert served and by_c - beside_c <= 10
    assert handler.served == served and by_python - beside_python <= 60
