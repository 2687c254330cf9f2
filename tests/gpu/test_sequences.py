"""Sequences, directions, kept states and projection gradients on the GPU: what the CPU target does with the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.reference_loops import DIAGONAL_CELLS, TWO_STATES
from support.scan_strategies import EVERY_WAY, Strategy

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of

pytestmark = pytest.mark.gpu

BATCH, TIME, HIDDEN, INPUTS = 4, 700, 72, 40
SEQUENCES = ("none", "resets", "lengths", "both", "packed")
# Relative error of a whole array; the host computes 16-bit precisions in float32 and keeps states in it too.
TOLERANCE = {"fp64": 2.0**-40, "fp32": 2.0**-15, "fp16": 2.0**-7, "bf16": 2.0**-5}
# In logarithms the state is the sum of hundreds of them: docs/numerics.md.
LOG_TOLERANCE = {"fp64": 2.0**-36, "fp32": 2.0**-11, "bf16": 2.0**-6}
DENSE_CELLS, HEADS = ("elman", "gru", "lstm", "slstm"), 3
Tree = Any
# Cells that are not built in, by name.
INLINE = {cell["name"]: cell for cell in DIAGONAL_CELLS}


def mapped(convert: Callable[[Any], Any], tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {name: mapped(convert, one) for name, one in tree.items()}
    return convert(tree)


def assert_near(
    found: Tree, expected: Tree, precision: str, what: str = "", tolerance: Mapping[str, float] = TOLERANCE
) -> None:
    if isinstance(expected, dict):
        assert set(found) == set(expected), what
        for name, one in expected.items():
            assert_near(found[name], one, precision, f"{what} {name}", tolerance)
        return
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    exact = expected.astype(np.float64)
    error = np.linalg.norm(found.astype(np.float64) - exact) / max(np.linalg.norm(exact), 1e-30)
    assert error <= tolerance[precision], (what, error)


def arguments_of(kernel: Kernel, sequences: str, has_bias: bool) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return host arrays of a call, and dy and dstate of its backward."""
    random, interface, precision = np.random.default_rng(3), kernel.interface, precision_of(kernel.spec.precision)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)

    def normal(shape: tuple[int, ...], dtype: Any = storage) -> Any:
        return random.normal(size=shape).astype(dtype)

    rows = 1 if sequences == "packed" else BATCH
    arguments: dict[str, Any] = {"x": normal(interface.shape(interface.x_axes, rows, TIME))}
    count = rows
    if sequences == "packed":
        arguments["cu_seqlens"] = np.array([0, 1, 1, 130, 257, TIME])
        count = 5
    if sequences in ("lengths", "both"):
        arguments["lengths"] = np.array([TIME, 0, 131, 1], np.int32)
    if sequences in ("resets", "both", "packed"):
        arguments["resets"] = random.random((rows, TIME)) < 0.02
        arguments["resets"][:, [0, -1]] = True
    if interface.input_size:
        arguments["weight"] = (normal((interface.weight_rows, INPUTS), float) / INPUTS**0.5).astype(storage)
    if has_bias:
        arguments["bias"] = normal(interface.shape(interface.gate_axes, 0, 0))
    if kernel.parameters:  # below 1, so that no state of ind_rnn grows without bound
        arguments["parameters"] = {
            name: np.tanh(normal(interface.parameter_shape, float)).astype(storage) for name in kernel.parameters
        }
    if kernel.interface.recurrent_gates:
        scale = kernel.interface.head_dim**-0.5
        arguments["R"] = (scale * normal(interface.R_shape, float)).astype(storage)
        if has_bias:
            arguments["recurrent_bias"] = normal(interface.recurrent_bias_shape)
    arguments["state"] = {name: normal(interface.state_shape(count), carried) for name in kernel.states}
    dstate = {name: normal(interface.state_shape(count), carried) for name in kernel.states}
    return arguments, normal(interface.y_shape(rows, TIME)), dstate


