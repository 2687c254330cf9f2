"""A spec and its cell as one line of self-contained text, by which text alone can name a kernel."""

from __future__ import annotations

import json

from minrnn_gen.cell.files import CellSource, find_cell, library_names
from minrnn_gen.cell.projection import Projection
from minrnn_gen.config.spec import Spec, load_spec


def cell_source_of(spec: Spec) -> CellSource:
    """Find a spec's cell without parsing it; raises BadInput, with file and line, where there is none."""
    # An inline cell goes as a document, so that an error in it names the spec's line.
    model = spec.model if isinstance(spec.model, str) else spec.document.part("model")
    line = spec.document.lines.get(("model",))
    return find_cell(model, spec.folder, spec.where if line is None else f"{spec.where}:{line}")


def recipe_of(spec: Spec, cell: CellSource) -> str:
    """Return `spec` as JSON without its defaults; the text of its `cell` is included unless it is built in."""
    said = spec.model_dump(exclude_defaults=True)
    if spec.model not in library_names():
        said["model"] = cell.document.data
    if spec.gpu is not None:
        said["gpu"] = spec.gpu_asked
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def spec_without_paths(spec: Spec, model: str, gpu: str) -> str:
    """Return `spec` in clear for a file's header: cell and GPU by their names, since paths differ between machines."""
    named = json.loads(spec.canonical()) | {"gpu": gpu}
    if isinstance(spec.model, str):
        named["model"] = model
    return json.dumps(named, sort_keys=True, separators=(",", ":"))


def check_sizes_of_vectors(spec: Spec, cell: CellSource) -> None:
    """Raise BadInput for a spec whose `state_size` or `groups` does not fit the cell."""
    if not cell.has_vectors:
        for key, size in (("state_size", spec.state_size), ("groups", spec.groups)):
            if size is not None:
                raise spec.error(key, f"{size} is given, but nothing of the cell {cell.name} has the axis n; leave it out")
    elif spec.state_size is None:
        raise spec.error("state_size", f"the cell {cell.name} has n values per channel; give n, a whole number from 1 to 256")
    elif spec.groups is not None and not cell.document.data.get("shared"):
        raise spec.error("groups", f"{spec.groups} is given, but the cell {cell.name} has no inputs S.*; leave it out")
    elif spec.groups is not None and spec.hidden_size % spec.groups:
        raise spec.error("groups", f"{spec.groups} does not divide hidden_size {spec.hidden_size}; allowed: a divisor of it")


def check_projection_size(spec: Spec, cell: CellSource, projection: Projection) -> None:
    """Raise BadInput for a spec whose `projection_size` does not fit the cell."""
    size = spec.projection_size
    if not projection:
        if size is not None:
            why = f"{size} is given, but nothing of the cell {cell.name} has the axis p; leave it out"
            raise spec.error("projection_size", why)
    elif size is None:
        name = (*projection.to, *projection.states, *projection.parameters)[0]
        leads = f"products: {name} leads to" if projection.to else f"{name} has"
        raise cell.document.error((), f"{leads} the axis p; give the spec's projection_size")
    elif size > spec.hidden_size:
        raise spec.error("projection_size", f"{size} is more than hidden_size {spec.hidden_size}; give at most that")
    elif size % spec.heads:
        raise spec.error(
            "projection_size", f"{size} is given, which the {spec.heads} heads do not divide; give a multiple of them"
        )


def spec_from(recipe: str) -> Spec:
    """Return a recipe's spec; raises BadInput for a text that is no recipe."""
    return load_spec(json.loads(recipe))
