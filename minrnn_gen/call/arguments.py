"""The arrays of one call: as a caller gives them, as checked, and as a forward or a backward writes them.

All have the order of `CallArguments.flat`: a *slot* is a position in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.pool import PoolRows
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.call.slots import FIXED, CallSlots


class CallArguments(NamedTuple):
    """Arguments of a call, not checked yet; None where an argument is absent."""

    x: Any
    R: Any = None
    weight: Any = None
    bias: Any = None
    recurrent_bias: Any = None
    resets: Any = None
    lengths: Any = None
    cu_seqlens: Any = None
    parameters: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    shared: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] | None = None

    @classmethod
    def from_flat(cls, interface: Interface, arrays: Sequence[Any]) -> CallArguments:
        """Return the arguments with these arrays, which are in the order of slots."""
        slots = interface.slots
        parameters = dict(zip(interface.parameters, arrays[slots.parameters], strict=True))
        states = dict(zip(interface.states, arrays[slots.states], strict=True))
        shared = dict(zip(interface.shared, arrays[slots.shared], strict=True))
        inputs = dict(zip(interface.inputs, arrays[slots.inputs.start :], strict=True))
        has_state = any(array is not None for array in states.values())
        x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens = arrays[: len(FIXED)]
        named = (parameters or None, states if has_state else None, shared or None, inputs or None)
        return cls(x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, *named)

    def flat(self, interface: Interface) -> list[Any] | None:
        """Return the arrays in the order of slots: as above, then the parameters, the initial states, the inputs S.* and X.*.

        None if the names of a mapping differ from the interface's.
        """
        *arrays, parameters, state, shared, inputs = self
        fits = _extend(arrays, parameters, interface.parameters) and _extend(arrays, state, interface.states)
        fits = fits and _extend(arrays, shared, interface.shared) and _extend(arrays, inputs, interface.inputs)
        return arrays if fits else None


def flat_gradient(interface: Interface, dy: Any, dstate: Mapping[str, Any] | None) -> list[Any] | None:
    """Return the arguments of a backward that follow those of its forward: dy, and gradients of the final states.

    None if the names of the mapping differ from the interface's.
    """
    arrays = [dy]
    return arrays if _extend(arrays, dstate, interface.states) else None


def _extend(arrays: list[Any], mapping: object, names: tuple[str, ...]) -> bool:
    """Append the arrays of `names`, each None without a mapping; say whether it has these names and no others."""
    if mapping is None:
        arrays += [None] * len(names)
    elif type(mapping) is dict and len(mapping) == len(names):
        for name in names:
            array = mapping.get(name)
            if array is None:
                return False
            arrays.append(array)
    else:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Call:
    """The checked arrays of one call.

    `x` has the axes `x_axes`; with a `weight` its projection is still due. `rows` and `time` are the sizes of its batch and
    time axes. Absent arrays are None; `parameters` and `initial` follow the cell's order. `reverse`, of a call of one
    direction: time runs from the last step of each sequence to its first. `keyed`: the same arrays with their key; the arrays
    then have its slots. Only a dense cell has `R`, and optionally a `recurrent_bias`. `shared` are the inputs S.* in the cell's
    order, `inputs` the inputs X.*, laid out as y. With a `pool`, `initial` has the states of all its slots, of which the call
    reads and writes some in place. Of a scan over dual numbers, tangents of gates may lie in an array of their own, `moved`,
    with the strides of x, and have no place in x.
    """

    x: Array
    x_axes: str
    rows: int
    time: int
    weight: Array | None
    bias: Array | None
    parameters: tuple[Array, ...]
    initial: tuple[Array | None, ...]
    sequences: Sequences
    reverse: bool = False
    keyed: KeyedArrays | None = None
    R: Array | None = None
    recurrent_bias: Array | None = None
    shared: tuple[Array, ...] = ()
    inputs: tuple[Array, ...] = ()
    pool: PoolRows | None = None
    moved: Array | None = None

    @property
    def batch(self) -> int:
        """The number of sequences; states have one row for each."""
        return self.sequences.count

    def flat(self) -> list[Array | None]:
        """Return the arrays in the order of slots, that of `CallArguments.flat`."""
        sequences = self.sequences
        boundaries = (sequences.resets, sequences.lengths, sequences.cu_seqlens)
        vectors = (self.R, self.weight, self.bias, self.recurrent_bias)
        of_pool = [] if self.pool is None else self.pool.flat()
        more = of_pool if self.moved is None else [self.moved]
        return [self.x, *vectors, *boundaries, *self.parameters, *self.initial, *self.shared, *self.inputs, *more]

    def with_slots(self, keyed: KeyedArrays | None) -> Call:
        """Return the call of the same arrays as `keyed`, each in its slot; itself if the arrays have no key."""
        if keyed is None:
            return self
        arrays = with_slots(self.flat())
        x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens = arrays[: len(FIXED)]
        assert x is not None
        slots = CallSlots.of(len(self.parameters), len(self.initial), len(self.shared), len(self.inputs))
        return replace(
            self,
            x=x,
            R=R,
            weight=weight,
            bias=bias,
            recurrent_bias=recurrent_bias,
            sequences=replace(self.sequences, resets=resets, lengths=lengths, cu_seqlens=cu_seqlens),
            parameters=tuple(array for array in arrays[slots.parameters] if array is not None),
            initial=tuple(arrays[slots.states]),
            shared=tuple(array for array in arrays[slots.shared] if array is not None),
            inputs=tuple(array for array in arrays[slots.inputs] if array is not None),
            keyed=keyed,
            pool=None if self.pool is None else self.pool.placed(arrays[slots.total :]),
            moved=None if self.moved is None else arrays[slots.total],
        )


def with_slots(arrays: Iterable[Array | None], first: int = 0) -> list[Array | None]:
    """Return arrays in slots from `first` on, in their order."""
    return [None if array is None else array.with_slot(slot) for slot, array in enumerate(arrays, first)]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a forward: y, the states after every step where they are `kept` (else empty), and the final states.

    `products` [runs, rows, T, recurrent gates, H]: the products with R, if a backward on the CPU reads them.
    """

    y: Array
    kept: tuple[Array, ...]
    final: tuple[Array, ...]
    products: Array | None = None