@pytest.mark.parametrize("sequences", SEQUENCES)
@pytest.mark.parametrize(
    ("model", "precision", "layout"),
    # Each is a dozen kernels, which take longer to compile than to run.
    [
        ("min_lstm", "fp32", "BTD"),
        ("qrnn", "bf16", "BTD"),
        ("qrnn", "bf16", "TBD"),
        ("min_lstm", "fp32", "BDT"),
        ("rg_lru", "fp64", "BDT"),
        ("ind_rnn", "fp32", "BTD"),
        ("entangled", "fp64", "BDT"),
        ("veiled", "bf16", "TBD"),
        ("lstm", "fp64", "BTD"),
        ("lstm", "fp16", "BTD"),
        ("gru", "fp32", "BDT"),
        ("gru", "bf16", "BTD"),
        ("slstm", "fp32", "TBD"),
        ("elman", "bf16", "TBD"),
    ],
)
def test_the_gpu_does_what_the_host_does(
    cupy: ModuleType, compiled: Callable[..., Kernel], model: str, precision: str, layout: str, sequences: str
) -> None:
    """In both directions at once, with and without a projection."""
    if sequences == "packed" and layout != "BTD":
        return
    for input_size in (None, INPUTS) if model == "min_lstm" else (None,):
        spec = {"model": INLINE.get(model, model), "hidden_size": HIDDEN, "precision": precision, "layout": layout}
        if model in DENSE_CELLS:
            spec |= {"heads": HEADS, "recurrent_bias": True}
        kernel = compiled(**spec, direction="bidirectional", **({"input_size": input_size} if input_size else {}))
        for keeps in (False, True):
            check_against_host(cupy, kernel, sequences, keeps)


