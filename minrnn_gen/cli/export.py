"""`minrnn-gen export`: a kernel as C sources, for programs without Python."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from minrnn_gen.cli import completion
from minrnn_gen.cli.compile import sizes_of
from minrnn_gen.cli.request import AsJson, Assignments, SpecPath, read_request
from minrnn_gen.cli.terminal import counting, print_json, print_note


class Target(StrEnum):
    """Target of an export."""

    CPU = "cpu"
    CUDA = "cuda"


def export(
    spec: SpecPath,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Write the sources there.", show_default=False)],
    target: Annotated[Target, typer.Option("--target", help="What they run on.")] = Target.CPU,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Files and names in C begin with rnn_NAME; without it the model's.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME,...",
            help="Of cuda: the GPUs, profiles by name or path.",
            show_default=False,
            autocompletion=completion.gpu_lists,
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--sizes",
            metavar="BxT",
            help="Of cuda: only the kernels of this batch and time; may be repeated.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="NAME,...",
            help="Of cuda: what no call has, and so no kernels for it: resets, cu_seqlens, states.",
            show_default=False,
        ),
    ] = None,
    reset_states: Annotated[bool, typer.Option("--reset-states", help="Calls have reset states, as inputs X.*.")] = False,
    holds: Annotated[bool, typer.Option("--holds", help="Calls have holds, as an input X.*.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Leave out what cannot be exported, and say so.")] = False,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Write a kernel as C sources that need neither Python nor CUDA headers."""
    gpus = gpu.split(",") if gpu is not None else []
    absent = without.split(",") if without is not None else []
    asked = [sizes_of(text) for text in sizes or ()]
    kernel = read_request(spec, next(iter(gpus), None), assignments).kernel()
    with counting("compiling", quiet=as_json or target is Target.CPU) as watch:
        exported = kernel.export(
            out,
            target=target.value,
            name=name,
            partial=partial,
            gpus=gpus,
            sizes=asked,
            without=absent,
            reset_states=reset_states,
            holds=holds,
            watch=watch,
        )
    if as_json:
        print_json({"files": [str(path) for path in exported.files], "left_out": list(exported.left_out)})
        return
    for sentence in exported.left_out:
        print_note(f"left out: {sentence}")
    for path in exported.files:
        typer.echo(f"wrote {path}")
