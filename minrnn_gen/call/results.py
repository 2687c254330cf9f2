"""The results of a call by name: arrays of a library, or, where a call is recorded, the slots of such arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar


class Result(Protocol):
    """Named results; `mapped` returns the same names with every entry changed, None where there is none."""

    def mapped(self, change: Callable[[Any], Any], /) -> Self: ...


ResultT = TypeVar("ResultT", bound=Result)


class ForwardResult(NamedTuple):
    """Results of a forward: y, the states after every step where they are written (else empty), the final states.

    `projected` are the pre-activations, where x was projected; `products` are the products with R, if a backward reads them.
    """

    y: Any
    states: tuple[Any, ...]
    final: tuple[Any, ...]
    projected: Any = None
    products: Any = None

    @property
    def saved(self) -> tuple[Any, ...]:
        """Arrays that a backward reads in addition to the call's arguments and y."""
        return (*self.states, *(array for array in (self.products, self.projected) if array is not None))

    def mapped(self, change: Callable[[Any], Any]) -> ForwardResult:
        """Return the results with every entry changed."""
        y, states, final, *others = self
        changed = (None if array is None else change(array) for array in others)
        return ForwardResult(change(y), tuple(map(change, states)), tuple(map(change, final)), *changed)


class StepResult(NamedTuple):
    """Results of a single step: y, None if it only returns states, and the states."""

    y: Any
    final: tuple[Any, ...]

    def mapped(self, change: Callable[[Any], Any]) -> StepResult:
        """Return the results with every entry changed."""
        y, final = self
        return StepResult(None if y is None else change(y), tuple(map(change, final)))


class Places(NamedTuple):
    """Places of a pool that each drafted step of a sequence reads and writes, [time, batch], -1 for none."""

    reads: Any
    writes: Any

    def mapped(self, change: Callable[[Any], Any]) -> Places:
        """Return the places with both changed."""
        return Places(change(self.reads), change(self.writes))


class NoResult(NamedTuple):
    """No results: a run changes only the arrays of its call."""

    def mapped(self, _change: Callable[[Any], Any]) -> NoResult:
        """Return itself."""
        return self


class SlotGradients(NamedTuple):
    """The gradients of a call's arrays by slot, each in the shape and dtype of its array; None for what has none."""

    arrays: tuple[Any, ...]

    def mapped(self, change: Callable[[Any], Any]) -> SlotGradients:
        """Return the gradients with every entry changed."""
        return SlotGradients(tuple(None if array is None else change(array) for array in self.arrays))


class BackwardResult(NamedTuple):
    """Outputs of a backward: gradients of x and of the initial states; for other arrays unreduced sums, or None.

    `sums` [runs, parts, gates + recurrent gates + parameters, batch, hidden] of biases and parameters; `weight` [gates *
    hidden, input]; `R` [runs, heads, gates, D, D]; `vectors` [runs, batch, hidden, n], of parameters with the axis n; `shared`
    [parts, as the input], of inputs S.*; `inputs`, of inputs X.*.
    """

    x: Any
    initial: tuple[Any, ...]
    sums: Any = None
    weight: Any = None
    R: Any = None
    vectors: tuple[Any, ...] = ()
    shared: tuple[Any, ...] = ()
    inputs: tuple[Any, ...] = ()

    def mapped(self, change: Callable[[Any], Any]) -> BackwardResult:
        """Return the results with every entry changed."""
        x, initial, sums, weight, R, vectors, shared, inputs = self
        return BackwardResult(
            None if x is None else change(x),
            tuple(map(change, initial)),
            None if sums is None else change(sums),
            None if weight is None else change(weight),
            None if R is None else change(R),
            tuple(map(change, vectors)),
            tuple(map(change, shared)),
            tuple(map(change, inputs)),
        )
