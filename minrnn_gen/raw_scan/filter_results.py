"""Results of a linear filter and of its backward, and their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from minrnn_gen.call.array import Array
from minrnn_gen.raw_scan.map_arguments import CARRIED

FilterPass = Literal["filter", "filter_backward"]
FILTER_PASSES: tuple[FilterPass, ...] = get_args(FilterPass)
Kind = Literal["signal", "state", "coefficients"]


class Filtered(NamedTuple):
    """Results of a filter."""

    y: Any
    zf: Any

    def mapped(self, change: Callable[[Any], Any]) -> Filtered:
        """Return the results with every entry changed."""
        return Filtered(change(self.y), change(self.zf))


class FilterGradients(NamedTuple):
    """Results of a filter's backward; gradients of coefficients are per tile of each row."""

    x: Any
    b: Any
    a: Any
    zi: Any

    def mapped(self, change: Callable[[Any], Any]) -> FilterGradients:
        """Return the results with every entry changed."""
        return FilterGradients(change(self.x), change(self.b), change(self.a), change(self.zi))


# The arrays of a pass, in the order of their slots; zi and dzf may be absent.
PASSED: Mapping[FilterPass, tuple[str, ...]] = {
    "filter": ("x", "b", "a", "zi"),
    "filter_backward": ("x", "b", "a", "y", "dy", "dzf"),
}
# The kind of each result of a pass.
RESULTS: Mapping[FilterPass, Filtered | FilterGradients] = {
    "filter": Filtered("signal", "state"),
    "filter_backward": FilterGradients("signal", "coefficients", "coefficients", "state"),
}


def shape_of(kind: Kind, x: Array, order: int, tiles: int = 1) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a result, for x [N, C, T] in so many tiles of time."""
    if kind == "signal":
        return x.shape, x.dtype
    values = (order,) if kind == "state" else (tiles, order + 1)
    return (*x.shape[:2], *values), CARRIED
