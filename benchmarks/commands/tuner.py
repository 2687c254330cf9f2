"""`python -m benchmarks tuner`: how good the picks of the cost model are, among all feasible candidates."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from minrnn_gen.cli.request import AsJson, GpuName
from minrnn_gen.cli.terminal import print_json, progress_bar
from minrnn_gen.errors import BadInput, shown

DEFAULT_SECONDS = 300.0

ResultsPath = Annotated[str, typer.Argument(metavar="FILE", help="Results are added to this file.", show_default=False)]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", min=0.0, help="Measure for so long; 0: only judge what was measured.")
]
OutPath = Annotated[
    str | None, typer.Option("--out", metavar="FILE", help="Write what came of it, for pages and plots.", show_default=False)
]
OnlyLabels = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="TEXT", help="Kernels with this in their name; may be repeated.", show_default=False),
]
Draw = Annotated[
    int | None,
    typer.Option("--draw", metavar="N", min=1, help="N problems of each family, drawn at random, instead.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Of the draw: another seed, other problems.")]


def tuner(
    results: ResultsPath,
    seconds: Seconds = DEFAULT_SECONDS,
    gpu: GpuName = None,
    only: OnlyLabels = None,
    draw: Draw = None,
    seed: Seed = 0,
    out: OutPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure every feasible candidate of 28 problems, over several occasions, and judge the picks.

    With --draw the 16 best predicted candidates of problems drawn at random, and 16 others, forward and backward.
    """
    from benchmarks.cost_model.regret import table_of, table_of_families
    from benchmarks.cost_model.regret_record import regret_record, write_regrets
    from benchmarks.cost_model.sweep import ResultsFile, Swept, kernels_of, qualities, sweep
    from benchmarks.problems.drawn_problems import drawn_problems
    from benchmarks.problems.tuner_problems import PROBLEMS

    families = {"": PROBLEMS} if draw is None else drawn_problems(draw, seed)
    asked = kernels_of([problem for problems in families.values() for problem in problems], gpu, None if draw is None else seed)
    kernels = [kernel for kernel in asked if not only or any(word in kernel.label for word in only)]
    if not kernels:
        raise BadInput(f"--only: no kernel has {' or '.join(map(shown, only or ()))} in its name; give a part of one, as lstm")
    file = ResultsFile(Path(results))
    if seconds:
        from minrnn_gen.tune.device import open_measurer

        with contextlib.closing(open_measurer()) as measurer, progress_bar("sweeping", as_json) as show:

            def watch(swept: Swept) -> None:
                show(f"{swept.label}: {swept.done} of {swept.wanted}", swept.done / swept.wanted, "")

            # What was measured by then is in the file.
            with contextlib.suppress(KeyboardInterrupt):
                sweep(kernels, measurer, file, seconds, watch)
    picks = list(qualities(kernels, file))
    if out is not None:
        write_regrets(regret_record(file.results, picks), out)
    if as_json:
        print_json({"kernels": [asdict(quality) for quality in picks]})
        return
    if draw is not None:
        family_of = {problem: family for family, problems in families.items() for problem in problems}
        labels = {kernel.label: family_of[kernel.problem] for kernel in kernels}
        by_family = {family: [quality for quality in picks if labels[quality.label] == family] for family in families}
        typer.echo(f"{table_of(picks)}\n{table_of_families(by_family)}")
    for title, is_fitted in (("Held out: the cost model was never fitted to these", False), ("Fitted to, among others", True)):
        if draw is None and (part := [quality for quality in picks if quality.is_fitted == is_fitted]):
            typer.echo(f"{title}\n\n{table_of(part)}")
    left = len(kernels) - sum(quality.is_complete for quality in picks)
    typer.echo(
        f"{left} of {len(kernels)} kernels are unfinished; the same command goes on with them" if left else "all measured"
    )
