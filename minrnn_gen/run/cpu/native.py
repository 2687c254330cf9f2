"""Calls on host arrays by native code: which code serves a kernel, and its arguments by name."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy
import numpy.typing

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.build.cpu_kernel import CpuKernel, cpu_kernel, why_no_native_code
from minrnn_gen.build.recipe import cell_source_of
from minrnn_gen.call.address import pointer_divisor
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array, as_numpy, wrap_numpy
from minrnn_gen.call.interface import Y_AXES, Interface
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
from minrnn_gen.run.cpu.native_vectors import vectors_of_backward, vectors_of_forward
from minrnn_gen.run.cpu.threads import Schedule, pointwise_schedule, schedule
from minrnn_gen.run.cpu.trace import NativeRecorder

Values = numpy.typing.NDArray[Any]
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
        """Whether host arrays will run native code, as far as is known without compiling any."""
        return not self._refusal

    @property
    def forward(self) -> CpuKernel | None:
        """The forward, None where NumPy serves."""
        return None if self._refusal or isinstance(self._forward, str) else self._forward

    @property
    def backward(self) -> CpuKernel | None:
        """The backward of what `forward` ran, None where NumPy serves."""
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
        """Return what host arrays run, for people; nothing is compiled for it."""
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
        """Why no native code is generated; nothing where it is."""
        return why_no_native_code()

    @cached_property
    def _forward(self) -> CpuKernel | str:
        return self._compiled("forward")

    @cached_property
    def _backward(self) -> CpuKernel | str:
        return self._compiled("backward")

    def plan(self, kernel_pass: CpuPass) -> NativePlan:
        """Return what is generated for a pass."""
        precision = self.interface.precision
        x_dtype = precision.arithmetic_dtype if self.interface.input_size else precision.storage_dtype
        if self.interface.has_vectors:
            lowered = self.builder.programs.vectors_backward if kernel_pass == "backward" else self.builder.programs.vectors
            dtypes = (precision.arithmetic_dtype, precision.storage_dtype, x_dtype)
            return CpuVectorsPlan(kernel_pass, lowered, precision.name, *dtypes)
        recurrence = self.builder.recurrence if self.builder.spec.scan_arithmetic == "log" else None
        return _plan(self.builder.cell, kernel_pass, precision, x_dtype, self.reads_y, recurrence)

    @property
    def reads_y(self) -> bool:
        """Whether y stands for the state that it is: a scan keeps no such state, and a wide y is not rounded."""
        precision = self.interface.precision
        return self.builder.cell_shape.is_scan or precision.storage_dtype == precision.arithmetic_dtype

    @cached_property
    def keeps_states(self) -> bool:
        """Whether a forward that saves writes states, since its backward reads those that y is not."""
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

    def schedule(self, kernel: CpuKernel, call: Call) -> Schedule:
        """Return how the threads share a call."""
        _, _, steps = _sequences(call)
        if self.interface.has_vectors:
            return pointwise_schedule(call.batch, self.interface.hidden_size * self.interface.state_size, steps)
        has_initial = any(state is not None for state in call.initial)
        has_rounds = isinstance(kernel.plan, CpuPlan) and bool(kernel.plan.rounds)
        return schedule(self.interface, kernel.plan.kernel_pass, call.batch, steps, has_initial or has_rounds, has_rounds)

    def run_forward(
        self, recorder: NativeRecorder, kernel: CpuKernel, call: Call, outputs: Outputs, plan: Schedule | None = None
    ) -> None:
        """Run a call of one direction, by a `plan` for a piece of one; products are written where `outputs` has them."""
        interface = self.interface
        values = _of_call(recorder, interface, call, plan or self.schedule(kernel, call))
        values |= _strides("y", outputs.y, Y_AXES[interface.layout])
        values["y"] = outputs.y.pointer
        values |= _named("kept", interface.states, outputs.kept)
        values |= _named("final", interface.states, outputs.final)
        if call.R is not None:
            values["recurrent_bias"] = _place(call.recurrent_bias)
            values |= _products(interface, call, outputs.products)
        if interface.has_vectors:
            values |= vectors_of_forward(interface, call, outputs)
        recorder.run_kernel(kernel, values)

    def run_backward(
        self,
        recorder: NativeRecorder,
        kernel: CpuKernel,
        call: Call,
        outputs: Outputs,
        incoming: IncomingGradient,
        gradients: Gradients,
        extra: ProductGradients | None,
    ) -> None:
        """Run back through a call of one direction."""
        interface = self.interface
        values = _of_call(recorder, interface, call, self.schedule(kernel, call))
        values |= _strides("y", outputs.y, Y_AXES[interface.layout])
        kept = dict(zip(interface.states, outputs.kept, strict=False))
        if isinstance(kernel.plan, CpuPlan):
            for state in kernel.plan.saved_states:
                values[f"state_{state}"] = (outputs.y if state == kernel.plan.saved_in_storage else kept[state]).pointer
        else:
            values |= vectors_of_backward(interface, call, outputs, gradients)
        values["dy"] = incoming.dy.pointer
        values |= _named("dfinal", interface.states, incoming.dfinal)
        values |= _strides("dx", gradients.dx, call.x_axes)
        values |= _gates("dW", interface, gradients.dx, call.x_axes)
        values |= _named("dinitial", interface.states, gradients.dinitial)
        values["sums"] = _place(gradients.sums)
        if call.R is not None:
            clip = self.builder.spec.recurrent_gradient_clip
            values |= _products(interface, call, outputs.products)
            values |= {"clips": clip is not None, "clip": clip or 0.0}
        if extra is not None:
            values |= _strides("outputs", extra.outputs, extra.axes)
            values |= {"outputs": extra.outputs.pointer, "dproducts": _place(extra.dproducts)}
            values |= {f"arguments_{number}": array.pointer for number, array in enumerate(extra.arguments)}
        recorder.run_kernel(kernel, values)


def prepared(recorder: NativeRecorder, interface: Interface, call: Call) -> Call:
    """Return a call as kernels take it: vectors in the arithmetic dtype, all elements where their types may lie."""
    dtype = interface.precision.arithmetic_dtype
    arrays = {name: plain(recorder, getattr(call, name)) for name in ("x", "R", "shared")}
    arrays |= {
        name: plain(recorder, getattr(call, name), dtype) for name in ("bias", "recurrent_bias", "parameters", "initial")
    }
    changes = {name: array for name, array in arrays.items() if array is not getattr(call, name)}
    return replace(call, **changes) if changes else call


def plain(recorder: NativeRecorder, arrays: Any, dtype: str | None = None) -> Any:
    """Return an array, or a tuple of them, as kernels take it: itself, or a copy, in a `dtype` where it has to have one."""
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
    """Return what is generated for a pass of a scan of pre-activations as they are."""
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
    """Return a plan; a forward takes steps with logarithms where the proof for it is given."""
    dtypes = (precision.arithmetic_dtype, precision.storage_dtype, x_dtype)
    if kernel_pass == "forward":
        lowered_steps = lower_steps_in_logarithms(cell, in_logarithms) if in_logarithms else lower_steps(cell)
        return CpuPlan(kernel_pass, lowered_steps, precision.name, *dtypes)
    lowered = lower_steps_backward(cell)
    return CpuPlan(kernel_pass, lowered, precision.name, *dtypes, lowered.output_state if reads_y else None)


class ProductGradients(NamedTuple):
    """What a backward of one direction of a dense cell writes for the gradient of R.

    `outputs`, with `axes`: the output before each step; `dproducts` [rows, T, Gr, H], the gradients of the products, unless
    they are those of x; `arguments`, as `outputs`: what each round of a step multiplies; `places`, in R: those of the gates
    that multiply the output and of those of each round.
    """

    axes: str
    outputs: Array
    dproducts: Array | None
    arguments: tuple[Array, ...]
    places: tuple[tuple[int, ...], ...]


def _of_call(recorder: NativeRecorder, interface: Interface, call: Call, plan: Schedule) -> dict[str, Any]:
    """Return the arguments that a forward and a backward of a call share, which is `prepared`."""
    sequences = call.sequences
    firsts, counts, steps = _sequences(call)
    is_packed = sequences.cu_seqlens is not None
    values: dict[str, Any] = {
        "rows": call.batch,
        "time": call.time,
        "steps": steps,
        "hidden": interface.hidden_size * interface.precision.parts,
        "heads": interface.heads,
        "head_dim": interface.head_dim * interface.precision.parts,
        "reverse": call.reverse,
        "fills": sequences.lengths is not None,
        "threads": plan.threads,
        "splits_units": plan.splits_units,
        "packs": plan.packs,
        "bias": _place(call.bias),
        "R": _place(call.R),
        **_strides("x", call.x, call.x_axes),
        **_gates("W", interface, call.x, call.x_axes),
        **_named("parameter", interface.parameters, call.parameters),
        **_named("initial", interface.states, call.initial),
    }
    for name, numbers in (("firsts", firsts), ("counts", counts)):
        if numbers is not None:
            values[name] = recorder.hold(wrap_numpy(numbers, name)).pointer
    if sequences.resets is not None:
        resets = sequences.resets
        values |= {"resets": resets.pointer, "resets_row": 0 if is_packed else resets.strides[0]}
        values["resets_time"] = resets.strides[1]
    if is_packed:
        # Sequences are rows that begin elsewhere in time.
        values["x_row"] = 0
    return values


def _sequences(call: Call) -> tuple[Values | None, Values | None, int]:
    """Return the first steps and the counts of steps of all sequences, None for all there is, and the longest count."""
    sequences = call.sequences
    if sequences.cu_seqlens is not None:
        ends = numpy.ascontiguousarray(as_numpy(sequences.cu_seqlens), numpy.int64)
        counts = numpy.diff(ends)
        return ends[:-1].copy(), counts, int(counts.max(initial=0))
    if sequences.lengths is not None:
        counts = numpy.array(as_numpy(sequences.lengths), numpy.int64)
        return None, counts, int(counts.max(initial=0))
    return None, None, call.time


def _strides(name: str, array: Array, axes: str) -> dict[str, int]:
    """Return the strides of an array by the names of a kernel; a single step has none in time, a complex number is two."""
    by_axis, parts = dict(zip(axes, array.strides, strict=True)), 2 if array.dtype.startswith("complex") else 1
    return {
        f"{name}_row": 0 if array.shape[axes.index("b")] == 1 else by_axis["b"] * parts,
        f"{name}_time": by_axis.get("t", 0) * parts,
        f"{name}_channel": by_axis["h"],
    }


def _gates(name: str, interface: Interface, array: Array, axes: str) -> dict[str, Any]:
    """Return the address of each gate's pre-activations."""
    step_bytes = array.strides[axes.index("g")] * array.itemsize
    return {f"{name}_{gate}": array.pointer + index * step_bytes for index, gate in enumerate(interface.gates)}


def _named(kind: str, names: tuple[str, ...], arrays: Sequence[Array | None]) -> dict[str, Any]:
    return {f"{kind}_{name}": _place(array) for name, array in zip(names, arrays, strict=False)}


def _row_stride(call: Call, elements: int) -> int:
    """Return how far rows of an array [rows, T, elements] are apart; those of packed sequences are one."""
    return 0 if call.sequences.cu_seqlens is not None else call.time * elements


def _products(interface: Interface, call: Call, products: Array | None) -> dict[str, Any]:
    width = len(interface.recurrent_gates) * interface.hidden_size
    return {"products": _place(products), "products_row": _row_stride(call, width)}


def _place(array: Array | None) -> Any:
    return 0 if array is None else array.pointer
