"""`minrnn-gen schema`: JSON schemas, for editors."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from minrnn_gen.cli.terminal import print_json

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Kind(StrEnum):
    """The kinds of file that have a schema."""

    SPEC = "spec"
    CELL = "cell"
    GPU = "gpu"


def schema(kind: Annotated[Kind, typer.Argument(help="Of which file.")] = Kind.SPEC) -> None:
    """Print the JSON schema of a kind of file, for editors."""
    print_json(schema_of(kind))


def schema_of(kind: Kind) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a kind of file."""
    if kind is Kind.SPEC:
        from minrnn_gen.config.spec import spec_schema

        return spec_schema()
    if kind is Kind.CELL:
        from minrnn_gen.cell.files import CellFile

        return {"$schema": _DIALECT, **CellFile.model_json_schema(), "title": "minrnn-gen cell"}
    from minrnn_gen.config.gpu_profile import GpuProfile

    return {"$schema": _DIALECT, **GpuProfile.model_json_schema(), "title": "minrnn-gen GPU profile"}
