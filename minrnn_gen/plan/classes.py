"""The words of planning: classes of cells, the families of kernels that serve them, and how kernels take their steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

# As cell.analysis proves it.
CellKind = Literal[
    "affine-diagonal",
    "block-affine",
    "diagonal",
    "dense",
]
FamilyName = Literal[
    "scan",
    "diagonal",
    "dense",
    "vectors",
]
# A scan by lanes along channels or time, by all blocks, or with its projection. coupled: maps of several states, by all blocks.
# chained: tiles of a filter, by any blocks, one after the other. serial: a thread takes all steps, elementwise:
# one. persistent: all steps of a dense cell in one launch; decode: one. stepwise: between products by cuBLAS.
Strategy = Literal[
    "channels",
    "time",
    "cooperative",
    "coupled",
    "projected",
    "chained",
    "serial",
    "elementwise",
    "persistent",
    "decode",
    "stepwise",
]

# The family that serves a class. The family for n values per channel also serves scans and diagonal cells that have them.
FAMILY_OF_CLASS: Mapping[CellKind, FamilyName] = {
    "affine-diagonal": "scan",
    "block-affine": "diagonal",
    "diagonal": "diagonal",
    "dense": "dense",
}
FAMILIES_IN_WORDS: Mapping[FamilyName, str] = {
    "scan": "scan: steps are composed in parallel",
    "diagonal": "diagonal: each channel goes step by step",
    "dense": "dense: all channels go step by step, a product by R between two steps",
    "vectors": "vectors: each channel has n values, and goes step by step",
}


def family_of(kind: CellKind, has_vectors: bool) -> FamilyName:
    """Return the kernels that serve a cell: by its class, or for any class with the axis n."""
    return "vectors" if has_vectors else FAMILY_OF_CLASS[kind]
