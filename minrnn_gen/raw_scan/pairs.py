"""Scans of maps that are pairs of numbers: rotations, which are complex numbers, and dual numbers, two scans in sequence.

They work on arrays of any library. A map [[p, -q], [q, p]] is a rotation, [[p, 0], [q, p]] a dual number; both are stored as
(p, q).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.raw_scan.map_arguments import Form


@dataclass(frozen=True, slots=True)
class Library:
    """Functions of a library of arrays."""

    stack: Callable[[Sequence[Any], int], Any]
    concatenate: Callable[[Sequence[Any], int], Any]
    zeros_like: Callable[[Any], Any]
    as_complex: Callable[[Any], Any]
    """From pairs along the last axis."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Maps of a form along an axis, counted from the first; a is in the shape of b.

    `scan`: the scan of numbers or its backward, with keywords reverse and axis.
    """

    library: Library
    scan: Callable[..., tuple[Any, ...]]
    form: Form
    axis: int
    reverse: bool

    def forward(self, a: Any, b: Any, h0: Any) -> tuple[Any, Any]:
        """Return (y, final)."""
        if self.form == "rotation":
            y, final = self._run(*map(self._number, (a, b, h0)))
            return self._pair(y), self._pair(final)
        first, second = _both(h0)
        y, final = self._run(a[..., 0], b[..., 0], first)
        other, last = self._run(a[..., 0], b[..., 1] + a[..., 1] * self._before(y, first), second)
        return self._joined(y, other), self._joined(final, last)

    def backward(self, a: Any, y: Any, dy: Any, h0: Any, dfinal: Any) -> tuple[Any, Any, Any]:
        """Return (da, db, dh0)."""
        if self.form == "rotation":
            da, db, dh0 = map(self._pair, self._run(*map(self._number, (a, y, dy, h0, dfinal))))
            return da, db, dh0
        (first, second), (dfirst, dsecond) = _both(h0), _both(dfinal)
        by_p, db, dh = self._run(a[..., 0], y[..., 1], dy[..., 1], second, dsecond)
        before = db * a[..., 1]
        after = self._at(before, slice(None, -1) if self.reverse else slice(1, None))
        last = self.library.zeros_like(self._at(before, slice(0, 1)))
        arriving = self.library.concatenate((last, after) if self.reverse else (after, last), self.axis)
        by_p_too, db_first, dh_first = self._run(a[..., 0], y[..., 0], dy[..., 0] + arriving, first, dfirst)
        if before.shape[self.axis]:
            dh_first = dh_first + self._at(before, -1 if self.reverse else 0)
        da = self._joined(by_p + by_p_too, db * self._before(y[..., 0], first))
        return da, self._joined(db_first, db), self._joined(dh_first, dh)

    def _run(self, *arrays: Any) -> tuple[Any, ...]:
        return self.scan(*arrays, reverse=self.reverse, axis=self.axis)

    def _before(self, y: Any, initial: Any) -> Any:
        """Return the first values before each step."""
        if not y.shape[self.axis]:
            return y
        edge = self.library.zeros_like(self._at(y, slice(0, 1))) if initial is None else self._at(initial, None)
        others = self._at(y, slice(1, None) if self.reverse else slice(None, -1))
        return self.library.concatenate((others, edge) if self.reverse else (edge, others), self.axis)

    def _at(self, array: Any, steps: Any) -> Any:
        return array[(slice(None),) * self.axis + (steps,)]

    def _number(self, pairs: Any) -> Any:
        return None if pairs is None else self.library.as_complex(pairs)

    def _pair(self, numbers: Any) -> Any:
        return self._joined(numbers.real, numbers.imag)

    def _joined(self, first: Any, second: Any) -> Any:
        return self.library.stack((first, second), -1)


def _both(pairs: Any) -> tuple[Any, Any]:
    return (None, None) if pairs is None else (pairs[..., 0], pairs[..., 1])
