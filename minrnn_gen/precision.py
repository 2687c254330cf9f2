"""Storage, arithmetic and tolerances of each precision, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

PrecisionName = Literal["fp64", "fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Precision:
    """How values are stored and computed.

    `storage_*` describes x, R, weight and y; `arithmetic_*` describes the carried state and every operation.
    Roundoffs are the unit roundoff u = 2^-p of a format with p significand bits (IEEE 754-2019, table 3.5).
    """

    name: PrecisionName
    storage_bytes: int
    storage_dtype: str
    storage_roundoff: float
    arithmetic_bytes: int
    arithmetic_dtype: str
    arithmetic_roundoff: float


_TABLE = {
    precision.name: precision
    for precision in (
        Precision("fp64", 8, "float64", 2.0**-53, 8, "float64", 2.0**-53),
        Precision("fp32", 4, "float32", 2.0**-24, 4, "float32", 2.0**-24),
        Precision("fp16", 2, "float16", 2.0**-11, 4, "float32", 2.0**-24),
        Precision("bf16", 2, "bfloat16", 2.0**-8, 4, "float32", 2.0**-24),
    )
}

PRECISION_NAMES: tuple[PrecisionName, ...] = tuple(_TABLE)


def precision_of(name: str) -> Precision:
    """Return the table's row for `name`, one of `PRECISION_NAMES`."""
    return _TABLE[cast(PrecisionName, name)]
