"""A call of one direction in NumPy, in the form of all its methods: time first, in blocks of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from minrnn_gen.cpu.recurrence import Cuts, Values

# Coefficients are computed for as many steps at once as keep the temporaries in the last-level cache.
BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class StepMarks:
    """Marks of steps that begin with all states 0, and of steps within their sequence: bool [T, B]; None for none, and for all.

    Steps beyond a sequence are skipped: states pass unchanged, y and gradients are 0 there. Marks select and never multiply, so
    that NaN of skipped steps does not spread.
    """

    resets: Values | None = None
    within: Values | None = None

    def __getitem__(self, part: slice | int) -> StepMarks:
        """Return the marks of some of the steps, or of one, without the axis of time then."""
        return StepMarks(*(None if mark is None else mark[part] for mark in (self.resets, self.within)))

    @property
    def cuts(self) -> Cuts:
        """The resets within sequences [T, B, 1]; None for none."""
        return None if self.resets is None else self.cuts_of(self.resets[..., None])

    def cuts_of(self, values: Values) -> Cuts:
        """Return the resets within sequences, with as many axes as `values` [T, B, …]; None for none."""
        if self.resets is None:
            return None
        return _spread_like(self.resets if self.within is None else self.resets & self.within, values)

    def within_or(self, otherwise: Any, values: Values) -> Values:
        """Return `values` [T, B, …] where steps are within their sequence, `otherwise` elsewhere."""
        return values if self.within is None else numpy.where(_spread_like(self.within, values), values, otherwise)

    def cut_off(self, values: Values) -> Values:
        """Return `values` [T, B, …] of the previous step, with 0 at resets."""
        cuts = self.cuts_of(values)
        return values if cuts is None else numpy.where(cuts, values.dtype.type(0), values)


def _spread_like(mark: Values, values: Values) -> Values:
    return mark.reshape(*mark.shape, *(1,) * (values.ndim - mark.ndim))


def narrowed(value: Values, shape: tuple[int, ...]) -> Values:
    """Return a result of a program in `shape`; shapes without the axis n end with 1 where the programs' values have n."""
    if value.shape == shape:
        return value
    return numpy.broadcast_to(value[..., : shape[-1]] if value.ndim else value, shape)


