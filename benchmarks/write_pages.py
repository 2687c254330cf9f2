"""Write the measured tables and the plot from the records: `python benchmarks/write_pages.py [RECORD]`, from the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from minrnn_gen.bench.functions import FUNCTIONS_PAGE, PUBLISHED_FUNCTIONS, read_functions
from minrnn_gen.bench.pages import PAGES, PLOT, PUBLISHED_RECORD, filled, filled_functions
from minrnn_gen.bench.plot import panels_of, svg_of
from minrnn_gen.bench.record import read_record

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    record = read_record(sys.argv[1] if len(sys.argv) > 1 else ROOT / PUBLISHED_RECORD)
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(encoding="utf-8"), record, name), encoding="utf-8")
    page = ROOT / FUNCTIONS_PAGE
    functions = read_functions(ROOT / PUBLISHED_FUNCTIONS)
    page.write_text(filled_functions(page.read_text(encoding="utf-8"), functions, FUNCTIONS_PAGE), encoding="utf-8")
    if panels_of(record):
        (ROOT / PLOT).write_text(svg_of(record), encoding="utf-8")


if __name__ == "__main__":
    main()
