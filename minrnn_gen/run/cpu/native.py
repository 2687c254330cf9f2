"""Native code of one builder: the choice of code for a kernel, its generation, and calls in its form."""

from __future__ import annotations

import logging
import operator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.cpu_kernel import CpuKernel, cpu_kernel, why_no_native_code
from minrnn_gen.build.recipe import cell_source_of
from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.cell.analysis import Recurrence
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.lowering_logarithms import lower_steps_in_logarithms
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.codegen.cpu_source import CpuPass, CpuPlan, NativePlan
from minrnn_gen.codegen.cpu_vectors import CpuVectorsPlan
from minrnn_gen.config.environment import thread_count
from minrnn_gen.config.spec import Spec
from minrnn_gen.errors import CompileFailed, ToolchainMissing
from minrnn_gen.precision import Precision, precision_of
from minrnn_gen.run.cpu.threads import Schedule, schedule
from minrnn_gen.run.cpu.trace import NativeRecorder

LOG = logging.getLogger("minrnn_gen")
_PASSES: tuple[CpuPass, ...] = ("forward", "backward")


@dataclass(frozen=True)
class NativeKernels:
    """The native kernels of one builder, each compiled when it is first needed; may be used from several threads."""

    interface: Interface
    builder: Builder

    @cached_property
    def why_not(self) -> str:
        """Why host arrays of this kernel run in NumPy, as a part of a sentence; nothing where they run native code."""
        return self._refusal or (self._forward if isinstance(self._forward, str) else "")

    @property
    def is_expected(self) -> bool:
        """Whether host arrays will run native code, as far as is known without compiling it."""
        return not self._refusal

    @property
    def forward(self) -> CpuKernel | None:
        """The forward, None where NumPy serves."""
        return None if self._refusal or isinstance(self._forward, str) else self._forward

    @property
    def backward(self) -> CpuKernel | None:
        """The backward of `forward`, None where NumPy serves."""
        return None if self.forward is None or isinstance(self._backward, str) else self._backward

    @property
    def writes_products(self) -> bool:
        """Whether a forward that saves keeps the products with R."""
        return self.forward is not None and bool(self.interface.recurrent_gates)

    @property
    def writes_checkpoints(self) -> bool:
        """Whether a forward that saves keeps states of n values per channel, a few of all steps."""
        return self.interface.has_vectors and self.backward is not None

    def in_words(self) -> str:
        """Return a sentence on the code that host arrays run; compiles nothing."""
        if self._refusal:
            return f"host arrays\n  in NumPy, since {self._refusal}"
        shared = "units" if self.interface.recurrent_gates else "channels"
        forward, backward = (f"cpu/{'vectors_' if self.interface.has_vectors else ''}{name}.c.j2" for name in _PASSES)
        return "\n".join(
            (
                "host arrays",
                f"  native code of templates {forward} and {backward}, compiled by {c_compiler().program}",
                f"  at most {thread_count()} threads, which share rows or {shared}",
            )
        )

    @cached_property
    def _refusal(self) -> str:
        """Why no native code is generated; empty where it is."""
        return "products have several shapes" if self.interface.products else why_no_native_code()

    @cached_property
    def _forward(self) -> CpuKernel | str:
        return self._compiled("forward")

    @cached_property
    def _backward(self) -> CpuKernel | str:
        return self._compiled("backward")

    def plan(self, kernel_pass: CpuPass) -> NativePlan:
        """Return the generated code of a pass."""
        precision = self.interface.precision
        x_dtype = precision.arithmetic_dtype if self.interface.input_size else precision.storage_dtype
        if self.interface.has_vectors:
            lowered = self.builder.programs.vectors_backward if kernel_pass == "backward" else self.builder.programs.vectors
            dtypes = (precision.arithmetic_dtype, precision.storage_dtype, x_dtype)
            return CpuVectorsPlan(kernel_pass, lowered, precision.name, *dtypes)
        recurrence = self.builder.programs.recurrence if self.builder.spec.scan_arithmetic == "log" else None
        return _plan(self.builder.cell, kernel_pass, precision, x_dtype, self.reads_y, recurrence)

    @property
    def reads_y(self) -> bool:
        """Whether y serves as the output's state: a scan saves no such state, and a wide y is not rounded."""
        precision = self.interface.precision
        return self.builder.cell_shape.is_scan or precision.storage_dtype == precision.arithmetic_dtype

    @cached_property
    def keeps_states(self) -> bool:
        """Whether a forward that saves writes states, because its backward reads states other than y."""
        if self.interface.has_vectors:
            return False  # a backward computes them again
        if self.builder.cell_shape.is_scan:
            return False  # said by the call
        lowered = self.builder.lowered_backward
        read = {*lowered.read_states, *((lowered.output_state,) if self.interface.recurrent_gates else ())}
        return bool(read - {lowered.output_state if self.reads_y else None})

    def _compiled(self, kernel_pass: CpuPass) -> CpuKernel | str:
        try:
            return cpu_kernel(self.plan(kernel_pass), self.builder.store)
        except ToolchainMissing as missing:
            return str(missing)
        except CompileFailed as failed:
            LOG.warning("%s; host arrays run in NumPy", failed)
            return str(failed)

    @property
    def clip(self) -> float | None:
        """The bound of gradients through time, if any."""
        return self.builder.spec.recurrent_gradient_clip

    def schedule(self, kernel_pass: CpuPass, call: Call, steps: int) -> Schedule:
        """Return how the threads share a call, given the steps of its longest sequence."""
        has_initial = any(state is not None for state in call.initial)
        has_rounds = bool(self.builder.cell.arguments)
        return schedule(self.interface, kernel_pass, call.batch, steps, has_initial, thread_count(), has_rounds)


