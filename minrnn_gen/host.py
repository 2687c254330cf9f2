"""Running on host arrays: the arrays of a call as NumPy views, time first, for the CPU target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen import cpu
from minrnn_gen.arguments import Y_AXES, Call, Contract
from minrnn_gen.arrays import as_numpy, numpy_dtype
from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.cpu_backward import ScanGradients, run_scan_backward
from minrnn_gen.cpu_recurrence import ScanMethod


@dataclass(frozen=True)
class HostCall:
    """The arrays of a call as the CPU target takes them: `gates` [T, B, G, H], a single step as T = 1."""

    gates: Any
    bias: Any
    parameters: Mapping[str, Any]
    initial: Mapping[str, Any]
    arithmetic: Any


def host_call(contract: Contract, call: Call, arithmetic: str) -> HostCall:
    """View the arrays of `call` time first, x projected where a weight was given; `arithmetic` is a dtype's name."""
    dtype = numpy_dtype(arithmetic)
    x, axes = as_numpy(call.x), call.x_axes
    if call.weight is not None:
        rows = numpy.moveaxis(x, axes.index("i"), -1)
        product = cpu.project(rows, as_numpy(call.weight), dtype)
        x = product.reshape(*product.shape[:-1], contract.gate_count, contract.hidden_size)
        axes = axes.replace("i", "") + "gh"
    if "t" not in axes:
        x, axes = x[None], "t" + axes
    zeros = numpy.zeros((call.batch, contract.hidden_size), dtype)
    given = zip(contract.states, call.initial, strict=True)
    return HostCall(
        gates=x.transpose([axes.index(axis) for axis in "tbgh"]),
        bias=None if call.bias is None else as_numpy(call.bias).reshape(contract.gate_count, contract.hidden_size),
        parameters={name: as_numpy(one) for name, one in zip(contract.parameters, call.parameters, strict=True)},
        initial={name: zeros if one is None else as_numpy(one) for name, one in given},
        arithmetic=dtype,
    )


def y_by_time(y: Any, layout: str) -> Any:
    """View y of a layout as [T, B, H], a single step's [B, H] as [1, B, H]."""
    if y.ndim == 2:
        return y[None]
    return y.transpose([Y_AXES[layout].index(axis) for axis in "tbh"])


def scan(
    contract: Contract,
    lowered: LoweredScan,
    call: HostCall,
    y: Any,
    all_states: Mapping[str, Any] | None = None,
    method: ScanMethod | None = None,
) -> dict[str, Any]:
    """Run forward, write `y` (in the layout) and `all_states` ([T, B, H] each), and return the final states."""
    return cpu.run_scan(
        lowered,
        call.gates,
        bias=call.bias,
        parameters=call.parameters,
        initial=call.initial,
        arithmetic=call.arithmetic,
        y=y_by_time(y, contract.layout),
        all_states=all_states,
        method=method,
    )


def scan_backward(
    contract: Contract,
    lowered: LoweredScanBackward,
    call: HostCall,
    states: Mapping[str, Any],
    dy: Any,
    dfinal: Mapping[str, Any],
    dx: Any,
) -> ScanGradients:
    """Run backward and write `dx` [T, B, G, H].

    `states` {name: [T, B, H]} are those of `lowered.read_states`; `dy` is in the layout.
    """
    return run_scan_backward(
        lowered,
        call.gates,
        bias=call.bias,
        parameters=call.parameters,
        initial=call.initial,
        states=states,
        dy=y_by_time(dy, contract.layout),
        dfinal=dfinal,
        arithmetic=call.arithmetic,
        dx=dx,
    )
