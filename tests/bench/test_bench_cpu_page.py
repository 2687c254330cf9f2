"""The page of the CPU says what the committed records say, of an AMD and of an Intel machine."""

from __future__ import annotations

from support.documentation import ROOT

from benchmarks.pages import filled_sections
from benchmarks.report.cpu_record import PAGE, PUBLISHED, read_cpu, sections_of_cpus


def test_the_page_is_that_of_the_records() -> None:
    sections = sections_of_cpus([read_cpu(ROOT / path) for path in PUBLISHED])
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert all(f"<!-- measured: {name} -->\n\n{text()}" in page for name, text in sections.items())
    assert filled_sections(page, PAGE, sections) == page, "run: python -m benchmarks.write_pages"


def test_both_makers_are_measured() -> None:
    makers = {read_cpu(ROOT / path).cpu.split()[0] for path in PUBLISHED}
    assert makers == {"AMD", "Intel"}
