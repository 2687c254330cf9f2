"""Calls on NumPy arrays, as the CPU target takes them: time first, and in the order in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype, wrap_numpy
from minrnn_gen.call.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.call.gradients import RawGradients
from minrnn_gen.call.interface import Y_AXES, Contract
from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.cpu import scan
from minrnn_gen.cpu.matmul import RecurrentProduct
from minrnn_gen.cpu.recurrence import ScanMethod, Values
from minrnn_gen.cpu.scan import ScanGradients, StepMarks, run_scan_backward
from minrnn_gen.cpu.steps import StepsGradients, run_steps, run_steps_backward
from minrnn_gen.gpu import memory
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.run.saved import Forward


@dataclass(frozen=True)
class CpuRun:
    """The CPU target of one builder; may be used from several threads."""

    contract: Contract
    builder: Builder

    def forward(self, call: Call, kept: StatesOut, saves: bool) -> Forward:
        """Run over time; states are kept in the arithmetic dtype, however `kept`.

        Where a backward follows (`saves`), those of a cell that is no scan are always kept: R did not multiply y as rounded.
        """
        precision = self.contract.precision
        keeps = self.kept_dtype(kept, saves) is not None
        return self._forward(call, call.x, precision.arithmetic_dtype, precision.storage_dtype, keeps)

    @staticmethod
    def with_sequences_beside_x(call: Call) -> Call:
        """Return a call whose lengths and ends are where it reads them."""
        return call

    @property
    def preactivation_axes(self) -> str:
        """The axes of x once it is projected."""
        return self.contract.x_axes.replace("i", "") + self.contract.gate_axes

    @property
    def preactivation_dtype(self) -> str:
        """The dtype of x once it is projected."""
        return self.contract.precision.arithmetic_dtype

    def kept_dtype(self, kept: StatesOut, saves: bool) -> str | None:
        """The dtype in which a forward keeps states, or None where it keeps none; with a backward to follow or without."""
        keeps = kept != "none" or (saves and not isinstance(self.builder.lowered, LoweredScan))
        return self.contract.precision.arithmetic_dtype if keeps else None

    def reference(self, call: Call, keeps: bool) -> Outputs:
        """Run over time sequentially in float64; the outputs are NumPy arrays in float64."""
        like = replace(call.x, library="numpy")
        return self._forward(call, like, "float64", "float64", keeps, "sequential").outputs

    def step(self, call: Call) -> Outputs:
        """Run one step, as a sequence of one."""
        contract, precision = self.contract, self.contract.precision
        shape = contract.state_shape(call.batch)
        outputs = Outputs(
            y=memory.new_array(call.x, shape, precision.storage_dtype),
            kept=(),
            final=tuple(memory.new_array(call.x, shape, precision.arithmetic_dtype) for _ in contract.states),
        )
        projected = _projected(contract, call, precision.arithmetic_dtype)
        self._run(projected, as_numpy(outputs.y)[None], {}, outputs.final, precision.arithmetic_dtype, None)
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self.contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        gradients = Gradients(
            dx=memory.new_array(call.x, projected.x.shape, projected.x.dtype),
            dinitial=tuple(memory.new_array(call.x, contract.state_shape(call.batch), carried) for _ in contract.states),
            sums=None,
        )
        sums = numpy.zeros((len(contract.runs_reversed), contract.summed_count, contract.hidden_size))
        dR = None if call.R is None else numpy.zeros(contract.R_shape)
        for run, part in runs_of(contract, projected):
            self._run_backward(
                part,
                outputs_of_run(contract, forward.outputs, run),
                incoming_of_run(contract, incoming, run),
                gradients_of_run(contract, projected.x_axes, gradients, run),
                sums[run],
                None if dR is None else dR.reshape(-1, *contract.R_shape[-4:])[run],
            )
        initial = [one.owner for one in gradients.dinitial]
        if call.weight is None:
            return RawGradients(gradients.dx.owner, None, initial, sums, dR)
        dx, dweight = _through_projection(call, call.weight, projected.x_axes, as_numpy(gradients.dx))
        return RawGradients(dx.owner, dweight, initial, sums, dR)

    @staticmethod
    def in_form_of(array: Array, gradient: Values) -> Any:
        """Return a NumPy array in the library, shape and dtype of `array`."""
        result = memory.new_array(array, array.shape, array.dtype)
        as_numpy(result)[...] = gradient.reshape(array.shape)
        return result.owner

    def _forward(
        self, call: Call, like: Array, arithmetic: str, storage: str, keeps: bool, method: ScanMethod | None = None
    ) -> Forward:
        """Run with dtypes of these names, into arrays of the library of `like`."""
        contract = self.contract
        shape, state_shape = contract.y_shape(call.rows, call.time), contract.state_shape(call.batch)
        outputs = Outputs(
            y=memory.new_array(like, shape, storage),
            kept=tuple(memory.new_array(like, shape, arithmetic) for _ in (contract.states if keeps else ())),
            final=tuple(memory.new_array(like, state_shape, arithmetic) for _ in contract.states),
        )
        projected = _projected(contract, call, arithmetic)
        for run, part in runs_of(contract, projected):
            its = outputs_of_run(contract, outputs, run)
            kept = {name: y_by_time(contract, one) for name, one in zip(contract.states, its.kept, strict=False)}
            self._run(part, y_by_time(contract, its.y), kept, its.final, arithmetic, method)
        return Forward(call, projected, outputs)

    def _run(
        self,
        call: Call,
        y: Values,
        kept: Mapping[str, Values],
        final: tuple[Array, ...],
        arithmetic: str,
        method: ScanMethod | None,
    ) -> None:
        """Run a call of one direction; `y` and `kept` are [T, B, H]."""
        contract, lowered = self.contract, self.builder.lowered
        gates, vectors, initial = gates_by_time(call), vectors_of(contract, call), initial_of(contract, call, arithmetic)
        last = [as_numpy(one) for one in final]
        run: Callable[..., dict[str, Values]]
        if isinstance(lowered, LoweredScan):
            run = partial(scan.run_scan, lowered, method=method)
        else:
            run = partial(run_steps, lowered, product=_product_of(call, arithmetic))
        for stretch in stretches_of(call):
            found = run(
                stretch.of(gates),
                **vectors,
                initial={name: one[stretch.sequences] for name, one in initial.items()},
                arithmetic=numpy_dtype(arithmetic),
                y=stretch.of(y),
                all_states={name: stretch.of(one) for name, one in kept.items()},
                marks=stretch.marks,
            )
            for name, one in zip(contract.states, last, strict=True):
                one[stretch.sequences] = found[name]

    def _run_backward(
        self, call: Call, outputs: Outputs, incoming: IncomingGradient, gradients: Gradients, sums: Values, dR: Values | None
    ) -> None:
        """Run back through a call of one direction, and add to `sums` [gates + recurrent gates + parameters, H] and `dR`."""
        contract, lowered = self.contract, self.builder.lowered_backward
        carried = contract.precision.arithmetic_dtype
        gates, vectors, initial = gates_by_time(call), vectors_of(contract, call), initial_of(contract, call, carried)
        dx = as_numpy(gradients.dx).transpose([call.x_axes.index(axis) for axis in "tbgh"])
        dy = y_by_time(contract, incoming.dy)
        states = {name: y_by_time(contract, one) for name, one in zip(contract.states, outputs.kept, strict=False)}
        run: Callable[..., ScanGradients | StepsGradients]
        if isinstance(lowered, LoweredScanBackward):
            run = partial(run_scan_backward, lowered)
            if lowered.output_state is not None:
                states[lowered.output_state] = y_by_time(contract, outputs.y)
        else:
            product, clip = _product_of(call, carried), self.builder.spec.recurrent_gradient_clip
            run = partial(run_steps_backward, lowered, product=product, clip=clip)
        dfinal = {name: as_numpy(one) for name, one in zip(contract.states, incoming.dfinal, strict=True) if one is not None}
        first = [as_numpy(one) for one in gradients.dinitial]
        for stretch in stretches_of(call):
            found = run(
                stretch.of(gates),
                **vectors,
                initial={name: one[stretch.sequences] for name, one in initial.items()},
                states={name: stretch.of(one) for name, one in states.items()},
                dy=stretch.of(dy),
                dfinal={name: one[stretch.sequences] for name, one in dfinal.items()},
                arithmetic=numpy_dtype(carried),
                dx=stretch.of(dx),
                marks=stretch.marks,
            )
            for name, one in zip(contract.states, first, strict=True):
                one[stretch.sequences] = found.initial[name]
            sums += found.sums
            if dR is not None and isinstance(found, StepsGradients):
                dR += found.R


def _product_of(call: Call, arithmetic: str) -> RecurrentProduct | None:
    """Return the recurrent product of a call of one direction, if it has one."""
    if call.R is None:
        return None
    bias = None if call.recurrent_bias is None else as_numpy(call.recurrent_bias)
    return RecurrentProduct.prepared(as_numpy(call.R), bias, numpy_dtype(arithmetic))


def _projected(contract: Contract, call: Call, arithmetic: str) -> Call:
    """Multiply x by the weight, if there is one; the pre-activations stay in `arithmetic`, their gate axes last."""
    if call.weight is None:
        return call
    product = scan.project(_input_rows(call), as_numpy(call.weight), numpy_dtype(arithmetic))
    x = product.reshape(*product.shape[:-1], *contract.shape(contract.gate_axes, 0, 0))
    # A single step has no axis of time.
    return replace(call, x=wrap_numpy(x, "x"), x_axes=call.x_axes.replace("i", "") + contract.gate_axes, weight=None)


def _through_projection(call: Call, weight: Array, axes: str, gradient: Values) -> tuple[Array, Values]:
    """Return the gradients of x and of the weight, given that of pre-activations with `axes`, both of its dtype."""
    x, lengths = _input_rows(call), call.sequences.lengths
    gradient = gradient.reshape(*x.shape[:-1], weight.shape[0])
    if lengths is not None:
        # What lies beyond a length has no gradient, but a NaN there times zero would have.
        within = within_lengths(lengths, call.time)
        x = numpy.where((within if axes[0] == "t" else within.T)[..., None], x, x.dtype.type(0))
    rows, flat = x.reshape(-1, x.shape[-1]).astype(gradient.dtype), gradient.reshape(-1, weight.shape[0])
    dx = memory.new_array(call.x, call.x.shape, call.x.dtype)
    with numpy.errstate(all="ignore"):
        _rows_of(as_numpy(dx), call.x_axes)[...] = gradient @ as_numpy(weight).astype(gradient.dtype)
        return dx, flat.T @ rows


def _input_rows(call: Call) -> Values:
    """View x with its input axis last."""
    return _rows_of(as_numpy(call.x), call.x_axes)


def _rows_of(x: Values, axes: str) -> Values:
    view: Values = numpy.moveaxis(x, axes.index("i"), -1)
    return view


@dataclass(frozen=True)
class Stretch:
    """Sequences that are run at once: their steps and rows in x and y, and their places among the states."""

    steps: slice
    rows: slice
    sequences: slice
    reverse: bool
    marks: StepMarks

    def of(self, array: Values) -> Values:
        """View the part of an array [T, rows, ...] in the order in which it is run."""
        part = array[self.steps, self.rows]
        return part[::-1] if self.reverse else part


def stretches_of(call: Call) -> Iterator[Stretch]:
    """Yield all sequences of a call of one direction as one stretch, or packed ones as one each."""
    sequences, order = call.sequences, slice(None, None, -1 if call.reverse else 1)
    resets = None if sequences.resets is None else as_numpy(sequences.resets).T
    if sequences.cu_seqlens is not None:
        ends = as_numpy(sequences.cu_seqlens).tolist()
        for index, (begin, end) in enumerate(pairwise(ends)):
            marks = StepMarks(None if resets is None else resets[begin:end][order])
            yield Stretch(slice(begin, end), slice(None), slice(index, index + 1), call.reverse, marks)
        return
    within = None if sequences.lengths is None else within_lengths(sequences.lengths, call.time)
    marks = StepMarks(*(None if one is None else one[order] for one in (resets, within)))
    yield Stretch(slice(None), slice(None), slice(None), call.reverse, marks)


def within_lengths(lengths: Array, time: int) -> Values:
    """Return [T, B]: which steps lie within their sequence."""
    within: Values = numpy.arange(time)[:, None] < as_numpy(lengths)
    return within


def gates_by_time(call: Call) -> Values:
    """View pre-activations as [T, B, G, H], a single step as T = 1."""
    x, axes = as_numpy(call.x), call.x_axes
    if "t" not in axes:
        x, axes = x[None], "t" + axes
    view: Values = x.transpose([axes.index(axis) for axis in "tbgh"])
    return view


def y_by_time(contract: Contract, y: Array) -> Values:
    """View an array with the axes of y as [T, B, H]."""
    axes = Y_AXES[contract.layout]
    view: Values = as_numpy(y).transpose([axes.index(axis) for axis in "tbh"])
    return view


def vectors_of(contract: Contract, call: Call) -> dict[str, Any]:
    """Return the bias [G, H], or None, and the parameters {name: [H]} of a call of one direction."""
    shape = (len(contract.gates), contract.hidden_size)
    return {
        "bias": None if call.bias is None else as_numpy(call.bias).reshape(shape),
        "parameters": {name: as_numpy(one) for name, one in zip(contract.parameters, call.parameters, strict=True)},
    }


def initial_of(contract: Contract, call: Call, arithmetic: str) -> dict[str, Values]:
    """Return the initial states {name: [B, H]} of a call of one direction, zeros where none were given."""
    zeros = numpy.zeros((call.batch, contract.hidden_size), numpy_dtype(arithmetic))
    given = zip(contract.states, call.initial, strict=True)
    return {name: zeros if one is None else as_numpy(one) for name, one in given}
