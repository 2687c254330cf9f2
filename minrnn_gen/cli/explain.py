"""`minrnn-gen explain`: the decision in words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Pass, Request, SpecPath, WhichPass, read_request
from minrnn_gen.cli.terminal import print_json, print_note, progress
from minrnn_gen.errors import BadInput, shown

if TYPE_CHECKING:
    from minrnn_gen.build.artifact import BuiltKernel

Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="B", help="Batch of the call to explain.", show_default=False)
]
Time = Annotated[int | None, typer.Option("--time", min=1, metavar="T", help="Its steps.", show_default=False)]
Classes = Annotated[bool, typer.Option("--classes", help="The kernels of the pass for all sizes, and which sizes each serves.")]

AsProgram = Annotated[bool, typer.Option("--program", help="The program of a call: buffers, launches and products.")]

AsHtml = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write the decision as a page to this file.", show_default=False)
]


def explain(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    which: WhichPass = Pass.FORWARD,
    batch: Batch = None,
    time: Time = None,
    classes: Classes = False,
    as_program: AsProgram = False,
    as_json: AsJson = False,
    as_html: AsHtml = None,
) -> None:
    """Say what was decided, and why."""
    if len(several := [name for name, is_asked in _forms(as_json, classes, as_program, as_html) if is_asked]) > 1:
        raise BadInput(f"{' and '.join(several)} are given together; give one of them")
    request = read_request(spec, gpu, assignments)
    if as_html is not None:
        _write_page(request, which, batch, time, as_html)
        return
    if as_json:
        print_json(_report(request, _built(request, which, batch, time)))
        return
    if as_program:
        sys.stdout.write(_program(request, which, batch, time) + "\n")
        return
    if classes:
        sys.stdout.write(_classes(request, which) + "\n")
        return
    if batch is None and time is None:
        text = _in_words(request, request.compile_pass(which))
        sys.stdout.write(f"{text}\n\n{_on_cpu(request)}\n")
        return
    sys.stdout.write(_call(request, which, batch, time) + "\n")


def _on_cpu(request: Request) -> str:
    """Say which code runs calls on host arrays, and why."""
    from minrnn_gen.run.cpu.native import NativeKernels
    from minrnn_gen.run.interface import interface_of

    builder = request.builder_of_kernels
    return NativeKernels(interface_of(builder, builder.cell_shape), builder).in_words()


def _forms(as_json: bool, classes: bool, as_program: bool, as_html: str | None) -> tuple[tuple[str, bool], ...]:
    return ("--json", as_json), ("--classes", classes), ("--program", as_program), ("--html", as_html is not None)


def _program(request: Request, which: Pass, batch: int | None, time: int | None) -> str:
    """Return the program of a call of these sizes; absent sizes are the spec's."""
    from minrnn_gen.plan.problem import Sizes
    from minrnn_gen.run.recording.plain_program import plain_program

    builder = request.builder_of_kernels
    sizes = Sizes(batch or builder.hinted_sizes.batch, time or builder.hinted_sizes.time)
    with progress("planning"):
        return plain_program(builder, which.value, sizes)


def _write_page(request: Request, which: Pass, batch: int | None, time: int | None, path: str) -> None:
    from minrnn_gen.build.output_files import refused_by_option, write_output
    from minrnn_gen.plan.problem import Sizes
    from minrnn_gen.report.decision import decision_page

    built = _built(request, which, batch, time)
    builder, sizes = request.builder_of_kernels, Sizes(built.plan.problem.batch, built.plan.problem.time)
    key = builder.key_of(which.value, built.plan.problem.specialization, sizes)
    solution = next(solution for solution in builder.solutions(key) if solution.family.name == built.plan.name)
    page = decision_page(built, solution, request.target.profile, f", {request.gpu_choice}")
    with refused_by_option("--html", path):
        write_output(path, page.encode())
    print_note(f"written to {shown(path)}")


def _classes(request: Request, which: Pass) -> str:
    from minrnn_gen.build.explain_sizes import explain_classes
    from minrnn_gen.run.ahead import plain_specialization

    builder = request.builder_of_kernels
    specialization = plain_specialization(builder, which.value, builder.hinted_sizes)
    with progress("planning"):
        return explain_classes(builder, which.value, specialization)


def _call(request: Request, which: Pass, batch: int | None, time: int | None) -> str:
    """Return the explanation of the kernel that a call of these sizes gets; absent sizes are the spec's."""
    from minrnn_gen.build.explain_sizes import explain_sizes
    from minrnn_gen.plan.problem import Sizes
    from minrnn_gen.run.ahead import plain_specialization

    built = _built(request, which, batch, time)
    builder = request.builder_of_kernels
    sizes = Sizes(batch or builder.hinted_sizes.batch, time or builder.hinted_sizes.time)
    why = explain_sizes(builder, which.value, plain_specialization(builder, which.value, sizes), sizes)
    return _in_words(request, built) + "\n\n" + why


def _built(request: Request, which: Pass, batch: int | None, time: int | None) -> BuiltKernel:
    """Return the kernel that a call of these sizes gets; absent sizes are the spec's."""
    from minrnn_gen.plan.problem import Sizes
    from minrnn_gen.run.ahead import build_plain

    builder = request.builder_of_kernels
    sizes = Sizes(batch or builder.hinted_sizes.batch, time or builder.hinted_sizes.time)
    with progress(f"compiling for {request.target.profile.name}"):
        return build_plain(builder, which.value, sizes)


def _in_words(request: Request, built: BuiltKernel) -> str:
    from minrnn_gen.build.explain import explain as in_words
    from minrnn_gen.run.folded import folded_in_words

    text = in_words(built, f", {request.gpu_choice}", request.target.profile.memory_bytes)
    folded = folded_in_words(request.builder)
    return f"{text}\n\n{folded}" if folded else text


def _report(request: Request, built: BuiltKernel) -> dict[str, Any]:
    """Return the content of the explanation as plain data."""
    from minrnn_gen.build.overview import call_bytes
    from minrnn_gen.cli.report import facts_of, kernel_entries

    plan = built.plan
    return {
        **facts_of(built, request.target.profile),
        "gpu_chosen_by": request.target.origin,
        "call_bytes": call_bytes(plan, built.cell),
        "predicted_us": {**plan.prediction.predicted_us, "total": plan.predicted_total_us},
        "candidates": plan.prediction.candidate_count,
        "rejected": dict(plan.prediction.rejected),
        "dropped": list(built.dropped),
        "chosen_because": built.chosen,
        "plan": plan.to_json(),
        "kernels": kernel_entries((built,)),
    }
