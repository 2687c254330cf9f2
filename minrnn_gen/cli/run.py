"""`minrnn-gen run`: the kernel on random data, against the fp64 reference and the clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minrnn_gen.cli.call_options import Batch, Device, RunDevice, Seed, Time, place_of, sizes_of
from minrnn_gen.cli.random_call import leaves_of, mapped, random_arguments, timed
from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Request, SpecPath, read_request
from minrnn_gen.cli.terminal import console, duration_text, facts, print_json, progress
from minrnn_gen.errors import INSTALL_CUDA, MinrnnError

if TYPE_CHECKING:
    from minrnn_gen.cli.accuracy import Accuracy, Result
    from minrnn_gen.cli.beside import Beside
    from minrnn_gen.kernel import Kernel


@dataclass(frozen=True)
class Outcome:
    """Result of one run. `seconds` is the median of one call; `bytes_moved` the least that a call reads and writes.

    On the CPU `code` says which code ran, and `beside` is the reference measured with it, if any.
    """

    device: Device
    x_shape: tuple[int, ...]
    batch: int
    time: int
    accuracy: Accuracy
    seconds: float
    bytes_moved: int
    code: str = ""
    beside: Beside | None = None


def run(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    device: RunDevice = None,
    batch: Batch = None,
    time_steps: Time = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Run on random data, check against fp64, and time it."""
    started = time.perf_counter()
    request = read_request(spec, gpu, assignments)
    place, why = place_of(request, device)
    sizes = sizes_of(request, batch, time_steps)
    kernel = request.compile(quiet=as_json)
    build_seconds = time.perf_counter() - started
    with progress(f"running on the {'GPU' if place is Device.CUDA else 'CPU'}", quiet=as_json):
        outcome = _run(request, kernel, place, *sizes, seed)
    if as_json:
        print_json(_report(request, kernel, outcome))
    else:
        _print(kernel, outcome, build_seconds, why)
    return 0 if outcome.accuracy.is_within else 1


def _run(request: Request, kernel: Kernel, place: Device, batch: int, steps: int, seed: int) -> Outcome:
    import numpy

    from minrnn_gen.cli.accuracy import compare
    from minrnn_gen.cli.beside import code_of, measured_beside
    from minrnn_gen.gpu import device as gpu_device
    from minrnn_gen.gpu import memory

    arguments = random_arguments(kernel, batch, steps, seed)
    code, other = "", None
    # A cell of the user's own may overflow; that shows in the comparison, not as warnings.
    with numpy.errstate(all="ignore"):
        arguments, expected = _with_reference(kernel, arguments)
        if place is Device.CUDA:
            on_gpu = mapped(memory.to_device, arguments)
            (y, state), seconds = timed(lambda: kernel(**on_gpu), gpu_device.synchronize)
            y, state = memory.to_host(y), mapped(memory.to_host, state)
        else:
            (y, state), seconds = timed(lambda: kernel(**arguments), lambda: None)
            code = code_of(kernel)
            other = measured_beside(request, kernel, arguments, lambda call: timed(call, lambda: None)[1])
        accuracy = compare(kernel.spec, (y, state), expected, bool(kernel.interface.recurrent_gates))
    # Each input is read once and each output written once; the states are the size of one step.
    moved = sum(array.nbytes for array in (y, *state.values(), *leaves_of(arguments)))
    return Outcome(place, arguments["x"].shape, batch, steps, accuracy, seconds, moved, code, other)


def _with_reference(kernel: Kernel, arguments: dict[str, Any]) -> tuple[dict[str, Any], Result]:
    """Return the arguments and the fp64 reference's results; raises MinrnnError where these are NaN everywhere.

    Some cells take the logarithm of a state, or divide by it: if the reference has NaN, initial states are moved to between 1
    and 2.
    """
    import numpy

    from minrnn_gen.call.comparable import why_not_comparable

    def nan_share(expected: Result) -> float:
        y, state = expected
        return float(numpy.mean([numpy.isnan(array).mean() for array in (y, *state.values())]))

    expected = kernel.reference(**arguments)
    if nan_share(expected) > 0:
        state = {
            name: (1 + numpy.abs(numpy.tanh(array.astype(float)))).astype(array.dtype)
            for name, array in arguments["state"].items()
        }
        positive = {**arguments, "state": state}
        if nan_share(again := kernel.reference(**positive)) < nan_share(expected):
            arguments, expected = positive, again
    if why := why_not_comparable({"y": expected[0]}, f"reference of {kernel.builder.cell_source.name}"):
        raise MinrnnError(f"{kernel.spec.where}: {why}; correct the equations, or call the kernel with arrays of your own")
    return arguments, expected


def _report(request: Request, kernel: Kernel, outcome: Outcome) -> dict[str, Any]:
    from minrnn_gen.cli.report import kernel_entries

    accuracy = outcome.accuracy
    return {
        "model": kernel.builder.cell_source.name,
        "gpu": request.target.profile.name,
        "gpu_chosen_by": request.target.origin,
        "arch": request.target.profile.arch,
        "device": outcome.device.value,
        "batch": outcome.batch,
        "time": outcome.time,
        "x_shape": list(outcome.x_shape),
        "variables": dict(kernel.plan.variables),
        "kernels": kernel_entries(kernel.built),
        "largest_error": accuracy.error if math.isfinite(accuracy.error) else None,
        "largest_value": accuracy.value if math.isfinite(accuracy.value) else None,
        "share_of_tolerance": accuracy.share if math.isfinite(accuracy.share) else None,
        "within_tolerance": accuracy.is_within,
        "seconds_per_call": outcome.seconds,
        "bytes_per_call": outcome.bytes_moved,
        **({"code": outcome.code} if outcome.code else {}),
        **({"beside": outcome.beside._asdict()} if outcome.beside else {}),
    }


def _print(kernel: Kernel, outcome: Outcome, build_seconds: float, why: str) -> None:
    _print_kernels(kernel, build_seconds, why)
    _print_outcome(kernel, outcome)


def _print_kernels(kernel: Kernel, build_seconds: float, why: str) -> None:
    from minrnn_gen.cli.report import decision, origin, resources, title

    screen = console()
    screen.print(title(kernel.built[0]))
    screen.print(why)
    screen.print()
    compiled = origin(kernel.built, build_seconds)
    if kernel.resources is None:
        compiled = f"rendered, not compiled, because NVRTC is missing: {INSTALL_CUDA}"
    screen.print(facts([*decision(kernel.built[0], kernel.builder.target.profile), ("kernels", compiled)]))
    screen.print()
    if kernel.resources is not None:
        screen.print(resources(kernel.built))
        screen.print()


def _print_outcome(kernel: Kernel, outcome: Outcome) -> None:
    accuracy, screen = outcome.accuracy, console()
    elapsed = f"{duration_text(outcome.seconds)} per call on the CPU, by {outcome.code}"
    if outcome.beside is not None:
        elapsed += f"; {duration_text(outcome.beside.seconds)} by {outcome.beside.name}"
    if outcome.device is Device.CUDA:
        speed = f"{outcome.bytes_moved / outcome.seconds / 1e9:,.0f} GB/s"
        elapsed = f"{duration_text(outcome.seconds)} per call on the GPU, launch included; {speed} read and written"
    screen.print(
        facts(
            [
                ("data", f"random, x {list(outcome.x_shape)} in {kernel.interface.precision.storage_dtype}"),
                ("error", f"{accuracy.error:.2g} at most against the fp64 reference, for |y| up to {accuracy.value:.2g}"),
                ("tolerance", accuracy.verdict),
                ("time", elapsed),
            ]
        )
    )
