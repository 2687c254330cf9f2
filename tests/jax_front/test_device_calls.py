"""Recorded calls replayed in buffers of XLA, on a CPU: CuPy is played by NumPy, and kernels by plain loops."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fake_device import as_if_on_a_device
from support.filters_on_host import filter_kernels_on_host
from support.needed import needed
from support.uncompiled_kernels import host_kernel

from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.layers.kernels import known
from minrnn_gen.raw_scan import filters, filters_device
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES
from minrnn_gen.run.recording.replay import TraceCache

device = needed("minrnn_gen.jax.device")
request = needed("minrnn_gen.jax.request")

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
    """Have arrays of NumPy, all of `ndarray`, pose as those of a GPU, where the calls of a kernel and filters run."""
    with as_if_on_a_device(kernel), pytest.MonkeyPatch.context() as patch:
        pool = SimpleNamespace(malloc=None, free_all_blocks=lambda: None)
        cuda = SimpleNamespace(MemoryPool=lambda: pool, using_allocator=lambda _: contextlib.nullcontext())
        module = SimpleNamespace(empty=empty, zeros=empty, asarray=np.asarray, ndarray=ndarray, cuda=cuda)
        patch.setitem(sys.modules, "cupy", module)
        patch.setattr(gpu_device, "cupy_module", lambda: module)
        patch.setattr(device, "external_stream", lambda _: contextlib.nullcontext())
        patch.setattr(filters_device, "filter_kernels", filter_kernels_on_host)
        patch.setattr(filters, "_CALLS", {kernel_pass: TraceCache() for kernel_pass in FILTER_PASSES})
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


# (whether JAX has float64, dtype of x, channels with coefficients of their own, order, steps, whether there is a state).
FILTERS = [(False, "float32", 3, 2, 9, True), (True, "float64", 1, 1, 4, False), (True, "float32", 1, 4, 2, True)]


@pytest.mark.parametrize("case", FILTERS, ids=str)
def test_a_filter_is_recorded_with_float64_coefficients(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's results for a GPU equal those of a program for the CPU, gradients too."""
    jax, primitive = pytest.importorskip("jax"), needed("minrnn_gen.jax.primitive")
    run_on_host = needed("minrnn_gen.jax.host").run_on_host
    has_x64, dtype, channels, order, time, has_state = case
    random, carried = np.random.default_rng(0), "float64" if has_x64 else "float32"
    a, b = (random.uniform(-0.4, 0.4, (channels, order + 1)).astype(carried) for _ in range(2))
    a[:, 0] = random.uniform(1, 2, channels)
    x, y, dy = (random.normal(size=(2, channels, time)).astype(dtype) for _ in range(3))
    zi, dzf = (random.normal(size=(2, channels, order)).astype(carried) for _ in range(2))
    sites: list[Any] = []

    def called(site: Any, _results: Any, operands: Any) -> list[Any]:
        sites.append(site)
        return run(site.request, [np.asarray(one) for one in operands])[1]

    with jax.enable_x64(has_x64), numpy_as_cupy(host_kernel("min_gru", HIDDEN, "fp64")):
        monkeypatch.setattr(primitive.target, "prepare", lambda site: device.device_call(site, 0))
        monkeypatch.setattr(primitive, "_call", called)
        for asked, operands in (
            (request.Request("filter", (True, True, True, has_state)), (x, b, a, zi)[: 3 + has_state]),
            (request.Request("filter_backward", (True,) * 6), (x, b, a, y, dy, dzf)),
        ):
            given = [jax.numpy.asarray(one) for one in operands]
            found = primitive._lower_on_device(*given, request=asked)
            like = asked.results([request.Shaped.of(one) for one in given])
            assert [request.Shaped.of(one) for one in found] == [*like]
            for one, expected in zip(found, run_on_host(asked, operands), strict=True):
                allowed = 4 * np.finfo(one.dtype).eps * np.abs(expected).max()
                np.testing.assert_allclose(one, expected, rtol=0, atol=allowed)
    assert {one.dtype for site in sites for one in site.operands} == {dtype, "float64"}


def test_a_filter_of_more_than_a_gpu_has_kernels_of_is_refused() -> None:
    x, b = request.Shaped((2, 1, 9), "float32"), request.Shaped((1, 6), "float64")
    site = request.CallSite(request.Request("filter", (True, True, True, False)), (x, b, b))
    with (
        numpy_as_cupy(host_kernel("min_gru", HIDDEN, "fp64")),
        pytest.raises(BadInput, match=r"a and b are of order 5, but x is on CUDA device 0, .* of order 4 at most"),
    ):
        device.device_call(site, 0)


