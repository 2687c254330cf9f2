"""Scans of full maps on CUDA arrays: a cell of coupled states, whose gates are the values of the maps, in float64.

Its gradients are a scan of the transposed maps, against the direction of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.recipe import cell_source_of, recipe_of
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.build.target import Target
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import Array
from minrnn_gen.errors import INSTALL_CUDA, ToolchainMissing
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu.memory import cast, inspect, new_array, stacked, without_gaps
from minrnn_gen.raw_scan.arrangement import RawLayout
from minrnn_gen.raw_scan.kernels import KERNELS_HELD, RawSpec
from minrnn_gen.raw_scan.map_arguments import CARRIED, MapBackwardCall, MapCall, MapRecurrence
from minrnn_gen.raw_scan.results import ScanGradients, ScanResult
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.interface import interface_of
from minrnn_gen.run.kernels import CompiledKernels

# Of fewer channels most lanes of a warp along them would idle.
_CHANNELS_LEAST = 8
# By layout: the axes of x in the order of [rows, T, C, values], and those of [rows, T, C] in the order of y's.
ORDERS: Mapping[RawLayout, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "BTD": ((0, 1, 3, 2), (0, 1, 2)),
    "BDT": ((0, 3, 2, 1), (0, 2, 1)),
}


class MapKernel(NamedTuple):
    """Key of the kernels of a scan of maps."""

    size: int
    channels: int
    is_constant: bool
    reverse: bool

    @property
    def layout(self) -> RawLayout:
        return "BTD" if self.channels >= _CHANNELS_LEAST else "BDT"

    @property
    def spec(self) -> RawSpec:
        """States s0 to s(m-1), gates b0 to b(m-1), and entries a00, a01, ... that are gates too, or parameters if constant."""
        source = "" if self.is_constant else "W."
        lines = []
        for row in range(self.size):
            products = "".join(f"{source}a{row}{n} * s{n}[t-1] + " for n in range(self.size))
            lines.append(f"s{row}[t] = {products}W.b{row}")
        entries = [f"a{row}{n}" for row in range(self.size) for n in range(self.size)]
        inputs = [f"b{row}" for row in range(self.size)]
        model = {"name": f"maps_of_{self.size}", "equations": "\n".join(lines)}
        named = {"parameters": entries, "gates": inputs} if self.is_constant else {"gates": [*entries, *inputs]}
        direction: Any = "reverse" if self.reverse else "forward"
        return RawSpec(
            model=model | named,
            hidden_size=self.channels,
            precision="fp64",
            layout=self.layout,
            direction=direction,
            training=False,
        )


def recipe_of_maps(kernel: MapKernel) -> str:
    """Return the recipe of such kernels."""
    return recipe_of(kernel.spec, cell_source_of(kernel.spec))


@lru_cache(maxsize=KERNELS_HELD)
def executor_of(kernel: MapKernel, device: int | None) -> Executor:
    """Return what runs such scans on the live device number `device`, kept until `KERNELS_HELD` others have been used since."""
    live = None if device is None else gpu_device.live_device(device)
    if live is None:
        raise ToolchainMissing(f"b is on CUDA device {device}, but {gpu_device.why_no_gpu()}: {INSTALL_CUDA}")
    target = Target(live.profile, live.profile.model_dump_json().encode(), "device")
    builder = Builder(kernel.spec, target, Store(cache_folder()))
    return Executor(interface_of(builder, builder.cell_shape), builder, CudaBackend(CompiledKernels(builder, ())))


def scan(call: MapCall) -> ScanResult:
    """Return (y, final), contiguous."""
    recurrence = call.recurrence
    maps, b = _maps(recurrence, call.a), _by_row(recurrence, call.b)
    states, final = _run(recurrence, maps, b, _state(recurrence, call.h0), recurrence.reverse)
    return ScanResult(cast(states, recurrence.dtype).reshape(recurrence.shape), final.reshape(recurrence.state_shape))


def scan_backward(call: MapBackwardCall) -> ScanGradients:
    """Return (da, db, dh0), contiguous; da of constant maps is in float64, for each row: [rows, ..., m, m].

    delta[t] = dy[t] + A[t+1]' delta[t+1]; db = delta, dA = delta h[t-1]'.
    """
    recurrence = call.recurrence
    h0, dfinal = _state(recurrence, call.h0), _state(recurrence, call.dfinal)
    transposed, dy = _maps(recurrence, call.a).swapaxes(-1, -2), _by_row(recurrence, call.dy)
    # Entered through A[t+1]: delta before A' is the state of a scan whose inputs are A' dy.
    inputs = (transposed @ dy[..., None])[..., 0]
    arriving, dh0 = _run(recurrence, transposed, inputs, dfinal, not recurrence.reverse)
    delta = dy + _before(arriving, dfinal, not recurrence.reverse)
    before = _before(_by_row(recurrence, call.y), h0, recurrence.reverse)
    da = delta[..., :, None] * before[..., None, :]
    if recurrence.is_constant:
        da = da.sum(1).reshape(recurrence.rows, *recurrence.map_shape)
    else:
        da = cast(da, recurrence.dtype).reshape(recurrence.map_shape)
    return ScanGradients(da, cast(delta, recurrence.dtype).reshape(recurrence.shape), dh0.reshape(recurrence.state_shape))


def _run(recurrence: MapRecurrence, maps: Any, b: Any, initial: Any, reverse: bool) -> tuple[Any, Any]:
    """Return the states [rows, T, C, m] and the last of them [rows, C, m], in float64."""
    rows, time, channels, size = b.shape
    like = inspect(b, "b")
    if 0 in like.shape:
        return b, new_array(like, (rows, channels, size), CARRIED, fill=0).owner if initial is None else initial
    kernel = MapKernel(size, channels, recurrence.is_constant, reverse)
    executor = executor_of(kernel, like.device)
    parts = [b] if recurrence.is_constant else [maps.reshape(rows, time, channels, size**2), b]
    # From values last to the axes of x, and back.
    gates, (to_x, from_y) = sum(part.shape[-1] for part in parts), ORDERS[kernel.layout]
    axes = (rows, time, channels, gates)
    x, first = new_array(like, tuple(axes[axis] for axis in to_x), CARRIED).owner, 0
    for part in parts:
        last = first + part.shape[-1]
        x[(slice(None),) * to_x.index(3) + (slice(first, last),)] = _permuted(part, to_x)
        first = last
    entries = None
    if recurrence.is_constant:
        entries = {name: _alone(maps[:, int(name[1]), int(name[2])]) for name in executor.interface.parameters}
    names = executor.interface.states
    state = None if initial is None else {name: _alone(initial[..., int(name[1])]) for name in names}
    result, _ = executor.forward(CallArguments(x, parameters=entries, state=state), True, saves=False)
    placed = [names.index(f"s{row}") for row in range(size)]
    every = stacked([_permuted(result.states[place], from_y) for place in placed], -1)
    return every, stacked([result.final[place] for place in placed], -1)


def _before(values: Any, initial: Any, reverse: bool) -> Any:
    """Return the values [rows, T, C, m] before each step."""
    before = new_array(inspect(values, "values"), tuple(values.shape), CARRIED).owner
    if values.shape[1]:
        inner, edge = (slice(None, -1), -1) if reverse else (slice(1, None), 0)
        before[:, inner] = values[:, 1:] if reverse else values[:, :-1]
        before[:, edge] = 0 if initial is None else initial
    return before


def _maps(recurrence: MapRecurrence, a: Array) -> Any:
    """Return maps as [rows, T, C, m, m], or [C, m, m] where they are constant, in float64."""
    steps = () if recurrence.is_constant else (recurrence.rows, recurrence.time)
    return cast(a.owner, CARRIED).reshape(*steps, recurrence.channels, recurrence.size, recurrence.size)


def _by_row(recurrence: MapRecurrence, array: Array) -> Any:
    return cast(array.owner, CARRIED).reshape(recurrence.rows, recurrence.time, recurrence.channels, recurrence.size)


def _state(recurrence: MapRecurrence, array: Array | None) -> Any:
    return None if array is None else array.owner.reshape(recurrence.rows, recurrence.channels, recurrence.size)


def _permuted(array: Any, axes: tuple[int, ...]) -> Any:
    return array.permute(axes) if hasattr(array, "permute") else array.transpose(axes)


def _alone(array: Any) -> Any:
    return without_gaps(inspect(array, "values")).owner
