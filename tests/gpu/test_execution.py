"""How a kernel behaves on a device: streams, graphs, memory, repeatability, cutting a sequence, and other libraries."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy
import pytest
from support.device_arrays import X_AXES, Y_AXES, from_time_major, same_bits, time_major
from support.oracle import RAW_CELL

import minrnn_gen
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.hinted import HintedBuilder
from minrnn_gen.errors import BadInput, PromiseBroken
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.plan.size_classes import KERNELS_MOST
from minrnn_gen.plan.solver import Solution

pytestmark = pytest.mark.gpu

LAYOUTS = ("BTD", "TBD", "BDT")
# Of each problem, from the best predicted to the worst; each takes a second to compile.
CANDIDATES_TRIED = 10


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
@pytest.mark.parametrize("sizes", ((0, 5), (4, 0), (0, 0)))
def test_empty_batches_and_sequences(
    cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, sizes: tuple[int, int]
) -> None:
    kernel = compiled(model="min_gru", hidden_size=24, precision="fp32", layout=layout)
    batch, time = sizes
    initial = cupy.arange(batch * 24, dtype=numpy.float32).reshape(batch, 24)
    y, state = kernel(gates_for(cupy, kernel, batch, time), state={"h": initial})
    assert y.size == 0 and same_bits(state["h"], initial)


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


def test_more_than_two_to_the_31_elements(cupy: ModuleType, compiled: Callable[..., Kernel]) -> None:
    """Every element, of both passes: sums of at most 128 integers, which bfloat16 has exactly. One layout after the other."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 40 << 30:
        pytest.skip("needs 40 GiB of device memory")
    batch, hidden, period = 2, 1024, 4096
    time = 2**20 + 8
    assert batch * time * hidden > 2**31
    generator = cupy.random.default_rng(0)
    b, dy = (generator.integers(-1, 2, (period, batch, hidden)).astype(numpy.float32) for _ in range(2))
    a = cupy.ones((period, 1, 1), numpy.float32)
    a[::128] = 0  # forgets, so that sums stay small and all periods are alike

    def summed(steps: Any) -> Any:
        return cupy.cumsum(steps.reshape(-1, min(128, len(steps)), batch, hidden), axis=1).reshape(steps.shape)

    h = summed(b)
    stored = [one.astype(ml_dtypes.bfloat16) for one in (a, b, dy)]
    for layout in LAYOUTS:
        kernel = compiled(model=RAW_CELL, hidden_size=hidden, precision="bf16", layout=layout, batch=batch, time=time)
        axes = {"BTD": (1, 0, 2, 3), "TBD": (0, 1, 2, 3), "BDT": (1, 2, 3, 0)}[layout]
        x = cupy.empty(tuple((time, batch, 2, hidden)[axis] for axis in axes), ml_dtypes.bfloat16)
        incoming = cupy.empty(kernel.interface.y_shape(batch, time), ml_dtypes.bfloat16)
        for start in range(0, time, period):
            part, dy_part = (
                time_major(x, layout, X_AXES)[start : start + period],
                time_major(incoming, layout, Y_AXES)[start : start + period],
            )
            part[:, :, 0] = stored[0][: len(part)]
            part[:, :, 1] = stored[1][: len(part)]
            dy_part[...] = stored[2][: len(part)]
        y, state, saved = kernel.forward(x)
        found = kernel.backward(saved, incoming)
        assert bool((state["h"] == h[(time - 1) % period]).all())
        for start in range(0, time, period):
            rows = slice(start, min(start + period, time))
            count = rows.stop - rows.start
            delta = summed(dy[:count][::-1])[::-1]
            before = cupy.concatenate([h[-1:] if start else 0 * h[:1], h[: count - 1]])
            gradients = time_major(found["x"], layout, X_AXES)[rows].astype(numpy.float32)
            assert bool((time_major(y, layout, Y_AXES)[rows].astype(numpy.float32) == h[:count]).all()), (layout, start)
            assert bool((gradients[:, :, 1] == delta).all()), (layout, start)
            rounded = (delta * before).astype(ml_dtypes.bfloat16).astype(numpy.float32)
            assert bool((gradients[:, :, 0] == rounded).all()), (layout, start)
        saved.release()
        del x, incoming, part, dy_part, y, saved, found, gradients
        cupy.get_default_memory_pool().free_all_blocks()


def first_that_keeps_its_promise(builder: Builder, solution: Solution, rank: int) -> BuiltKernel:
    """Compile the candidate at `rank`, or the next one where it takes more than was promised."""
    for candidate in range(rank, len(solution.candidates)):
        with contextlib.suppress(PromiseBroken):
            return builder.build_candidate(solution, candidate)
    return builder.build_candidate(solution, 0)


@pytest.mark.parametrize("layout", ("BTD", "BDT"))
@pytest.mark.parametrize("batch", (2, 1024))
def test_candidates_of_a_problem_agree(cupy: ModuleType, compiled: Callable[..., Kernel], layout: str, batch: int) -> None:
    """Not only the chosen plan: a spread over all feasible ones of both passes, for an odd length."""
    kernel = compiled(model=RAW_CELL, hidden_size=96, precision="fp32", layout=layout)
    x = gates_for(cupy, kernel, 2, 1001)
    x *= 0.7
    y, state, saved = kernel.forward(x)
    expected = kernel.backward(saved, y)
    builder = HintedBuilder(kernel.spec, kernel.builder.target, kernel.builder.store)
    called = replace(builder.hinted_specialization, alignment_bytes=16 if layout == "BTD" else 4)
    # Ranked for few channels and for many: the kernels of either serve these sizes too.
    passes: tuple[KernelPass, ...] = ("forward", "backward")
    solutions = [builder.solve(builder.key_of(kernel_pass, called, Sizes(batch, 1001))) for kernel_pass in passes]
    batch_planned, time_planned = builder.hinted_sizes
    for turn in range(CANDIDATES_TRIED):
        ranks = [turn * (len(solution.candidates) - 1) // (CANDIDATES_TRIED - 1) for solution in solutions]
        built = [first_that_keeps_its_promise(builder, *one) for one in zip(solutions, ranks, strict=True)]
        sizes = {"batch": batch_planned, "time": time_planned}
        plans = [replace(one.plan, problem=replace(one.plan.problem, **sizes)) for one in built]
        other = minrnn_gen.Kernel(builder, tuple(replace(one, plan=plan) for one, plan in zip(built, plans, strict=True)))
        chosen = [dict(one.plan.variables) for one in built]
        its_y, its_state, its_saved = other.forward(x)
        found = other.backward(its_saved, y)
        for one, wanted, variables in (
            (its_y, y, chosen[0]),
            (its_state["h"], state["h"], chosen[0]),
            (found["x"], expected["x"], chosen[1]),
            (found["state"]["h"], expected["state"]["h"], chosen[1]),
        ):
            # Sums whose terms cancel are as wrong as their terms: against the largest.
            assert float(abs(one - wanted).max()) <= 2.0**-19 * float(abs(wanted).max()), variables
        assert len(other.plans) == 2, "another kernel ran"


def test_other_sizes_and_alignments_compile_once_per_specialization(cupy: ModuleType) -> None:
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 64, "precision": "fp32", "layout": "BDT"})
    generator = numpy.random.default_rng(3)
    for _ in range(60):
        batch, time = (int(generator.integers(1, 9)), int(generator.integers(1, 300)))
        kernel(cupy.zeros((batch, 2, 64, time), numpy.float32))
    # Rows of fp32 are aligned to 4, 8 or 16 bytes; the step kernel is the one more.
    assert len(kernel.plans) <= 3 * KERNELS_MOST + 1
