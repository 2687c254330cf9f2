"""Calls of scans over dual numbers whose tangents of gates lie in an array of their own, as in second backwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.signature_groups import own_gates
from minrnn_gen.interpret.cases import Inputs
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.run.scan import apart


def halves_of_gates(interface: Interface, x: Any) -> tuple[Any, Any]:
    """Return the gates of a call and their tangents, without gaps."""
    at = own_gates(len(interface.gates))
    own, moved = numpy.split(x, [at], interface.x_axes.index("g"))
    return numpy.ascontiguousarray(own), numpy.ascontiguousarray(moved)


def results_apart(kernel: InterpretedKernel, inputs: Inputs) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return y and the final states, and the gradients by name, that of tangents of gates left out."""
    own, moved = halves_of_gates(kernel.interface, inputs.forward["x"])
    arguments = CallArguments(**{**inputs.forward, "x": own})
    computed = apart._run(kernel.executor, apart.Apart(arguments, moved, {}), inputs.dy, inputs.dstate)
    assert computed is not None
    result, gradients = computed
    return {"y": result.y, **dict(zip(kernel.interface.states, result.final, strict=True))}, gradients
