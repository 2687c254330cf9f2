"""The text of the kernels for n values per channel, run on the host and watched, gives what the CPU target gives in float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawn_vectors import check_drawn_vectors, compare, drawn_kernels
from support.emulated_calls import kernel_of as emulated_kernel_of
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.examples import examples
from support.needed import needed
from support.uncompiled_kernels import nothing_compiled
from support.vector_calls import VectorCall, in_float64, results_of, with_decays

import minrnn_gen
from minrnn_gen.cell.files import vector_library_names
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import PRECISION_NAMES, error_allowed

vector_cells = needed("support.vector_cells")
pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

CELLS = {name: cell.file for name, cell in vector_cells.CELLS.items() if name != "selective"}
NAMES = (*vector_library_names(), *CELLS)
LAYOUTS = ("BTD", "TBD", "BDT")
EVERYDAY = ("selective", "scalar and vector states", "delta rule")
FULL = pytest.mark.matrix_full
# Of `WAYS`: with these every layout, direction and split of a channel is there.
EVERYDAY_WAYS = (1, 2, 4, 9, 11)


@functools.cache
def kernels_of(name: str, wanted: tuple[tuple[str, int], ...] = (), **keys: Any) -> tuple[InterpretedKernel, Kernel]:
    """Return a kernel whose text is run, and the same in float64."""
    spec = {"model": {"name": "written", **CELLS[name]} if name in CELLS else name, "gpu": "h200", "training": True}
    spec |= {"hidden_size": 6, "state_size": 5, "precision": "fp64"} | keys
    has_shared = "shared" in CELLS[name] if name in CELLS else name != "s4d"
    if not has_shared:
        spec.pop("groups", None)
    with nothing_compiled():
        return emulated_kernel_of(dict(wanted), **spec), minrnn_gen.compile(spec | {"precision": "fp64"})


def check(name: str, call: VectorCall, all_states: bool = False, wanted: Mapping[str, int] | None = None, **keys: Any) -> None:
    """Hold every result of a forward and its backward against float64."""
    kernel, exact = kernels_of(name, tuple((wanted or {}).items()), **keys)
    compare(kernel, exact, call.arguments(kernel.interface), name, all_states)


WAYS: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    ({}, {"threads": 32, "lanes": 1, "tile_steps": 4}),
    ({"layout": "TBD", "direction": "reverse", "groups": 2}, {"threads": 64, "lanes": 2, "tile_steps": 4}),
    ({"layout": "BDT", "groups": 3}, {"threads": 32, "lanes": 4, "tile_steps": 8}),
    ({"layout": "BDT", "direction": "reverse"}, {"threads": 32, "lanes": 8, "tile_steps": 4}),
    ({"direction": "bidirectional", "groups": 2, "hidden_size": 32}, {"threads": 32, "lanes": 2, "tile_steps": 8}),
    ({"hidden_size": 40, "state_size": 16}, {"threads": 64, "lanes": 4, "tile_steps": 8}),
    ({"hidden_size": 64, "state_size": 16, "precision": "fp32"}, {"threads": 64, "lanes": 2, "tile_steps": 8}),
    ({"layout": "BDT", "hidden_size": 32, "state_size": 16}, {"threads": 32, "lanes": 1, "tile_steps": 4}),
    ({"hidden_size": 3, "state_size": 1}, {"threads": 32, "lanes": 1, "tile_steps": 4}),
    ({"hidden_size": 2, "state_size": 40}, {"threads": 32, "lanes": 32, "tile_steps": 4}),
    # Ten values a lane, of which no power of two of steps fills what runs at once.
    ({"hidden_size": 4, "state_size": 20, "direction": "reverse"}, {"threads": 32, "lanes": 2, "tile_steps": 8}),
    ({"hidden_size": 8, "state_size": 40}, {"threads": 32, "lanes": 4, "tile_steps": 8}),
)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if way in EVERYDAY_WAYS and name == EVERYDAY[way % len(EVERYDAY)] else FULL)
        for name in NAMES
        for way in range(len(WAYS))
    ],
)
@settings(max_examples=examples(1), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gradients_and_results_are_those_of_the_cpu(name: str, way: int, data: Any) -> None:
    """In every layout, direction and split of a channel over lanes, on lengths around the tiles."""
    keys, wanted = WAYS[way]
    tile = wanted["tile_steps"]
    call = VectorCall(
        rows=data.draw(st.integers(1, 3)),
        time=data.draw(st.sampled_from((2 * tile + 1, tile, 3 * tile - 1, 1, tile + 1, 0))),
        has_resets=data.draw(st.booleans()),
        has_lengths=data.draw(st.booleans()),
        has_state=data.draw(st.booleans()),
        has_bias=data.draw(st.booleans()),
    )
    check(name, call, data.draw(st.booleans()), wanted, **keys)


PARTS: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    ({"groups": 2}, {"threads": 32, "lanes": 1, "tile_steps": 4, "time_parts": 4}),
    ({"layout": "TBD", "direction": "reverse"}, {"threads": 32, "lanes": 8, "tile_steps": 4, "time_parts": 2}),
    ({"layout": "BDT", "hidden_size": 40}, {"threads": 64, "lanes": 4, "tile_steps": 8, "time_parts": 8}),
    ({"direction": "bidirectional", "precision": "bf16"}, {"threads": 64, "lanes": 2, "tile_steps": 4, "time_parts": 4}),
)
SCANS = ("selective", "scalar and vector states", "gated_linear", "s4d")


# Every day two ways meet a cell each.
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if name == SCANS[way] and way % 2 else FULL)
        for name in SCANS
        for way in range(len(PARTS))
    ],
)
@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_time_in_parts_gives_what_one_walk_does(name: str, way: int, data: Any) -> None:
    """A scan gives the same for fewer tiles than parts, as many or more, with sequences that end in any part."""
    keys, wanted = PARTS[way]
    tiles = data.draw(st.sampled_from((2 * wanted["time_parts"] + 1, wanted["time_parts"], 3, 1, 0)))
    call = VectorCall(
        rows=data.draw(st.integers(1, 3)),
        time=max(0, tiles * wanted["tile_steps"] - data.draw(st.integers(0, 3))),
        has_resets=data.draw(st.booleans()),
        has_lengths=data.draw(st.booleans()),
        has_state=data.draw(st.booleans()),
        has_bias=data.draw(st.booleans()),
    )
    check(name, call, data.draw(st.booleans()), wanted, **keys)


@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_number_of_values_in_any_candidate(data: Any) -> None:
    """Candidates are all that the planner might take, whatever is fastest, for any numbers of values, channels and groups."""
    groups, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 48))
    keys = {"hidden_size": groups * data.draw(st.integers(1, 12)), "groups": groups, "state_size": n}
    # Others may grow without a bound, and their errors with them.
    name = data.draw(st.sampled_from(SCANS))
    keys |= {"precision": data.draw(st.sampled_from(PRECISION_NAMES)), "layout": data.draw(st.sampled_from(LAYOUTS))}
    keys |= {"direction": data.draw(st.sampled_from(("forward", "reverse", "bidirectional")))}
    kernel, _ = kernels_of(name, **keys)
    builder = kernel.builder
    kernel_pass: KernelPass = data.draw(st.sampled_from(("forward", "backward")))
    solution = builder.solve(builder.choose(kernel_pass, builder.hinted_specialization, builder.hinted_sizes))
    wanted = dict(solution.candidates[data.draw(st.integers(0, len(solution.candidates) - 1))])
    call = VectorCall(
        rows=data.draw(st.integers(1, 3)),
        time=data.draw(st.integers(0, 3)) * wanted["tile_steps"] + data.draw(st.integers(0, 3)),
        has_resets=data.draw(st.booleans()),
        has_lengths=data.draw(st.booleans()),
    )
    check(name, call, data.draw(st.booleans()), wanted, **keys)


SUMS_OF_PARAMETERS = {
    "states": {"h": "n"},
    "shared": ["q"],
    "parameters": {"p": "n"},
    "equations": "h[t] = sigmoid(W.v) * h[t-1] + S.q",
    "output": "sum(S.q * h[t]) + W.v * sum(p)",
}


@pytest.mark.parametrize("hidden_size", [1, 3])
def test_lanes_without_a_channel_sum_with_the_others(hidden_size: int) -> None:
    """A sum over parameters alone is one of the gradients' last operations, and needs every lane of its warp."""
    kernel, exact = drawn_kernels(SUMS_OF_PARAMETERS, hidden_size=hidden_size, state_size=2)
    compare(kernel, exact, VectorCall(2, 5).arguments(kernel.interface), "sums of parameters")


