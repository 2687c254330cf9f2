"""Finding a cell: a built-in name, a file, or a mapping; cheap, because every request passes here before the cache answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from minrnn_gen.documents import Document, parse_document, validated
from minrnn_gen.errors import BadInput, nearest_name

_LIBRARY = Path(__file__).resolve().parent / "library"
_SUFFIXES = (".yaml", ".yml")
_FILE_LIMIT_BYTES = 256 * 1024  # four times the longest equations: room for a description, and a bound on what is read

Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class CellFile(BaseModel):
    """The keys of a cell file, docs/cells.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(description="What the cell is called in messages and generated files.")
    equations: StrictStr = Field(description="One `name = expression` or `state[t] = expression` per line.")
    gates: tuple[Name, ...] | None = Field(None, description="The order of W's gates; by default that of their first use.")
    states: tuple[Name, ...] | None = Field(None, description="The order of the states; by default that of their first use.")
    output: StrictStr | None = Field(None, description="A state's name or an expression; by default the first state.")
    parameters: tuple[Name, ...] = Field((), description="Learned vectors of shape [H].")
    description: StrictStr | None = Field(None, description="What the cell is, in words.")
    source: StrictStr | None = Field(None, description="Where it is published.")


@dataclass(frozen=True)
class CellSource:
    """A cell before its equations are read.

    `document` is valid as a `CellFile`; `canonical` identifies the content in a cache key: the file's bytes, or the mapping as
    JSON with sorted keys.
    """

    name: str
    document: Document
    canonical: bytes


def library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells, sorted."""
    return tuple(sorted(path.stem for path in _LIBRARY.glob("*.yaml")))


def find_cell(model: str | Mapping[str, Any], folder: Path, where: str) -> CellSource:
    """Return the cell that `model` means: a built-in name, a path relative to `folder`, or the mapping of an inline cell.

    A text is a path when it ends in .yaml or .yml or holds a path separator. `where` names the asking document in messages.
    Raises `BadInput` for an unknown name, an unreadable file, or content that is not a cell file's.
    """
    if isinstance(model, Mapping):
        return _inline(model, where)
    if _is_path(model):
        return _from_file(folder / model, model, where)
    names = library_names()
    if model not in names:
        raise BadInput(
            f"{where}: model: there is no built-in cell {model[:80]!r}{nearest_name(model, names)}; use one of "
            f"{', '.join(names)}, a path to a .yaml file, or an inline cell"
        )
    return _from_file(_LIBRARY / f"{model}.yaml", f"{model}.yaml", where)


def _is_path(model: str) -> bool:
    separators = {os.sep, "/", os.altsep or "/"}
    return model.endswith(_SUFFIXES) or any(separator in model for separator in separators)


def _from_file(path: Path, shown: str, where: str) -> CellSource:
    content = _file_bytes(path, shown, where)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{shown}: byte {error.start} is not UTF-8; save the cell file as UTF-8 text") from None
    document = parse_document(text, shown)
    return CellSource(validated(document, CellFile).name, document, content)


def _file_bytes(path: Path, shown: str, where: str) -> bytes:
    try:
        if not path.is_file():  # a folder, a pipe or a device is not read
            raise BadInput(f"{where}: model: there is no cell file {shown!r}; give a path relative to the spec's folder")
        with path.open("rb") as file:
            content = file.read(_FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a valid path"
        raise BadInput(f"{where}: model: the cell file {shown!r} cannot be read ({reason})") from None
    if len(content) > _FILE_LIMIT_BYTES:
        raise BadInput(f"{shown}: a cell file holds at most {_FILE_LIMIT_BYTES} bytes")
    return content


def _inline(model: Mapping[str, Any], where: str) -> CellSource:
    document = Document(where, model)
    cell = validated(document, CellFile)
    canonical = json.dumps(cell.model_dump(exclude_none=True), sort_keys=True, separators=(",", ":"))
    return CellSource(cell.name, document, canonical.encode())
