"""Checks of arguments' shapes, shared by all fronts of linear filters, and sections in sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minrnn_gen.errors import BadInput

# The number of coefficients of a section, those of b before those of a.
_SECTION = 6
ZERO_FIRST = "a[0] is 0, by which the coefficients of a filter are divided; leave out a's leading zeros"


def channels_of(x: Sequence[int], coefficients: Mapping[str, Sequence[int]]) -> int:
    """Return how many channels have their own coefficients, 1 where all share them, for x of a shape [..., T].

    `coefficients`: shapes by name. Raises BadInput for shapes that do not fit.
    """
    if not len(x):
        raise BadInput("x has no axes; [..., T] is expected, with time as its last axis")
    channels = 1
    for name, shape in coefficients.items():
        if len(shape) not in (1, 2) or not all(shape):
            raise BadInput(f"{name} has shape {list(shape)}; [n + 1] is expected, or [C, n + 1] for x [..., C, T]")
        if len(shape) == 2:
            channels = shape[0]
            if len(x) < 2 or channels != x[-2]:
                raise BadInput(
                    f"{name} has shape {list(shape)}, coefficients of {channels} channels, but x has shape {list(x)}; "
                    f"x is expected as [..., {channels}, T]"
                )
    return channels


def check_sections(sos: Sequence[int]) -> int:
    """Return the number of sections in coefficients of a shape; raises BadInput for a shape without sections."""
    if len(sos) not in (2, 3) or not sos[-2] or sos[-1] != _SECTION:
        raise BadInput(f"sos has shape {list(sos)}; [sections, 6] is expected, or [C, sections, 6] for x [..., C, T]")
    return sos[-2]


def filtered_by_sections(lfilter: Callable[..., Any], stack: Callable[..., Any], sos: Any, x: Any, zi: Any) -> Any:
    """Return y, or with zi (y, zf), of sections in sequence, each an `lfilter`."""
    states = []
    for section in range(sos.shape[-2]):
        b, a = sos[..., section, : _SECTION // 2], sos[..., section, _SECTION // 2 :]
        if zi is None:
            x = lfilter(x, a, b)
        else:
            x, state = lfilter(x, a, b, zi[section])
            states.append(state)
    return x if zi is None else (x, stack(states))
