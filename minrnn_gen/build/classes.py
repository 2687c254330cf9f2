"""The kernels of a pass for all sizes, written to the cache and read back."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from minrnn_gen.build.artifact import cell_shape_from
from minrnn_gen.build.sealing import UNREADABLE
from minrnn_gen.build.store import Store
from minrnn_gen.plan.problem import CellShape
from minrnn_gen.plan.size_classes import SizeClasses


@dataclass(frozen=True)
class CellClasses:
    """The kernels of a pass for all sizes, with the shape that the cell has in this pass."""

    cell: CellShape
    sizes: SizeClasses


def find_classes(store: Store, key: str) -> CellClasses | None:
    """Return the kernels that `put_classes` stored under `key`, or None; an unreadable entry is damaged."""
    request = store.find_request(key)
    if request is None:
        return None
    try:
        return CellClasses(cell_shape_from(request["cell"]), SizeClasses.from_json(request["classes"]))
    except UNREADABLE as reason:
        store.discard_request(key, reason)
        return None


def put_classes(store: Store, key: str, classes: CellClasses) -> None:
    """Put the kernels for all sizes into the store under `key`."""
    store.put_request(key, {"cell": asdict(classes.cell), "classes": classes.sizes.to_json()})
