"""The page of the mutation test: its score, and every survivor with the reason why it is no fault."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from places import Mutant

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "mutations.json"
PAGE = ROOT / "docs" / "mutations.md"
REASONS = Path(__file__).with_name("reasons.json")


def page_of(mutants: Sequence[Mutant], known: Mapping[str, Mapping[str, Any]]) -> str:
    return f"{len(mutants)} {len(known)}\n"


def write_page(page: str) -> None:
    """Write the page."""
    PAGE.write_text(page)
