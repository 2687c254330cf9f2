"""A stand-in for a GPU: launches that read and write memory by the addresses and strides they are given.

Arguments are read by the names of the signatures; steps are computed one after the other, by plain loops. Arrays in host
memory pose as arrays on a device.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support import reference_loops
from support.fake_plan import plan_with

from minrnn_gen.call.array import as_numpy
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import AXES, ArrayNames
from minrnn_gen.gpu import cublas, device, graph
from minrnn_gen.gpu import memory as gpu_memory
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import ASSUMED_BATCH, ASSUMED_TIME, KernelKey, KernelPass, Sizes
from minrnn_gen.run.cuda import CudaBackend, KernelLoader
from minrnn_gen.run.executor import Executor

# Of a workspace, so much at either end.
EDGE_BYTES = 512
# Those for which every kernel here is planned.
ANY_SIZES = Sizes(ASSUMED_BATCH, ASSUMED_TIME)


def memory(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float64") -> Any:
    """View memory from `pointer` on; strides count elements."""
    if 0 in shape:
        return np.empty(shape, dtype)
    interface = {"data": (pointer, False), "shape": (1,), "typestr": np.dtype(dtype).str, "version": 3}
    start = np.asarray(SimpleNamespace(__array_interface__=interface))
    return as_strided(start, shape, tuple(stride * start.itemsize for stride in strides))


def set_bytes_on_host(_place: Any, address: int, size_bytes: int, value: int) -> None:
    """Do what `memory.set_bytes` enqueues."""
    memory(address, (size_bytes,), (1,), "uint8")[...] = value


def contiguous(pointer: int, *shape: int, dtype: str = "float64") -> Any:
    """View contiguous memory; null is zeros."""
    if not pointer:
        return np.zeros(shape, dtype)
    return memory(pointer, shape, tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))), dtype)


@dataclass
class LoadedOnHost:
    """The kernel of one pass and specialization of a cell, in float64."""

    kernel_pass: str
    cell: Any
    plan: Any

    def launch(self, _like: Any, blocks: int, _threads: int, arguments: tuple[Any, ...]) -> None:
        assert blocks > 0
        left = dict(zip(signature(self.plan, self.names).names, arguments, strict=True))
        batch, time = left.pop("batch"), left.pop("time")
        hidden, is_bdt = self.plan.problem.hidden_size, self.plan.problem.layout == "BDT"
        x_axes, y_axes = ("bgh", "bh") if is_bdt else ("btg", "bt")
        x_pointer, x_strides = left.pop("x"), self._strides(left, "x", x_axes)
        bias, parameters = self._vectors(left)
        initial = {name: contiguous(left.pop(f"initial_{name}"), batch, hidden) for name in self.cell.states}
        resets, resets_strides = 0, [0, 0]
        if self.plan.problem.specialization.resets:
            resets, resets_strides = left.pop("resets"), self._strides(left, "resets", "bt")
        begins = 0 if is_bdt else left.pop("begins")
        ends = left.pop("ends")
        pointers = {}
        if self.kernel_pass == "backward":
            pointers = {name: left.pop(f"saved_{name}") for name in self.cell.read_states}
        y_pointer = left.pop("y" if self.kernel_pass == "forward" else "dy")
        y_strides = self._strides(left, "y", y_axes)

        def rows(pointer: int, sequence: int, begin: int, end: int) -> Any:
            """One sequence of an array with the strides of y, as [1, T, H]."""
            by_batch, other = y_strides
            by_time, by_channel = (1, other) if is_bdt else (other, 1)
            start = pointer + 8 * (sequence * by_batch + begin * by_time)
            return memory(start, (1, end - begin, hidden), (0, by_time, by_channel))

        def gates(pointer: int, strides: list[int], sequence: int, begin: int, end: int) -> Any:
            """One sequence of an array with the axes of x, as [1, T, G, H]."""
            by_time, by_gate, by_channel = (1, *strides[1:]) if is_bdt else (*strides[1:], 1)
            start = pointer + 8 * (sequence * strides[0] + begin * by_time)
            return memory(start, (1, end - begin, len(self.cell.gates), hidden), (0, by_time, by_gate, by_channel))

        def problem(sequence: int) -> tuple[int, int, Any]:
            begin = int(contiguous(begins, batch, dtype="int64")[sequence])
            end = int(contiguous(ends, batch, dtype="int64")[sequence]) if ends else time
            marks = np.zeros((1, end - begin), bool)
            if self.plan.problem.specialization.resets:
                start = resets + sequence * resets_strides[0] + begin * resets_strides[1]
                marks = memory(start, marks.shape, (0, resets_strides[1]), "bool")
            its_initial = {name: one[sequence : sequence + 1] for name, one in initial.items()}
            x = gates(x_pointer, x_strides, sequence, begin, end)
            bounds = [(0, 0, end - begin)]
            its = reference_loops.Problem(
                self.cell.parsed, x, bias, parameters, its_initial, marks, bounds, self.plan.problem.specialization.reverse
            )
            return begin, end, its

        if self.kernel_pass == "forward":
            keeps = self.plan.problem.specialization.states_out != "none"
            kept = [left.pop(f"kept_{name}") for name in self.cell.states] if keeps else []
            final = [contiguous(left.pop(f"final_{name}"), batch, hidden) for name in self.cell.states]
            assert not left
            for sequence in range(batch):
                begin, end, its = problem(sequence)
                found = reference_loops.forward(its)
                rows(y_pointer, sequence, begin, end)[...] = found.y
                for pointer, name in zip(kept, self.cell.states, strict=False):
                    rows(pointer, sequence, begin, end)[...] = found.states[name]
                for last, name in zip(final, self.cell.states, strict=True):
                    last[sequence] = found.final[name][0]
            return
        dfinal = {name: contiguous(left.pop(f"dfinal_{name}"), batch, hidden) for name in self.cell.states}
        dx_pointer, dx_strides = left.pop("dx"), self._strides(left, "dx", x_axes)
        dinitial = [contiguous(left.pop(f"dinitial_{name}"), batch, hidden) for name in self.cell.states]
        sums_pointer = left.pop("sums")
        parts = self.plan.variables["cluster_blocks"]
        sums = contiguous(sums_pointer, parts, len(self.cell.gates) + len(self.cell.parameters), batch, hidden)
        assert not left
        for sequence in range(batch):
            begin, end, its = problem(sequence)
            found = reference_loops.forward(its)
            for name, pointer in pointers.items():
                expected = found.y if name == self.cell.output_state else found.states[name]
                np.testing.assert_allclose(rows(pointer, sequence, begin, end), expected, rtol=1e-11, atol=1e-11)
            its_final = {name: one[sequence : sequence + 1] for name, one in dfinal.items()}
            back = reference_loops.backward(its, found, rows(y_pointer, sequence, begin, end), its_final)
            gates(dx_pointer, dx_strides, sequence, begin, end)[...] = back["x"]
            for first, name in zip(dinitial, self.cell.states, strict=True):
                first[sequence] = back["state"][name][0]
            total = np.stack([*back["bias"], *(back["parameters"][name] for name in self.cell.parameters)])
            sums[:, :, sequence] = total / parts

    @property
    def names(self) -> ArrayNames:
        return ArrayNames(self.cell.states, self.cell.parameters, self.cell.read_states, self.cell.output_state)

    @staticmethod
    def _strides(left: dict[str, Any], name: str, axes: str) -> list[int]:
        return [left.pop(f"{name}_{AXES[axis]}_stride") for axis in axes]

    def _vectors(self, left: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The bias and the parameters, of which a mask says which are in float32."""
        hidden, gates = self.plan.problem.hidden_size, len(self.cell.gates)
        pointers = [left.pop(name) for name in ("bias", *(f"parameter_{name}" for name in self.cell.parameters))]
        mask = int(left.pop("float32_vectors"))
        shapes = [(gates, hidden), *((hidden,) for _ in self.cell.parameters)]
        found = [
            contiguous(pointer, *shape, dtype="float32" if mask >> bit & 1 else "float64").astype("float64")
            for bit, (pointer, shape) in enumerate(zip(pointers, shapes, strict=True))
        ]
        return found[0], dict(zip(self.cell.parameters, found[1:], strict=True))


