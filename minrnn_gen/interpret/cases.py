"""Cases for an emulated kernel: calls with small sizes around its tiles, and random arrays for these calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Interface
from minrnn_gen.plan.kernel_plan import KernelPlan

# Steps of a dense cell: more than the most stages of copies, and twice as many as operands alternate.
DENSE_STEPS = 5
# Channels times steps of a scan where an iteration over its tiles takes fewer: about a second.
SCAN_ELEMENTS_MOST = 1 << 19
# Blocks that share a column of a cooperative scan, with the sequences of a call of other candidates.
COLUMN_BLOCKS = 2
# Rows along time whose length is a multiple of so many steps are copied in the widest vectors.
PIECE_STEPS = 16
RESETS_SHARE = 0.2
# A gate of sigmoid(-5) keeps half of a state for 100 steps: a lost carry between tiles and groups shows.
SLOW = 5.0
# Parameters of less than 1/2 are coefficients of a stable filter of second order: |a1| < 1 + a2.
SMALL = 0.45


@dataclass(frozen=True)
class Case:
    """A call: its sizes, and whether it has resets and lengths, some at multiples of `tile_steps`."""

    batch: int
    time: int
    has_resets: bool = False
    tile_steps: int = 0

    def __str__(self) -> str:
        return f"{self.batch}x{self.time}{' with resets' if self.has_resets else ''}"


def cases_of(plans: Sequence[KernelPlan], *, at_once: bool = False) -> tuple[Case, ...]:
    """Return calls around the tiles of the plans of a call's passes: a long one, and one with resets and lengths.

    With `at_once` it is a single call with both.
    """
    if plans[0].problem.has_matrix:
        tile = max(plan.variables.get("batch_tile", 2) for plan in plans)
        if at_once:
            return (Case(tile + 1, DENSE_STEPS - 1, True),)
        return (Case(1, DENSE_STEPS), Case(max(tile + 1, 3), 2, True))
    tile = max(plan.launch.tile_steps for plan in plans)
    many = max(map(_steps_of, plans)) + 1
    if plans[0].problem.layout == "BDT":
        many += -many % PIECE_STEPS
    if at_once:
        return (Case(3, many, True, tile),)
    return (Case(1, many), Case(4, tile + tile // 2 + 1, True, tile))


def _steps_of(plan: KernelPlan) -> int:
    if plan.launch.group_tiles:
        # Up to the second group of tiles, which waits for the first.
        return (plan.launch.group_tiles + 1) * plan.launch.tile_steps
    iteration = plan.launch.tile_steps * plan.variables.get("cluster_blocks", 1) * plan.variables.get("time_parts", 1)
    # One more than there are stages of copies, so that a stage is used again.
    iterations = plan.variables.get("stages", 1) + 1
    if plan.strategy == "cooperative":
        iterations *= COLUMN_BLOCKS  # which take the tiles of a column in turn
    return min(iteration * iterations, max(iteration, SCAN_ELEMENTS_MOST // plan.problem.hidden_size))


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward, and of the backward and the step that go with it."""

    forward: dict[str, Any]
    dy: Any
    dstate: dict[str, Any]
    step: dict[str, Any]

    def in_float64(self) -> Inputs:
        """Return the same numbers in float64, and complex ones in complex128."""
        return Inputs(*map(_in_float64, (self.forward, self.dy, self.dstate, self.step)))


