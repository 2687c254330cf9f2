"""The alternating kernels' text compiled for the host, and called as on a GPU: block by block, thread by thread, step by step.

Products are NumPy's, of the arrays that the kernels leave for them; steps are done in chunks, each begun anew.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from minrnn_gen.build import Builder, Target
from minrnn_gen.cell.language import Cell
from minrnn_gen.gpu_profile import load_profile, profile_bytes
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of
from minrnn_gen.source import render
from minrnn_gen.spec import load_spec
from minrnn_gen.store import Store, cache_folder

Array = Any

# A gate without a product in front of those with one, a kink, and parameters.
LIGHT_GRU = {
    "name": "light_gru",
    "equations": (
        "z = sigmoid(W.z + R.z + u)\na = W.c + R.c\nc = max(a, 0) + leak * min(a, 0)\n"
        "h[t] = z * h[t-1] + (1 - z) * c * tanh(W.o)"
    ),
    "gates": ["o", "z", "c"],
    "parameters": ["leak", "u"],
}
MODELS: dict[str, Any] = {**{name: name for name in ("elman", "gru", "lstm", "slstm")}, "light_gru": LIGHT_GRU}
HEAD_DIM = 7

# What the text needs of a CUDA compiler. Approximate instructions are exact here; test_cell_cuda_functions.py has them wrong.
HOST = """
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
static struct { unsigned x; } blockIdx, blockDim, gridDim, threadIdx;
static float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
namespace minrnn_host {
static float exp2(float x) { return std::exp2(x); }
static float log2(float x) { return std::log2(x); }
static float reciprocal(float x) { return 1 / x; }
static float quotient(float x, float y) { return x / y; }
static float square_root(float x) { return std::sqrt(x); }
static float lesser(float x, float y) { return x != x || x < y ? x : y; }
static float greater(float x, float y) { return x != x || x > y ? x : y; }
static unsigned short bfloat16_from_float(float value) {
    const unsigned bits = __float_as_uint(value);
    return value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fffu;
}
}
extern "C" void stand_at(unsigned block, unsigned thread, unsigned blocks, unsigned threads) {
    blockIdx.x = block; threadIdx.x = thread; gridDim.x = blocks; blockDim.x = threads;
}
extern "C" void step(void (*kernel)(const void*, int), const void* call, int step_in_chunk, unsigned blocks, unsigned threads) {
    for (unsigned block = 0; block < blocks; ++block)
        for (unsigned thread = 0; thread < threads; ++thread) {
            stand_at(block, thread, blocks, threads);
            kernel(call, step_in_chunk);
        }
}
"""


@dataclass(frozen=True)
class HostKernels:
    """Both kernels of both passes of a cell; `lowered` is that of each pass."""

    cell: Cell
    heads: int
    hidden: int
    storage: Any
    real: Any
    threads: int
    library: Any
    lowered: Mapping[str, Any]

    def run(
        self, kernel_pass: KernelPass, arguments: tuple[Any, ...], batch: int, time: int, chunk: int, multiply: Any
    ) -> None:
        """Run all steps of a pass and the one behind them in chunks of `chunk` steps, `multiply()` before each."""
        # At most 8 bytes for each argument; more than there are, so that writing beyond them would be seen.
        call = np.full(len(arguments) + 8, 0x5A5A5A5A5A5A5A5A, np.int64)
        begin, step = (getattr(self.library, f"alternating_{kernel_pass}_{what}") for what in ("begin", "step"))
        for first_step in range(0, time + 1, chunk):
            blocks = 2 if first_step == 0 else 1
            for block, thread in np.ndindex(blocks, self.threads):
                self.library.stand_at(block, thread, blocks, self.threads)
                begin(ctypes.c_void_p(call.ctypes.data), ctypes.c_int64(first_step), *arguments)
            for index in range(chunk):
                multiply()
                grid = -(-batch * self.hidden // self.threads)
                self.library.step(step, ctypes.c_void_p(call.ctypes.data), index, grid, self.threads)
        assert (call[len(arguments) + 2 :] == 0x5A5A5A5A5A5A5A5A).all()


def numpy_dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@functools.cache
def host_kernels(model: str, heads: int, precision: str) -> HostKernels:
    """Compile the kernels of a model of `MODELS`; the same for the same."""
    spec = load_spec({"model": MODELS[model], "hidden_size": heads * HEAD_DIM, "heads": heads, "precision": precision})
    builder = Builder(spec, Target(load_profile("h200"), profile_bytes("h200"), "spec"), Store(cache_folder()))
    parts, lowered, plans = [HOST], {}, {}
    for kernel_pass in ("forward", "backward"):
        plan = builder.solve(kernel_pass, builder.hinted_regime).plan()
        plans[kernel_pass], lowered[kernel_pass] = plan, builder._lowered_for(kernel_pass)
        parts += [f"namespace {kernel_pass}_pass {{", render(plan, lowered[kernel_pass], ()), "}"]
    assert plans["forward"].threads == plans["backward"].threads
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernels.cpp").write_text("\n".join(parts))
        command = ["g++", "-std=c++17", "-O0", "-w", "-shared", "-fPIC", "-o", "kernels.so", "kernels.cpp"]
        subprocess.run(command, cwd=folder, check=True)
        library = ctypes.CDLL(str(Path(folder) / "kernels.so"))
    numbers = precision_of(precision)
    storage, real = numpy_dtype(numbers.storage_dtype), numpy_dtype(numbers.arithmetic_dtype)
    cell, _ = builder._proved
    return HostKernels(cell, heads, spec.hidden_size, storage, real, plans["forward"].threads, library, lowered)


def pointer(array: Array | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def integers(*values: int) -> tuple[ctypes.c_int64, ...]:
    return tuple(map(ctypes.c_int64, values))


def strides(array: Array) -> tuple[ctypes.c_int64, ...]:
    return integers(*(stride // array.itemsize for stride in array.strides))


def strided(array: Array) -> tuple[Any, ...]:
    return (pointer(array), *strides(array))


def bits_of_float32(*vectors: Array | None) -> ctypes.c_uint:
    """Which of the optional vectors are float32."""
    are_float32 = [vector is not None and vector.dtype == np.float32 for vector in vectors]
    return ctypes.c_uint(sum(1 << bit for bit, is_float32 in enumerate(are_float32) if is_float32))
