"""The form of a call, and the numbers of its arrays: in the order in which they are read before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call, Given, IncomingGradient
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import Form, Reading, read
from minrnn_gen.run.replay import Played


def read_call(interface: Interface, what: Form, given: Given) -> Reading | None:
    """Read the arrays of a call, unchecked, with `what` is to be done to them; None where they have no form."""
    if given.lengths is not None or given.cu_seqlens is not None:
        return None  # their values are checked, call by call
    named = ((given.state, interface.states), (given.parameters, interface.parameters))
    return read(what, (given.x, given.R, given.weight, given.bias, given.recurrent_bias, given.resets), named)


def numbered_call(call: Call, reading: Reading | None) -> Call:
    """Return the checked call with the numbers that `read_call` gave its arrays."""
    if reading is None:
        return call
    given = (call.x, call.R, call.weight, call.bias, call.recurrent_bias, call.sequences.resets)
    x, R, weight, bias, recurrent_bias, resets, *named = _numbered((*given, *call.initial, *call.parameters), 0)
    assert x is not None
    return replace(
        call,
        x=x,
        R=R,
        weight=weight,
        bias=bias,
        recurrent_bias=recurrent_bias,
        sequences=replace(call.sequences, resets=resets),
        initial=tuple(named[: len(call.initial)]),
        parameters=tuple(one for one in named[len(call.initial) :] if one is not None),
        reading=reading,
    )


def read_gradient(interface: Interface, before: Played, dy: Any, dstate: Mapping[str, Any] | None) -> Reading | None:
    """Read what a backward starts from, unchecked, behind the arrays of its forward; None where it has no form."""
    reading = read(("backward", before.tape), (dy,), ((dstate, interface.states),))
    return None if reading is None else reading.behind(before.arrays, before.addresses)


def numbered_gradient(incoming: IncomingGradient, before: Played | None, reading: Reading | None) -> IncomingGradient:
    """Return the checked gradients with the numbers that `read_gradient` gave them."""
    if before is None or reading is None:
        return incoming
    dy, *dfinal = _numbered((incoming.dy, *incoming.dfinal), len(before.arrays))
    assert dy is not None
    return IncomingGradient(dy, tuple(dfinal), reading)


def _numbered(arrays: Sequence[Array | None], first: int) -> list[Array | None]:
    return [None if one is None else one.numbered(number) for number, one in enumerate(arrays, first)]
