"""Matrix products by cuBLAS, on any stream, even while a graph is being captured there."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from minrnn_gen.call.array import Array
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing, cause_of
from minrnn_gen.gpu import device as gpu_device

# cudaDataType and cublasComputeType_t (library_types.h, cublas_api.h).
CUDA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE_FLOAT32, _COMPUTE_FLOAT64, _COMPUTE_TF32 = 68, 70, 77
# {(arithmetic dtype, whether the product is added): the factors of the product and of the previous result}
_FACTORS = {
    (compute, adds): (ctypes.byref(scalar(1.0)), ctypes.byref(scalar(float(adds))))
    for compute, scalar in (
        (_COMPUTE_FLOAT32, ctypes.c_float), (_COMPUTE_FLOAT64, ctypes.c_double), (_COMPUTE_TF32, ctypes.c_float)
    )
    for adds in (False, True)
}  # fmt: skip
_GEMM_DEFAULT = -1
# cublasMath_t: no sums in 16 bits where a product is split over blocks (CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION).
_NO_NARROW_SUMS = 16
_LIBRARIES = ("cublas64_13.dll", "cublas64_12.dll") if sys.platform == "win32" else ("libcublas.so.13", "libcublas.so.12")
_INT, _POINTER, _STRIDE = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
_MATRIX = (_POINTER, _INT, _INT, _STRIDE)
# cublasGemmStridedBatchedEx (cublas_api.h).
_GEMM_ARGUMENTS = (_POINTER, *(_INT,) * 5, _POINTER, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, *(_INT,) * 3)
# cuBLAS 13.1.0 on an H200 drops the last k % 64 terms of some sums of 16-bit factors that it splits over blocks: 126 of some
# 45,000 drawn products of one batch, k of 2,561 and more, none with k % 64 = 0.
_TERMS_AT_ONCE, _LONG_SUM = 64, 2048
_NARROW_BYTES = {"float16": 2, "bfloat16": 2}
# What cuBLAS asks for on sm_90 and later (cuBLAS documentation, cublasSetWorkspace).
WORKSPACE_BYTES = 32 << 20
# Streams on which graphs with products are launched, each with a workspace.
WORKSPACES_HELD = 8
_workspaces: dict[tuple[int, int], Any] = {}


@dataclass(frozen=True)
class Matrix:
    """A matrix with rows `row` elements apart, and matrices of a batch `stride` apart; `transposed`: read as its transpose."""

    pointer: int
    dtype: str
    row: int
    stride: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class Product:
    """result [m, n] = left [m, k] right [k, n], and the same for each of a batch; `adds`: the product is added to the result.

    `in_tf32`: factors in float32 are rounded to tf32.
    """

    m: int
    n: int
    k: int
    left: Matrix
    right: Matrix
    result: Matrix
    batch: int = 1
    adds: bool = False
    in_tf32: bool = False

    @property
    def compute_type(self) -> int:
        """The arithmetic, as a cublasComputeType_t."""
        if self.result.dtype == "float64":
            return _COMPUTE_FLOAT64
        return _COMPUTE_TF32 if self.in_tf32 else _COMPUTE_FLOAT32

    @property
    def parts(self) -> tuple[Product, ...]:
        """Products that add up to this product; cuBLAS truncates the sum of none.

        The few terms at the end of a long sum of 16-bit factors come first, so that a result in 16 bits is rounded once.
        """
        tail = self.k % _TERMS_AT_ONCE
        if not tail or self.k < _LONG_SUM or self.left.dtype not in _NARROW_BYTES:
            return (self,)
        whole, left, right = self.k - tail, self.left, self.right
        last_columns = left.pointer + whole * (left.row if left.transposed else 1) * _NARROW_BYTES[left.dtype]
        last_rows = right.pointer + whole * (1 if right.transposed else right.row) * _NARROW_BYTES[right.dtype]
        last = replace(self, k=tail, left=replace(left, pointer=last_columns), right=replace(right, pointer=last_rows))
        return last, replace(self, k=whole, adds=True)


def factor(array: Array, row: int, stride: int = 0, transposed: bool = False) -> Matrix:
    """Return an array as a matrix."""
    return Matrix(array.pointer, array.dtype, row, stride, transposed)


def multiply(
    device: int | None, stream: int, product: Product, pointers: tuple[int, int, int] | None = None, workspace: int = 0
) -> None:
    """Enqueue one of the `parts` of a product on `stream`; accumulates in fp32 (fp64).

    `pointers`: the addresses of left, right and result, if not those in `product`. `workspace`: WORKSPACE_BYTES of memory that
    nothing else on the GPU uses at the same time; 0 for cuBLAS's own, only for streams that are not being captured. cuBLAS
    matrices are column-major, so a row-major matrix is its transpose there: cuBLAS computes resultᵀ = rightᵀ leftᵀ. Raises
    ToolchainMissing where cuBLAS refuses.
    """
    left, right, result = product.left, product.right, product.result
    left_at, right_at, result_at = pointers or (left.pointer, right.pointer, result.pointer)
    compute = product.compute_type
    unit, beta = _FACTORS[compute, product.adds]
    library = _library()
    with gpu_device.on_device(device):
        handle_here = handle()
        check(library.cublasSetStream_v2(handle_here, stream))
        if workspace:
            check(library.cublasSetWorkspace_v2(handle_here, workspace, WORKSPACE_BYTES))
        check(library.cublasSetMathMode(handle_here, _NO_NARROW_SUMS))
        status = library.cublasGemmStridedBatchedEx(
            handle_here, right.transposed, left.transposed, product.n, product.m, product.k, unit,
            right_at, CUDA_TYPES[right.dtype], right.row, right.stride,
            left_at, CUDA_TYPES[left.dtype], left.row, left.stride, beta,
            result_at, CUDA_TYPES[result.dtype], result.row, result.stride,
            product.batch, compute, _GEMM_DEFAULT,
        )  # fmt: skip
        library.cublasSetMathMode(handle_here, 0)
    check(status)


def check(status: int) -> None:
    """Raise ToolchainMissing where a status of cuBLAS is an error."""
    if status:
        raise ToolchainMissing(
            f"cuBLAS refused a matrix product with status {status}; run 'minrnn-gen doctor' to check the installation"
        )


@cache
def _library() -> Any:
    """Return the library that CuPy loaded, wherever CuPy found it."""
    load_library()
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name, mode=getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_NOW", 0))
        except OSError:
            continue
        library.cublasSetStream_v2.argtypes = (_POINTER, _POINTER)
        library.cublasSetWorkspace_v2.argtypes = (_POINTER, _POINTER, ctypes.c_size_t)
        library.cublasSetMathMode.argtypes = (_POINTER, ctypes.c_int)
        library.cublasGemmStridedBatchedEx.argtypes = _GEMM_ARGUMENTS
        return library
    raise ToolchainMissing(f"cuBLAS is not installed: {INSTALL_CUDA}")


def functions() -> tuple[Any, Any, Any, Any]:
    """Return the functions that set the stream, the workspace and the mode of a handle, and the one that multiplies."""
    library = _library()
    settings = library.cublasSetStream_v2, library.cublasSetWorkspace_v2, library.cublasSetMathMode
    return *settings, library.cublasGemmStridedBatchedEx


def handle() -> int:
    """Return this thread's handle of cuBLAS for the current device, which CuPy resets before each use by CuPy."""
    return int(gpu_device.cupy_module().cuda.device.get_cublas_handle())


def new_handle() -> int:
    """Return an unshared handle of cuBLAS for the current device, which lives as long as the process."""
    load_library()
    from cupy_backends.cuda.libs import cublas

    return int(cublas.create())


def workspace_on(device: int, stream: int) -> int:
    """Return memory of WORKSPACE_BYTES for products of graphs launched on a stream, kept from then on.

    0 if `WORKSPACES_HELD` streams already have one.
    """
    if (device, stream) not in _workspaces:
        if len(_workspaces) >= WORKSPACES_HELD:
            return 0
        with gpu_device.on_device(device):
            _workspaces[device, stream] = gpu_device.cupy_module().cuda.alloc(WORKSPACE_BYTES)
    return int(_workspaces[device, stream].ptr)


def load_library() -> None:
    """Load the cuBLAS that CuPy finds into the process; raises ToolchainMissing where CuPy finds none."""
    gpu_device.cupy_module()
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except Exception as missing:  # CuPy's error for a missing library, or any error of a partial installation
        raise ToolchainMissing(f"cuBLAS is not installed ({cause_of(missing)}): {INSTALL_CUDA}") from missing
