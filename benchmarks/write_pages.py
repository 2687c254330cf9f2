"""Writer of the measured tables and plots from the committed records: `python -m benchmarks.write_pages`, from the checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import classic, summary
from benchmarks.cost_model.regret_record import (
    PUBLISHED_REGRETS,
    REGRETS_PAGE,
    REGRETS_PLOT,
    read_regrets,
    regret_sections,
    regret_svg,
)
from benchmarks.pages import PAGES, PLOTS, PUBLISHED_RECORDS, filled, filled_functions, filled_sections
from benchmarks.report.cpu_record import PAGE, PUBLISHED, read_cpu, sections_of_cpus
from benchmarks.report.distributed_record import distributed_text, read_distributed
from benchmarks.report.functions import FUNCTIONS_PAGE, PUBLISHED_FUNCTIONS, read_functions
from benchmarks.report.plot import panels_of, svg_of
from benchmarks.report.predicted_ranks import COST_PAGE, PUBLISHED_DISTRIBUTED, SECTIONS
from benchmarks.report.record import read_record

ROOT = Path(__file__).resolve().parent.parent


def sections_of_ranks() -> dict[str, Callable[[], str]]:
    """Return {section: its text} of what several GPUs cost; what was not measured yet has no record there."""
    paths = [ROOT / path for path in PUBLISHED_DISTRIBUTED]
    records = [read_distributed(path) for path in paths if path.exists()]
    return {**SECTIONS, "distributed": lambda: distributed_text(*records)}


def main() -> None:
    paths = {command: ROOT / path for command, path in PUBLISHED_RECORDS.items()}
    records = {command: read_record(path) for command, path in paths.items() if path.exists()}
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(encoding="utf-8"), records, name), encoding="utf-8")
    page = ROOT / summary.PAGE
    sections = {"summary": summary.summary_text}
    page.write_text(filled_sections(page.read_text(encoding="utf-8"), summary.PAGE, sections), encoding="utf-8")
    (ROOT / summary.FIGURE).write_text(summary.summary_svg(), encoding="utf-8")
    page = ROOT / classic.PAGE
    page.write_text(filled_sections(page.read_text(encoding="utf-8"), classic.PAGE, classic.sections()), encoding="utf-8")
    (ROOT / classic.FIGURE).write_text(classic.figure(), encoding="utf-8")
    page = ROOT / FUNCTIONS_PAGE
    functions = read_functions(ROOT / PUBLISHED_FUNCTIONS)
    page.write_text(filled_functions(page.read_text(encoding="utf-8"), functions, FUNCTIONS_PAGE), encoding="utf-8")
    page = ROOT / REGRETS_PAGE
    regrets = read_regrets(ROOT / PUBLISHED_REGRETS)
    page.write_text(filled_sections(page.read_text(encoding="utf-8"), REGRETS_PAGE, regret_sections(regrets)), encoding="utf-8")
    (ROOT / REGRETS_PLOT).write_text(regret_svg(regrets), encoding="utf-8")
    page = ROOT / PAGE
    cpus = sections_of_cpus([read_cpu(ROOT / path) for path in PUBLISHED])
    page.write_text(filled_sections(page.read_text(encoding="utf-8"), PAGE, cpus), encoding="utf-8")
    page = ROOT / COST_PAGE
    page.write_text(filled_sections(page.read_text(encoding="utf-8"), COST_PAGE, sections_of_ranks()), encoding="utf-8")
    for command, record in records.items():
        if command in PLOTS and panels_of(record):
            (ROOT / PLOTS[command]).write_text(svg_of(record), encoding="utf-8")


if __name__ == "__main__":
    main()
