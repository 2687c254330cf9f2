"""How a kernel behaves on a device: streams, graphs, memory, repeatability, cutting a sequence, and other libraries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy
import pytest
from device_arrays import Y_AXES, from_time_major, same_bits, time_major
from oracle import RAW_CELL

import minrnn_gen
from minrnn_gen.build import Builder
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

pytestmark = pytest.mark.gpu

LAYOUTS = ("BTD", "TBD", "BDT")


def gates_for(cupy: ModuleType, kernel: Kernel, batch: int, time: int, seed: int = 0) -> Any:
    """Random x of a kernel in its layout and precision."""
    generator = numpy.random.default_rng(seed)
    shape = (time, batch, len(kernel.gates), kernel.spec.hidden_size)
    values = generator.standard_normal(shape, dtype=numpy.float32)
    dtype = (
        ml_dtypes.bfloat16 if kernel.spec.precision == "bf16" else {"fp32": "float32", "fp64": "float64"}[kernel.spec.precision]
    )
    return from_time_major(cupy, cupy.asarray(values.astype(dtype)), kernel.spec.layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_runs_are_bitwise_repeatable(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, precision: str) -> None:
    kernel = compiled(model="min_lstm", hidden_size=200, precision=precision, layout=layout)
    x = gates_for(cupy, kernel, 3, 1111)
    first, first_state = kernel(x)
    for _ in range(20):
        again, state = kernel(x)
        assert same_bits(again, first) and same_bits(state["h"], first_state["h"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_at_a_tile_boundary_changes_no_bit(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str) -> None:
    kernel = compiled(model="min_gru", hidden_size=128, precision="fp32", layout=layout)
    # Every tile is a power of two of at most 4096 steps: 16 warps, 4 segments each, 32 rows, or 32 lanes of 16 steps.
    cut, time = 4096, 6001
    x = gates_for(cupy, kernel, 2, time)
    whole, end = kernel(x)
    axis = layout.index("T") if layout != "BDT" else 3
    head = cupy.ascontiguousarray(cupy.take(x, cupy.arange(cut), axis=axis))
    tail = cupy.ascontiguousarray(cupy.take(x, cupy.arange(cut, time), axis=axis))
    first, middle = kernel(head)
    second, last = kernel(tail, state=middle)
    joined = cupy.concatenate([time_major(first, layout, Y_AXES), time_major(second, layout, Y_AXES)])
    # BDT rows of 6001 and of 4096 steps differ in alignment, so that other kernels may run: equal within rounding only.
    if layout == "BDT":
        assert bool(cupy.allclose(joined, time_major(whole, layout, Y_AXES), rtol=0, atol=2.0**-20))
        return
    assert same_bits(cupy.ascontiguousarray(joined), cupy.ascontiguousarray(time_major(whole, layout, Y_AXES)))
    assert same_bits(last["h"], end["h"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_in_one_sequence_stays_there(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str) -> None:
    kernel = compiled(model="min_gru", hidden_size=72, precision="fp32", layout=layout)
    x = gates_for(cupy, kernel, 3, 300)
    clean, clean_state = kernel(x)
    batch_axis = layout.index("B")
    poisoned = x.copy()
    index: list[Any] = [slice(None)] * 4
    index[batch_axis] = 1
    poisoned[tuple(index)] = numpy.nan
    y, state = kernel(poisoned)
    keep = [0, 2]
    assert same_bits(cupy.ascontiguousarray(y.take(cupy.asarray(keep), axis=batch_axis)),
                     cupy.ascontiguousarray(clean.take(cupy.asarray(keep), axis=batch_axis)))  # fmt: skip
    assert same_bits(state["h"][keep], clean_state["h"][keep])
    assert bool(cupy.isnan(state["h"][1]).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", ((0, 5), (4, 0), (0, 0)))
def test_empty_batches_and_sequences(
    cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, sizes: tuple[int, int]
) -> None:
    kernel = compiled(model="min_gru", hidden_size=24, precision="fp32", layout=layout)
    batch, time = sizes
    initial = cupy.arange(batch * 24, dtype=numpy.float32).reshape(batch, 24)
    y, state = kernel(gates_for(cupy, kernel, batch, time), state={"h": initial})
    assert y.size == 0 and same_bits(state["h"], initial)


def test_the_callers_stream_is_used(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    kernel = compiled(model="min_gru", hidden_size=512, precision="fp32")
    x = gates_for(cupy, kernel, 4, 2000)
    expected, _ = kernel(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    late = cupy.empty_like(x)
    filler = cupy.random.standard_normal((4096, 4096), dtype=numpy.float32)
    with stream:
        for _ in range(20):
            filler = filler @ filler * 1e-3  # keeps the stream busy, so that a launch elsewhere would read `late` too early
        late[...] = x
        y, _ = kernel(late)
    stream.synchronize()
    assert same_bits(y, expected)


def test_a_thread_of_its_own_repeats_a_call_on_its_own_arrays(compiled: Callable[..., Kernel]) -> None:
    """The thread has no context of CUDA's yet, and the call is not looked at again."""
    torch = pytest.importorskip("torch")
    kernel = compiled(model="min_gru", hidden_size=256, precision="bf16")
    x, other = (torch.randn(4, 500, 2, 256, device="cuda").bfloat16() for _ in range(2))
    found = []
    for _ in range(2):
        kernel(x)
    thread = threading.Thread(target=lambda: found.append(kernel(other)))
    thread.start()
    thread.join()
    expected, final = minrnn_gen.compile(kernel.spec)(other)
    torch.cuda.synchronize()
    ((y, state),) = found
    assert torch.equal(y, expected) and torch.equal(state["h"], final["h"])


