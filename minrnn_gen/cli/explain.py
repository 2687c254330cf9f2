"""`minrnn-gen explain`: the decision in words."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from minrnn_gen.cli.request import Assignments, GpuName, Pass, Request, SpecPath, WhichPass, read_request
from minrnn_gen.cli.terminal import progress

Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="B", help="Of a call of so many sequences.", show_default=False)
]
Time = Annotated[int | None, typer.Option("--time", min=1, metavar="T", help="Of a call of so many steps.", show_default=False)]
Classes = Annotated[bool, typer.Option("--classes", help="The kernels of the pass for all sizes, and which sizes each serves.")]


def explain(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    which: WhichPass = Pass.FORWARD,
    batch: Batch = None,
    time: Time = None,
    classes: Classes = False,
) -> None:
    """Say what was decided, and why."""
    from minrnn_gen.build.explain import explain as in_words

    request = read_request(spec, gpu, assignments)
    if classes:
        sys.stdout.write(_classes(request, which) + "\n")
        return
    if batch is None and time is None:
        sys.stdout.write(in_words(request.compile_pass(which), note=f", {request.gpu_choice}") + "\n")
        return
    sys.stdout.write(_call(request, which, batch, time) + "\n")


def _classes(request: Request, which: Pass) -> str:
    from minrnn_gen.api import builder_for
    from minrnn_gen.build.explain_sizes import explain_classes
    from minrnn_gen.run.ahead import plain_specialization

    builder = builder_for(request.spec, request.target)
    specialization = plain_specialization(builder, which.value, builder.hinted_sizes)
    with progress("planning"):
        return explain_classes(builder, which.value, specialization)


def _call(request: Request, which: Pass, batch: int | None, time: int | None) -> str:
    """Return the explanation of the kernel that a call of these sizes gets; what is not given is the spec's."""
    from minrnn_gen.api import builder_for
    from minrnn_gen.build.explain import explain as in_words
    from minrnn_gen.build.explain_sizes import explain_sizes
    from minrnn_gen.plan.problem import Sizes
    from minrnn_gen.run.ahead import build_plain, plain_specialization

    builder = builder_for(request.spec, request.target)
    sizes = Sizes(batch or builder.hinted_sizes.batch, time or builder.hinted_sizes.time)
    with progress(f"compiling for {request.target.profile.name}"):
        built = build_plain(builder, which.value, sizes)
    why = explain_sizes(builder, which.value, plain_specialization(builder, which.value, sizes), sizes)
    return in_words(built, note=f", {request.gpu_choice}") + "\n\n" + why
