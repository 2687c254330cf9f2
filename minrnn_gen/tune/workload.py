"""Workload of one kernel's candidates: the arrays of a call, and its expected results by the fp64 reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.joined_choice import JoinedChoice
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.comparable import why_not_comparable
from minrnn_gen.call.interface import Interface
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.gpu import memory
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.precision import LARGEST_OF_NORM, error_allowed, remembered_error
from minrnn_gen.run.layers.dropout import Dropout, scale_of
from minrnn_gen.run.layers.stack import StackResult
from minrnn_gen.tune.measurer import CannotMeasure, MeasurementFailed

# Elements of y in a call that is checked: the fp64 reference then takes the host about a second.
CHECKED_ELEMENTS = 1 << 22
# Steps of a dense cell, whose products take the longest there: several times round the deepest ring, and more than one CUDA
# graph of single steps.
CHECKED_DENSE_STEPS = 144
# With fewer channels than these per SM, blocks with columns of 32 ... 64 channels leave some SMs without work.
FILLING_CHANNELS_PER_SM = 64
# Up to here a tile of a block can hold a whole sequence.
SHORT_STEPS = 128
# Alignment depends on sizes modulo this, in elements of any width.
ALIGNMENT_ELEMENTS = 16
# Passes that a call of `backward` runs; the arguments of products are recomputed only for it.
OF_BACKWARD: tuple[KernelPass, ...] = ("backward", "arguments")
# The probability with which dropout drops a value.
DROPPED = 0.5
# A prime, so that no two rows of an array are alike.
RANDOM_VALUES = 1_000_003

HALF_BYTES = 2

Arrays = Mapping[str, Any]
# An array of a shape and an alignment in bytes, filled with the values in turn, on the device of the calls.
Place = Callable[[Any, tuple[int, ...], int], Any]


def on_host(values: Any, shape: tuple[int, ...], alignment_bytes: int) -> Any:
    """Return a NumPy array; alignment does not matter on the host."""
    del alignment_bytes
    return numpy.resize(values, shape)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a forward or a step, x and the others, and of a backward after it."""

    x: Any
    forward: dict[str, Any]
    backward: dict[str, Any]


