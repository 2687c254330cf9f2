"""A call of a kernel on random arrays, and its time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minrnn_gen.errors import BadInput

if TYPE_CHECKING:
    from minrnn_gen.kernel import Kernel

# Elements of x; the fp64 reference of such a call takes a few GiB of memory and about a minute.
ELEMENTS_MAX = 2**28
# A median needs a few times; a slow call is not repeated for more than a few seconds.
TIMED_RUNS, TIMED_SECONDS = 7, 3.0


def random_arguments(kernel: Kernel, batch: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the arrays of a call: standard normal, except matrices, which are scaled to keep the variance of their operand.

    Initial states that are composed as logarithms are not negative.
    """
    import numpy

    from minrnn_gen.call.array import numpy_dtype

    interface = kernel.interface
    precision = interface.precision
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    shape = interface.shape(interface.x_axes, batch, steps)
    elements = batch * steps * interface.weight_rows
    if max(elements, math.prod(shape)) > ELEMENTS_MAX:
        raise BadInput(
            f"--batch and --time: {batch} sequences of {steps} steps have {elements} pre-activations; "
            f"allowed: at most {ELEMENTS_MAX}, so give smaller ones"
        )
    generator = numpy.random.default_rng(seed)

    def normal(shape: tuple[int, ...], dtype: Any) -> Any:
        return generator.standard_normal(shape, dtype=numpy.float32).astype(dtype)

    arguments: dict[str, Any] = {"x": normal(shape, storage)}
    if interface.input_size:
        weight = normal((interface.weight_rows, interface.input_size), numpy.float32)
        arguments["weight"] = (weight / math.sqrt(interface.input_size)).astype(storage)
    if interface.recurrent_gates:
        R = normal(interface.R_shape, numpy.float32)
        arguments["R"] = (R / math.sqrt(interface.head_dim)).astype(storage)
        if interface.takes_recurrent_bias:
            arguments["recurrent_bias"] = normal(interface.recurrent_bias_shape, storage)
    if kernel.parameters:
        shapes = {name: interface.shape_of_parameter(name) for name in kernel.parameters}
        arguments["parameters"] = {name: normal(own, storage) for name, own in shapes.items()}
    if interface.shared:
        own = interface.shape(interface.shared_axes, batch, steps)
        arguments["shared"] = {name: normal(own, storage) for name in interface.shared}
    if interface.inputs:
        shapes = {name: interface.shape(interface.axes_of_input(name), batch, steps) for name in interface.inputs}
        arguments["inputs"] = {name: normal(own, storage) for name, own in shapes.items()}
    state = {name: normal(interface.shape_of_state(name, batch), carried) for name in kernel.states}
    is_log = kernel.spec.scan_arithmetic == "log"
    arguments["state"] = {name: numpy.abs(array) for name, array in state.items()} if is_log else state
    return arguments


def timed(call: Callable[[], Any], finish: Callable[[], None]) -> tuple[Any, float]:
    """Return the result, and the median of a few calls after a first one; `finish` waits for the device."""
    result = call()
    finish()
    started = time.perf_counter()
    durations: list[float] = []
    while len(durations) < TIMED_RUNS and (not durations or time.perf_counter() - started < TIMED_SECONDS):
        before = time.perf_counter()
        result = call()
        finish()
        durations.append(time.perf_counter() - before)
    return result, statistics.median(durations)


def mapped(convert: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arrays by name, and mappings of them, each converted."""
    return {name: mapped(convert, value) if isinstance(value, dict) else convert(value) for name, value in arrays.items()}


def leaves_of(arrays: dict[str, Any]) -> list[Any]:
    """Return the arrays of a mapping and of the mappings in it."""
    return [leaf for value in arrays.values() for leaf in (leaves_of(value) if isinstance(value, dict) else [value])]
