"""Scans of maps and filters as C for the host's CPU: their arguments, and the text of a pass for every number of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from minrnn_gen.codegen.cpu_source import CpuPass, Field, NativePlan, call_fields

_CARRIED = "float64"
_PRECISIONS = {"float64": "fp64", "float32": "fp32"}


class Recursion(NamedTuple):
    """Computation of a kernel that has no cell."""

    name: str
    equations: str


@dataclass(frozen=True)
class WidePlan(NativePlan):
    """A kernel whose arrays are contiguous and in a storage dtype, whose arithmetic and states are in double precision."""

    @property
    def gates(self) -> tuple[str, ...]:
        """No gates."""
        return ()

    @property
    def states(self) -> tuple[str, ...]:
        """No states by name."""
        return ()


@dataclass(frozen=True)
class MapsPlan(WidePlan):
    """A pass of h[t] = A[t] h[t-1] + b[t] for maps A of `size` times `size`; `is_constant`: a channel has one for all steps."""

    size: int
    is_constant: bool

    @property
    def template(self) -> str:
        """The template of both passes."""
        return "cpu/maps.c.j2"

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arguments, in their order."""
        shape = "[H, m, m]" if self.is_constant else "[B, T, H, m, m]"
        fields = [*call_fields(), Field("const storage_t *", "A", shape), Field("const double *", "h0", "[B, H, m]")]
        if self.kernel_pass == "forward":
            return (
                *fields,
                Field("const storage_t *", "b", "[B, T, H, m]"),
                Field("storage_t *", "h", "[B, T, H, m]"),
                Field("double *", "final", "[B, H, m]"),
            )
        return (
            *fields,
            Field("const storage_t *", "y", "[B, T, H, m]"),
            Field("const storage_t *", "dy", "[B, T, H, m]"),
            Field("const double *", "dfinal", "[B, H, m]"),
            Field("double *" if self.is_constant else "storage_t *", "dA", f"{shape}, of each row"),
            Field("storage_t *", "db", "[B, T, H, m]"),
            Field("double *", "dh0", "[B, H, m]"),
        )


@dataclass(frozen=True)
class FilterPlan(WidePlan):
    """A pass of a linear filter of an order, along contiguous rows."""

    order: int

    @property
    def template(self) -> str:
        """The template of both passes."""
        return "cpu/filter.c.j2"

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arguments, in their order."""
        fields = [
            *call_fields(),
            Field("long", "channels", "C; row r has the coefficients of channel r % C"),
            Field("const double *", "b", "[C, order + 1]"),
            Field("const double *", "a", "[C, order + 1], a[0] = 1"),
            Field("const storage_t *", "x", "[B, T]"),
        ]
        if self.kernel_pass == "forward":
            return (
                *fields,
                Field("const double *", "zi", "[B, order]"),
                Field("storage_t *", "filtered", "[B, T]"),
                Field("double *", "zf", "[B, order]"),
            )
        return (
            *fields,
            Field("const storage_t *", "y", "[B, T]"),
            Field("const storage_t *", "dy", "[B, T]"),
            Field("const double *", "dzf", "[B, order]"),
            Field("storage_t *", "dx", "[B, T]"),
            Field("double *", "db", "[B, order + 1]"),
            Field("double *", "da", "[B, order + 1]"),
            Field("double *", "dzi", "[B, order]"),
        )


def maps_plan(kernel_pass: CpuPass, dtype: str, size: int, is_constant: bool) -> MapsPlan:
    """Return the plan of a pass over maps stored as `dtype`."""
    name = f"{'constant_' * is_constant}maps_of_{size}"
    return MapsPlan(
        kernel_pass, Recursion(name, "h[t] = A h[t-1] + b[t]"), _PRECISIONS[dtype], _CARRIED, dtype, dtype, size, is_constant
    )


def filter_plan(kernel_pass: CpuPass, dtype: str, order: int) -> FilterPlan:
    """Return the plan of a pass of a filter of signals stored as `dtype`."""
    recursion = Recursion(f"filter_of_order_{order}", "y[t] = b[0] x[t] + b[1] x[t-1] + ... - a[1] y[t-1] - ...")
    return FilterPlan(kernel_pass, recursion, _PRECISIONS[dtype], _CARRIED, dtype, dtype, order)
