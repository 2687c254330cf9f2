"""A call as its runs over time, each in one direction: views of the arrays, which both directions of a call share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface


def runs_of(interface: Interface, call: Call) -> Iterator[tuple[int, Call]]:
    """Yield each run's number and its part of a call with pre-activations; the part is a call of one direction."""
    for run, reverse in enumerate(interface.runs_reversed):
        if interface.directions:
            bias = call.bias
            if bias is not None:
                # One axis, or three.
                bias = bias.narrowed(0, run * (bias.shape[0] // 2), bias.shape[0] // 2)
            R, recurrent_bias = _selected_present((call.R, call.recurrent_bias), run)
            yield (
                run,
                replace(
                    call,
                    x=call.x.selected(call.x_axes.index("d"), run),
                    moved=None if call.moved is None else call.moved.selected(call.x_axes.index("d"), run),
                    x_axes=call.x_axes.replace("d", ""),
                    bias=bias,
                    parameters=_selected(call.parameters, run),
                    initial=_selected_present(call.initial, run),
                    reverse=reverse,
                    R=R,
                    recurrent_bias=recurrent_bias,
                    shared=_shared_of_run(interface, call.shared, run),
                    inputs=_inputs_of_run(interface, call.inputs, run),
                ),
            )
        else:
            yield run, replace(call, reverse=reverse)


def outputs_of_run(interface: Interface, outputs: Outputs, run: int) -> Outputs:
    """Return one run's part of what a forward writes."""
    if not interface.directions:
        return outputs
    return Outputs(
        y=channels_of_run(interface, outputs.y, run),
        kept=tuple(channels_of_run(interface, states, run) for states in outputs.kept),
        final=_selected(outputs.final, run),
        products=None if outputs.products is None else outputs.products.narrowed(0, run, 1),
    )


def incoming_of_run(interface: Interface, incoming: IncomingGradient, run: int) -> IncomingGradient:
    """Return one run's part of the gradients that a backward starts from."""
    if not interface.directions:
        return incoming
    return IncomingGradient(channels_of_run(interface, incoming.dy, run), _selected_present(incoming.dfinal, run))


def gradients_of_run(interface: Interface, x_axes: str, gradients: Gradients, run: int) -> Gradients:
    """Return one run's part of what a backward writes.

    `x_axes` are the axes of dx; sums and vectors have an axis of runs in front.
    """
    sums, vectors = None if gradients.sums is None else gradients.sums.selected(0, run), _selected(gradients.vectors, run)
    if not interface.directions:
        return replace(gradients, sums=sums, vectors=vectors)
    dshared = _shared_of_run(interface, gradients.dshared, run)
    dx = gradients.dx.selected(x_axes.index("d"), run)
    dinputs = _inputs_of_run(interface, gradients.dinputs, run)
    return Gradients(dx, _selected(gradients.dinitial, run), sums, dshared, vectors, dinputs)


def channels_of_run(interface: Interface, y: Array, run: int) -> Array:
    """Return one run's channels of an array with the axes of y."""
    axis = Y_AXES[interface.layout].index("h")
    units = y.shape[axis] // 2
    return y.narrowed(axis, run * units, units) if interface.directions else y


def _shared_of_run(interface: Interface, arrays: tuple[Array, ...], run: int) -> tuple[Array, ...]:
    return tuple(array.selected(interface.shared_axes.index("d"), run) for array in arrays)


def _inputs_of_run(interface: Interface, arrays: tuple[Array, ...], run: int) -> tuple[Array, ...]:
    axes = interface.channel_axes
    return tuple(array.selected(axes.index("d") - (len(axes) - len(array.shape)), run) for array in arrays)


def _selected_present(arrays: tuple[Array | None, ...], run: int) -> tuple[Array | None, ...]:
    return tuple(None if array is None else array.selected(0, run) for array in arrays)


def _selected(arrays: tuple[Array, ...], run: int) -> tuple[Array, ...]:
    return tuple(array.selected(0, run) for array in arrays)
