"""Arguments by name: a mapping from a fixed set of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minrnn_gen.errors import BadInput, kind_of, nearest_name


def known_names(mapping: Mapping[str, Any] | None, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return a mapping as a dict, empty for None; raises BadInput for what is no mapping and for a name that is not known."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise BadInput(f"{what} is {kind_of(mapping)}; a mapping of {', '.join(names) or 'nothing'} is expected")
    for name in mapping:
        if name not in names:
            allowed = f"allowed are {', '.join(names)}" if names else f"this cell has no {what}"
            raise BadInput(f"{what} has an unknown name {name!r}; {allowed}{nearest_name(name, names)}")
    return dict(mapping)
