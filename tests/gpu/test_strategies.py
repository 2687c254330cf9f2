"""Every way of spreading a scan over the GPU, forward and backward, against the fp64 oracle and against exact sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.device_arrays import poison
from support.kernel_inputs import (
    RAW_KINDS,
    arranged,
    by_time,
    drawn_coefficients,
    drawn_gates,
    drawn_parameters,
    drawn_state,
    laid_out,
)
from support.oracle import CELLS, RAW_CELL, assert_within, oracle, raw_gradients
from support.scan_strategies import EVERY_WAY, SERIAL, Strategy, round_steps, telling_lengths

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES, precision_of

pytestmark = pytest.mark.gpu

Taking = Callable[..., Kernel]
# Rows of whole 16-byte pieces whatever the precision, and a last block with lanes that have no channel.
HIDDEN = 40
GATE_KINDS_OF_CELLS = ("ordinary", "slow", "saturated", "alternating")


def stored(values: Any, precision: str) -> Any:
    """Round float64 to the storage dtype."""
    return values.astype(numpy_dtype(precision_of(precision).storage_dtype))


def carried(values: Any, precision: str) -> Any:
    """Round float64 to the dtype of states."""
    return values.astype(precision_of(precision).arithmetic_dtype)


def wide(values: Any) -> Any:
    return values.astype(np.float64)


def x_of(cupy: ModuleType, gates: Mapping[str, Any], layout: str) -> Any:
    """Return x on the GPU of gates {name: [T, B, H]} on the host."""
    return cupy.asarray(arranged(np, gates, layout))


def rows_of(cupy: ModuleType, rows: Any, layout: str) -> Any:
    """Return an array like y on the GPU of [T, B, H] on the host."""
    return cupy.asarray(np.ascontiguousarray(laid_out(rows, layout)))


def gate_of(x: Any, index: int, layout: str) -> Any:
    """Return one gate of an array like x, on the host, as [T, B, H]."""
    return by_time(x.get().take(index, axis=1 if layout == "BDT" else 2), layout)


def on_gpu(cupy: ModuleType, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cupy.asarray(array) for name, array in arrays.items()}


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_gates_where_scans_go_wrong(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy, precision: str) -> None:
    """Gates near 1, exactly 1, 0, of both signs, denormal, above 1: a sequence each. Lengths around tiles and groups."""
    kernel = taking(strategy, model=RAW_CELL, hidden_size=HIDDEN, precision=precision, layout=layout)
    batch, lengths = len(RAW_KINDS), telling_lengths(kernel)
    drawn = [drawn_coefficients(kind, seed, (lengths[-1], 1, HIDDEN)) for seed, kind in enumerate(RAW_KINDS)]
    gates = {name: stored(np.concatenate([one[name] for one in drawn], axis=1), precision) for name in ("a", "b")}
    initial = carried(drawn_state("raw", 3, batch, HIDDEN)["h"], precision)
    # What comes before does not depend on what comes later: one run of the oracle serves all lengths.
    expected = oracle(np, "raw", gates, {"h": initial}, {}, precision_of(precision))
    for time in lengths:
        x = x_of(cupy, {name: gate[:time] for name, gate in gates.items()}, layout)
        poison(cupy, ((batch, time, HIDDEN), gates["a"].dtype), (initial.shape, initial.dtype))
        y, state = kernel(x, state={"h": cupy.asarray(initial)})
        assert_within(expected.y[:time], expected.y_bound[:time], by_time(y.get(), layout))
        last = (expected.y[time - 1], expected.y_bound[time - 1]) if time else (wide(initial), np.zeros(initial.shape))
        assert_within(*last, state["h"].get())
    assert_within(expected.states["h"], expected.state_bounds["h"], state["h"].get())

    random = np.random.default_rng(9)
    for time in (1, round_steps(kernel.plan) + 1, lengths[-1]):
        # Small enough that the product with a state fits fp16.
        dy = stored(random.normal(size=(time, batch, HIDDEN)) / 64, precision)
        dfinal = carried(random.normal(size=(batch, HIDDEN)) / 64, precision)
        its = {name: gate[:time] for name, gate in gates.items()}
        exact = raw_gradients(np, *map(wide, (its["a"], its["b"], initial, dy, dfinal)), precision_of(precision))
        x = x_of(cupy, its, layout)
        _, _, saved = kernel.forward(x, state={"h": cupy.asarray(initial)})
        poison(cupy, (x.shape, x.dtype), (initial.shape, initial.dtype))
        found = kernel.backward(saved, rows_of(cupy, dy, layout), {"h": cupy.asarray(dfinal)})
        for index, name in enumerate(("a", "b")):
            assert_within(*exact[name], gate_of(found["x"], index, layout))
        assert_within(*exact["initial"], found["state"]["h"].get())


def bounded_walk(random: np.random.Generator, shape: tuple[int, ...], most: int) -> tuple[Any, Any]:
    """Return (start, steps) of walks over the integers from -most to most, along the first axis."""
    places = random.integers(-most, most + 1, (shape[0] + 1, *shape[1:]))
    return places[0], np.diff(places, axis=0)


def check_exact_sums(
    cupy: ModuleType, kernel: Kernel, layout: str, precision: str, shape: tuple[int, int, int], seed: int
) -> None:
    """With a = 1 a scan is a sum, and sums of integers that stay small are exact in every order, whatever parts they have."""
    random = np.random.default_rng(seed)
    most = 60 if precision == "bf16" else 2000
    initial, b = bounded_walk(random, shape, most)
    x = x_of(cupy, {"a": stored(np.ones(shape), precision), "b": stored(b, precision)}, layout)
    y, state, saved = kernel.forward(x, state={"h": cupy.asarray(carried(initial, precision))})
    h = initial + np.cumsum(b, axis=0)
    assert np.array_equal(wide(by_time(y.get(), layout)), h)
    assert np.array_equal(state["h"].get(), h[-1])

    dfinal, dy = bounded_walk(random, shape, most)
    found = kernel.backward(
        saved, rows_of(cupy, stored(dy, precision), layout), {"h": cupy.asarray(carried(dfinal, precision))}
    )
    delta = dfinal + np.cumsum(dy[::-1], axis=0)[::-1]
    assert np.array_equal(wide(gate_of(found["x"], 1, layout)), delta)
    # Products of two of them are exact in the arithmetic, and rounded once.
    product = carried(delta * np.concatenate([initial[None], h[:-1]]), precision)
    assert np.array_equal(wide(gate_of(found["x"], 0, layout)), wide(stored(product, precision)))
    assert np.array_equal(found["state"]["h"].get(), delta[0])


@pytest.mark.parametrize(("precision", "hidden"), [("fp32", HIDDEN), ("bf16", 33)])
@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_integers_are_summed_exactly(
    cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy, precision: str, hidden: int
) -> None:
    """In rows of whole pieces and, in 16 bits, in rows that only plain loads can copy."""
    kernel = taking(strategy, model=RAW_CELL, hidden_size=hidden, precision=precision, layout=layout)
    for seed, time in enumerate(telling_lengths(kernel)[1:]):
        check_exact_sums(cupy, kernel, layout, precision, (time, 2, hidden), seed)


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_a_million_steps_of_one_channel(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    kernel = taking(strategy, model=RAW_CELL, hidden_size=1, precision="fp32", layout=layout)
    check_exact_sums(cupy, kernel, layout, "fp32", (10**6, 1, 1), 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cell", [name for name in CELLS if name != "raw"])
def test_every_cell_in_every_way(cupy: ModuleType, taking: Taking, cell: str, precision: str) -> None:
    """The ways in turn, so that each cell meets some of them and each of them some cells."""
    first = list(CELLS).index(cell) + (precision == "bf16")
    for layout, strategy in EVERY_WAY[first % 3 :: 3]:
        kernel = taking(strategy, model=cell, hidden_size=HIDDEN, precision=precision, layout=layout, training=False)
        time, batch = 2 * round_steps(kernel.plan) + 1, len(GATE_KINDS_OF_CELLS)
        drawn = [drawn_gates(cell, kind, seed, (time, 1, HIDDEN)) for seed, kind in enumerate(GATE_KINDS_OF_CELLS)]
        gates = {name: stored(np.concatenate([one[name] for one in drawn], axis=1), precision) for name in kernel.gates}
        parameters = {name: stored(one, precision) for name, one in drawn_parameters(cell, 1, HIDDEN).items()}
        initial = {name: carried(one, precision) for name, one in drawn_state(cell, 2, batch, HIDDEN).items()}
        expected = oracle(
            np, cell, gates, initial, {name: wide(one) for name, one in parameters.items()}, precision_of(precision)
        )
        given = {"parameters": on_gpu(cupy, parameters)} if parameters else {}
        y, state = kernel(x_of(cupy, gates, layout), state=on_gpu(cupy, initial), **given)
        assert_within(expected.y, expected.y_bound, by_time(y.get(), layout))
        for name, one in expected.states.items():
            assert_within(one, expected.state_bounds[name], state[name].get())


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_a_sequence_may_be_cut_anywhere(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    """The state carried forwards and its gradient backwards, gates so slow that nothing is forgotten in between."""
    kernel = taking(strategy, model="min_gru", hidden_size=HIDDEN, precision="fp64", layout=layout)
    time = 2 * round_steps(kernel.plan) + 40
    gates = drawn_gates("min_gru", "slower", 0, (time, 2, HIDDEN))
    dy = np.random.default_rng(1).normal(size=(time, 2, HIDDEN))
    dfinal = {"h": cupy.asarray(dy[0] + 1)}

    def run(part: slice, state: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
        y, final, saved = kernel.forward(x_of(cupy, {name: gate[part] for name, gate in gates.items()}, layout), state=state)
        incoming = rows_of(cupy, dy[part], layout)
        return by_time(y, layout), final, lambda dstate: kernel.backward(saved, incoming, dstate)

    initial = {"h": cupy.asarray(drawn_state("min_gru", 2, 2, HIDDEN)["h"])}
    whole, end, back = run(slice(None), initial)
    expected = back(dfinal)
    for cut in (1, 31, round_steps(kernel.plan), round_steps(kernel.plan) + 17, time - 1):
        first, middle, back_first = run(slice(None, cut), initial)
        second, last, back_second = run(slice(cut, None), middle)
        assert bool(cupy.allclose(cupy.concatenate([first, second]), whole, rtol=0, atol=2.0**-42))
        assert bool(cupy.allclose(last["h"], end["h"], rtol=0, atol=2.0**-42))
        late = back_second(dfinal)
        early = back_first(late["state"])
        assert bool(cupy.allclose(early["state"]["h"], expected["state"]["h"], rtol=2.0**-40, atol=2.0**-40))
        axis = layout.index("T") if layout != "BDT" else 3
        joined = cupy.concatenate([early["x"], late["x"]], axis=axis)
        assert bool(cupy.allclose(joined, expected["x"], rtol=2.0**-40, atol=2.0**-40))


@pytest.mark.parametrize(("layout", "strategy"), SERIAL, ids=str)
def test_a_cut_between_tiles_changes_no_bit(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    """Where one block walks all of a column, the state handed on is the one that it would have kept."""
    kernel = taking(strategy, model="min_gru", hidden_size=HIDDEN, precision="fp32", layout=layout)
    tile = kernel.plan.launch.tile_steps
    # Both parts in the specialization of the whole: aligned alike, and not short.
    tiles_of_part = -(-129 // tile)
    time = 3 * tiles_of_part * tile
    drawn = drawn_gates("min_gru", "slow", 0, (time, 2, HIDDEN))
    gates = {name: stored(gate, "fp32") for name, gate in drawn.items()}
    whole, end = kernel(x_of(cupy, gates, layout))
    plans = dict(kernel.plans)
    for cut in (tiles_of_part * tile, 2 * tiles_of_part * tile):
        parts, state = [], None
        for part in (slice(None, cut), slice(cut, None)):
            y, state = kernel(x_of(cupy, {name: gate[part] for name, gate in gates.items()}, layout), state=state)
            parts.append(by_time(y, layout))
        assert cupy.concatenate(parts).tobytes() == by_time(whole, layout).tobytes()
        assert state is not None and state["h"].tobytes() == end["h"].tobytes()
    assert dict(kernel.plans) == plans


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_nan_stays_in_its_sequence_and_channel(cupy: ModuleType, taking: Taking, layout: str, strategy: Strategy) -> None:
    kernel = taking(strategy, model="min_gru", hidden_size=HIDDEN, precision="fp32", layout=layout)
    time, batch = 2 * round_steps(kernel.plan) + 5, 3
    drawn = {name: stored(gate, "fp32") for name, gate in drawn_gates("min_gru", "slow", 0, (time, batch, HIDDEN)).items()}
    dy = np.random.default_rng(1).normal(size=(time, batch, HIDDEN)).astype(np.float32)
    touched = np.zeros((batch, HIDDEN), bool)
    touched[1], touched[2, 7] = True, True
    results = []
    for value in (None, np.nan, np.inf):
        gates = {name: gate.copy() for name, gate in drawn.items()}
        if value is not None:
            gates["h"][3, touched] = value
        y, state, saved = kernel.forward(x_of(cupy, gates, layout))
        gradients = kernel.backward(saved, rows_of(cupy, dy, layout))
        of_z = gate_of(gradients["x"], 0, layout)
        results.append((by_time(y.get(), layout), of_z, state["h"].get()[None], gradients["state"]["h"].get()[None]))
    clean, *poisoned = results
    for result in poisoned:
        assert not np.isfinite(result[0][3:, touched]).any()
        assert np.array_equal(result[0][:3], clean[0][:3])
        for one, other in zip(clean, result, strict=True):
            assert np.array_equal(one[:, ~touched], other[:, ~touched])
