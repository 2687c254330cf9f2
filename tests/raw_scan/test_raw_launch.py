"""Launches of raw scans: kernels that see the caller's memory as batch, time and channels, here run by NumPy on the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.built_kernels import build_nothing
from support.examples import examples
from support.fake_plan import plan_with
from support.fake_torch import Tensor, as_arrays, as_tensors, torch_on_host

from minrnn_gen.build.target import Target
from minrnn_gen.call.array import Array, contiguous_strides, numpy_dtype
from minrnn_gen.call.key import keyed
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import AXES
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import stream
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.precision import Precision, precision_of
from minrnn_gen.raw_scan import arrangement, cpu, device, scan
from minrnn_gen.raw_scan.arguments import BackwardCall, Recurrence, ScanCall
from minrnn_gen.raw_scan.arrangement import arrangement_of
from minrnn_gen.raw_scan.kernels import ARRAY_NAMES, raw_builder
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.run.recording.replay import TraceCache


def on_device(values: Any, name: str = "array") -> Array:
    """Describe host memory as if it were a tensor's on a GPU."""
    strides = tuple(stride // values.itemsize for stride in values.strides)
    tensor = Tensor(values)
    return Array(name, "torch", tensor, tensor.data_ptr(), values.shape, strides, values.dtype.name, 0)


def on_host(array: Array) -> Array:
    return replace(array, library="numpy", owner=array.owner.values, device=None)


def moved_to_host(call: Any) -> Any:
    values = {each.name: getattr(call, each.name) for each in fields(call)}
    return replace(call, **{name: on_host(value) for name, value in values.items() if isinstance(value, Array)})


@dataclass(frozen=True)
class Memory:
    __array_interface__: dict[str, Any]


def memory(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """View memory through a pointer and strides in elements."""
    interface = {"data": (pointer, False), "shape": shape, "typestr": f"|V{dtype.itemsize}", "version": 3}
    return np.asarray(Memory(interface | {"strides": tuple(stride * dtype.itemsize for stride in strides)})).view(dtype)


@dataclass(frozen=True)
class NumpyKernel:
    """Both kernels of the raw cell, with the signatures that the scan templates have."""

    plan: Any
    kernel_pass: KernelPass
    precision: Precision
    log_a: bool

    def launch(self, like: Any, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        assert (like.device, threads) == (0, self.plan.launch.threads)
        names = signature(self.plan, ARRAY_NAMES).names  # type: ignore[arg-type]
        read = dict(zip(names, arguments, strict=True))
        x, strides = read.pop("x"), self.strides(read, "x", "bgh" if self.plan.problem.layout == "BDT" else "btg")
        bias, mask, initial, end = (read.pop(name) for name in ("bias", "float32_vectors", "initial_h", "ends"))
        begins = [] if self.plan.problem.layout == "BDT" else [read.pop("begins")]
        assert (bias, mask, begins, end) == (0, 0, [0] * len(begins), 0)
        assert isinstance(mask, np.uint32)
        row_strides = self.strides(read, "y", "bh" if self.plan.problem.layout == "BDT" else "bt")
        batch, time = read.pop("batch"), read.pop("time")
        assert blocks > 0
        if self.kernel_pass == "forward":
            y, final = read.pop("y"), read.pop("final_h")
            a, b = self.gates(x, strides, batch, time)
            state = self.state(initial, batch)
            rows = self.rows(y, row_strides, batch, time)
            for t in self.order(time):
                state = a[:, t] * state + b[:, t]
                rows[:, t] = state
            self.state(final, batch)[...] = state
        else:
            y, dy, dfinal, dx = (read.pop(name) for name in ("saved_h", "dy", "dfinal_h", "dx"))
            dx_strides = self.strides(read, "dx", "bgh" if self.plan.problem.layout == "BDT" else "btg")
            dinitial, sums = read.pop("dinitial_h"), read.pop("sums")
            assert sums == 0
            a, _ = self.gates(x, strides, batch, time)
            states, incoming = (self.rows(pointer, row_strides, batch, time) for pointer in (y, dy))
            da, db = self.gates(dx, dx_strides, batch, time, raw=True)
            arriving = self.state(dfinal, batch)
            order = list(self.order(time))
            for t, before in zip(reversed(order), [*reversed(order[:-1]), None], strict=False):
                delta = incoming[:, t] + arriving
                arriving = a[:, t].conj() * delta
                previous = self.state(initial, batch) if before is None else states[:, before]
                da[:, t] = delta * previous.conj() * (a[:, t] if self.log_a else 1)
                db[:, t] = delta
            self.state(dinitial, batch)[...] = arriving
        assert not read

    @staticmethod
    def strides(read: dict[str, Any], name: str, axes: str) -> list[int]:
        return [read.pop(f"{name}_{AXES[axis]}_stride") for axis in axes]

    def order(self, time: int) -> Iterator[int]:
        return iter(range(time - 1, -1, -1) if self.plan.problem.specialization.reverse else range(time))

    def gates(self, x: int, strides: list[int], batch: int, time: int, raw: bool = False) -> list[Any]:
        """The two gates as [batch, time, channels]."""
        dtype, channels = numpy_dtype(self.precision.storage_dtype), self.plan.problem.hidden_size
        if self.plan.problem.layout == "BDT":
            batch_stride, gate_stride, channel_stride = strides
            steps = (batch_stride, 1, channel_stride)
        else:
            batch_stride, time_stride, gate_stride = strides
            steps = (batch_stride, time_stride, 1)
        self.check_alignment(x, batch_stride if batch > 1 else 0, gate_stride)
        gates = [memory(x + g * gate_stride * dtype.itemsize, (batch, time, channels), steps, dtype) for g in range(2)]
        return [np.exp(gates[0]), gates[1]] if self.log_a and not raw else gates

    def rows(self, pointer: int, strides: list[int], batch: int, time: int) -> Any:
        steps = (strides[0], 1, strides[1]) if self.plan.problem.layout == "BDT" else (*strides, 1)
        shape = (batch, time, self.plan.problem.hidden_size)
        return memory(pointer, shape, steps, numpy_dtype(self.precision.storage_dtype))

    def state(self, pointer: int, batch: int) -> Any:
        shape, dtype = (batch, self.plan.problem.hidden_size), numpy_dtype(self.precision.arithmetic_dtype)
        return memory(pointer, shape, contiguous_strides(shape), dtype) if pointer else np.zeros(shape, dtype)

    def check_alignment(self, pointer: int, *strides: int) -> None:
        for offset in (pointer, *(stride * self.precision.storage_bytes for stride in strides)):
            assert offset % self.plan.problem.specialization.alignment_bytes == 0


@dataclass(frozen=True)
class NumpyKernels:
    """In the place of `CompiledKernels`; every kernel is built, and serves all sizes."""

    precision: Precision
    hidden_size: int
    layout: str
    log_a: bool

    @property
    def built(self) -> Any:
        return self

    def __contains__(self, _key: KernelKey) -> bool:
        return True

    @staticmethod
    def choose(kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        assert sizes.batch > 0
        return KernelKey(kernel_pass, specialization, sizes)

    def load(self, key: KernelKey, _part: str = "") -> tuple[NumpyKernel, Any]:
        plan = plan_with(
            entry=f"scan_{key.kernel_pass}",
            layout=self.layout,
            hidden_size=self.hidden_size,
            specialization=key.specialization,
            threads=32,
            channels_per_block=8,
            variables={},
            strategy="channels",
            group_exchange_bytes=0,
            is_cooperative=False,
        )
        return NumpyKernel(plan, key.kernel_pass, self.precision, self.log_a), plan


@pytest.fixture
def numpy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of at most 6 channels, which want to be at least 4, run on the host."""

    def kernels(precision: str, hidden_size: int, layout: str, log_a: bool, device: int) -> NumpyKernels:
        assert device == 0 and 1 <= hidden_size <= 6
        return NumpyKernels(precision_of(precision), hidden_size, layout, log_a)

    monkeypatch.setattr(device, "raw_kernels", kernels)
    for name in ("SCANS", "BACKWARDS"):
        monkeypatch.setattr(scan, name, TraceCache())
    monkeypatch.setattr(arrangement, "SIZE_LIMIT", 6)
    monkeypatch.setattr(arrangement, "CHANNELS_WANTED", 4)


def strided(random: np.random.Generator, values: Any) -> Any:
    """Return equal values in one of the forms that callers have: part of a larger array, permuted, flipped, repeated."""
    kind = random.integers(5)
    if kind == 0 or not values.size or not values.ndim:
        return values
    if kind == 1:  # beside other features, as the halves of one projection
        whole = np.zeros((*values.shape[:-1], 2, values.shape[-1]), values.dtype)
        whole[..., 1, :] = values
        return whole[..., 1, :]
    if kind == 2:
        return np.ascontiguousarray(values[::-1])[::-1]
    if kind == 3:
        return np.broadcast_to(values[:1], values.shape)
    order = random.permutation(values.ndim)
    return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))


@st.composite
def recurrences(draw: Any) -> Recurrence:
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 4, 5)), min_size=1, max_size=5)))
    precision = precision_of(draw(st.sampled_from(("fp64", "complex128"))))
    log_a = precision.name == "fp64" and draw(st.booleans())
    return Recurrence(shape, draw(st.integers(0, len(shape) - 1)), precision, log_a, draw(st.booleans()))


def drawn(random: np.random.Generator, recurrence: Recurrence, shape: tuple[int, ...]) -> Any:
    values = random.uniform(-1, 1, shape)
    if recurrence.precision.name == "complex128":
        values = values + 1j * random.uniform(-1, 1, shape)
    return np.asarray(values)


def empty(recurrence: Recurrence, *shapes: tuple[int, ...]) -> list[Array]:
    return [on_device(np.full(shape, np.nan, numpy_dtype(recurrence.precision.storage_dtype))) for shape in shapes]


def assert_equal(found: list[Array], expected: list[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(one.owner.values, other.owner.values, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("numpy_kernels")
@given(recurrences(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_launches_do_what_the_host_does(recurrence: Recurrence, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape, state_shape = recurrence.shape, recurrence.state_shape
    a, b, y, dy = (on_device(strided(random, drawn(random, recurrence, shape))) for _ in range(4))
    h0, dfinal = (
        on_device(strided(random, drawn(random, recurrence, state_shape))) if random.integers(2) else None for _ in range(2)
    )

    found, expected = empty(recurrence, shape, state_shape), empty(recurrence, shape, state_shape)
    call = ScanCall(recurrence, a, b, h0)
    with torch_on_host():
        recorder = device.recorder_for(recurrence, call.a, None)
        device.run_scan(call, found[0], found[1], recorder)
        recorder.finish(scan.ScanResult(found[0], found[1]), None)
    cpu.run_scan(moved_to_host(call), *map(on_host, expected))
    assert_equal(found, expected)

    found, expected = empty(recurrence, shape, shape, state_shape), empty(recurrence, shape, shape, state_shape)
    backward = BackwardCall(recurrence, a, y, dy, h0, dfinal)
    with torch_on_host():
        recorder = device.recorder_for(recurrence, backward.a, None)
        device.run_scan_backward(backward, found[0], found[1], found[2], recorder)
        recorder.finish(scan.ScanGradients(found[0], found[1], found[2]), None)
    cpu.run_scan_backward(moved_to_host(backward), *map(on_host, expected))
    assert_equal(found, expected)


@pytest.mark.usefixtures("numpy_kernels")
@given(recurrences(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scans_of_one_key_do_what_the_host_does(recurrence: Recurrence, seed: int, has_state: bool) -> None:
    how = {"log_a": recurrence.log_a, "reverse": recurrence.reverse, "axis": recurrence.axis}
    for again in range(3):
        form, random = np.random.default_rng(seed), np.random.default_rng([seed, again])
        apart = np.empty(16 * again)  # so that a and b are not equally far from each other every time
        a, b, dy = (strided(form, drawn(random, recurrence, recurrence.shape)) for _ in range(3))
        states = [drawn(random, recurrence, recurrence.state_shape) if has_state else None for _ in range(2)]
        expected = scan.scan(a, b, states[0], **how)
        expected += scan.scan_backward(a, expected[0], dy, *states, **how)
        with torch_on_host():
            found = scan.scan(Tensor(a), Tensor(b), as_tensors(states[0]), **how)
            found += scan.scan_backward(Tensor(a), found[0], Tensor(dy), *map(as_tensors, states), **how)
        del apart
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(as_arrays(one), other, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("numpy_kernels")
def test_what_equals_a_flag_or_an_axis_is_not_taken_for_one() -> None:
    values = np.ones((2, 3, 2))
    with torch_on_host():
        for _ in range(2):
            scan.scan(Tensor(values), Tensor(values), axis=1)
        assert len(scan.SCANS) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "check_scan", lambda *_, **__: pytest.fail("it was looked at again"))
            scan.scan(Tensor(values), Tensor(values), axis=1)
        for wrong in ({"axis": 1.0}, {"log_a": 0}, {"reverse": 0}, {"axis": [1]}):
            with pytest.raises(BadInput):
                scan.scan(Tensor(values), Tensor(values), **wrong)


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((8, 2048, 1536), 1, ("BTD", 1, 8, 1536)),
        ((8, 1536, 2048), 2, ("BDT", 1, 8 * 1536, 1)),
        ((2048,), 0, ("BDT", 1, 1, 1)),
        ((2048, 8, 1536), 0, ("BTD", 1, 8, 1536)),  # the kernel does not change with the batch
        ((2048, 8, 12, 64), 0, ("BTD", 1, 8, 768)),  # heads are merged until a warp is full
        ((2048, 3, 4), 0, ("BTD", 1, 1, 12)),
        ((4, 16, 96, 256, 256), 1, ("BTD", 4, 96 * 256, 256)),  # more channels than a spec may have
        ((16, 3 * 2**20), 0, ("BTD", 1, 3, 2**20)),
        ((8, 2048, 1), 1, ("BDT", 1, 8, 1)),
    ],
)
def test_what_a_kernel_sees(shape: tuple[int, ...], axis: int, expected: tuple[str, int, int, int]) -> None:
    seen = arrangement_of(Recurrence(shape, axis, precision_of("fp32"), False, False))
    assert (seen.layout, seen.launches, seen.batch, seen.hidden_size) == expected
    assert seen.launches * seen.batch * seen.time * seen.hidden_size == math.prod(shape)


def test_an_array_that_fits_is_not_copied() -> None:
    """Two halves of one projection, each with the strides of the whole."""
    whole = np.zeros((2, 5, 2, 8), np.float32)
    recurrence = Recurrence((2, 5, 8), 1, precision_of("fp32"), False, False)
    halves = [on_device(whole[:, :, index]) for index in range(2)]
    rows = arrangement_of(recurrence).rows(recurrence, lambda _: pytest.fail("it was copied"), *halves)
    assert [row.pointer for row in rows] == [half.pointer for half in halves]
    assert {row.strides for row in rows} == {(0, 80, 16, 1)}


@pytest.mark.parametrize("where", ["in a capture", "by the environment", "else"])
def test_few_kernels_serve_all_sizes_where_nothing_is_to_be_compiled(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """While a stream is captured, and where the environment says so, the kernel that is there; and that run is not replayed."""
    built = build_nothing(monkeypatch)
    if where == "by the environment":
        monkeypatch.setenv("MINRNN_SPECIALIZE", "never")
    target = Target(load_profile("h200"), profile_bytes("h200"), "spec")
    kernels = CompiledKernels(raw_builder("fp32", 64, "BTD", log_a=False, target=target), ())
    monkeypatch.setattr(device, "raw_kernels", lambda *_: kernels)
    monkeypatch.setattr(stream, "is_capturing", lambda _: where == "in a capture" and bool(built))
    kept = []
    for time in (1, 4000):
        a = on_device(np.ones((1, time, 64), np.float32))
        recurrence = Recurrence(a.shape, 1, precision_of("fp32"), log_a=False, reverse=False)
        with torch_on_host():
            recorder = device.recorder_for(recurrence, a, keyed("test", [a.owner]))
            y, final = recorder.new_array(a.shape, "float32"), recorder.new_array((1, 64), "float32")
            slotted = a.with_slot(0)
            device.run_scan(ScanCall(recurrence, slotted, slotted, None), y, final, recorder)
            kept.append(recorder.finish(scan.ScanResult(y, final), None).replay is not None)
    assert len(built) == (2 if where == "else" else 1)
    assert kept == [True, where != "in a capture"]
