"""Calls of scans over dual numbers whose tangents of gates lie in an array of their own, as in second backwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy

from minrnn_gen.call.arguments import CallArguments, Gradients, IncomingGradient
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.signature_groups import own_gates
from minrnn_gen.interpret.cases import Inputs
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.run.backend import Recorder, WideGradients
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan import apart
from minrnn_gen.run.scan.runs import ScanRun


def halves_of_gates(interface: Interface, x: Any) -> tuple[Any, Any]:
    """Return the gates of a call and their tangents, without gaps."""
    at = own_gates(len(interface.gates))
    own, moved = numpy.split(x, [at], interface.x_axes.index("g"))
    return numpy.ascontiguousarray(own), numpy.ascontiguousarray(moved)


def results_apart(kernel: InterpretedKernel, inputs: Inputs) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return y and the final states, and the gradients by name, that of tangents of gates left out."""
    own, moved = halves_of_gates(kernel.interface, inputs.forward["x"])
    arguments = CallArguments(**{**inputs.forward, "x": own})
    with patch("minrnn_gen.run.gpu.in_slots", lambda *_: None):  # which gives a gradient the shape of x
        computed = apart._run(kernel.executor, apart.Apart(arguments, moved, {}), inputs.dy, inputs.dstate)
    assert computed is not None
    result, gradients = computed
    return {"y": result.y, **dict(zip(kernel.interface.states, result.final, strict=True))}, gradients


@dataclass(frozen=True)
class Asked(ScanRun):
    """Backwards that write the gradients of tangents of gates too, after a gap of one gate; the last one's are in `written`."""

    written: list[Array] = field(default_factory=list)

    def backward(self, recorder: Recorder, forward: Forward, incoming: IncomingGradient, gradients: Gradients) -> WideGradients:
        x, gates = forward.call.x, forward.call.x_axes.index("g")
        own = x.shape[gates]
        both = recorder.new_array((*x.shape[:gates], 2 * own + 1, *x.shape[gates + 1 :]), x.dtype)
        self.written[:] = [both]
        asked = replace(gradients, dx=both.narrowed(gates, 0, own), dx_moved=both.narrowed(gates, own + 1, own))
        return super().backward(recorder, forward, incoming, asked)


def ask_for_tangents(kernel: InterpretedKernel) -> None:
    """Have the backwards of a kernel whose tangents lie apart write their gradients, and return them with a gap."""
    run = kernel.executor.gpu
    assert isinstance(run._cells, ScanRun)
    run._cells = cells = Asked(run._cells.interface, run._cells.builder)
    run._through_projection = lambda *_: (*cells.written, None)  # type: ignore[method-assign]


def without_gap(interface: Interface, gradient: Any) -> Any:
    """Return the gradient of x from what such a backward returns."""
    return numpy.delete(gradient, own_gates(len(interface.gates)), interface.x_axes.index("g"))