class CublasOnHost:
    """The one product of cuBLAS that is used, of matrices in columns in float64, by addresses (cublasGemmStridedBatchedEx)."""

    def __init__(self) -> None:
        self._stream, self._mode, self._workspace = 0, 0, (0, 0)
        self.workspaces: list[bool] = []
        """Whether each product had a workspace of the call."""

    def cublasSetStream_v2(self, _handle: Any, stream: Any) -> int:
        self._stream, self._workspace = stream, (0, 0)
        return 0

    def cublasSetWorkspace_v2(self, _handle: Any, workspace: int, size_bytes: int) -> int:
        self._workspace = workspace, size_bytes
        return 0

    def cublasSetMathMode(self, _handle: Any, mode: int) -> int:
        self._mode = mode
        return 0

    def cublasGemmStridedBatchedEx(
        self, _handle: Any, turns_a: int, turns_b: int, m: int, n: int, k: int, alpha: Any, a: Any, a_type: int, lda: int,
        a_stride: Any, b: Any, b_type: int, ldb: int, b_stride: Any, beta: Any, c: Any, c_type: int, ldc: int, c_stride: Any,
        count: int, compute: int, _algorithm: int,
    ) -> int:  # fmt: skip
        assert (a_type, b_type, c_type, compute) == (1, 1, 1, 70)  # CUDA_R_64F, CUBLAS_COMPUTE_64F
        assert lda >= (k if turns_a else m) and ldb >= (n if turns_b else k) and ldc >= m
        assert (self._stream, self._mode) == (0, 16)
        start, size_bytes = self._workspace
        self.workspaces.append(bool(start))
        if start:  # which is anything afterwards; both ends will do
            set_bytes_on_host(None, start, EDGE_BYTES, 85)
            set_bytes_on_host(None, start + size_bytes - EDGE_BYTES, EDGE_BYTES, 85)
        scale, keep = alpha._obj.value, beta._obj.value
        for index in range(count):

            def columns(start: int, height: int, width: int, leading: int, stride: int, index: int = index) -> Any:
                return memory(start + 8 * index * stride, (height, width), (1, leading))

            left = columns(a, k, m, lda, a_stride).T if turns_a else columns(a, m, k, lda, a_stride)
            right = columns(b, n, k, ldb, b_stride).T if turns_b else columns(b, k, n, ldb, b_stride)
            to = columns(c, m, n, ldc, c_stride)
            # As the library: with beta 0, C is not read.
            to[...] = scale * left @ right + (keep * to if keep else 0)
        return 0


