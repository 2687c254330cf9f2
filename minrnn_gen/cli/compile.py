"""`minrnn-gen compile`: solve, render, compile, check, report."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Request, SpecPath, read_request
from minrnn_gen.cli.terminal import console, counting, facts, print_json
from minrnn_gen.errors import BadInput, ToolchainMissing, shown

if TYPE_CHECKING:
    from minrnn_gen.build.artifact import BuiltKernel
    from minrnn_gen.build.builder import Builder
    from minrnn_gen.config.spec import Spec

OutFolder = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Write .cu, .cubin and .json of each kernel there.", show_default=False),
]


Prepared = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="BxT",
        help="Compile what calls of this batch and time run, too; may be repeated.",
        show_default=False,
    ),
]


def compile(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    out: OutFolder = None,
    sizes: Prepared = None,
    as_json: AsJson = False,
) -> None:
    """Plan, render, compile and check the kernels of a spec."""
    started = time.perf_counter()
    request = read_request(spec, gpu, assignments)
    built = request.build(quiet=as_json)
    if built[0].resources is None:
        from minrnn_gen.build.nvrtc import why_no_nvrtc

        raise ToolchainMissing(
            f"{spec}: planned and rendered, but not compiled, since {why_no_nvrtc()}; "
            "run 'minrnn-gen doctor' to check the installation, or 'minrnn-gen render' to print the CUDA without it"
        )
    if sizes:
        kernel = request.kernel(built)
        with counting("compiling", quiet=as_json) as watch:
            kernel.prepare([sizes_of(text) for text in sizes], watch)
        built = kernel.built
    if out is not None and request.spec.training:
        built = _with_gradients(request.builder_of_kernels, built, quiet=as_json)
    files = _written(request.spec, built, out)
    seconds = time.perf_counter() - started
    if as_json:
        print_json(_report(request, built, files, seconds))
    else:
        request.say_default()
        _print(request, built, files if out else [], seconds)


def sizes_of(text: str) -> tuple[int, int]:
    """Return the batch and the time of a text such as 16x1024; raises BadInput for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text.strip())
    if not match:
        raise BadInput(f"--sizes: {shown(text)} is given; allowed: batch and time, as in --sizes 16x1024")
    return int(match[1]), int(match[2])


def _with_gradients(builder: Builder, built: tuple[BuiltKernel, ...], quiet: bool) -> tuple[BuiltKernel, ...]:
    """Return the kernels that are `built`, and those of gradients: compiled here, run on a GPU."""
    from minrnn_gen.run.ahead import passes_of

    sizes = builder.hinted_sizes
    with counting("compiling the gradients", quiet) as watch:
        gradients = builder.build_all((builder.choose(*of_pass, sizes) for of_pass in passes_of(builder, sizes)), watch)
    known = {kernel.digest for kernel in built}
    return (*built, *(kernel for kernel in gradients if kernel.digest not in known))


def _written(spec: Spec, built: tuple[BuiltKernel, ...], out: str | None) -> list[str]:
    """Return the files of the kernels: those just written to `out`, else those in the cache."""
    if out is not None:
        from minrnn_gen.cli.files import write_kernel

        return [path for kernel in built for path in write_kernel(kernel, spec, out)]
    folders = [kernel.folder for kernel in built if kernel.folder is not None]
    return [str(path) for folder in folders for path in sorted(folder.iterdir())]


def _report(request: Request, built: tuple[BuiltKernel, ...], files: list[str], seconds: float) -> dict[str, Any]:
    from minrnn_gen.cli.report import facts_of, kernel_entries

    forward = built[0]
    plan = forward.plan
    return {
        "model": plan.problem.model,
        "gpu": plan.problem.gpu,
        "gpu_chosen_by": request.target.origin,
        "arch": plan.problem.arch,
        "digest": forward.digest,
        "cached": all(kernel.cached for kernel in built),
        "seconds": round(seconds, 4),
        "candidates": plan.prediction.candidate_count,
        "rejected": dict(plan.prediction.rejected),
        "dropped": list(forward.dropped),
        **facts_of(forward, request.target.profile),
        "plan": plan.to_json(),
        "kernels": kernel_entries(built),
        "files": files,
    }


def _print(request: Request, built: tuple[BuiltKernel, ...], files: list[str], seconds: float) -> None:
    from minrnn_gen.cli.report import decision, origin, resources, title

    screen = console()
    screen.print(title(built[0]))
    screen.print()
    screen.print(facts([*decision(built[0], request.target.profile), ("kernels", origin(built, seconds))]))
    screen.print()
    screen.print(resources(built))
    for path in files:
        screen.print(f"wrote {path}", soft_wrap=True)
