"""Storage, arithmetic and tolerances of each precision, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

FunctionAccuracy = Literal["accurate", "fast"]
# How fp32 multiplies matrices on a GPU (docs/numerics.md).
Fp32Product = Literal["tf32x3", "tf32", "fma"]
PrecisionName = Literal["fp64", "fp32", "fp16", "bf16"]
# Numbers of the raw scan that no spec asks for: cells are equations over real numbers.
ComplexName = Literal["complex64", "complex128"]


# The unit roundoff of tf32, which has 11 significant bits (PTX ISA, alternate floating-point data formats).
TF32_ROUNDOFF = 2.0**-11


# The dtypes of torch that a precision may be given as.
_BY_TORCH_DTYPE = {"torch.float64": "fp64", "torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


def named_precision(value: object) -> object:
    """Return the name of a precision that is given as a dtype of torch, that of any other dtype; anything else as it is."""
    kind = type(value)
    return _BY_TORCH_DTYPE.get(str(value), str(value)) if (kind.__module__, kind.__name__) == ("torch", "dtype") else value


# Names of libraries, formats and specs: float8_e4m3fn, fp8, mxfp4, e5m2; int8, uint4, qint8, nf4, q4_k.
_NARROW_FLOAT = re.compile(r"(?:float|fp|mxfp|nvfp)[468](?![0-9])|(?:^|_)e[2345]m[0-9]")
_QUANTIZED = re.compile(r"(?<![a-z])(?:qu?int|u?int[1-8](?![0-9])|q[2-8](?![0-9])|nf4)")


def why_unsupported(dtype: object) -> str:
    """Return why a dtype, or the name of one, is supported nowhere, as the end of a sentence; nothing where it is elsewhere."""
    name = str(dtype).lower()
    if _NARROW_FLOAT.search(name):
        return "; floats of fewer than 16 bits are not supported"
    return "; quantized values are not supported, so dequantize or cast them first" if _QUANTIZED.search(name) else ""


@dataclass(frozen=True)
class Precision:
    """How values are stored and computed.

    `storage_*` describes x, R, weight and y; `arithmetic_*` describes the carried state and every operation.
    `functions` is the default of a spec's key: "accurate" to a few units in the last place, or "fast", where rounding to
    storage hides the error (docs/numerics.md).
    `multiplies_in_tf32`: matrix products on a GPU round fp32 to tf32, and add in fp32.
    Roundoffs are the unit roundoff u = 2^-p of a format with p significand bits (IEEE 754-2019, table 3.5), of complex numbers
    that of each part.
    """

    name: PrecisionName | ComplexName
    storage_bytes: int
    storage_dtype: str
    storage_roundoff: float
    arithmetic_bytes: int
    arithmetic_dtype: str
    arithmetic_roundoff: float
    functions: FunctionAccuracy = "accurate"
    multiplies_in_tf32: bool = False

    @property
    def parts(self) -> int:
        """How many real numbers a number is."""
        return 2 if self.arithmetic_dtype.startswith("complex") else 1

    @property
    def operand_roundoff(self) -> float:
        """The roundoff of what matrix products multiply on a GPU."""
        return TF32_ROUNDOFF if self.multiplies_in_tf32 else self.storage_roundoff

    def with_product(self, product: Fp32Product) -> Precision:
        """Return this row with the products in fp32 that a spec asks for; other precisions have one way each."""
        return replace(self, multiplies_in_tf32=True) if self.name == "fp32" and product == "tf32" else self

    def with_functions(self, functions: FunctionAccuracy | None) -> Precision:
        """Return this row with the functions that a spec asks for; None asks for nothing."""
        return self if functions is None else replace(self, functions=functions)


_TABLE = {
    precision.name: precision
    for precision in (
        Precision("fp64", 8, "float64", 2.0**-53, 8, "float64", 2.0**-53),
        Precision("fp32", 4, "float32", 2.0**-24, 4, "float32", 2.0**-24),
        Precision("fp16", 2, "float16", 2.0**-11, 4, "float32", 2.0**-24, "fast"),
        Precision("bf16", 2, "bfloat16", 2.0**-8, 4, "float32", 2.0**-24, "fast"),
        Precision("complex64", 8, "complex64", 2.0**-24, 8, "complex64", 2.0**-24),
        Precision("complex128", 16, "complex128", 2.0**-53, 16, "complex128", 2.0**-53),
    )
}
_BY_STORAGE = {precision.storage_dtype: precision for precision in _TABLE.values()}

PRECISION_NAMES: tuple[PrecisionName, ...] = get_args(PrecisionName)
STORAGE_DTYPES = tuple(_BY_STORAGE)


def precision_of(name: str) -> Precision:
    """Return the table's row for `name`, one of `PRECISION_NAMES` or of the complex ones."""
    return _TABLE[cast(PrecisionName | ComplexName, name)]


# How many times as large as the error of a whole result, norm by norm, its largest single one may be.
LARGEST_OF_NORM = 4
# A fast function is off by up to a relative 2^-17 (docs/numerics.md), in each of the eight steps that a state remembers; steps
# that are composed as logarithms, by a relative 1.6e-3 after 32,768 of them.
FAST_FUNCTIONS_ERROR, LOG_ARITHMETIC_ERROR = 8 * 2.0**-17, 2.0**-9


def error_allowed(precision: Precision) -> float:
    """Return the largest relative error, norm by norm, at which a result in a precision still counts as right.

    Eight roundings to storage, or to tf32 where that is coarser: of the inputs' products, of a projection, of y, which a
    backward reads again. And as many of the arithmetic as a sum over 1,024 inputs or a state that remembers long may collect,
    64.
    """
    return 8 * precision.operand_roundoff + 64 * precision.arithmetic_roundoff


def remembered_error(precision: Precision, scan_arithmetic: str) -> float:
    """Return what fast functions, and steps composed as logarithms, add to the error of a result that remembers many steps."""
    functions = FAST_FUNCTIONS_ERROR if precision.functions == "fast" else 0.0
    return functions + (LOG_ARITHMETIC_ERROR if scan_arithmetic == "log" else 0.0)


def precision_storing(dtype: str) -> Precision | None:
    """Return the row whose values are stored as `dtype`, or None where there is none."""
    return _BY_STORAGE.get(dtype)
