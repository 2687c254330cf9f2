"""docs/fronts.md from what the fronts answer: its tables, and why what is not there cannot be.

`PYTHONPATH=tests python -m support.fronts_page` asks all of it, and writes the page.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from support import fronts, slot_fronts, strategy_fronts
from support.documentation import ROOT, name_of
from support.uncompiled_kernels import nothing_compiled

from benchmarks.pages import filled_sections

PAGE = ROOT / "docs" / "fronts.md"
WRITE = "PYTHONPATH=tests python -m support.fronts_page writes the page"
FRONTS = {**fronts.FRONTS, **slot_fronts.FRONTS}
# The columns of the classes of cells, in tables that a page has room for.
GROUPS: dict[str, tuple[str, ...]] = {
    "Calls": ("NumPy", "native C", "GPU", "`verify`", "single step", "`reset_states`, `holds`", "second gradients"),
    "torch": (
        "torch `recurrence`",
        "double backward",
        "torch `RNN`",
        "`torch.nn`",
        "`SelectiveScan`",
        "`torch.compile`",
        "`torch.export`",
        "autocast",
    ),
    "JAX": ("JAX `recurrence`, `step`", "JAX `RNN`", "JAX `vmap`", "JAX `jvp`"),
    "Without Python": ("C for CPUs", "C for GPUs", "operators"),
    "Over ranks": ("`pipeline`", "`correct`", "`summary`", "`head_group`"),
    "Ahead of calls": ("`prepare`", "`tune`", "CUDA graphs"),
    "On slots of a pool": slot_fronts.OF_CALLS,
    "On slots of a pool, ahead of calls": tuple(name for name in slot_fronts.FRONTS if name not in slot_fronts.OF_CALLS),
}

_COMPLEX, _LOG, _DIAGONAL, _DENSE = "a scan of complex numbers", "a scan with `scan_arithmetic: log`", "diagonal", "dense"
_ROUNDS, _SHAPES = "dense, rounds of products", "dense, products of several shapes"
_NORMS, _INPUTS, _DENSE_INPUTS = "dense, norms within a step", "a scan with inputs X.*", "dense, with inputs X.*"
_BLOCKS = "block-affine"
_N_SCAN, _N_DIAGONAL, _BOTH = "n values per channel, a scan", "n values per channel, diagonal", "both directions"


class Reason(NamedTuple):
    """Why fronts do not have some rows: a sentence of mathematics, or of what the front stands for."""

    why: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]


REASONS = (
    Reason(
        "`minrnn_gen.scan` is given its coefficients. It has no weights that a layer could hold, its step is `a * h + b`, "
        "which begins from b where a is 0, and no channel reads another, so that each rank scans its own. That step on slots "
        "of a pool is an index of the caller's own array.",
        ("single step", "`reset_states`, `holds`", "torch `RNN`", "JAX `RNN`", "`head_group`", *slot_fronts.FRONTS),
        (_COMPLEX,),
    ),
    Reason(
        "Second derivatives, and derivatives in forward mode in JAX, are those of equations. A scan of complex numbers has no "
        "equations; torch differentiates the gradient of its `scan`.",
        ("second gradients", "JAX `jvp`"),
        (_COMPLEX,),
    ),
    Reason(
        "Equations are over real numbers: they compare values, and the compiler proves signs and bounds. Complex numbers have "
        "no order, so no spec has them, and no front that begins with a spec.",
        ("C for CPUs", "C for GPUs", "operators", "`prepare`", "`tune`"),
        (_COMPLEX,),
    ),
    Reason(
        "The reverse direction begins at the last step of a sequence: there is no next step before all steps are known, and "
        "no state to keep in a slot for it.",
        ("single step", *slot_fronts.FRONTS),
        (_BOTH,),
    ),
    Reason(
        "A single step begins from the state that it is given: a caller gives the reset state, or keeps the state and takes no "
        "step.",
        ("single step", *slot_fronts.OF_STEPS),
        (fronts.ALTERED,),
    ),
    Reason(
        "A step with a reset state begins from the sum of its state, which the reset makes 0, and an input X.*, one value for "
        "each unit. A state of n values has no such input, nor has one of P units, and log space has no sums of states.",
        ("`reset_states`, `holds`",),
        (_LOG, _SHAPES, _N_SCAN, _N_DIAGONAL),
    ),
    Reason(
        "The classes of `torch.nn` are three dense cells, and a class of the same name computes the same, of the same "
        "arguments.",
        ("`torch.nn`",),
        ("a scan", _LOG, _COMPLEX, _BLOCKS, _DIAGONAL, _INPUTS, _N_SCAN, _N_DIAGONAL, fronts.ALTERED),
    ),
    Reason(
        "`SelectiveScan` is one cell, the selective scan of n values per channel, and causal.",
        ("`SelectiveScan`",),
        tuple(name for name in fronts.SPECS if name not in (_N_SCAN, "with its projection")),
    ),
    Reason(
        "Both need one map of fixed size from the state before a piece of time to the state after it. Affine steps compose to "
        "such a map, others do not.",
        ("`correct`", "`summary`"),
        (_DIAGONAL, _DENSE, _ROUNDS, _NORMS, _SHAPES, _DENSE_INPUTS, _N_DIAGONAL),
    ),
)
OF_STRATEGIES = (
    Reason(
        "Dropout runs between the layers of a stack in training, so that no call of a single kernel has any. JAX has its own, "
        "with its random keys.",
        ("`verify`", "JAX", "C for GPUs", "`tune`"),
        ("dropout",),
    ),
    Reason(
        "In JAX the product of x and its weight is XLA's, which fuses and shards it. Kernels begin at pre-activations.",
        ("JAX",),
        ("scan_forward_projected",),
    ),
    Reason(
        "A filter is a function of a signal and its coefficients: it has no spec, and nothing begins with one.",
        ("`verify`", "C for GPUs", "`prepare`", "`tune`"),
        ("filter_forward", "filter_backward"),
    ),
)


def entry(takes: bool, column: str, row: str) -> str:
    """Return what the page says where a front `takes` a row, or not; raises AssertionError where nothing says why not."""
    reasons = [str(number) for number, reason in _numbered() if column in reason.columns and row in reason.rows]
    if takes:
        assert not reasons, f"{column} takes {row}, and a reason says that it does not"
        return "yes"
    assert len(reasons) == 1, f"{column} does not take {row}: fill it, or say in a sentence why it cannot"
    return f"no ({reasons[0]})"


def _numbered() -> Iterable[tuple[int, Reason]]:
    return enumerate((*REASONS, *OF_STRATEGIES), 1)


def entries_of_column(rows: Mapping[str, fronts.Row], column: str, folder: Path) -> dict[str, str]:
    """Return the entry of each class of cells in a column."""
    front = FRONTS[column]
    return {
        row: entry(fronts.takes(front, made, folder / str(number)), column, row)
        for number, (row, made) in enumerate(rows.items())
    }


def entries_of_strategy(strategy: str, folder: Path) -> dict[str, str]:
    """Return the entries of a strategy, by column."""
    return {
        column: entry(strategy_fronts.takes(front, strategy, folder / str(number)), column, strategy)
        for number, (column, front) in enumerate(strategy_fronts.FRONTS.items())
    }


def page_of(of_classes: Mapping[str, Mapping[str, str]], of_strategies: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page with entries by column and row, and by strategy and column, and the reasons."""
    tables = []
    for group, columns in GROUPS.items():
        rows = {row: [of_classes[column][row] for column in columns] for row in fronts.SPECS}
        tables.append(f"### {group}\n\n{_table('cell', columns, rows)}")
    strategies = {f"`{name}`": list(entries.values()) for name, entries in of_strategies.items()}
    sections = {
        "classes": "\n\n".join(tables),
        "strategies": _table("kernel", tuple(strategy_fronts.FRONTS), strategies),
        "reasons": "\n".join(f"{number}. {reason.why}" for number, reason in _numbered()),
    }
    page = PAGE.read_text(encoding="utf-8")
    return filled_sections(page, name_of(PAGE), {name: partial("{}\n".format, text) for name, text in sections.items()})


def _table(first: str, columns: tuple[str, ...], rows: Mapping[str, list[str]]) -> str:
    lines = [(first, *columns), ("---",) * (1 + len(columns)), *((row, *entries) for row, entries in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("|--- |", "|---|") for line in lines)


def main() -> None:
    """Ask everything, and write the page."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("MINRNN_CACHE_DIR", os.fspath(folder / "cache"))
        patch.setenv("MINRNN_CPU", "numpy")
        with nothing_compiled():
            rows = fronts.rows()
            classes = {column: entries_of_column(rows, column, folder / str(number)) for number, column in enumerate(FRONTS)}
        with nothing_compiled(plans_sizes=True):
            strategies = {one: entries_of_strategy(one, folder / one) for one in strategy_fronts.STRATEGIES}
    PAGE.write_text(page_of(classes, strategies), encoding="utf-8")


if __name__ == "__main__":
    main()
