"""A loop in C over the recurrence h[t] = a[t] h[t-1] + b[t]: what a raw scan on the CPU is measured against."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.cpu_kernel import openmp_threads, own_threads
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.config.environment import thread_count

TEXT = """
#include <string.h>

struct Loop { const float *a, *b; float *y; long rows, time, channels, threads; int next; };

static void share(void *data)
{
    struct Loop *loop = data;
    const long index = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED);
    const int by_rows = loop->rows >= loop->threads;
    const long all = by_rows ? loop->rows : loop->channels;
    const long from = all * index / loop->threads, to = all * (index + 1) / loop->threads;
    const long first = by_rows ? 0 : from, end = by_rows ? loop->channels : to;
    for (long row = by_rows ? from : 0; row < (by_rows ? to : loop->rows); row++) {
        float h[loop->channels];
        memset(h, 0, sizeof h);
        const long begin = row * loop->time * loop->channels;
        for (long t = 0; t < loop->time; t++) {
            const float *a = loop->a + begin + t * loop->channels, *b = loop->b + begin + t * loop->channels;
            float *y = loop->y + begin + t * loop->channels;
            for (long c = first; c < end; c++)
                y[c] = h[c] = a[c] * h[c] + b[c];
        }
    }
}

void run(struct Loop *loop, void (*parallel)(void (*)(void *), void *, unsigned, unsigned))
{
    parallel(share, loop, (unsigned)loop->threads, 0);
}
"""


class _Loop(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "y")),
        *((name, ctypes.c_long) for name in ("rows", "time", "channels", "threads")),
        ("next", ctypes.c_int),
    )


def scan_loop(a: Any, b: Any) -> Callable[[], Any]:
    """Return a call of the loop on contiguous float32 arrays [B, T, C], by as many threads as a scan has; it returns y."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loop.so"
        path.write_bytes(c_compiler().compile(TEXT)[0])
        library = ctypes.CDLL(str(path))
    parallel = ctypes.c_void_p((openmp_threads() or own_threads(Store(cache_folder()))).parallel)

    def run() -> Any:
        y = numpy.empty(a.shape, a.dtype)  # in large pages, as a scan's
        library.run(ctypes.byref(_Loop(*(array.ctypes.data for array in (a, b, y)), *a.shape, thread_count(), 0)), parallel)
        return y

    return run
