"""Recorded calls replayed in buffers of XLA, on a CPU: CuPy is played by NumPy, and kernels by plain loops."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fake_device import as_if_on_a_device
from support.uncompiled_kernels import host_kernel

from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.layers.kernels import known

device = pytest.importorskip("minrnn_gen.jax.device")
request = pytest.importorskip("minrnn_gen.jax.request")

BATCH, TIME, HIDDEN = 2, 5, 16
ALIGNMENT = 256


class ndarray(np.ndarray):  # type: ignore[type-arg]
    """Array as CuPy has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        def memset_async(value: int, size_bytes: int) -> None:
            np.ndarray.view(self, np.ndarray).reshape(-1).view(np.uint8)[:size_bytes] = value

        return SimpleNamespace(ptr=self.ctypes.data, memset_async=memset_async)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=0)


ndarray.__module__ = "cupy"


def aligned(array: Any) -> Any:
    """Copy an array to memory that is aligned as XLA's buffers are."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def empty(shape: Any, dtype: Any) -> Any:
    return aligned(np.zeros(shape, dtype)).view(ndarray)


@contextlib.contextmanager
def numpy_as_cupy(kernel: Any) -> Any:
    with as_if_on_a_device(kernel), pytest.MonkeyPatch.context() as patch:
        pool = SimpleNamespace(malloc=None, free_all_blocks=lambda: None)
        cuda = SimpleNamespace(MemoryPool=lambda: pool, using_allocator=lambda _: contextlib.nullcontext())
        module = SimpleNamespace(empty=empty, zeros=empty, asarray=np.asarray, ndarray=ndarray, cuda=cuda)
        patch.setitem(sys.modules, "cupy", module)
        patch.setattr(gpu_device, "cupy_module", lambda: module)
        patch.setattr(device, "external_stream", lambda _: contextlib.nullcontext())
        yield


def run(asked: Any, operands: list[Any]) -> tuple[Any, list[Any]]:
    """Record a call, run it in buffers of its own, and return it with its results."""
    buffers = [aligned(operand) for operand in operands]
    site = request.CallSite(asked, tuple(request.Shaped(array.shape, array.dtype.name) for array in buffers))
    call = device.device_call(request.CallSite.of(site.text()), 0)
    buffers += [aligned(buffers[cast.operand].astype(cast.dtype)) for cast in call.casts]
    results = [aligned(np.zeros(result.shape, result.dtype)) for result in call.results]
    workspace = [aligned(np.zeros(call.workspace_bytes, np.uint8))] if call.workspace_bytes else []
    written = [array.ctypes.data for array in (*results, *workspace)]
    for _ in range(2):
        call.run([array.ctypes.data for array in buffers], written, call.workspace_bytes, 0)
    return call, results


@pytest.mark.parametrize("has_lengths", [False, True])
def test_a_recorded_call_writes_what_numpy_calls_return(has_lengths: bool) -> None:
    kernel = host_kernel("min_gru", HIDDEN, "fp64")
    random = np.random.default_rng(0)
    x, bias, h = (random.standard_normal(shape) for shape in ((BATCH, TIME, 2, HIDDEN), (2, HIDDEN), (BATCH, HIDDEN)))
    lengths = {"lengths": np.array([3, TIME])} if has_lengths else {}
    y, final, saved = kernel.forward(x, bias=bias, state={"h": h}, **lengths)
    dy, dstate = np.cos(y), {"h": np.sin(final["h"])}
    gradients = kernel.backward(saved, dy, dstate)
    present = tuple(slot in ({0, 3, 8, 6} if has_lengths else {0, 3, 8}) for slot in range(9))
    forward = request.Request("forward", present, known(kernel))
    backward = request.Request("backward", present, forward.recipe)
    operands = [x, bias, *lengths.values(), h]
    with numpy_as_cupy(kernel):
        _, results = run(forward, operands)
        call, raw = run(backward, [*operands, y, dy, dstate["h"]])
    np.testing.assert_allclose(results[0], y, rtol=1e-12)
    np.testing.assert_allclose(results[1], final["h"], rtol=1e-12)
    named = call.backward.mapped(raw.__getitem__)
    np.testing.assert_allclose(named.x, gradients["x"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(named.initial[0], gradients["state"]["h"], rtol=1e-10)
    np.testing.assert_allclose(named.sums.sum((1, 3)).reshape(2, HIDDEN), gradients["bias"], rtol=1e-10)