def prepared(recorder: NativeRecorder, interface: Interface, call: Call) -> Call:
    """Return a call in the form of kernels: vectors in the arithmetic dtype, all elements aligned for their types."""
    dtype = interface.precision.arithmetic_dtype
    arrays = {name: plain(recorder, getattr(call, name)) for name in ("x", "R", "shared", "inputs")}
    arrays |= {
        name: plain(recorder, getattr(call, name), dtype) for name in ("bias", "recurrent_bias", "parameters", "initial")
    }
    changes = {name: array for name, array in arrays.items() if array is not getattr(call, name)}
    return replace(call, **changes) if changes else call


def plain(recorder: NativeRecorder, arrays: Any, dtype: str | None = None) -> Any:
    """Return an array, or a tuple of arrays, in the form of kernels: itself or a copy, in `dtype` where that is not None."""
    if arrays is None:
        return None
    if isinstance(arrays, tuple):
        changed = tuple([plain(recorder, array, dtype) for array in arrays])
        return changed if any(map(operator.is_not, changed, arrays)) else arrays
    array: Array = arrays
    if pointer_divisor(array.pointer) % array.itemsize:
        array = recorder.contiguous(array)
    return array if dtype is None or array.dtype == dtype else recorder.cast(array, dtype)


def scan_plan(spec: Spec, kernel_pass: CpuPass) -> CpuPlan:
    """Return the generated code of a pass of a scan over plain pre-activations."""
    precision = precision_of(spec.precision)
    return _plan(parse_cell(cell_source_of(spec)), kernel_pass, precision, precision.storage_dtype, reads_y=True)


def _plan(
    cell: Cell,
    kernel_pass: CpuPass,
    precision: Precision,
    x_dtype: str,
    reads_y: bool,
    in_logarithms: Recurrence | None = None,
) -> CpuPlan:
    """Return a plan; a forward with the proof `in_logarithms` takes its steps in logarithms."""
    dtypes = (precision.arithmetic_dtype, precision.storage_dtype, x_dtype)
    if kernel_pass == "forward":
        lowered_steps = lower_steps_in_logarithms(cell, in_logarithms) if in_logarithms else lower_steps(cell)
        return CpuPlan(kernel_pass, lowered_steps, precision.name, *dtypes)
    lowered = lower_steps_backward(cell)
    return CpuPlan(kernel_pass, lowered, precision.name, *dtypes, lowered.output_state if reads_y else None)
