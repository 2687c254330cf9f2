"""`minrnn-gen compile`: solve, render, compile, check, report."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Request, SpecPath, read_request
from minrnn_gen.cli.terminal import console, facts, print_json, progress_bar
from minrnn_gen.errors import BadInput, shown

if TYPE_CHECKING:
    from minrnn_gen.kernel import Kernel

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
    from minrnn_gen.errors import ToolchainMissing

    started = time.perf_counter()
    request = read_request(spec, gpu, assignments)
    kernel = request.compile(quiet=as_json)
    if kernel.resources is None:
        raise ToolchainMissing(
            f"{spec}: planned and rendered, but not compiled, because NVRTC is missing: pip install 'minrnn-gen[cuda13]' "
            "(or [cuda12]); 'minrnn-gen doctor' looks closer, 'minrnn-gen render' prints the CUDA without it"
        )
    if sizes:
        wanted = [_sizes(text) for text in sizes]
        with progress_bar("compiling", quiet=as_json) as show:
            kernel.prepare(wanted, lambda done, of: show("compiling", done / of, f"{done} of {of}"))
    files = _written(kernel, out)
    seconds = time.perf_counter() - started
    if as_json:
        print_json(_report(request, kernel, files, seconds))
    else:
        request.say_default()
        _print(kernel, files if out else [], seconds)


def _sizes(text: str) -> tuple[int, int]:
    """Return the batch and the time of a text such as 16x1024; raises BadInput for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text.strip())
    if not match:
        raise BadInput(f"--sizes: {shown(text)} is given; allowed: batch and time, as in --sizes 16x1024")
    return int(match[1]), int(match[2])


def _written(kernel: Kernel, out: str | None) -> list[str]:
    """Return the files of the kernels: those just written to `out`, else those in the cache."""
    if out is not None:
        from minrnn_gen.cli.files import write_kernel

        return [path for built in kernel.built for path in write_kernel(built, kernel.spec, out)]
    folders = [built.folder for built in kernel.built if built.folder is not None]
    return [str(path) for folder in folders for path in sorted(folder.iterdir())]


def _report(request: Request, kernel: Kernel, files: list[str], seconds: float) -> dict[str, Any]:
    from minrnn_gen.cli.report import kernel_entries

    forward = kernel.built[0]
    plan = forward.plan
    return {
        "model": plan.model,
        "gpu": plan.gpu,
        "gpu_chosen_by": request.target.origin,
        "arch": plan.arch,
        "digest": forward.digest,
        "cached": all(built.cached for built in kernel.built),
        "seconds": round(seconds, 4),
        "candidates": plan.candidate_count,
        "rejected": dict(plan.rejected),
        "dropped": list(forward.dropped),
        "plan": plan.to_json(),
        "kernels": kernel_entries(kernel.built),
        "files": files,
    }


def _print(kernel: Kernel, files: list[str], seconds: float) -> None:
    from minrnn_gen.cli.report import decision, origin, resources, title

    screen = console()
    screen.print(title(kernel.built[0]))
    screen.print()
    screen.print(facts([*decision(kernel.built[0]), ("kernels", origin(kernel.built, seconds))]))
    screen.print()
    screen.print(resources(kernel.built))
    for path in files:
        screen.print(f"wrote {path}", soft_wrap=True)