@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_cells_with_few_channels(data: Any) -> None:
    """Sums over anything, of channels that fill no block."""
    check_drawn_vectors(data.draw)


@pytest.mark.parametrize("time", [1, 9])
def test_a_tile_has_fewer_steps_than_a_channel_has_lanes(time: int) -> None:
    """A lane with so many values takes a step at once, and so the rest of a tile."""
    check("selective", VectorCall(2, time), wanted={"lanes": 2, "tile_steps": 8, "time_parts": 1}, state_size=34)


@pytest.mark.parametrize("name", EVERYDAY)
def test_packed_sequences_are_each_its_own(name: str) -> None:
    check(name, VectorCall(1, 21, has_resets=True, ends=(0, 4, 4, 13, 14, 21)), wanted={"tile_steps": 4}, groups=2)


@pytest.mark.parametrize(
    ("precision", "layout"),
    [
        pytest.param(precision, layout, marks=() if (number + 2 * turn) % 4 == 1 else FULL)
        for number, precision in enumerate(PRECISION_NAMES)
        for turn, layout in enumerate(("BTD", "BDT"))
    ],
)
def test_every_precision(precision: str, layout: str) -> None:
    keys = {"precision": precision, "layout": layout, "hidden_size": 16, "state_size": 8}
    check("selective", VectorCall(2, 24, has_resets=True), wanted={"tile_steps": 8, "lanes": 2}, **keys)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=() if (2 * number + turn) % 5 == 1 else FULL)
        for number, name in enumerate(NAMES)
        for turn, precision in enumerate(("fp64", "bf16"))
    ],
)
def test_a_step_is_a_sequence_of_one(name: str, precision: str) -> None:
    kernel, _ = kernels_of(name, precision=precision, groups=2)
    arguments = VectorCall(7, 1).arguments(kernel.interface)
    y, state = kernel(**arguments)
    x = arguments.pop("x")
    arguments["shared"] = {label: values[:, 0] for label, values in arguments.get("shared", {}).items()} or None
    found, after = kernel.step(x[:, 0], **arguments)
    slack = 2 * kernel.interface.precision.arithmetic_roundoff * kernel.interface.state_size
    assert share_of(found, y[:, 0], max(slack, kernel.interface.precision.storage_roundoff)) <= 1
    for label, values in state.items():
        assert share_of(after[label], values, slack) <= 1, label