EVERY_STEP = StepMarks()


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """The arrays of a forward and of its backward, of any storage dtype and strides.

    `gates` [T, B, G, H]; `bias` [G, H] or None; `parameters` {name: [H]}; `initial` {state: [B, H]}; `marks` are the steps'
    resets and lengths. For a cell with the axis n they have one more axis after H, of n or of 1, and `shared` {name: [T, B, H
    or 1, n]} are its inputs S.*. `channel_inputs` {name: [T, B, H]} are inputs X.*. Everything is computed and carried in
    `arithmetic` (numpy.float32 or numpy.float64). Infinities and NaN follow IEEE 754 without warnings, as on a GPU.
    """

    gates: Values
    bias: Values | None
    parameters: Mapping[str, Values]
    initial: Mapping[str, Values]
    arithmetic: Any
    marks: StepMarks = EVERY_STEP
    shared: Mapping[str, Values] = field(default_factory=dict)
    channel_inputs: Mapping[str, Values] = field(default_factory=dict)

    @property
    def zero(self) -> Any:
        """0 in the dtype of the arithmetic."""
        return numpy.dtype(self.arithmetic).type(0)

    def constants(self) -> dict[str, Values]:
        """Return {parameter_<name>: value}."""
        return {f"parameter_{name}": value.astype(self.arithmetic) for name, value in self.parameters.items()}

    def entering(self, names: Iterable[str]) -> dict[str, Values]:
        """Return the initial states of these names."""
        return {name: self.initial[name].astype(self.arithmetic) for name in names}

    def parts(self) -> Iterator[slice]:
        """Yield the time steps in blocks, in their order."""
        time = len(self.gates)
        block = max(1, BLOCK_ELEMENTS // max(1, *(state.size for state in self.initial.values())))
        for start in range(0, time, block):
            yield slice(start, min(start + block, time))

    def values(self, names: Iterable[str], part: slice) -> dict[str, Values]:
        """Return {W_<gate>: [T, B, H]} of some steps, bias added, {S_<name>: …} and {X_<name>: …} of the inputs."""
        offsets = None if self.bias is None else self.bias.astype(self.arithmetic)
        values = {}
        for index, name in enumerate(names):
            value = self.gates[part, :, index].astype(self.arithmetic)
            values[f"W_{name}"] = value if offsets is None else value + offsets[index]
        kinds = ("S", self.shared), ("X", self.channel_inputs)
        of_inputs = ((f"{kind}_{name}", array[part]) for kind, named in kinds for name, array in named.items())
        return values | {name: array.astype(self.arithmetic) for name, array in of_inputs}


@dataclass(frozen=True, kw_only=True)
class ForwardCall(HostCall):
    """A forward, which writes `y` [T, B, H], rounded to its dtype, and `all_states` {state: [T, B, H]} of any states."""

    y: Values
    all_states: Mapping[str, Values] = field(default_factory=dict)

    def keep(self, name: str, part: slice | int, states: Values) -> None:
        """Write a state after some steps, or after one, if the call keeps it."""
        if name in self.all_states:
            self.all_states[name][part] = self.marks[part].within_or(self.zero, states)

    def write(self, part: slice | int, y: Values) -> None:
        """Write y of some steps, or of one."""
        self.y[part] = self.marks[part].within_or(self.zero, narrowed(y, self.y[part].shape))


@dataclass(frozen=True, kw_only=True)
class BackwardCall(HostCall):
    """A backward, which writes `dx` [T, B, G, H], rounded to its dtype.

    `states` {name: [T, B, H]} has each state that the backward reads, after each step; `dy` [T, B, H] and `dfinal` {state: [B,
    H]}, where a missing one is 0, are the incoming gradients. `dshared` {name: [T, B, groups, n]}, the gradients of `shared`,
    are written, summed over the channels of each group; `dinputs` {name: [T, B, H]} are those of `channel_inputs`.
    """

    states: Mapping[str, Values]
    dy: Values
    dfinal: Mapping[str, Values]
    dx: Values
    dshared: Mapping[str, Values] = field(default_factory=dict)
    dinputs: Mapping[str, Values] = field(default_factory=dict)

    def arriving(self, names: Iterable[str]) -> dict[str, Values]:
        """Return the gradients of the final states of these names."""
        zeros = {name: numpy.zeros(self.initial[name].shape, self.arithmetic) for name in names}
        return zeros | {name: value.astype(self.arithmetic) for name, value in self.dfinal.items()}

    def is_finite(self) -> bool:
        """Whether gates, states and arriving gradients have neither infinities nor NaN."""
        arrays = (self.gates, self.dy, *self.states.values(), *self.dfinal.values())
        return all(bool(numpy.isfinite(array.astype(self.arithmetic, copy=False)).all()) for array in arrays)

    def parts_back(self) -> Iterator[slice]:
        """Yield the time steps in blocks, the last one first."""
        yield from reversed([*self.parts()])

    def values(self, names: Iterable[str], part: slice) -> dict[str, Values]:
        """Return a forward's values of some steps, and `gradient_y`."""
        return super().values(names, part) | {"gradient_y": self.dy[part].astype(self.arithmetic)}

    def history(self, name: str, part: slice) -> Values:
        """Return the forward's state before the first of some steps and after each, [steps + 1, B, H].

        Where the forward skipped the steps before a sequence, it is the initial state, whatever `states` has there.
        """
        initial, first = self.initial[name].astype(self.arithmetic), max(part.start - 1, 0)
        states = self.states[name][first : part.stop].astype(self.arithmetic)
        values = self.marks[first : part.stop].within_or(initial, states)
        return values if part.start else numpy.concatenate([initial[None], values])

    def previous(self, name: str, part: slice) -> Values:
        """Return a state before each of some steps, 0 at resets."""
        return self.marks[part].cut_off(self.history(name, part)[:-1])

    def write_inputs(self, part: slice, gradients: Mapping[str, Values]) -> None:
        """Write the gradients of inputs X.* of some steps."""
        for name, written in self.dinputs.items():
            gradient = narrowed(gradients[f"gradient_X_{name}"], self.dy[part].shape)
            written[part] = self.marks[part].within_or(self.zero, gradient)


def write_shared(written: Values, gradient: Values) -> None:
    """Write the gradient of an input S.* [T, B, groups, n] from the gradients by channel [T, B, H, n]; summed in float64."""
    by_group = gradient.reshape(*written.shape[:3], gradient.shape[2] // written.shape[2], written.shape[3])
    written[...] = by_group.sum(axis=3, dtype=numpy.float64)
