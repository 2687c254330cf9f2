"""Slots: every list of arrays is taken apart by names, and put together again as it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rendered_kernels import builder_of

import minrnn_gen
from minrnn_gen.call import slots
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.slots import FIXED, BackwardSlots, CallSlots, StackSlots, has_gradient
from minrnn_gen.run.interface import interface_of

counts = st.integers(0, 3)
CELLS: dict[str, dict[str, Any]] = {
    "min_gru": {},
    "min_lstm": {"direction": "bidirectional"},
    "lstm": {"input_size": 8},
    "rg_lru": {},
    "selective": {"state_size": 16},
}


def call_of(parameters: int, states: int, shared: int) -> list[str]:
    """Return names in the order of a call's slots."""
    runs = {"parameter": parameters, "state": states, "shared": shared}
    return [*FIXED, *(f"{name} {index}" for name, count in runs.items() for index in range(count))]


def test_fixed_slots_are_the_first_arguments_of_a_call() -> None:
    assert CallArguments._fields[: len(FIXED)] == FIXED
    assert all(getattr(slots, name if name == "R" else name.upper()) == slot for slot, name in enumerate(FIXED))
    assert [name for slot, name in enumerate(FIXED) if not has_gradient(slot)] == ["resets", "lengths", "cu_seqlens"]


@given(counts, counts, counts)
def test_slots_of_a_call_are_its_arrays_by_name(parameters: int, states: int, shared: int) -> None:
    call, places = call_of(parameters, states, shared), CallSlots.of(parameters, states, shared)
    assert places.total == len(call)
    assert call[places.wide] + call[places.carried] == call
    assert call[places.parameters] == [f"parameter {index}" for index in range(parameters)]
    assert call[places.states] == [f"state {index}" for index in range(states)]
    assert call[places.shared] == [f"shared {index}" for index in range(shared)]


@given(counts, counts, counts, st.booleans())
def test_an_operator_takes_a_call_apart_and_has_it_again(parameters: int, states: int, shared: int, has_states: bool) -> None:
    call: list[Any] = call_of(parameters, states, shared)
    places = CallSlots.of(parameters, states, shared)
    if not has_states:
        call[places.states] = [None] * states
    *fixed, of_shared, of_parameters, of_states = places.by_schema(call)
    assert [*fixed, *of_parameters, *(of_states or [None] * states), *of_shared] == call


@given(st.integers(1, 4), counts, st.integers(1, 2), st.booleans(), st.booleans())
def test_a_stack_gives_each_layer_its_call(layers: int, parameters: int, states: int, packs: bool, drops: bool) -> None:
    of_sequences, masks = ("resets", "lengths", "cu_seqlens")[: 3 if packs else 1], layers - 1 if drops else 0
    own = [
        f"{layer} {name}" for layer in range(layers) for name in (*FIXED[1:5], *map("parameter {}".format, range(parameters)))
    ]
    initial = [f"state {index}" for index in range(states)]
    stack = ["x", *of_sequences, *own, *initial, *(f"mask {index}" for index in range(masks))]
    places = StackSlots.of(len(of_sequences), layers, parameters, states, masks)
    assert (stack[places.sequences], stack[places.own], stack[places.states]) == ([*of_sequences], own, initial)
    assert len(stack[places.masks]) == masks
    for layer in range(layers):
        call = places.call(stack, layer, "x", FIXED[5:], initial)
        assert [name.removeprefix(f"{layer} ") for name in call] == call_of(parameters, states, 0)
        assert StackSlots.own_of(call, CallSlots.of(parameters, states).parameters) == stack[places.layers[layer]]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 2))
def test_slots_of_a_backward_follow_those_of_its_call(inputs: int, results: int, states: int) -> None:
    flat = ["call"] * inputs + ["result"] * results + ["gradient"] * (1 + states)
    places = BackwardSlots.of(inputs, results, states)
    assert (flat[places.inputs], flat[places.results]) == (["call"] * inputs, ["result"] * results)
    assert flat[places.incoming] == ["gradient"] * (1 + states)


def test_flat_calls_have_the_slots_of_their_interface() -> None:
    for cell, more in CELLS.items():
        builder = builder_of(model=cell, hidden_size=32, **more)
        interface = interface_of(builder, builder.cell_shape)
        named = {"parameters": interface.parameters, "state": interface.states, "shared": interface.shared}
        mappings = {what: {name: f"{what} {name}" for name in names} or None for what, names in named.items()}
        arguments = CallArguments(*FIXED, **mappings)
        flat = arguments.flat(interface)
        assert flat is not None and len(flat) == interface.slots.total
        assert CallArguments.from_flat(interface, flat) == arguments
        assert flat[interface.slots.states] == [f"state {name}" for name in interface.states]


def test_no_file_counts_slots_by_itself() -> None:
    """Slots are computed in call/slots.py alone: elsewhere no place is the number of parameters plus a constant."""
    counted = re.compile(r"_FROM\s*\+|_FROM\s*-|\w+_from\s*=.*len\(\w*\.?(parameters|states|shared)\)")
    package = Path(minrnn_gen.__file__).parent
    found = [
        f"{path.relative_to(package)}:{number}"
        for path in sorted(package.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if counted.search(line)
    ]
    assert not found
