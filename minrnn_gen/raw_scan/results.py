"""Results of a raw scan and of its backward, and their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array
from minrnn_gen.raw_scan.arguments import Recurrence


class ScanResult(NamedTuple):
    """Results of a scan."""

    y: Any
    final: Any

    def mapped(self, change: Callable[[Any], Any]) -> ScanResult:
        """Return the results with every entry changed."""
        return ScanResult(change(self.y), change(self.final))


class ScanGradients(NamedTuple):
    """Results of a scan's backward."""

    a: Any
    b: Any
    h0: Any

    def mapped(self, change: Callable[[Any], Any]) -> ScanGradients:
        """Return the results with every entry changed."""
        return ScanGradients(change(self.a), change(self.b), change(self.h0))


def results_of(
    new_array: Callable[[tuple[int, ...], str], Array], recurrence: Recurrence, count: int
) -> tuple[tuple[Array, ...], Array]:
    """Allocate `count` arrays shaped like a, and one of the state's shape and dtype."""
    precision = recurrence.precision
    rows = tuple(new_array(recurrence.shape, precision.storage_dtype) for _ in range(count))
    return rows, new_array(recurrence.state_shape, precision.arithmetic_dtype)
