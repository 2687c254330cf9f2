"""Writer of the committed records' tables into docs/examples.md: `python examples/write_page.py`, from the checkout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from training.command import RESULTS
from training.record import read_records, section

from benchmarks.pages import filled_sections

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/examples.md"
PLOTS = Path("..") / RESULTS.relative_to(ROOT)  # as seen from the page
IN_TORCH = ("parity", "selective_copy", "char_lm")
IN_JAX = ("jax_parity", "jax_flax", "jax_equinox", "jax_char_lm", "jax_recall")
EXAMPLES = (*IN_TORCH, *IN_JAX)


def filled(page: str, results: Path) -> str:
    """Return the page with every section written anew from the records in a folder."""
    # Markers are words with blanks between them.
    sections = {name.replace("_", " "): partial(section, name, read_records(results, name), PLOTS) for name in EXAMPLES}
    return filled_sections(page, PAGE, sections)


def main() -> None:
    page = ROOT / PAGE
    page.write_text(filled(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
