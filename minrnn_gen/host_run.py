"""Running calls whose arrays are in host memory: as NumPy views, time first and in the order it runs, for the CPU target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy

from minrnn_gen import cpu, cuda
from minrnn_gen.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.arrays import Array, as_numpy, numpy_dtype, wrap_numpy
from minrnn_gen.build import Builder
from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.contract import Y_AXES, Contract
from minrnn_gen.cpu import StepMarks
from minrnn_gen.cpu_backward import run_scan_backward
from minrnn_gen.cpu_recurrence import ScanMethod, Values
from minrnn_gen.directions import gradients_of_run, incoming_of_run, outputs_of_run, runs_of
from minrnn_gen.gradients import RawGradients
from minrnn_gen.plan.kernel_plan import KeptStates
from minrnn_gen.saved import Forward


@dataclass(frozen=True)
class HostRun:
    """The CPU target of one builder; may be used from several threads."""

    contract: Contract
    builder: Builder

    def forward(self, call: Call, kept: KeptStates) -> Forward:
        """Run over time; states are kept in the arithmetic dtype, however `kept`."""
        precision = self.contract.precision
        return self._forward(call, call.x, precision.arithmetic_dtype, precision.storage_dtype, keeps=kept != "none")

    def reference(self, call: Call, keeps: bool) -> Outputs:
        """Run over time sequentially in float64; the outputs are NumPy arrays in float64."""
        like = replace(call.x, library="numpy")
        return self._forward(call, like, "float64", "float64", keeps, "sequential").outputs

    def step(self, call: Call) -> Outputs:
        """Run one step, as a sequence of one."""
        contract, precision = self.contract, self.contract.precision
        shape = contract.state_shape(call.batch)
        outputs = Outputs(
            y=cuda.new_array(call.x, shape, precision.storage_dtype),
            kept=(),
            final=tuple(cuda.new_array(call.x, shape, precision.arithmetic_dtype) for _ in contract.states),
        )
        projected = _projected(contract, call, precision.arithmetic_dtype)
        self._run(projected, as_numpy(outputs.y)[None], {}, outputs.final, precision.arithmetic_dtype, None)
        return outputs

    def backward(self, forward: Forward, incoming: IncomingGradient) -> RawGradients:
        """Run against time, from the gradients of what `forward` returned."""
        contract, call, projected = self.contract, forward.call, forward.projected
        carried = contract.precision.arithmetic_dtype
        gradients = Gradients(
            dx=cuda.new_array(call.x, projected.x.shape, projected.x.dtype),
            dinitial=tuple(cuda.new_array(call.x, contract.state_shape(call.batch), carried) for _ in contract.states),
            sums=None,
        )
        sums = numpy.zeros((len(contract.runs_reversed), contract.summed_count, contract.hidden_size))
        for run, part in runs_of(contract, projected):
            self._run_backward(
                part,
                outputs_of_run(contract, forward.outputs, run),
                incoming_of_run(contract, incoming, run),
                gradients_of_run(contract, projected.x_axes, gradients, run),
                sums[run],
            )
        initial = [one.owner for one in gradients.dinitial]
        if call.weight is None:
            return RawGradients(gradients.dx.owner, None, initial, sums)
        dx, dweight = _through_projection(call, call.weight, projected.x_axes, as_numpy(gradients.dx))
        return RawGradients(dx.owner, dweight, initial, sums)

    @staticmethod
    def in_form_of(array: Array, gradient: Values) -> Any:
        """Return a NumPy array in the library, shape and dtype of `array`."""
        result = cuda.new_array(array, array.shape, array.dtype)
        as_numpy(result)[...] = gradient.reshape(array.shape)
        return result.owner

    def _forward(
        self, call: Call, like: Array, arithmetic: str, storage: str, keeps: bool, method: ScanMethod | None = None
    ) -> Forward:
        """Run with dtypes of these names, into arrays of the library of `like`."""
        contract = self.contract
        shape, state_shape = contract.y_shape(call.rows, call.time), contract.state_shape(call.batch)
        outputs = Outputs(
            y=cuda.new_array(like, shape, storage),
            kept=tuple(cuda.new_array(like, shape, arithmetic) for _ in (contract.states if keeps else ())),
            final=tuple(cuda.new_array(like, state_shape, arithmetic) for _ in contract.states),
        )
        projected = _projected(contract, call, arithmetic)
        for run, part in runs_of(contract, projected):
            its = outputs_of_run(contract, outputs, run)
            kept = {name: self._y_by_time(one) for name, one in zip(contract.states, its.kept, strict=False)}
            self._run(part, self._y_by_time(its.y), kept, its.final, arithmetic, method)
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
        gates, vectors, initial = _gates_by_time(call), self._vectors(call), self._initial(call, arithmetic)
        last = [as_numpy(one) for one in final]
        lowered = self.builder.lowered
        assert isinstance(lowered, LoweredScan)
        for stretch in _stretches(call):
            found = cpu.run_scan(
                lowered,
                stretch.of(gates),
                **vectors,
                initial={name: one[stretch.sequences] for name, one in initial.items()},
                arithmetic=numpy_dtype(arithmetic),
                y=stretch.of(y),
                all_states={name: stretch.of(one) for name, one in kept.items()},
                marks=stretch.marks,
                method=method,
            )
            for name, one in zip(self.contract.states, last, strict=True):
                one[stretch.sequences] = found[name]

    def _run_backward(
        self, call: Call, outputs: Outputs, incoming: IncomingGradient, gradients: Gradients, sums: Values
    ) -> None:
        """Run back through a call of one direction, and add to `sums` [gates + parameters, H]."""
        contract, lowered = self.contract, self.builder.lowered_backward
        assert isinstance(lowered, LoweredScanBackward)
        carried = contract.precision.arithmetic_dtype
        gates, vectors, initial = _gates_by_time(call), self._vectors(call), self._initial(call, carried)
        dx = as_numpy(gradients.dx).transpose([call.x_axes.index(axis) for axis in "tbgh"])
        dy = self._y_by_time(incoming.dy)
        states = {name: self._y_by_time(one) for name, one in zip(contract.states, outputs.kept, strict=False)}
        if lowered.output_state is not None:
            states[lowered.output_state] = self._y_by_time(outputs.y)
        dfinal = {name: as_numpy(one) for name, one in zip(contract.states, incoming.dfinal, strict=True) if one is not None}
        first = [as_numpy(one) for one in gradients.dinitial]
        for stretch in _stretches(call):
            found = run_scan_backward(
                lowered,
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
            sums += numpy.concatenate([found.bias, *(found.parameters[name][None] for name in contract.parameters)])

    def _y_by_time(self, y: Array) -> Values:
        """View an array with the axes of y as [T, B, H]."""
        axes = Y_AXES[self.contract.layout]
        view: Values = as_numpy(y).transpose([axes.index(axis) for axis in "tbh"])
        return view

    def _vectors(self, call: Call) -> dict[str, Any]:
        contract = self.contract
        shape = (len(contract.gates), contract.hidden_size)
        return {
            "bias": None if call.bias is None else as_numpy(call.bias).reshape(shape),
            "parameters": {name: as_numpy(one) for name, one in zip(contract.parameters, call.parameters, strict=True)},
        }

    def _initial(self, call: Call, arithmetic: str) -> dict[str, Values]:
        zeros = numpy.zeros((call.batch, self.contract.hidden_size), numpy_dtype(arithmetic))
        given = zip(self.contract.states, call.initial, strict=True)
        return {name: zeros if one is None else as_numpy(one) for name, one in given}


@dataclass(frozen=True)
class _Stretch:
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


def _stretches(call: Call) -> Iterator[_Stretch]:
    """Yield all sequences of a call of one direction as one stretch, or packed ones as one each."""
    sequences, order = call.sequences, slice(None, None, -1 if call.reverse else 1)
    resets = None if sequences.resets is None else as_numpy(sequences.resets).T
    if sequences.cu_seqlens is not None:
        ends = as_numpy(sequences.cu_seqlens).tolist()
        for index, (begin, end) in enumerate(pairwise(ends)):
            marks = StepMarks(None if resets is None else resets[begin:end][order])
            yield _Stretch(slice(begin, end), slice(None), slice(index, index + 1), call.reverse, marks)
        return
    within = None if sequences.lengths is None else _within(sequences.lengths, call.time)
    marks = StepMarks(*(None if one is None else one[order] for one in (resets, within)))
    yield _Stretch(slice(None), slice(None), slice(None), call.reverse, marks)


def _within(lengths: Array, time: int) -> Values:
    """Return [T, B]: which steps lie within their sequence."""
    within: Values = numpy.arange(time)[:, None] < as_numpy(lengths)
    return within


def _gates_by_time(call: Call) -> Values:
    """View pre-activations as [T, B, G, H], a single step as T = 1."""
    x, axes = as_numpy(call.x), call.x_axes
    if "t" not in axes:
        x, axes = x[None], "t" + axes
    view: Values = x.transpose([axes.index(axis) for axis in "tbgh"])
    return view


def _projected(contract: Contract, call: Call, arithmetic: str) -> Call:
    """Multiply x by the weight, if there is one; the pre-activations stay in `arithmetic`, their gate axes last."""
    if call.weight is None:
        return call
    product = cpu.project(_input_rows(call), as_numpy(call.weight), numpy_dtype(arithmetic))
    x = product.reshape(*product.shape[:-1], *contract.shape(contract.gate_axes, 0, 0))
    return replace(call, x=wrap_numpy(x, "x"), x_axes=call.x_axes.replace("i", "") + contract.gate_axes, weight=None)


def _through_projection(call: Call, weight: Array, axes: str, gradient: Values) -> tuple[Array, Values]:
    """Return the gradients of x and of the weight, given that of pre-activations with `axes`, both of its dtype."""
    x, lengths = _input_rows(call), call.sequences.lengths
    gradient = gradient.reshape(*x.shape[:-1], weight.shape[0])
    if lengths is not None:
        # What lies beyond a length has no gradient, but a NaN there times zero would have.
        within = _within(lengths, call.time)
        x = numpy.where((within if axes[0] == "t" else within.T)[..., None], x, x.dtype.type(0))
    rows, flat = x.reshape(-1, x.shape[-1]).astype(gradient.dtype), gradient.reshape(-1, weight.shape[0])
    dx = cuda.new_array(call.x, call.x.shape, call.x.dtype)
    with numpy.errstate(all="ignore"):
        _rows_of(as_numpy(dx), call.x_axes)[...] = gradient @ as_numpy(weight).astype(gradient.dtype)
        return dx, flat.T @ rows


def _input_rows(call: Call) -> Values:
    """View x with its input axis last."""
    return _rows_of(as_numpy(call.x), call.x_axes)


def _rows_of(x: Values, axes: str) -> Values:
    view: Values = numpy.moveaxis(x, axes.index("i"), -1)
    return view
