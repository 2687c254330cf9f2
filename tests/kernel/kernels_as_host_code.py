"""The text of kernels whose threads never wait for each other, compiled for the host and run thread after thread.

What `minrnn_host` stands for is computed exactly. A vector that is not aligned, or a place outside an array of fixed size, ends
the process.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrnn_gen.build import Builder
from minrnn_gen.device_run import DeviceRun
from minrnn_gen.plan.kernel_plan import KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.source import render

HAS_COMPILER = shutil.which("g++") is not None
BEFORE = """
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
static struct { unsigned x; } blockIdx, blockDim, gridDim, threadIdx;
using std::min;
using std::max;
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, sizeof bits); return bits; }
static float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, sizeof bits); return value; }
namespace minrnn_host {
static long long opaque(long long value) { return value; }
static float exp2(float x) { return std::exp2(x); }
static float log2(float x) { return std::log2(x); }
static float reciprocal(float x) { return 1 / x; }
static float quotient(float x, float y) { return x / y; }
static float square_root(float x) { return std::sqrt(x); }
static float lesser(float x, float y) { return x != x || x < y ? x : y; }
static float greater(float x, float y) { return x != x || x > y ? x : y; }
static float float_from_float16(unsigned short bits) { _Float16 value; std::memcpy(&value, &bits, sizeof bits); return value; }
static unsigned short float16_from_float(float value) {
    const _Float16 rounded = value;
    unsigned short bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    return bits;
}
static unsigned short bfloat16_from_float(float value) {
    const unsigned bits = __float_as_uint(value);
    return value == value ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fffu;
}
}
"""
# Every argument comes as a word of 8 bytes.
BEHIND = """
template <typename To> static To argument(long long word) {
    if constexpr (std::is_pointer_v<To>) return reinterpret_cast<To>(word);
    else return static_cast<To>(word);
}
template <typename... Arguments, std::size_t... PLACE>
static void run(void (*kernel)(Arguments...), long long blocks, long long threads, const long long* words,
                std::index_sequence<PLACE...>) {
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(argument<Arguments>(words[PLACE])...);
    }
}
template <typename... Arguments> static constexpr std::size_t count(void (*)(Arguments...)) { return sizeof...(Arguments); }
extern "C" int arguments() { return int(count(ENTRY)); }
extern "C" void launch(long long blocks, long long threads, const long long* words) {
    run(ENTRY, blocks, threads, words, std::make_index_sequence<count(ENTRY)>());
}
"""
OPTIONS = ("-std=c++17", "-O0", "-ffp-contract=off", "-shared", "-fPIC", "-fsanitize=alignment,bounds")


@functools.cache
def compiled(source: str, entry: str, folder: Path) -> ctypes.CDLL:
    place = folder / f"{entry}_{abs(hash(source))}"
    place.with_suffix(".cpp").write_text(BEFORE + source + BEHIND.replace("ENTRY", entry))
    command = ["g++", *OPTIONS, "-fsanitize-undefined-trap-on-error", "-o", f"{place}.so", f"{place}.cpp"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(f"{place}.so")


@dataclass(frozen=True)
class HostCode:
    """A kernel as `cuda.LoadedKernel` is used."""

    library: ctypes.CDLL

    def launch(self, _like: Any, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        assert len(arguments) == self.library.arguments()
        words = (ctypes.c_longlong * len(arguments))(*map(int, arguments))
        self.library.launch(ctypes.c_longlong(blocks), ctypes.c_longlong(threads), words)


def loading(builder: Builder, folder: Path, **wanted: int) -> Callable[..., tuple[HostCode, KernelPlan]]:
    """Return what stands for `DeviceRun._load`: the best kernels of those with most of the variables wanted."""

    @functools.cache
    def load(kernel_pass: KernelPass, regime: Regime) -> tuple[HostCode, KernelPlan]:
        solution = builder.solve(kernel_pass, regime)

        def having(rank: int) -> int:
            return len(wanted.items() & solution.candidates[rank].items())

        plan = solution.plan(max(range(len(solution.candidates)), key=having))
        lowered = builder.lowered_backward if kernel_pass == "backward" else builder.lowered
        return HostCode(compiled(render(plan, lowered, ()), plan.entry, folder)), plan

    def of_run(_: DeviceRun, kernel_pass: KernelPass, regime: Regime) -> tuple[HostCode, KernelPlan]:
        return load(kernel_pass, regime)

    return of_run
