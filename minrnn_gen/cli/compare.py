"""`minrnn-gen compare`: is the kernel of a spec faster here than torch's layer, and how far is it from a copy?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from minrnn_gen.cli.call_options import Batch, Device, RunDevice, Seed, Time, place_of, sizes_of
from minrnn_gen.cli.random_call import leaves_of, mapped, random_arguments, timed
from minrnn_gen.cli.request import AsJson, Assignments, GpuName, SpecPath, read_request
from minrnn_gen.cli.terminal import console, duration_text, new_table, print_json, progress

if TYPE_CHECKING:
    from minrnn_gen.kernel import Kernel

OURS, COPY = "minrnn-gen", "a copy of the same bytes"
# Each in turn, so that a slowdown of the machine affects all of them.
ROUNDS = 15

Call = Callable[[], Any]


class Contender(NamedTuple):
    """A way to run the same sizes, and its median seconds."""

    name: str
    seconds: float


def compare(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    device: RunDevice = None,
    batch: Batch = None,
    time_steps: Time = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time a forward next to torch's layer and to a copy."""
    request = read_request(spec, gpu, assignments)
    place, why = place_of(request, device)
    sizes = sizes_of(request, batch, time_steps)
    kernel = request.compile(quiet=as_json)
    arguments = random_arguments(kernel, *sizes, seed)
    measure = _measured_on_gpu if place is Device.CUDA else _measured_on_cpu
    with progress(f"measuring on the {'GPU' if place is Device.CUDA else 'CPU'}", quiet=as_json):
        contenders = measure(kernel, arguments)
    if as_json:
        seconds = {contender.name: contender.seconds for contender in contenders}
        print_json({"device": place.value, "batch": sizes[0], "time": sizes[1], "seconds_per_call": seconds})
        return
    screen, ours = console(), contenders[0].seconds
    screen.print(f"{kernel.builder.cell_source.name}, {sizes[0]} sequences of {sizes[1]} steps, {why}; medians")
    table = new_table("", "time", "of ours", right=("time", "of ours"))
    for contender in contenders:
        table.add_row(contender.name, duration_text(contender.seconds), f"{contender.seconds / ours:.2f}")
    screen.print(table)


def _calls(kernel: Kernel, arguments: dict[str, Any], copy: Call) -> dict[str, Call]:
    """Return the contenders by name: ours, torch's layer where it has the cell, and a copy."""
    from minrnn_gen.cli.beside import torch_layer_of

    calls: dict[str, Call] = {OURS: lambda: kernel(**arguments)}
    if (layer := torch_layer_of(kernel, arguments["x"])) is not None:
        calls[layer[0]] = layer[1]
    return calls | {COPY: copy}


def _bytes_of(kernel: Kernel, arguments: dict[str, Any]) -> int:
    """Return the bytes that a call reads and writes at least."""
    y, state = kernel(**arguments)
    return sum(array.nbytes for array in (y, *state.values(), *leaves_of(arguments)))


def _measured_on_cpu(kernel: Kernel, arguments: dict[str, Any]) -> list[Contender]:
    import numpy

    source = numpy.ones(_bytes_of(kernel, arguments) // 2, numpy.uint8)
    target = numpy.empty_like(source)
    calls = _calls(kernel, arguments, lambda: numpy.copyto(target, source))
    for call in calls.values():
        call()
    rounds = [{name: timed(call, lambda: None)[1] for name, call in calls.items()} for _ in range(3)]
    return [Contender(name, statistics.median(times[name] for times in rounds)) for name in calls]


def _measured_on_gpu(kernel: Kernel, arguments: dict[str, Any]) -> list[Contender]:
    """Measure by the device's clock, each call with a cold L2 cache."""
    from minrnn_gen.gpu import device as gpu_device
    from minrnn_gen.gpu import memory
    from minrnn_gen.gpu.timer import ColdClock

    cupy, profile = gpu_device.cupy_module(), kernel.builder.target.profile
    on_gpu = mapped(memory.to_device, arguments)
    source = cupy.ones(_bytes_of(kernel, on_gpu) // 2, cupy.uint8)
    target = cupy.empty_like(source)
    calls = _calls(kernel, on_gpu, lambda: target.data.copy_from_device_async(source.data, source.nbytes))
    clock = ColdClock(profile.l2_bytes, profile.bandwidth_bytes_per_s)
    for call in calls.values():
        clock.time_us(call)
    rounds = [{name: clock.time_us(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return [Contender(name, 1e-6 * statistics.median(times[name] for times in rounds)) for name in calls]
