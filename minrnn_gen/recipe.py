"""A spec as one line of text that stands by itself, so that who has only text can name a kernel."""

from __future__ import annotations

import json

from minrnn_gen.cell.files import CellSource, library_names
from minrnn_gen.spec import Spec, load_spec


def recipe_of(spec: Spec, cell: CellSource) -> str:
    """Return `spec` as JSON without its defaults; `cell`, what its model means, is written in unless it is built in."""
    said = spec.model_dump(exclude_defaults=True)
    if spec.model not in library_names():
        said["model"] = cell.document.data
    if spec.gpu is not None:
        said["gpu"] = spec.gpu_asked
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def spec_from(recipe: str) -> Spec:
    """Return the spec that a recipe is of; raises BadInput where it is of none."""
    return load_spec(json.loads(recipe))
