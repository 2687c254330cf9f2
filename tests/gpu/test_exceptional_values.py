"""NaN, and what a reset cuts off, on the GPU: they are where the CPU target has them; the last step is the final state."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.last_steps import last_steps
from support.scan_strategies import EVERY_WAY, Strategy
from test_sequences import BATCH, TIME, arguments_of, mapped

from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

DIRECTIONS = ("forward", "reverse")
# Persistent kernels of a block, of a cluster and of a grid, and products of cuBLAS beside a pointwise kernel.
DENSE = (
    ("lstm", 128, 2, "bf16"),
    ("gru", 192, 1, "fp16"),
    ("slstm", 96, 3, "fp32"),
    ("lstm", 1536, 1, "bf16"),
    ("elman", 2176, 1, "fp64"),
)


def by_step(kernel: Kernel, x: Any) -> Any:
    """View x as [B, T, ...]."""
    axes = kernel.interface.x_axes
    return np.moveaxis(x, (axes.index("b"), axes.index("t")), (0, 1))


def on_both(
    cupy: ModuleType, kernel: Kernel, arguments: dict[str, Any], dy: Any, dstate: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return what a forward and its backward give for the same arrays, on the GPU and on the host."""
    results = []
    for convert in (cupy.asarray, np.asarray):
        y, state, saved = kernel.forward(**mapped(convert, arguments))
        gradients = kernel.backward(saved, convert(dy), mapped(convert, dstate))
        named = {"y": y, **state, "dx": gradients["x"]} | {
            f"d{name}": gradient for name, gradient in gradients["state"].items()
        }
        results.append({name: array if isinstance(array, np.ndarray) else array.get() for name, array in named.items()})
    return results


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_nan_passes_every_step_but_a_reset(
    cupy: ModuleType, taking: Callable[..., Kernel], layout: str, strategy: Strategy, direction: str
) -> None:
    """Over hundreds of steps, whose factors vanish, and past gates of exactly 0: neither is a reset."""
    kernel = taking(strategy, model="min_lstm", hidden_size=40, precision="fp32", layout=layout, direction=direction)
    arguments, dy, dstate = arguments_of(kernel, "resets", has_bias=False)
    arguments["resets"][:2] = False
    x = by_step(kernel, arguments["x"])
    first, last = (0, TIME - 1) if direction == "forward" else (TIME - 1, 0)
    x[:, first], x[1, last] = np.nan, np.nan
    x[1, TIME // 3 : TIME // 2] = 200
    x[3, TIME // 2] = np.nan
    on_gpu, on_host = on_both(cupy, kernel, arguments, dy, dstate)
    for name, expected in on_host.items():
        assert np.isnan(expected).any() and not np.isnan(expected).all(), name
        np.testing.assert_array_equal(np.isnan(on_gpu[name]), np.isnan(expected), name)


@pytest.mark.parametrize("sequences", ["none", "lengths"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_the_last_step_is_the_final_state(
    cupy: ModuleType, taking: Callable[..., Kernel], layout: str, strategy: Strategy, direction: str, sequences: str
) -> None:
    """The state at the last step and the final state are the same number to the last bit, not two that are near."""
    for precision in ("fp32", "bf16"):
        kernel = taking(strategy, model="min_gru", hidden_size=40, precision=precision, layout=layout, direction=direction)
        arguments, _, _ = arguments_of(kernel, sequences, has_bias=False)
        given = mapped(cupy.asarray, arguments)
        y, state, _ = kernel.forward(**given)
        last, had_steps = last_steps(kernel.interface, y.get(), arguments.get("lengths"))
        final = state["h"].get().reshape(last.shape)
        assert last[had_steps].tobytes() == final.astype(last.dtype)[had_steps].tobytes()
        assert final[~had_steps].tobytes() == arguments["state"]["h"].reshape(last.shape)[~had_steps].tobytes()
        y, states = kernel(**given, all_states=True)
        last, _ = last_steps(kernel.interface, y.get(), arguments.get("lengths"))
        kept, _ = last_steps(kernel.interface, states["h"].get(), arguments.get("lengths"))
        assert last[had_steps].tobytes() == kept.astype(last.dtype)[had_steps].tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("model", "hidden_size", "heads", "precision"), DENSE)
def test_nothing_of_R_passes_a_reset(
    cupy: ModuleType, compiled: Callable[..., Kernel], model: str, hidden_size: int, heads: int, precision: str, direction: str
) -> None:
    """With a reset before every step, NaN and infinity in R change no bit of the outputs and of the gradients."""
    kernel = compiled(model=model, hidden_size=hidden_size, heads=heads, precision=precision, direction=direction)
    random, interface = np.random.default_rng(2), kernel.interface
    arguments, dy, dstate = arguments_of(kernel, "none", has_bias=False)
    axis = interface.x_axes.index("t")
    arguments["x"], dy = (array.take(range(9), axis) for array in (arguments["x"], dy))
    arguments["resets"] = np.ones((BATCH, 9), bool)
    results = []
    for value in (None, np.nan, np.inf):
        if value is not None:
            arguments["R"][random.random(arguments["R"].shape) < 0.3] = value
        results.append(on_both(cupy, kernel, arguments, dy, dstate))
    for number in (0, 1):
        clean, *others = (result[number] for result in results)
        for other in others:
            assert all(other[name].tobytes() == array.tobytes() for name, array in clean.items())
        assert not any(clean[f"d{name}"].any() for name in kernel.states)


# Of each class; the smaller of two, the larger, and what is not below 0, of values that may be NaN.
CHOOSING = {
    "scan": "h[t] = sigmoid(W.z) * h[t-1] + max(min(W.a, W.b), 0.5) + relu(W.c)",
    "diagonal": "h[t] = tanh(max(min(W.a, W.b), h[t-1]) + relu(W.c) + 0 * W.z)",
    "dense": "h[t] = sigmoid(W.z + R.z) * h[t-1] + max(min(W.a, W.b), relu(W.c))",
}


@pytest.mark.parametrize("layout", ["BTD", "TBD", "BDT"])
@pytest.mark.parametrize("kind", CHOOSING)
def test_the_gradient_goes_to_the_argument_that_is_taken(
    cupy: ModuleType, compiled: Callable[..., Kernel], kind: str, layout: str
) -> None:
    """NaN is taken, of two the first: where the CPU target has a gradient of 0, of NaN, or of a number."""
    cell = {"name": f"choosing_{kind}", "equations": CHOOSING[kind]}
    kernel = compiled(model=cell, hidden_size=40, precision="fp32", layout=layout)
    arguments, dy, dstate = arguments_of(kernel, "resets", has_bias=False)
    random, x = np.random.default_rng(4), by_step(kernel, arguments["x"])
    x[random.random(x.shape) < 0.02] = np.nan
    arguments["resets"][:, ::3] = True
    on_gpu, on_host = on_both(cupy, kernel, arguments, dy, dstate)
    for name, expected in on_host.items():
        np.testing.assert_array_equal(np.isnan(on_gpu[name]), np.isnan(expected), name)
        # What is passed over has a gradient of exactly 0.
        np.testing.assert_array_equal(on_gpu[name] == 0, expected == 0, name)