def plain_loops_for(kernel: Any) -> Callable[..., tuple[Any, Any]]:
    """Return what gives kernels by pass and specialization, with what is read of their plans."""
    lowered, spec = kernel.builder.lowered_backward, kernel.spec

    @functools.cache
    def load(key: KernelKey) -> tuple[Any, Any]:
        kernel_pass, specialization, _ = key
        plan = plan_with(
            entry=f"scan_{kernel_pass}",
            layout=spec.layout,
            hidden_size=spec.hidden_size,
            channels_per_block=32,
            specialization=specialization,
            threads=32,
            variables={"cluster_blocks": 2 if specialization.reverse else 1},
            strategy="channels",
            group_exchange_bytes=0,
            is_cooperative=False,
        )
        cell = SimpleNamespace(
            parsed=reference_loops.cell_named(spec.model),
            **{name: getattr(lowered, name) for name in ("gates", "states", "parameters", "read_states", "output_state")},
        )
        return LoadedOnHost(kernel_pass, cell, plan), plan

    return load


class GivenKernels:
    """Kernels that `load` gives by pass and specialization, in place of compiled ones; notes what is `launched`."""

    built: Mapping[KernelKey, Any] = {}
    gradient_kernels: Callable[[bool], Mapping[str, Any] | None] = staticmethod(lambda _waits: {})

    def __init__(self, load: Callable[..., tuple[Any, Any]]) -> None:
        self.loading = load
        self.launched: set[tuple[str, Specialization]] = set()

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        return KernelKey(kernel_pass, specialization, ANY_SIZES)

    choose_built = choose

    def plan(self, kernel: KernelKey) -> Any:
        return self.loading(kernel)[1]

    def load(self, kernel: KernelKey, part: str = "") -> tuple[Any, Any]:
        self.launched.add((kernel.kernel_pass, kernel.specialization))
        return self.loading(kernel, part) if part else self.loading(kernel)

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        """Build nothing."""


class HostBackend(CudaBackend):
    """Takes host arrays for arrays on a device."""

    def takes(self, _call: Any) -> bool:
        return True


def _copy_heads_first_on_host(copy: Callable[..., None], _device: int, *given: Any) -> None:
    copy(None, *given)


_EXECUTORS: weakref.WeakKeyDictionary[Any, tuple[Executor, GivenKernels]] = weakref.WeakKeyDictionary()


def executor_on(kernel: Any, kernels: KernelLoader) -> Executor:
    """Return what executes the calls of `kernel` with other kernels, and on host arrays."""
    return Executor(kernel.interface, kernel.builder, HostBackend(kernels))


@contextlib.contextmanager
def as_if_on_a_device(
    kernel: Any, load: Callable[..., tuple[Any, Any]] | None = None, executor: Executor | None = None
) -> Iterator[set[tuple[str, Specialization]]]:
    """Run the calls of `kernel` on host arrays as they would run on a device; yields what (pass, specialization) ran.

    `load` gives the kernels, with their plans; without it they are plain loops. What was recorded is kept
    from one block to the next, unless there is another `executor`.
    """
    loading = load or plain_loops_for(kernel)
    if kernel not in _EXECUTORS:
        kernels = GivenKernels(loading)
        _EXECUTORS[kernel] = executor_on(kernel, kernels), kernels
    known, kernels = _EXECUTORS[kernel]
    kernels.loading, kernels.launched = loading, set()
    numpy_as_cupy = SimpleNamespace(
        arange=np.arange,
        asarray=np.asarray,
        where=np.where,
        cuda=SimpleNamespace(Device=lambda _: contextlib.nullcontext()),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "executor", executor or known)
        patch.setattr(device, "cupy_module", lambda: numpy_as_cupy)
        patch.setattr(gpu_stream, "is_capturing", lambda _: False)
        patch.setattr(gpu_stream, "current_stream", lambda _: 0)
        patch.setattr(device, "on_device", lambda _: contextlib.nullcontext())
        patch.setattr(cublas, "handle", lambda: 1)
        patch.setattr(cublas, "_library", CublasOnHost)
        patch.setattr(gpu_memory, "read_back", as_numpy)
        patch.setattr(gpu_memory, "set_bytes", set_bytes_on_host)
        patch.setattr(graph, "copy_heads_first", partial(_copy_heads_first_on_host, graph.copy_heads_first))
        yield kernels.launched