def test_a_torch_cuda_graph_replays_the_kernel(compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(model="min_gru", hidden_size=256, precision="bf16")
    x = torch.randn(4, 500, 2, 256, device="cuda").bfloat16()
    state = {"h": torch.randn(4, 256, device="cuda")}
    kernel(x, state=state)  # loads the module outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, final = kernel(x, state=state)
    x.copy_(torch.randn(4, 500, 2, 256, device="cuda").bfloat16())
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    expected, expected_final = kernel(x, state=state)
    assert torch.equal(y, expected) and torch.equal(final["h"], expected_final["h"])


def test_decoding_steps_in_a_torch_cuda_graph(compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(model="min_gru", hidden_size=256, precision="fp32")
    x = torch.randn(16, 4, 2, 256, device="cuda")
    kernel.step(x[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs, state = [], None
        for t in range(16):
            y_t, state = kernel.step(x[t], state=state)
            outputs.append(y_t)
    graph.replay()
    torch.cuda.synchronize()
    whole, _ = kernel(x.transpose(0, 1).contiguous())
    assert torch.allclose(torch.stack(outputs, 1), whole, rtol=0, atol=2.0**-20)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_torch_tensors_come_back_as_torch_tensors(compiled: Callable[..., Kernel], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    precision = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[dtype]
    kernel = compiled(model="min_gru", hidden_size=64, precision=precision)
    x = torch.randn(2, 50, 2, 64, device="cuda").to(getattr(torch, dtype))
    y, state = kernel(x)
    on_host, host_state = kernel(x.cpu())
    assert y.dtype == x.dtype and y.device == x.device and state["h"].dtype == torch.float32
    assert on_host.dtype == x.dtype and on_host.device.type == "cpu"
    # Two roundings of the storage may fall to different sides.
    ulp = {"float32": 2.0**-20, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    assert torch.allclose(y.cpu().float(), on_host.float(), rtol=ulp, atol=ulp)
    assert torch.allclose(state["h"].cpu(), host_state["h"], rtol=0, atol=2.0**-19)


def test_a_tensor_that_requires_grad_is_refused(compiled: Callable[..., Kernel]) -> None:
    torch = pytest.importorskip("torch")
    kernel = compiled(model="min_gru", hidden_size=64, precision="fp32")
    x = torch.randn(2, 5, 2, 64, device="cuda", requires_grad=True)
    with pytest.raises(BadInput, match=r"x requires grad.*torch\.no_grad"):
        kernel(x)
    with torch.no_grad():
        kernel(x)


def test_arrays_on_different_devices_are_refused(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    kernel = compiled(model="min_gru", hidden_size=64, precision="fp32")
    x = gates_for(cupy, kernel, 2, 5)
    with pytest.raises(BadInput, match="host memory"):
        kernel(x, state={"h": numpy.zeros((2, 64), numpy.float32)})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_misaligned_and_strided_inputs(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, precision: str) -> None:
    kernel = compiled(model="min_gru", hidden_size=64, precision=precision, layout=layout)
    x = gates_for(cupy, kernel, 3, 128)
    expected, _ = kernel(x)
    for offset in (1, 2, 3, 4):
        room = cupy.empty(x.size + offset, x.dtype)
        shifted = room[offset:].reshape(x.shape)
        shifted[...] = x
        y, _ = kernel(shifted)
        # Other alignments run other kernels, with other tiles: equal within rounding.
        tolerance = 2.0**-20 if precision == "fp32" else 2.0**-7
        assert bool(cupy.allclose(y.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=tolerance))
    wide = cupy.empty((*x.shape[:2], x.shape[2] + 1, x.shape[3]), x.dtype)
    wide[:, :, : x.shape[2]] = x
    y, _ = kernel(wide[:, :, : x.shape[2]])
    assert same_bits(y, expected)
    transposed = cupy.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3)
    with pytest.raises(BadInput, match="stride"):
        kernel(transposed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ("fp32", "bf16", "fp64"))
def test_the_projection_is_a_matrix_product(
    cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, precision: str
) -> None:
    kernel = compiled(model="min_gru", hidden_size=48, precision=precision, layout=layout, input_size=40)
    plain = compiled(model="min_gru", hidden_size=48, precision=precision, layout=layout)
    generator = numpy.random.default_rng(5)
    dtype = ml_dtypes.bfloat16 if precision == "bf16" else {"fp32": "float32", "fp64": "float64"}[precision]
    batch, time = 3, 70
    x = generator.standard_normal((time, batch, 40)).astype(dtype)
    weight = (generator.standard_normal((2 * 48, 40)) / 40**0.5).astype(dtype)
    bias = generator.standard_normal((2, 48)).astype(dtype)
    product = (x.astype("float64") @ weight.astype("float64").T).astype(dtype).reshape(time, batch, 2, 48)
    order = {"BTD": (1, 0, 2), "TBD": (0, 1, 2), "BDT": (1, 2, 0)}[layout]
    laid_out = cupy.ascontiguousarray(cupy.asarray(x).transpose(order))
    y, state = kernel(laid_out, weight=cupy.asarray(weight), bias=cupy.asarray(bias))
    expected, expected_state = plain(from_time_major(cupy, cupy.asarray(product), layout), bias=cupy.asarray(bias))
    tolerance = {"fp32": 2.0**-18, "bf16": 2.0**-5, "fp64": 2.0**-44}[precision]
    assert bool(cupy.allclose(y.astype("float64"), expected.astype("float64"), rtol=tolerance, atol=tolerance))
    assert bool(cupy.allclose(state["h"], expected_state["h"], rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_than_two_to_the_31_elements(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str) -> None:
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 30 << 30:
        pytest.skip("needs 30 GiB of device memory")
    batch, hidden = 2, 1024
    time = 2**20 + 8
    kernel = compiled(model="min_gru", hidden_size=hidden, precision="bf16", layout=layout, batch=batch, time=time)
    assert batch * time * hidden > 2**31
    block = cupy.random.standard_normal((4096, batch, 2, hidden), dtype=numpy.float32).astype(ml_dtypes.bfloat16)
    axes = {"BTD": (1, 0, 2, 3), "TBD": (0, 1, 2, 3), "BDT": (1, 2, 3, 0)}[layout]
    shape = tuple((time, batch, 2, hidden)[axis] for axis in axes)
    x = cupy.empty(shape, ml_dtypes.bfloat16)
    by_time = x.transpose([axes.index(axis) for axis in range(4)])
    for start in range(0, time, 4096):
        part = by_time[start : start + 4096]
        part[...] = block[: part.shape[0]]
    y, state = kernel(x)
    # The gates of min_gru forget within a few hundred steps: the end of y follows from the last 4096 + 8 steps alone.
    tail_time = 4096 + 8
    tail = from_time_major(cupy, cupy.ascontiguousarray(by_time[-tail_time:]), layout)
    tail_y, tail_state = kernel(tail)
    got = time_major(y, layout, Y_AXES)[-4096:].astype(numpy.float32)
    expected = time_major(tail_y, layout, Y_AXES)[-4096:].astype(numpy.float32)
    assert bool(cupy.allclose(got[1024:], expected[1024:], rtol=2.0**-7, atol=2.0**-7))
    assert bool(cupy.allclose(state["h"], tail_state["h"], rtol=0, atol=2.0**-18))
    del x, y, by_time, part
    cupy.get_default_memory_pool().free_all_blocks()


def test_every_candidate_of_a_problem_is_right(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    """Not only the chosen plan: a spread over all feasible ones, for two layouts and an odd length."""
    for layout in ("BTD", "BDT"):
        kernel = compiled(model=RAW_CELL, hidden_size=96, precision="fp32", layout=layout)
        x = gates_for(cupy, kernel, 2, 1001)
        x *= 0.7
        expected, expected_state = kernel(x)
        regime = next(regime for kernel_pass, regime in kernel.plans if kernel_pass == "forward")
        builder: Builder = kernel._builder
        solution = builder.solve("forward", regime)
        step = max(1, len(solution.candidates) // 24)
        for rank in range(0, len(solution.candidates), step):
            other = minrnn_gen.Kernel(builder, (builder.build_candidate(solution, rank), *kernel.built[1:]))
            y, state = other(x)
            assert bool(cupy.allclose(y, expected, rtol=0, atol=2.0**-18)), dict(solution.candidates[rank])
            assert bool(cupy.allclose(state["h"], expected_state["h"], rtol=0, atol=2.0**-18))


def test_other_sizes_and_alignments_compile_once_per_regime(cupy: ModuleType) -> None:
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 64, "precision": "fp32", "layout": "BDT"})
    generator = numpy.random.default_rng(3)
    for _ in range(60):
        batch, time = (int(generator.integers(1, 9)), int(generator.integers(1, 300)))
        kernel(cupy.zeros((batch, 2, 64, time), numpy.float32))
    # Rows of fp32 are aligned to 4, 8 or 16 bytes, sequences short or not, channels few; the step kernel is the one more.
    assert len(kernel.plans) <= 3 * 2 + 1
