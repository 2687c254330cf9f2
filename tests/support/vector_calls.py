"""Calls of cells with n values per channel, drawn in layout BTD and given in the layout of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Interface
from minrnn_gen.interpret.verify import leaves
from minrnn_gen.kernel import Kernel

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class VectorCall:
    """Sizes of a call, and what it is given beside its arrays; `ends` are those of packed sequences, of one row."""

    rows: int
    time: int
    has_resets: bool = False
    has_lengths: bool = False
    has_state: bool = True
    has_bias: bool = True
    ends: tuple[int, ...] = ()

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return len(self.ends) - 1 if self.ends else self.rows

    def arguments(self, interface: Interface) -> dict[str, Any]:
        """Return the arguments of a forward, the same for the same call."""
        random = np.random.default_rng([self.rows, self.time])
        precision = interface.precision
        storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
        direction = "d" if interface.directions else ""

        def drawn(axes: str, wanted: str) -> Any:
            array = random.normal(size=interface.shape(axes, self.rows, self.time))
            return np.ascontiguousarray(array.transpose([axes.index(axis) for axis in wanted])).astype(storage)

        given: dict[str, Any] = {
            "x": drawn(f"bt{direction}gh", interface.x_axes),
            "parameters": {
                name: (0.5 * random.normal(size=interface.shape_of_parameter(name))).astype(storage)
                for name in interface.parameters
            },
        }
        if interface.shared:
            given["shared"] = {name: drawn(f"bt{direction}kn", interface.shared_axes) for name in interface.shared}
        if self.has_state:
            shapes = {name: interface.shape_of_state(name, self.sequences) for name in interface.states}
            given["state"] = {name: random.normal(size=shape).astype(carried) for name, shape in shapes.items()}
        if self.has_bias:
            shape = (*interface.directions, len(interface.gates), interface.hidden_size)
            given["bias"] = random.normal(size=shape).astype(storage)
        if self.has_resets:
            given["resets"] = random.random((self.rows, self.time)) < 0.2
        if self.has_lengths:
            given["lengths"] = random.integers(0, self.time + 1, self.rows)
        if self.ends:
            given["cu_seqlens"] = np.array(self.ends)
        return given


def with_decays(given: Mapping[str, Any], interface: Interface, least: float, most: float) -> dict[str, Any]:
    """Return the arguments of a call of `selective` with steps of about 1, and rates of decay between the two numbers."""
    x, a = given["x"].copy(), given["parameters"]["a"]
    dt = x[(slice(None),) * interface.x_axes.index("g") + (interface.gates.index("dt"),)]
    dt[...] = np.log(np.expm1(1 + 0.05 * np.tanh(dt.astype(np.float64))))
    rates = np.geomspace(least, most, a.size).reshape(a.shape)
    return {**given, "x": x, "bias": None, "parameters": given["parameters"] | {"a": np.log(rates).astype(a.dtype)}}


def in_float64(given: Any) -> Any:
    """Return the same numbers in float64."""
    if isinstance(given, dict):
        return {name: in_float64(value) for name, value in given.items()}
    return given if given is None or given.dtype.kind in "bi" else given.astype(np.float64)


def results_of(kernel: Kernel, given: Mapping[str, Any], all_states: bool = False) -> tuple[Arrays, Arrays]:
    """Return the results of a forward and of its backward, by name; the gradients are the same for calls of one size."""
    y, state, saved = kernel.forward(**given, all_states=all_states)
    random = np.random.default_rng(y.shape)
    dy = random.normal(size=y.shape).astype(y.dtype)
    sequences = len(given["cu_seqlens"]) - 1 if "cu_seqlens" in given else given["x"].shape[kernel.interface.x_axes.index("b")]
    shapes = {name: kernel.interface.shape_of_state(name, sequences) for name in kernel.states}
    carried = next(iter(state.values())).dtype
    dstate = {name: random.normal(size=shape).astype(carried) for name, shape in shapes.items()}
    return {"y": y, **state}, dict(leaves(kernel.backward(saved, dy, dstate)))
