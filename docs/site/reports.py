"""Reports of the site: committed records and some decisions, as pages of the kind that `explain --html` writes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from parameters import ROOT

from benchmarks.pages import PUBLISHED_RECORDS
from benchmarks.report.page import html_of
from benchmarks.report.record import read_record
from benchmarks.suites import SUITES

FOLDER = "reports"
GPU = "h200"
# The example and the pass whose decision stands beside a page about kernels.
DECISIONS = {"kernels/scan.md": ("min_gru", "forward"), "kernels/dense.md": ("lstm", "backward")}
RESULTS = "performance.md"


def published() -> dict[str, str]:
    """Return the paths of the records that were measured, by the command that wrote each."""
    return {command: path for command, path in PUBLISHED_RECORDS.items() if (ROOT / path).exists()}


def records() -> Iterator[tuple[str, str]]:
    """Yield the name and the page of each committed record."""
    for command, path in published().items():
        titles = SUITES[command.partition(" ")[0]].titles
        yield f"{FOLDER}/{Path(path).stem}.html", html_of(read_record(ROOT / path), titles)


def decisions() -> Iterator[tuple[str, str]]:
    """Yield the name and the page of each decision."""
    from minrnn_gen.api import builder_for
    from minrnn_gen.config.spec import load_spec
    from minrnn_gen.plan.problem import KernelPass
    from minrnn_gen.report.decision import decision_page
    from minrnn_gen.run.ahead import plain_specialization
    from minrnn_gen.run.target import target_of

    kernel_pass: KernelPass
    for example, kernel_pass in DECISIONS.values():  # type: ignore[assignment]
        spec = load_spec(ROOT / "examples" / f"{example}.yaml", gpu=GPU)
        builder = builder_for(spec, target_of(spec))
        sizes = builder.hinted_sizes
        key = builder.key_of(kernel_pass, plain_specialization(builder, kernel_pass, sizes), sizes)
        built = builder.build(key)
        solution = next(solution for solution in builder.solutions(key) if solution.family.name == built.plan.name)
        yield f"{FOLDER}/{example}_{kernel_pass}.html", decision_page(built, solution, builder.target.profile)


def with_reports(markdown: str, page: str) -> str:
    """Return the text of a page with links to its reports below its first paragraph."""
    up = posixpath.relpath(FOLDER, posixpath.dirname(page) or ".")
    if page == RESULTS:
        links = ", ".join(f"[{command}]({up}/{Path(path).stem}.html)" for command, path in published().items())
        words = f"The same results as pages with sortable, searchable tables and interactive curves: {links}."
    elif page in DECISIONS:
        example, kernel_pass = DECISIONS[page]
        words = f"A decision as a page: [{example}, {kernel_pass}, for {GPU}]({up}/{example}_{kernel_pass}.html)."
    else:
        return markdown
    heading, first, rest = markdown.split("\n\n", 2)
    return "\n\n".join((heading, first, words, rest))