@dataclass(frozen=True, slots=True)
class IncomingGradient:
    """The gradients that a backward starts from: of y, and of the final states in the cell's order, None for zeros.

    `keyed`: these gradients and the arrays of the forward with their key; they then have its slots. `given_only`: gradients of
    absent initial states are not requested.
    """

    dy: Array
    dfinal: tuple[Array | None, ...]
    keyed: KeyedArrays | None = None
    given_only: bool = False

    def with_slots(self, keyed: KeyedArrays | None) -> IncomingGradient:
        """Return the gradients of the same arrays as the last of `keyed`, each in its slot; itself without a key."""
        if keyed is None:
            return self
        dy, *dfinal = with_slots((self.dy, *self.dfinal), len(keyed.arrays) - 1 - len(self.dfinal))
        assert dy is not None
        return IncomingGradient(dy, tuple(dfinal), keyed, self.given_only)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Outputs of a backward of one direction: gradients of x and of the initial states and, on request, `sums`.

    The sum of `sums` [parts, gates + recurrent gates + parameters, batch, H] over parts and batch is the gradient of bias,
    recurrent bias and parameters. `dshared` are the gradients of the inputs S.*, on a GPU one after the other for each part of
    a group's channels. `vectors` [batch, H, n], where asked for, are sums over time of the gradients of parameters with n.
    `dinputs` are the gradients of the inputs X.*, laid out as y. `dx_moved`: that of tangents of gates in an array apart.
    """

    dx: Array
    dinitial: tuple[Array, ...]
    sums: Array | None
    dshared: tuple[Array, ...] = ()
    vectors: tuple[Array, ...] = ()
    dinputs: tuple[Array, ...] = ()
    dx_moved: Array | None = None