@pytest.mark.parametrize("layout", ["BTD", "TBD", "BDT"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("model", ["min_gru_log", "min_lstm_log"])
def test_logarithms(cupy: ModuleType, compiled: Callable[..., Kernel], model: str, precision: str, layout: str) -> None:
    """The forward in logarithms gives what it gives on the host, and what the linear one gives; with lengths and resets too."""
    spec = {"model": model, "hidden_size": HIDDEN, "precision": precision, "layout": layout}
    kernel, linear = compiled(**spec, scan_arithmetic="log"), compiled(**spec)
    for sequences in ("none", "both"):
        arguments, *_ = arguments_of(kernel, sequences, has_bias=True)
        arguments["state"] = mapped(np.abs, arguments["state"])  # a negative one has no logarithm
        given = mapped(cupy.asarray, arguments)
        found = [mapped(cupy.asnumpy, one) for one in kernel(**given)]
        for expected in (kernel(**arguments), linear(**arguments)):
            for one, wanted in zip(found, expected, strict=True):
                assert_near(one, wanted, precision, sequences, LOG_TOLERANCE)


def check_against_host(cupy: ModuleType, kernel: Kernel, sequences: str, keeps: bool) -> None:
    """Hold a forward and two backwards of it against the same on the host; `keeps` all states, and with a bias."""
    precision = kernel.spec.precision
    arguments, dy, dstate = arguments_of(kernel, sequences, has_bias=keeps)
    y, state, saved = kernel.forward(**arguments, all_states=keeps)
    expected = kernel.backward(saved, dy, dstate)
    given = mapped(cupy.asarray, arguments)
    y_gpu, state_gpu, saved = kernel.forward(**given, all_states=keeps)
    found = kernel.backward(saved, cupy.asarray(dy), mapped(cupy.asarray, dstate))
    assert_near(y_gpu.get(), y, precision, "y")
    assert_near(mapped(cupy.asnumpy, state_gpu), state, precision, "state")
    assert_near(mapped(cupy.asnumpy, found), expected, precision)
    again = kernel.backward(saved, cupy.asarray(dy), mapped(cupy.asarray, dstate))
    assert bool((again["x"].view(np.uint8) == found["x"].view(np.uint8)).all())


@pytest.mark.parametrize(
    ("layout", "strategy", "sequences"),
    [
        (layout, strategy, sequences)
        for layout, strategy in EVERY_WAY
        for sequences in SEQUENCES
        # Packed sequences are of layout BTD, and nobody takes tickets for their tiles.
        if sequences != "packed" or (layout == "BTD" and not strategy.takes_tickets)
    ],
    ids=str,
)
def test_every_way_serves_sequences(
    cupy: ModuleType, taking: Callable[..., Kernel], layout: str, strategy: Strategy, sequences: str
) -> None:
    """In both directions at once. A bias and a parameter too, whose gradients are summed over parts of time."""
    kernel = taking(strategy, model=TWO_STATES, hidden_size=HIDDEN, precision="fp32", layout=layout, direction="bidirectional")
    check_against_host(cupy, kernel, sequences, keeps=True)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("layout", ["BTD", "BDT"])
def test_nan_does_not_pass_a_reset_or_a_length(
    cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, direction: str
) -> None:
    kernel = compiled(model="min_gru", hidden_size=HIDDEN, precision="fp32", layout=layout, direction=direction)
    arguments, dy, dstate = arguments_of(kernel, "both", has_bias=False)
    arguments["resets"][...] = False
    arguments["resets"][:, [100, 120]] = True
    # The steps from one cut to the next, in either direction, with the poison among them.
    touched = np.zeros((BATCH, TIME), bool)
    touched[0, slice(100, 120) if direction == "forward" else slice(101, 121)] = True
    clean = mapped(cupy.asarray, arguments)
    by_sequence = arguments["x"] if layout == "BTD" else np.moveaxis(arguments["x"], -1, 1)
    by_sequence[0, 110] = np.nan
    by_sequence[2, 131:] = np.nan
    poisoned = mapped(cupy.asarray, arguments)
    results = []
    for given in (clean, poisoned):
        y, state, saved = kernel.forward(**given)
        gradients = kernel.backward(saved, cupy.asarray(dy), mapped(cupy.asarray, dstate))
        found = [y.get(), gradients["x"].get()]
        if layout == "BDT":
            found = [np.moveaxis(one, -1, 1) for one in found]
        results.append((*(one[~touched] for one in found), state["h"].get(), gradients["state"]["h"].get()))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_sequences_in_host_memory_or_on_the_gpu(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    kernel = compiled(model="min_gru", hidden_size=HIDDEN, precision="fp32")
    x = cupy.asarray(np.random.default_rng(0).normal(size=(3, 9, 2, HIDDEN)).astype(np.float32))
    for lengths in (np.array([9, 0, 4], np.int32), np.array([9, 0, 4])):
        on_host, _ = kernel(x, lengths=lengths)
        on_gpu, _ = kernel(x, lengths=cupy.asarray(lengths))
        assert bool((on_host == on_gpu).all()) and not bool(on_gpu[1].any())
    with pytest.raises(ValueError, match=r"lengths\[1\] is 10; 0 to 9"):
        kernel(x, lengths=cupy.asarray([9, 10, 4]))


def test_lengths_in_a_captured_graph(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    """They are not read while capturing, and the graph follows what they are when it is replayed."""
    kernel = compiled(model="min_gru", hidden_size=HIDDEN, precision="fp32")
    x = cupy.ones((2, 9, 2, HIDDEN), np.float32)
    lengths = cupy.asarray(np.array([9, 3]))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()  # which the other stream does not wait for
    with stream:
        kernel(x, lengths=lengths)
        stream.synchronize()
        stream.begin_capture()
        _, state = kernel(x, lengths=lengths)
        graph = stream.end_capture()
        lengths[...] = cupy.asarray(np.array([2, 9]))
        graph.launch()
        stream.synchronize()
        _, expected = kernel(x, lengths=lengths)
        stream.synchronize()
    assert bool((state["h"] == expected["h"]).all())