@pytest.mark.parametrize("precision", one_in(2, ["fp32", "bf16"]))
def test_values_decay_at_any_rate(precision: str) -> None:
    """From one that a million steps do not forget to one that is gone after the next."""
    kernel, exact = kernels_of("selective", (("lanes", 2), ("tile_steps", 8)), precision=precision, state_size=16)
    call = VectorCall(2, 40, has_resets=True, has_bias=False)
    arguments = with_decays(call.arguments(kernel.interface), kernel.interface, 1e-6, 50)
    compare(kernel, exact, arguments, "selective")


@pytest.mark.parametrize(("state_size", "lanes"), [(16, 4), (12, 2), (40, 8)])
def test_lanes_of_a_step_take_arrays_at_any_address(state_size: int, lanes: int) -> None:
    wanted = (("lanes", lanes), ("threads", 32))
    kernel, exact = kernels_of("selective", wanted, precision="fp32", state_size=state_size)
    arguments = VectorCall(6, 1).arguments(kernel.interface)
    arguments["shared"] = {label: values[:, 0] for label, values in arguments["shared"].items()}
    x = arguments.pop("x")[:, 0]
    expected, after = exact.step(x.astype(np.float64), **in_float64(arguments))
    slack = error_allowed(kernel.interface.precision)
    moved = np.empty(arguments["state"]["h"].size + 1, np.float32)[1:].reshape(arguments["state"]["h"].shape)
    moved[:] = arguments["state"]["h"]
    for state in (arguments["state"]["h"], moved):
        found, states = kernel.step(x, **arguments | {"state": {"h": state}})
        assert share_of(found, expected, slack) <= 1
        assert share_of(states["h"], after["h"], slack) <= 1
    (plan,) = (plan for key, plan in kernel.plans.items() if key.kernel_pass == "step")
    assert plan.variables["lanes"] == lanes


@pytest.mark.matrix_full
def test_the_same_call_gives_the_same_bits() -> None:
    """Whatever the order in which threads run: sums over channels and lanes have one of their own."""
    kernel, _ = kernels_of("selective", (("lanes", 2), ("threads", 64)), hidden_size=70, precision="fp32")
    arguments = VectorCall(2, 9).arguments(kernel.interface)
    runs = []
    for seed in (1, 2):
        with kernel.seeded(seed):
            runs.append(results_of(kernel, arguments))
    for one, other in zip(*runs, strict=True):
        for label, values in one.items():
            np.testing.assert_array_equal(values, other[label], label)


@pytest.mark.parametrize(("layout", "time_parts"), one_in(3, [("BTD", 1), ("BDT", 1), ("BTD", 2), ("BDT", 4)]))
def test_nan_does_not_pass_a_reset_or_a_neighbour(layout: str, time_parts: int) -> None:
    """A NaN in a gate stays in its channel, and ends at a reset."""
    kernel, _ = kernels_of("selective", (("lanes", 2), ("tile_steps", 4), ("time_parts", time_parts)), layout=layout)
    call = VectorCall(2, 12, has_resets=True)
    arguments = call.arguments(kernel.interface)
    arguments["resets"][:] = False
    arguments["resets"][:, [4, 8]] = True
    axes = kernel.interface.x_axes
    x = np.moveaxis(arguments["x"], [axes.index(axis) for axis in "btgh"], range(4))
    clean, _ = kernel(**arguments)
    x[1, 5, :, 2] = np.nan
    y, state = kernel(**arguments)
    found, expected = (
        one.transpose([("bth" if layout == "BTD" else "bht").index(axis) for axis in "bth"]) for one in (y, clean)
    )
    touched = np.zeros(found.shape, bool)
    touched[1, 5:8, 2] = True
    assert np.isnan(found[touched]).all() and np.isfinite(state["h"]).all()
    np.testing.assert_array_equal(found[~touched], expected[~touched])