@dataclass(frozen=True)
class TrialBuilder(Builder):
    """Builder of the other kernels of calls that run `trial`, whatever their sizes."""

    trial: BuiltKernel | None = None

    @cached_property
    def projection(self) -> ProjectionChoice:
        """Let a trial that multiplies x itself run every call that it can."""
        return ProjectionChoice(is_everywhere=bool(self._key and self._key.specialization.input_size))

    @cached_property
    def joined(self) -> JoinedChoice:
        """Let a trial whose gates include the products run every call that it can."""
        return JoinedChoice(is_everywhere=bool(self._key and self._key.specialization.products_added))

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the trial for calls of its pass and specialization; for a dense cell it also decides how calls run."""
        trial = self._key
        if trial and trial.kernel_pass == kernel_pass:
            asks_how = self.cell_shape.has_matrix and specialization == self.hinted_specialization
            if asks_how or specialization == trial.specialization:
                return trial
        return super().choose(kernel_pass, specialization, sizes)

    def build(self, key: KernelKey) -> BuiltKernel:
        """Return the trial itself, which is compiled, or another kernel."""
        return self.trial if self.trial and key == self._key else super().build(key)

    @cached_property
    def _key(self) -> KernelKey | None:
        return KernelKey.of(self.trial.plan) if self.trial else None


@dataclass(frozen=True)
class Workload:
    """Calls that run one kernel of a spec, in one direction, and nothing else that takes long.

    They begin at pre-activations, or at x where the kernel itself multiplies it by the weight; dropout takes y and a mask that
    keeps half of it. `trial` is any of its candidates. Other kernels that a call needs, as the forward before a backward, are
    built in `store`, separate from the kernels that `compile()` finds, and without measurements.
    """

    trial: Trial
    target: Target
    store: Store
    place: Place

    @property
    def plan(self) -> KernelPlan:
        """Its plan, with one candidate's variables."""
        return self.trial.plan

    @cached_property
    def builder(self) -> Builder:
        """Builder of the other kernels of its calls."""
        return TrialBuilder(self._spec(), self.target, self.store, trial=_built(self.trial))

    def prepare(self) -> None:
        """Make everything that candidates share: the expected results, and the kernels that run before."""
        _ = self.expected, self._timed, self._others
        # Libraries compile comparisons on first use, for each dtype.
        for array in (self._checked.x, *self._checked.forward.get("state", {}).values()):
            _share(array, array.astype(numpy.float32).astype(numpy.float64), 1.0, 1.0)

    def kernel_of(self, trial: Trial) -> Kernel:
        """Return a kernel that runs this candidate."""
        return Kernel(self.builder, (*self._others, _built(trial)))

    def checked_run(self, kernel: Kernel) -> Callable[[], Arrays]:
        """Return a call of small sizes with all optional arguments, biases and states included."""
        return self._run(kernel, self._checked)

    def timed_run(self, kernel: Kernel) -> Callable[[], Arrays]:
        """Return a call of the planned sizes with its required arguments alone."""
        return self._run(kernel, self._timed)

    def error_share(self, results: Arrays) -> float:
        """Return the largest error of the results of a checked run, as a share of the allowed error; NaN for a NaN."""
        precision = self._interface.precision.with_functions(self.plan.problem.functions)
        slack = LARGEST_OF_NORM * error_allowed(precision) + remembered_error(precision, self.builder.spec.scan_arithmetic)
        shares = [_share(results[name], *expected, slack) for name, expected in self.expected.items()]
        # NaN wins over every number, as it does in numpy.max and does not in max.
        return float(numpy.max(shares))

    @cached_property
    def expected(self) -> Mapping[str, tuple[Any, float]]:
        """Expected results of a checked run, in float64 where the runs are, and the largest of each."""
        spec = self._spec(precision="fp64", functions=None)
        kernel = Kernel(replace(self.builder, spec=spec), (_built(self.trial),))
        rounded = self._made(self._checked_sizes, on_host, is_whole=True)
        wide = Arguments(rounded.x.astype(numpy.float64), _in_float64(rounded.forward), _in_float64(rounded.backward))
        if self.plan.problem.kernel_pass == "dropout":
            results: Arrays = {"y": numpy.where(wide.forward["mask"], scale_of(DROPPED) * wide.x, 0.0)}
        else:
            # A cell of the user's own may overflow; that shows in the comparison.
            with numpy.errstate(all="ignore"):
                results = self._run(kernel, wide)()
        if why := why_not_comparable(results, "reference"):
            raise CannotMeasure(why)
        return {
            name: (self.place(array.reshape(-1), array.shape, array.itemsize), _largest(array))
            for name, array in results.items()
        }

    @property
    def _checked_sizes(self) -> Sizes:
        if self.plan.problem.specialization.input_size:
            return Sizes(self.plan.problem.batch, self.plan.problem.time)  # whole tiles of time, which it demands
        return checked_sizes(self.plan, self.trial.cell.has_matrix, self.target.profile.sm_count)

    @cached_property
    def _others(self) -> tuple[BuiltKernel, ...]:
        """The kernels that a call runs before the measured kernel."""
        if self.plan.problem.kernel_pass not in OF_BACKWARD:
            return ()
        kernel = Kernel(self.builder, (_built(self.trial),))
        kernel.forward(self._checked.x, **self._checked.forward)
        return tuple(built for built in kernel.built if built.plan.problem.kernel_pass not in OF_BACKWARD)

    @cached_property
    def _interface(self) -> Interface:
        return Kernel(self.builder, (_built(self.trial),)).interface

    @cached_property
    def _checked(self) -> Arguments:
        return self._made(self._checked_sizes, self.place, is_whole=True)

    @cached_property
    def _timed(self) -> Arguments:
        return self._made(Sizes(self.plan.problem.batch, self.plan.problem.time), self.place, is_whole=False)

    def _spec(self, **changes: Any) -> Spec:
        specialization = self.plan.problem.specialization
        direction, input_size = "reverse" if specialization.reverse else "forward", specialization.input_size or None
        if specialization.products_added:
            input_size = self.plan.problem.hidden_size  # of a weight beside R
        return load_spec(json.loads(self.trial.recipe), input_size=input_size, direction=direction, **changes)

    def _run(self, kernel: Kernel, arguments: Arguments) -> Callable[[], Arrays]:
        specialization = self.plan.problem.specialization
        if self.plan.problem.kernel_pass == "dropout":
            return lambda: {"y": _dropped(kernel, arguments.x, arguments.forward["mask"])}
        if self.plan.problem.kernel_pass == "step":
            return lambda: _named(*kernel.step(arguments.x, **arguments.forward))
        if self.plan.problem.kernel_pass in OF_BACKWARD:
            _, _, saved = kernel.forward(arguments.x, **arguments.forward)
            return lambda: dict(_leaves(kernel.backward(saved, **arguments.backward)))
        if specialization.states_out == "none":
            return lambda: _named(*kernel(arguments.x, **arguments.forward))
        if specialization.states_out == "arithmetic" and not self.trial.cell.has_matrix:
            return lambda: _named(*kernel(arguments.x, **arguments.forward, all_states=True))
        return lambda: _named(*kernel.forward(arguments.x, **arguments.forward)[:2])

    def _made(self, sizes: Sizes, place: Place, is_whole: bool) -> Arguments:
        """Return the arguments of a call: the same values on every device; `is_whole`: with all optional ones.

        Values are between -1 and 1, so that the coefficients of a raw scan neither grow nor vanish; matrices are scaled to keep
        the size of their operand. States are between 1 and 2, since some cells take their logarithm, or divide by them.
        """
        interface, alignment_bytes = self._interface, self.plan.problem.specialization.alignment_bytes
        storage, carried = map(numpy_dtype, (interface.precision.storage_dtype, interface.precision.arithmetic_dtype))
        values = numpy.random.default_rng(0).uniform(-1, 1, RANDOM_VALUES)

        def uniform(shape: tuple[int, ...], number: int, scale: float = 1.0, dtype: Any = storage) -> Any:
            """Return uniform values; each array starts at its own offset, by its number."""
            return place(numpy.roll(scale * values, number * RANDOM_VALUES // 8).astype(dtype), shape, alignment_bytes)

        # A step has no time axis, whatever the layout.
        axes = "bgh" if self.plan.problem.kernel_pass == "step" else interface.x_axes
        state_shapes = {name: interface.shape_of_state(name, sizes.batch) for name in interface.states}
        forward: dict[str, Any] = {}
        if self.plan.problem.kernel_pass == "dropout":
            shape = interface.y_shape(sizes.batch, sizes.time)
            forward["mask"] = place(values > 0, shape, alignment_bytes)
            return Arguments(uniform(shape, 0), forward, {})
        x = uniform(interface.shape(axes, sizes.batch, sizes.time), 0)
        if interface.input_size:
            forward["weight"] = uniform((interface.weight_rows, interface.input_size), 2, math.sqrt(3 / interface.input_size))
        backward: dict[str, Any] = {"dy": uniform(interface.y_shape(sizes.batch, sizes.time), 1)}
        if interface.recurrent_gates:
            forward["R"] = interface.clear_beyond_blocks(uniform(interface.R_shape, 2, math.sqrt(3 / interface.head_dim)))
        if interface.parameters:
            forward["parameters"] = {name: uniform(interface.shape_of_parameter(name), 3) for name in interface.parameters}
        if interface.shared:
            shared_axes = (
                interface.shared_axes.replace("t", "") if self.plan.problem.kernel_pass == "step" else interface.shared_axes
            )
            shape = interface.shape(shared_axes, sizes.batch, sizes.time)
            forward["shared"] = {name: uniform(shape, 7) for name in interface.shared}
        if interface.inputs:
            channel_axes = interface.channel_axes
            channel_axes = channel_axes.replace("t", "") if self.plan.problem.kernel_pass == "step" else channel_axes
            shape = interface.shape(channel_axes, sizes.batch, sizes.time)
            forward["inputs"] = {name: uniform(shape, 8) for name in interface.inputs}
        if is_whole:
            forward["bias"] = uniform((len(interface.gates), interface.hidden_size), 4)
            if interface.takes_recurrent_bias:
                forward["recurrent_bias"] = uniform(interface.recurrent_bias_shape, 5)
            state = (1.5 + values / 2).astype(carried)
            # A step of a dense cell reads whole rows of its states, a call over time only its first ones.
            whole_rows = bool(interface.recurrent_gates) and self.plan.problem.kernel_pass == "step"
            aligned = alignment_bytes if whole_rows else state.itemsize
            forward["state"] = {name: place(state, shape, aligned) for name, shape in state_shapes.items()}
            backward["dstate"] = {name: uniform(shape, 6, dtype=carried) for name, shape in state_shapes.items()}
        return Arguments(x, forward, backward)


def checked_sizes(plan: KernelPlan, has_matrix: bool, sm_count: int) -> Sizes:
    """Return sizes like a plan's, in idle SMs and in length, for which the fp64 reference takes about a second."""
    is_few = plan.problem.batch * plan.problem.hidden_size < FILLING_CHANNELS_PER_SM * sm_count
    least_batch = 1 if is_few else -(-FILLING_CHANNELS_PER_SM * sm_count // plan.problem.hidden_size)
    least_time = min(plan.problem.time, SHORT_STEPS)
    batch = min(plan.problem.batch, max(least_batch, CHECKED_ELEMENTS // (least_time * plan.problem.hidden_size)))
    most = CHECKED_DENSE_STEPS if has_matrix else CHECKED_ELEMENTS // (batch * plan.problem.hidden_size)
    if plan.strategy == "projected":  # which takes whole tiles alone, of which some wait for others
        tile_steps = plan.launch.tile_steps
        return Sizes(batch, min(plan.problem.time, max(2, most // tile_steps) * tile_steps))
    # Not whole tiles of a power of two, and rows aligned as the planned ones are.
    time = max(SHORT_STEPS, most // (2 * ALIGNMENT_ELEMENTS) * 2 * ALIGNMENT_ELEMENTS) + ALIGNMENT_ELEMENTS
    return Sizes(batch, min(plan.problem.time, time + plan.problem.time % ALIGNMENT_ELEMENTS))


def demand_specialization(kernel: Kernel, plan: KernelPlan) -> None:
    """Raise MeasurementFailed where calls of `kernel` ran a kernel of another specialization than the plan's."""
    ran = {key.specialization for key in kernel.plans if key.kernel_pass == plan.problem.kernel_pass}
    if others := ran - {plan.problem.specialization}:
        raise MeasurementFailed(
            f"calls of these sizes run kernels of {others.pop()}, and the candidate is of {plan.problem.specialization}"
        )


def _dropped(kernel: Kernel, source: Any, mask: Any) -> Any:
    """Return the dropout of `source`, by the kernel that layers launch between them."""
    target = source.copy()
    values, kept, dropped = (memory.inspect(array, "an array") for array in (source, mask, target))
    recorder = kernel.executor.backend.begin(values, None, (values, kept, dropped))
    Dropout(values, kept, dropped, DROPPED).run(recorder)
    recorder.finish(StackResult(()), None)
    return target


def _built(trial: Trial) -> BuiltKernel:
    return BuiltKernel(trial.plan, trial.cell, "", "", trial.cubin, None, (), False, 0.0, None)


def _named(y: Any, state: Mapping[str, Any]) -> Arrays:
    return {"y": y, **state}


def _leaves(arrays: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in arrays.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}{key} ")
        else:
            yield f"{name}{key}", value


def _in_float64(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _in_float64(array) if isinstance(array, dict) else array.astype(numpy.float64) for name, array in arrays.items()
    }


def _largest(array: Any) -> float:
    finite = abs(array[numpy.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _share(result: Any, expected: Any, largest: float, slack: float) -> float:
    """Return the largest error as a share of the allowed error; equal values, infinities included, have none."""
    # By way of fp32, which holds every number of 16 bits: not every library converts bfloat16 to more.
    values = (result.astype(numpy.float32) if result.itemsize == HALF_BYTES else result).astype(numpy.float64)
    values = values.reshape(expected.shape)
    error = abs(values - expected)
    error[values == expected] = 0.0
    worst = float(error.max())
    return worst / (slack * largest) if largest else worst and math.inf
