"""Recorded calls of a kernel: inputs by a formula that any language can compute, and elements of the results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import numpy.typing

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.joined import joined
from minrnn_gen.call.results import ForwardResult
from minrnn_gen.export.source import ExportSource
from minrnn_gen.run.executor import Executor

Values = numpy.typing.NDArray[Any]
# So many elements of an array are recorded, evenly spread: of one that an error leaves out, its neighbours in time have it.
SAMPLES_MOST = 48
BATCH, TIME = 3, 6
LENGTHS = (6, 0, 2)
# Products of a case on the CPU that records it, some seconds: a larger one is left out.
PRODUCTS_MOST = 1 << 35
# The first steps of as many sequences, one after the other, and where the last one ends.
CU_SEQLENS = (0, 4, 4, 6)


@dataclass(frozen=True)
class InputArray:
    """An array by the formula: `number` distinguishes a call's arrays, `scale` is a power of 2, and `least` is added."""

    name: str
    kind: str
    number: int
    count: int
    scale: float
    least: float


@dataclass(frozen=True)
class ResultArray:
    """Elements of a result as numbers in C, and the allowed deviation on another machine."""

    name: str
    kind: str
    count: int
    values: tuple[str, ...]
    tolerance: float


@dataclass(frozen=True)
class Case:
    """A recorded call and its backward: sizes, passes in their order, inputs, results."""

    name: str
    batch: int
    time: int
    passes: tuple[str, ...]
    inputs: tuple[InputArray, ...]
    results: tuple[ResultArray, ...]
    boundaries: tuple[int, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The steps of each sequence, where they differ."""
        return self.boundaries if self.name == "lengths" else ()

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        """The begins of packed sequences."""
        return self.boundaries if self.name == "packed" else ()

    @property
    def saves(self) -> bool:
        """Whether a backward follows."""
        return "backward" in self.passes


def values_of(array: int, count: int, scale: float, least: float) -> Values:
    """Return [count] of an input, float64: multiples of scale / 256 from `least` to below `least` + scale."""
    with numpy.errstate(over="ignore"):
        bits = numpy.arange(count, dtype=numpy.uint32) * numpy.uint32(2654435761) + numpy.uint32(array * 2246822519 % 2**32)
        bits ^= bits >> numpy.uint32(15)
        bits *= numpy.uint32(3266489917)
        bits ^= bits >> numpy.uint32(13)
    values: Values = (bits & numpy.uint32(255)).astype(numpy.float64) / 256 * scale + least
    return values


def recorded_cases(source: ExportSource, executor: Executor) -> tuple[Case, ...]:
    """Run the calls that check.c repeats, on host arrays, and return them with their results."""
    passes = tuple(name for name in source.passes if name != "step")
    names = ["sequences", "lengths", *(["states"] if source.has_states else []), *(["packed"] if source.has_cu_seqlens else [])]
    cases = [_Recorder(source, executor, name, passes).case() for name in names]
    projected = source.projected_at
    if projected and math.prod(projected) * source.interface.weight_rows * (source.interface.input_size or 0) <= PRODUCTS_MOST:
        cases.append(_Recorder(source, executor, "projected", ("forward",), projected).case())
    if source.has_step:
        cases.append(_Recorder(source, executor, "step", ("step",)).case())
    return tuple(cases)


class _Recorder:
    """One case under way."""

    def __init__(
        self,
        source: ExportSource,
        executor: Executor,
        name: str,
        passes: tuple[str, ...],
        sizes: tuple[int, int] = (BATCH, TIME),
    ) -> None:
        self._source, self._executor, self._name, self._passes = source, executor, name, passes
        self._inputs: list[InputArray] = []
        self._batch, self._time = sizes
        self._sizes = (1, CU_SEQLENS[-1]) if name == "packed" else sizes
        self._all_states = name == "states"

    def case(self) -> Case:
        """Run the call."""
        source, interface = self._source, self._source.interface
        is_step, boundaries = "step" in self._passes, {"lengths": LENGTHS, "packed": CU_SEQLENS}.get(self._name, ())
        arguments = self._arguments(is_step)
        of_sequences = numpy.array(boundaries, numpy.int64)
        if self._name == "lengths":
            arguments = arguments._replace(lengths=of_sequences)
        elif self._name == "packed":
            arguments = arguments._replace(cu_seqlens=of_sequences)
        if is_step:
            result = self._executor.step(arguments)
            results = {"y": result.y, **_named("final", interface.states, result.final)}
        elif "backward" in self._passes:
            forward, saved = self._executor.forward(arguments, all_states=self._all_states, saves=True)
            results = self._results(forward)
            dy = self._input("dy", "storage", interface.y_shape(*self._sizes), 1.0)
            dfinal = {
                name: self._input(f"dfinal_{name}", "real", interface.shape_of_state(name, self._batch), 1.0)
                for name in interface.states
            }
            results |= _gradients(source, self._executor.backward(saved, dy, dfinal))
        else:
            forward, _ = self._executor.forward(arguments, all_states=self._all_states, saves=False)
            results = self._results(forward)
        kinds = {array.name: array.kind for array in source.arrays}
        written = tuple(_result(source, name, kinds[name], values) for name, values in results.items())
        time = 1 if is_step else self._time
        return Case(self._name, self._batch, time, self._passes, tuple(self._inputs), written, boundaries)

    def _results(self, forward: ForwardResult) -> dict[str, Any]:
        states = self._source.interface.states
        after_steps = _named("states", states, forward.states) if self._all_states else {}
        return {"y": forward.y, **_named("final", states, forward.final), **after_steps}

    def _arguments(self, is_step: bool) -> CallArguments:
        interface = self._source.interface
        axes = interface.x_axes.replace("t", "") if is_step else interface.x_axes
        x = self._input("x", "storage", interface.shape(axes, *self._sizes), 4.0)
        weight = R = recurrent_bias = None
        if interface.input_size:
            weight = self._input(
                "weight", "storage", (interface.weight_rows, interface.input_size), _scale(interface.input_size)
            )
        if interface.recurrent_gates:
            R = self._matrices()
        bias = self._input("bias", "real", (*interface.directions, len(interface.gates), interface.hidden_size), 1.0)
        if interface.takes_recurrent_bias:
            recurrent_bias = self._recurrent_bias()
        parameters = {
            name: self._input(f"parameter_{name}", "real", interface.shape_of_parameter(name), 1.0)
            for name in interface.parameters
        }
        least_state = 0.0 if self._source.takes_logarithms else None
        state = {
            name: self._input(f"initial_{name}", "real", interface.shape_of_state(name, self._batch), 1.0, least_state)
            for name in interface.states
        }
        of_steps = interface.shared_axes.replace("t", "") if is_step else interface.shared_axes
        shared = {
            name: self._input(f"shared_{name}", "storage", interface.shape(of_steps, *self._sizes), 1.0)
            for name in interface.shared
        }
        of_steps = interface.channel_axes.replace("t", "") if is_step else interface.channel_axes
        inputs = {
            name: self._input(f"input_{name}", "storage", interface.shape(of_steps, *self._sizes), 2.0)
            for name in interface.inputs
        }
        arguments = CallArguments(
            x, R, weight, bias, recurrent_bias, None, None, None, parameters or None, state, shared or None, inputs or None
        )  # fmt: skip
        return joined(interface, arguments)

    def _matrices(self) -> Any:
        """Return R, or each of its matrices by gate."""
        interface, names = self._source.interface, self._source.matrices
        if not interface.has_unequal_products:
            return self._input(names[0], "storage", interface.R_shape, _scale(interface.product_shapes[0].of))
        return {
            gate: self._input(name, "storage", (*interface.directions, *shape), _scale(shape.of))
            for name, gate, shape in zip(names, interface.recurrent_gates, interface.product_shapes, strict=True)
        }

    def _recurrent_bias(self) -> Any:
        """Return the recurrent bias, or that of each gate that has one."""
        interface, names = self._source.interface, self._source.recurrent_biases
        if not interface.has_unequal_biases:
            return self._input(names[0], "real", interface.recurrent_bias_shape, 1.0)
        shapes = dict(zip(interface.recurrent_gates, interface.product_shapes, strict=True))
        gates = [gate for gate in interface.recurrent_gates if gate not in interface.unbiased]
        return {
            gate: self._input(name, "real", (*interface.directions, *shapes[gate][:2]), 1.0)
            for name, gate in zip(names, gates, strict=True)
        }

    def _input(self, name: str, kind: str, shape: tuple[int, ...], scale: float, least: float | None = None) -> Values:
        precision, count = self._source.interface.precision, math.prod(shape)
        if kind == "real" and precision.arithmetic_dtype == "float64":
            dtype = numpy_dtype("float64")
        else:
            dtype = numpy_dtype(precision.storage_dtype if kind == "storage" else "float32")
        array = InputArray(name, kind, len(self._inputs) + 1, count, scale, -scale / 2 if least is None else least)
        self._inputs.append(array)
        return values_of(array.number, count, scale, array.least).astype(dtype).reshape(shape)


def _scale(summed: int) -> float:
    """The power of 2 that scales a sum of this many products to the size of one."""
    return float(2.0 ** -round(math.log2(summed) / 2))


def _named(prefix: str, names: tuple[str, ...], arrays: tuple[Any, ...]) -> dict[str, Any]:
    return {f"{prefix}_{name}": array for name, array in zip(names, arrays, strict=True)}


def _gradients(source: ExportSource, gradients: dict[str, Any]) -> dict[str, Any]:
    """Return gradients by their names in C."""
    interface = source.interface
    named = {f"d{name}": gradients[name] for name in ("x", "weight", "bias") if name in gradients}
    for name, arrays in (("R", source.matrices), ("recurrent_bias", source.recurrent_biases)):
        of_name = gradients.get(name)
        values = list(of_name.values()) if isinstance(of_name, Mapping) else [of_name]
        named |= {f"d{array}": value for array, value in zip(arrays, values, strict=False) if value is not None}
    named |= {f"dparameter_{name}": gradients["parameters"][name] for name in interface.parameters}
    named |= {f"dshared_{name}": gradients["shared"][name] for name in interface.shared}
    named |= {f"dinput_{name}": gradients["inputs"][name] for name in interface.inputs}
    return named | {f"dinitial_{name}": gradients["state"][name] for name in interface.states}


def _result(source: ExportSource, name: str, kind: str, values: Any) -> ResultArray:
    """Return the record of a result.

    Other machines add in another order, and round functions otherwise: each of the sums over inputs, units and steps that lead
    to an element adds the roundoff of its terms, taken as independent; what is stored is rounded once more, and what a GPU
    multiplies.
    """
    interface, precision = source.interface, source.interface.precision
    flat = numpy.asarray(values).astype(numpy.float64).reshape(-1)
    samples = min(SAMPLES_MOST, flat.size)
    picked = flat[:: flat.size // samples][:samples] if samples else flat
    terms = max(interface.head_dim if interface.recurrent_gates else 1, interface.input_size or 1, len(interface.gates))
    sums = 64 * math.sqrt(terms * TIME * BATCH) * precision.arithmetic_roundoff
    stored = 4 * (precision.storage_roundoff if source.target == "cpu" else precision.operand_roundoff)
    tolerance = (sums + stored) * max(1.0, float(numpy.abs(flat).max(initial=0.0)))
    return ResultArray(name, kind, flat.size, tuple(repr(float(value)) for value in picked), tolerance)
