"""Options of commands that run a kernel on random data: its sizes, its seed, and where it runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from minrnn_gen.cli.request import Request
from minrnn_gen.errors import ToolchainMissing

# Small enough for the CPU and its fp64 reference to take well under a second.
DEFAULT_BATCH, DEFAULT_TIME = 4, 256


class Device(StrEnum):
    """Where a kernel runs."""

    CPU = "cpu"
    CUDA = "cuda"


RunDevice = Annotated[
    Device | None,
    typer.Option("--device", help="Where to run; by default the GPU that is found, else the CPU.", show_default=False),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", min=1, help="Sequences; by default the spec's hint, or 4.", show_default=False),
]
Time = Annotated[
    int | None,
    typer.Option("--time", metavar="N", min=1, help="Steps; by default the spec's hint, or 256.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the random data.")]


def sizes_of(request: Request, batch: int | None, time_steps: int | None) -> tuple[int, int]:
    """Return batch and time of a call: the requested ones, else the spec's hints, else the defaults."""
    return batch or request.spec.batch or DEFAULT_BATCH, time_steps or request.spec.time or DEFAULT_TIME


def place_of(request: Request, asked: Device | None) -> tuple[Device, str]:
    """Return where to run, and the reason in words where it was not asked for."""
    from minrnn_gen.gpu import device as gpu_device

    if asked is Device.CPU:
        return Device.CPU, "on the CPU, as asked for"
    live = gpu_device.live_device()
    if live is None:
        if asked is Device.CUDA:
            raise ToolchainMissing(
                f"--device cuda: {gpu_device.why_no_gpu()}; run it with --device cpu, or run 'minrnn-gen doctor' to check "
                "the installation"
            )
        return Device.CPU, f"{gpu_device.why_no_gpu()}: planned for {request.target.profile.name}, run on the CPU"
    if asked is None and live.profile.arch != request.target.profile.arch:
        return Device.CPU, f"on the CPU: the GPU here, {live.name}, is no {request.target.profile.arch}"
    return Device.CUDA, f"on the GPU here, {live.name}"
