"""docs/fronts.md: which kernel each front reaches, asked of the code by a call that it serves best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fronts_page, strategy_fronts
from support.documentation import table
from support.uncompiled_kernels import nothing_compiled

# One of another family each, and the scans of all blocks together, which only the sizes of a call choose.
EVERY_DAY = {
    "scan_forward_channels",
    "scan_forward_cooperative",
    "scan_backward_cooperative",
    "stepwise_forward",
    "vector_step",
}


@pytest.fixture(scope="module")
def _planned() -> Iterator[None]:
    """Let kernels be planned for all sizes, and compiled for none."""
    with nothing_compiled(plans_sizes=True):
        yield


@pytest.mark.usefixtures("_planned")
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(one, marks=() if one in EVERY_DAY else pytest.mark.matrix_full) for one in strategy_fronts.STRATEGIES],
)
def test_a_strategy_reaches_what_the_table_says(strategy: str, tmp_path: Path) -> None:
    for front in strategy_fronts.FRONTS.values():
        if front.needs:
            pytest.importorskip(front.needs)
    (shown,) = (row[1:] for row in table(fronts_page.PAGE, "kernel", *strategy_fronts.FRONTS) if row[0] == f"`{strategy}`")
    assert tuple(fronts_page.entries_of_strategy(strategy, tmp_path).values()) == shown, fronts_page.WRITE
