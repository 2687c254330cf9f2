"""Every kind of cell on the GPU against the fp64 oracle, element by element, within the oracle's running error bound."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import pytest
from support.device_arrays import Y_AXES, from_time_major, poison, random_gates, time_major
from support.oracle import RAW_CELL, assert_within, oracle
from support.reference_loops import DIAGONAL_CELLS

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of

pytestmark = pytest.mark.gpu

CELLS = ("min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "hgrn", "qrnn", "rg_lru", "ind_rnn", "veiled")
# Cells that are not built in, by name.
INLINE = {cell["name"]: cell for cell in DIAGONAL_CELLS}
PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
LAYOUTS = ("BTD", "TBD", "BDT")
# (batch, time, hidden): single elements, odd sizes in each place, and sizes around tiles of 2^k steps.
SMALL_SHAPES = ((1, 1, 1), (2, 3, 5), (3, 31, 40), (1, 129, 96), (5, 64, 33), (2, 1025, 72), (2, 511, 130))
LARGE_SHAPE = (8, 4097, 1536)


def check(
    cupy: ModuleType,
    kernel: Kernel,
    cell: str,
    precision: str,
    gates: Any,
    *,
    initial: dict[str, Any] | None = None,
    parameters: dict[str, Any] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run `kernel` on gates [T, B, G, H] with poisoned outputs and hold y and the states against the oracle."""
    time, batch, _, hidden = gates.shape
    storage = numpy_dtype(precision_of(precision).storage_dtype)
    carried = numpy_dtype(precision_of(precision).arithmetic_dtype)
    layout = kernel.spec.layout
    x = from_time_major(cupy, gates, layout)
    poison(cupy, ((batch, time, hidden), storage), *(((batch, hidden), carried) for _ in kernel.states))
    y, states = kernel(x, state=initial, parameters=parameters)
    assert y.dtype == storage
    zeros = cupy.zeros((batch, hidden), carried)
    expected = oracle(
        cupy,
        cell,
        {name: gates[:, :, index].astype(numpy.float64) for index, name in enumerate(kernel.gates)},
        {name: (initial or {}).get(name, zeros).astype(numpy.float64) for name in kernel.states},
        {name: value.astype(numpy.float64) for name, value in (parameters or {}).items()},
        precision_of(precision),
    )
    assert_within(expected.y, expected.y_bound, time_major(y, layout, Y_AXES))
    for name in kernel.states:
        assert states[name].dtype == carried
        assert_within(expected.states[name], expected.state_bounds[name], states[name])
    return y, states


def inputs(
    cupy: ModuleType, kernel: Kernel, precision: str, shape: tuple[int, int, int], seed: int
) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    """Random gates, non-zero initial states, and the cell's parameters."""
    batch, time, hidden = shape
    generator = numpy.random.default_rng(seed)
    gates = random_gates(cupy, generator, (time, batch, len(kernel.gates), hidden), precision)
    carried = precision_of(precision).arithmetic_dtype
    initial = {name: cupy.asarray(generator.standard_normal((batch, hidden)).astype(carried)) for name in kernel.states}
    names = kernel.built[0].cell.parameters
    storage = numpy_dtype(precision_of(precision).storage_dtype)
    # Below 1, so that no state of ind_rnn grows without bound.
    parameters = {name: cupy.asarray(numpy.tanh(generator.standard_normal(hidden)).astype(storage)) for name in names}
    return gates, initial, parameters or None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_small_and_odd_shapes(
    cupy: ModuleType, compiled: Callable[..., Kernel], cell: str, precision: str, layout: str
) -> None:
    for seed, shape in enumerate(SMALL_SHAPES):
        kernel = compiled(model=INLINE.get(cell, cell), hidden_size=shape[2], precision=precision, layout=layout)
        gates, initial, parameters = inputs(cupy, kernel, precision, shape, seed)
        check(cupy, kernel, cell, precision, gates, initial=initial, parameters=parameters)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ("fp32", "bf16", "fp16"))
@pytest.mark.parametrize("cell", ("min_gru", "min_lstm", "ind_rnn"))
def test_a_large_shape(cupy: ModuleType, compiled: Callable[..., Kernel], cell: str, precision: str, layout: str) -> None:
    batch, time, hidden = LARGE_SHAPE
    kernel = compiled(model=cell, hidden_size=hidden, precision=precision, layout=layout, batch=batch, time=time)
    gates, initial, parameters = inputs(cupy, kernel, precision, LARGE_SHAPE, 7)
    check(cupy, kernel, cell, precision, gates, initial=initial, parameters=parameters)


GATE_DISTRIBUTIONS: dict[str, Callable[[numpy.random.Generator, tuple[int, ...]], Any]] = {
    "0.99 to 1": lambda generator, shape: generator.uniform(0.99, 1.0, shape),
    "0.9999 to 1": lambda generator, shape: generator.uniform(0.9999, 1.0, shape),
    "exactly 0": lambda _, shape: numpy.zeros(shape),
    "plus or minus 1": lambda generator, shape: generator.choice([-1.0, 1.0], shape),
    "-1 to 1": lambda generator, shape: generator.uniform(-1.0, 1.0, shape),
    "denormal": lambda generator, shape: generator.uniform(-1.0, 1.0, shape) * 1e-40,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("distribution", GATE_DISTRIBUTIONS)
def test_gates_that_never_forget_or_always_do(
    cupy: ModuleType, compiled: Callable[..., Kernel], distribution: str, precision: str, layout: str
) -> None:
    kernel = compiled(model=RAW_CELL, hidden_size=48, precision=precision, layout=layout)
    generator = numpy.random.default_rng(11)
    storage = numpy_dtype(precision_of(precision).storage_dtype)
    time, batch, hidden = 1500, 2, 48
    a = GATE_DISTRIBUTIONS[distribution](generator, (time, batch, hidden))
    b = generator.standard_normal((time, batch, hidden))
    gates = cupy.asarray(numpy.stack([a, b], axis=2).astype(storage))
    carried = precision_of(precision).arithmetic_dtype
    initial = {"h": cupy.asarray(generator.standard_normal((batch, hidden)).astype(carried))}
    check(cupy, kernel, "raw", precision, gates, initial=initial)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("time", (1, 2, 63, 64, 65, 127, 129, 1000, 4096))
def test_integers_with_a_equal_to_one_are_summed_exactly(
    cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, time: int
) -> None:
    kernel = compiled(model=RAW_CELL, hidden_size=40, precision="fp32", layout=layout)
    generator = numpy.random.default_rng(time)
    # Sums of at most 4096 integers below 2^11 stay below 2^24, where float32 is exact in any order.
    b = generator.integers(-2047, 2048, (time, 3, 40))
    initial = generator.integers(-2047, 2048, (3, 40))
    gates = cupy.asarray(numpy.stack([numpy.ones_like(b), b], axis=2).astype(numpy.float32))
    y, states = kernel(from_time_major(cupy, gates, layout), state={"h": cupy.asarray(initial.astype(numpy.float32))})
    exact = initial + numpy.cumsum(b, axis=0)
    assert (time_major(y, layout, Y_AXES).get() == exact).all()
    assert (states["h"].get() == exact[-1]).all()