@pytest.mark.parametrize("shape", [(2, 5, 3, 2), (7, 12, 4)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_full_maps_on_a_gpu_are_those_on_a_cpu(shape: tuple[int, ...], reverse: bool) -> None:
    """The program for a GPU, whose kernel of coupled states runs on the host here, equals the scan of maps."""
    jax, primitive = pytest.importorskip("jax"), needed("minrnn_gen.jax.primitive")
    run_on_host = needed("minrnn_gen.jax.host").run_on_host
    random, axis, size = np.random.default_rng(0), len(shape) - 3, shape[-1]
    a = random.uniform(-0.3, 0.3, (*shape, size)).astype("f")
    b, y, dy = (random.normal(size=shape).astype("f") for _ in range(3))
    h0, dfinal = (random.normal(size=shape[:axis] + shape[axis + 1 :]).astype("f") for _ in range(2))
    keywords: dict[str, Any] = {"reverse": reverse, "axis": axis, "form": "full"}
    for asked, operands in (
        (request.Request("scan", (True,) * 3, **keywords), (a, b, h0)),
        (request.Request("scan_backward", (True,) * 2, **keywords), (a, h0, y, dy, dfinal)),
    ):
        with jax.enable_x64(False):
            found = primitive._lower_on_device(*map(jax.numpy.asarray, operands), request=asked)
            like = asked.results([request.Shaped.of(one) for one in operands])
        assert [request.Shaped.of(one) for one in found] == [*like]
        for one, expected in zip(found, run_on_host(asked, operands), strict=True):
            np.testing.assert_allclose(one, expected, rtol=0, atol=2 * np.finfo("f").eps * np.abs(expected).max())


def test_a_program_for_a_gpu_scans_full_maps_in_float64_without_x64(monkeypatch: pytest.MonkeyPatch) -> None:
    jax, front = pytest.importorskip("jax"), needed("minrnn_gen.jax")
    export, target = pytest.importorskip("jax.export"), needed("minrnn_gen.jax.target")

    def planned(site: Any) -> Any:
        results = site.request.results(site.operands)
        return SimpleNamespace(casts=(), results=results, workspace_bytes=0, backward=None)

    monkeypatch.setattr(target, "prepare", planned)
    a, b = np.zeros((3, 2, 2), "f"), np.ones((2, 9, 3, 2), "f")
    safe = [export.DisabledSafetyCheck.custom_call("minrnn_gen")]
    gradients = jax.grad(lambda *arrays: sum(one.sum() for one in front.scan(*arrays, form="full")), (0, 1))
    with jax.enable_x64(False):
        exported = export.export(jax.jit(gradients), platforms=["cuda"], disabled_checks=safe)(a, b)
    calls = [line for line in exported.mlir_module().splitlines() if "custom_call @minrnn_gen" in line]
    assert len(calls) == 2
    # Entries of the maps and b, along time for few channels.
    assert all("(tensor<2x6x3x9xf64>, tensor<2x3xf64>, tensor<2x3xf64>) ->" in line for line in calls)
    assert {one.dtype.name for one in exported.out_avals} == {"float32"}


def test_a_program_for_a_gpu_widens_a_filter_without_x64(monkeypatch: pytest.MonkeyPatch) -> None:
    jax, front = pytest.importorskip("jax"), needed("minrnn_gen.jax")
    export, target = pytest.importorskip("jax.export"), needed("minrnn_gen.jax.target")
    monkeypatch.setattr(target, "prepare", lambda site: device.device_call(site, 0))
    x, a, b, zi = (np.ones(shape, np.float32) for shape in ((2, 9), 3, 2, (2, 2)))
    safe = [export.DisabledSafetyCheck.custom_call("minrnn_gen")]
    gradients = jax.grad(lambda *arrays: sum(one.sum() for one in front.lfilter(*arrays)), (0, 1, 2, 3))
    with jax.enable_x64(False), numpy_as_cupy(host_kernel("min_gru", HIDDEN, "fp64")):
        exported = export.export(jax.jit(gradients), platforms=["cuda"], disabled_checks=safe)(x, a, b, zi)
    forward, backward = (line for line in exported.mlir_module().splitlines() if "custom_call @minrnn_gen" in line)
    assert "(tensor<2x1x9xf32>, tensor<1x3xf64>, tensor<1x3xf64>, tensor<2x1x2xf64>) ->" in forward
    assert "tensor<2x1x9xf32>, tensor<2x1x3x3xf64>, tensor<2x1x3x3xf64>, tensor<2x1x2xf64>" in backward.partition("->")[2]
    assert {one.dtype.name for one in exported.out_avals} == {"float32"}