def inputs_of(interface: Interface, case: Case, slow: float = 0.0, scale: float = 1.0) -> Inputs:
    """Return random arrays for a call, with states between 1 and 2, since some cells take their logarithm or divide by them.

    The bias of a gate has -`slow`, 0 or `slow` added, in turn from channel to channel, so that some channels keep their states.
    If all forgot, a gradient of states would consist only of the rounding errors of 1 - sigmoid(`slow`). Parameters are between
    -`scale` and `scale`.
    """
    random = numpy.random.default_rng([case.batch, case.time])
    storage, carried = map(numpy_dtype, (interface.precision.storage_dtype, interface.precision.arithmetic_dtype))
    lead = interface.directions
    is_complex = storage.kind == "c"

    def uniform(shape: tuple[int, ...], scale: float = 1.0, dtype: Any = storage) -> Any:
        values = scale * random.uniform(-1, 1, shape)
        return (values + 1j * scale * random.uniform(-1, 1, shape) if is_complex else values).astype(dtype)

    batch, time = case.batch, case.time
    bias = uniform((*lead, len(interface.gates), interface.hidden_size))
    turns = (random.integers(0, 3, (*bias.shape[:-1], 1)) + numpy.arange(interface.hidden_size)) % 3 - 1
    vectors: dict[str, Any] = {"bias": (bias + slow * turns).astype(storage)}
    if interface.recurrent_gates:
        vectors["R"] = interface.clear_beyond_blocks(uniform(interface.R_shape, math.sqrt(3 / interface.head_dim)))
        if interface.takes_recurrent_bias:
            vectors["recurrent_bias"] = uniform(interface.recurrent_bias_shape)
    if interface.parameters:
        vectors["parameters"] = {name: uniform(interface.shape_of_parameter(name), scale) for name in interface.parameters}
    if interface.input_size:
        vectors["weight"] = uniform((interface.weight_rows, interface.input_size), math.sqrt(3 / interface.input_size))
    shapes = {name: interface.shape_of_state(name, batch) for name in interface.states}
    vectors["state"] = {name: (1.5 + uniform(shape, 0.5, carried)).astype(carried) for name, shape in shapes.items()}
    shared = {name: uniform(interface.shape(interface.shared_axes, batch, time)) for name in interface.shared}
    channel_inputs = {name: uniform(interface.shape(interface.channel_axes, batch, time)) for name in interface.inputs}
    streams = {"shared": (shared, interface.shared_axes), "inputs": (channel_inputs, interface.channel_axes)}
    streams = {kind: (named, axes) for kind, (named, axes) in streams.items() if named}
    sequences: dict[str, Any] = {}
    if case.has_resets:
        sequences = {"resets": _resets(random, case), "lengths": _lengths(random, case)}
    x = uniform(interface.shape(interface.x_axes, batch, time))
    x_t = _first_step(x, interface.x_axes)
    of_step = {
        kind: {name: _first_step(array, axes) for name, array in named.items()} for kind, (named, axes) in streams.items()
    }
    return Inputs(
        forward={"x": x, **vectors, **sequences, **{kind: named for kind, (named, _) in streams.items()}},
        dy=uniform(interface.y_shape(batch, time)),
        dstate={name: uniform(shape, dtype=carried) for name, shape in shapes.items()},
        step={"x_t": x_t, **vectors, **of_step},
    )


def _first_step(array: Any, axes: str) -> Any:
    """Return the first step of an array, without its axis of time; an array without steps as it is."""
    time = axes.index("t")
    return numpy.ascontiguousarray(numpy.moveaxis(array, time, 0)[0]) if array.shape[time] else array


def _resets(random: numpy.random.Generator, case: Case) -> Any:
    """Return random resets [batch, time], in every fourth sequence only next to the ends of tiles."""
    resets = random.random((case.batch, case.time)) < RESETS_SHARE
    if case.tile_steps:
        ends = numpy.arange(case.tile_steps, case.time, case.tile_steps)
        resets[2::4] = False
        # After one end, before the next, none at every third: a state is carried over that end.
        resets[2::4, ends[::3]] = resets[2::4, ends[1::3] - 1] = True
    return resets


def _lengths(random: numpy.random.Generator, case: Case) -> Any:
    """Return lengths [batch], in turn: up to the end of a tile, 0, all steps, and random."""
    half, tile = case.time // 2, case.tile_steps
    lengths = random.integers(0, case.time + 1, case.batch)
    for first, length in enumerate((tile if 0 < tile < case.time else half, 0, case.time)):
        lengths[first::4] = length
    return lengths


def _in_float64(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _in_float64(array) for name, array in values.items()}
    kind = values.dtype.kind
    return values if kind in "bi" else values.astype(numpy.complex128 if kind == "c" else numpy.float64)
