"""Calls of a kernel that are worth running on the host: small sizes around its tiles, and random arrays for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.arrays import numpy_dtype
from minrnn_gen.contract import Contract
from minrnn_gen.plan.kernel_plan import KernelPlan

# Steps of a dense cell: more than the deepest ring of copies is long, and twice as many as operands alternate.
DENSE_STEPS = 5
# Steps of a scan where a round of tiles takes fewer: some tenths of a second.
SCAN_STEPS_MOST = 1100
RESETS_SHARE = 0.2


@dataclass(frozen=True)
class Trial:
    """One call: its sizes, and whether sequences start anew and end early in it."""

    batch: int
    time: int
    has_resets: bool = False

    def __str__(self) -> str:
        return f"{self.batch}x{self.time}{' with resets' if self.has_resets else ''}"


def trials_of(plan: KernelPlan) -> tuple[Trial, ...]:
    """Return calls around the tiles of a plan: some and a little more, and less than one, where sequences begin anew."""
    if plan.entry.startswith(("recurrent", "alternating")):
        tile = plan.variables.get("batch_tile", 2)
        return (Trial(1, DENSE_STEPS), Trial(tile + 1, 2, has_resets=True))
    together = plan.variables.get("cluster_blocks", 1) * (plan.variables.get("time_warps", 1) if plan.layout == "BDT" else 1)
    whole = max(1, plan.tile_steps * together)
    # As many as the ring of copies is long, and one more, so that a place in it is used again.
    many = min(whole * (plan.variables.get("stages", 1) + 1), max(whole, SCAN_STEPS_MOST))
    return (Trial(1, many + 1), Trial(2, max(1, whole // 2 - 1), has_resets=True))


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward, and of the backward and the step that go with it."""

    forward: dict[str, Any]
    dy: Any
    dstate: dict[str, Any]
    step: dict[str, Any]

    def in_float64(self) -> Inputs:
        """Return the same numbers in float64."""
        return Inputs(*(_in_float64(one) for one in (self.forward, self.dy, self.dstate, self.step)))


def inputs_of(contract: Contract, trial: Trial) -> Inputs:
    """Return random arrays for a call: of states between 1 and 2, since some cells take their logarithm or divide by them."""
    random = numpy.random.default_rng([trial.batch, trial.time])
    storage, carried = map(numpy_dtype, (contract.precision.storage_dtype, contract.precision.arithmetic_dtype))
    lead = contract.directions

    def uniform(shape: tuple[int, ...], scale: float = 1.0, dtype: Any = storage) -> Any:
        return (scale * random.uniform(-1, 1, shape)).astype(dtype)

    batch, time = trial.batch, trial.time
    vectors: dict[str, Any] = {"bias": uniform((*lead, len(contract.gates), contract.hidden_size))}
    if contract.recurrent_gates:
        vectors["R"] = uniform(contract.R_shape, math.sqrt(3 / contract.head_dim))
        if contract.takes_recurrent_bias:
            vectors["recurrent_bias"] = uniform(contract.recurrent_bias_shape)
    if contract.parameters:
        vectors["parameters"] = {name: uniform(contract.parameter_shape) for name in contract.parameters}
    if contract.input_size:
        vectors["weight"] = uniform((contract.weight_rows, contract.input_size), math.sqrt(3 / contract.input_size))
    shape = contract.state_shape(batch)
    vectors["state"] = {name: (1.5 + uniform(shape, 0.5, carried)).astype(carried) for name in contract.states}
    sequences: dict[str, Any] = {}
    if trial.has_resets:
        sequences["resets"] = random.random((batch, time)) < RESETS_SHARE
        sequences["lengths"] = numpy.minimum(random.integers(0, time + 1, batch) + numpy.arange(batch) * time, time)
    x = uniform(contract.shape(contract.x_axes, batch, time))
    x_t = numpy.ascontiguousarray(numpy.moveaxis(x, contract.x_axes.index("t"), 0)[0]) if time else x
    return Inputs(
        forward={"x": x, **vectors, **sequences},
        dy=uniform(contract.y_shape(batch, time)),
        dstate={name: uniform(shape, dtype=carried) for name in contract.states},
        step={"x_t": x_t, **vectors},
    )


def _in_float64(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _in_float64(one) for name, one in given.items()}
    return given if given.dtype.kind in "bi" else given.astype(numpy.float64)
