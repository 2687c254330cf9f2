"""Finding a cell: a built-in name, a file, or a mapping; cheap, because every request passes here before the cache answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, field_validator
from pydantic.json_schema import SkipJsonSchema

from minrnn_gen.config.documents import Document, demand_key, document_from_mapping, document_of, read_bytes, validated
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import nearest_name, shown

# Built-in cells: plain ones, then cells with n values per channel, with inputs X.*, with P projected units, and with states
# that feed each other.
_LIBRARY, _VECTOR_LIBRARY, _INPUT_LIBRARY, _PROJECTED_LIBRARY, _COUPLED_LIBRARY = _FOLDERS = (
    "cell/library",
    "cell/library/vectors",
    "cell/library/inputs",
    "cell/library/projected",
    "cell/library/coupled",
)
_SUFFIXES = (".yaml", ".yml")

# A kernel keeps every gate, state and parameter of a unit in registers, of which a thread has 255.
NAME_LIMIT = 64

_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
Name = Annotated[StrictStr, Field(pattern=_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=NAME_LIMIT)]
# n values per channel, P projected units, or one value per channel.
InputsWithAxes = Annotated[dict[Name, Literal["step", 1]], Field(max_length=NAME_LIMIT)]
NamesWithAxes = Annotated[dict[Name, Literal["n", "p", 1]], Field(max_length=NAME_LIMIT)]


class ProductFile(BaseModel):
    """The keys of one product R.g of a cell file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Literal["h", "p"] = Field(
        "h", description="The units that the product has: those of the cell (h), or P projected ones (p)."
    )
    over: Literal["head", "all"] = Field(
        "head", description="Whether it multiplies the units of its own head, or of all heads."
    )
    bias: StrictBool | None = Field(
        None, description="Whether it has a recurrent bias; null means as the cell or the spec has it."
    )


class CellFile(BaseModel):
    """The keys of a cell file, docs/cells.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(description="What the cell is called in messages and generated files.")
    equations: StrictStr = Field(description="One `name = expression` or `state[t] = expression` per line.")
    gates: Names | None = Field(None, description="The order of W's gates; by default that of their first use.")
    states: Names | NamesWithAxes | None = Field(
        None,
        description=(
            "The order of the states, by default that of their first use; or of each its axis: n values per channel, "
            "P projected units (p), or 1 value per channel."
        ),
    )
    output: StrictStr | None = Field(None, description="A state's name or an expression; by default the first state.")
    parameters: Names | NamesWithAxes = Field(
        (), description="Learned vectors of shape [H]; or of each its axis, n, p or 1, with the shape [H, n], [P] or [H]."
    )
    products: Annotated[dict[Name, ProductFile], Field(max_length=NAME_LIMIT)] = Field(
        default_factory=dict,
        description="Products R.g that lead to other units than the cell's, mix all heads, or have a bias of their own.",
    )
    shared: Names | None = Field(
        None,
        description="The order of the inputs S.*, which all channels of a group share; by default that of their first use.",
    )
    inputs: Names | InputsWithAxes | None = Field(
        None,
        description=(
            "The order of the inputs X.*, which are not projected, by default that of their first use; or of each how many "
            "values it has: one per step (step), or 1 per channel."
        ),
    )
    recurrent_bias: StrictBool = Field(False, description="Whether R.g has a bias unless the spec says otherwise.")
    embedded: SkipJsonSchema[StrictBool | None] = Field(
        None, description="Whether the equations are made of those of a cell with projected units, which were checked."
    )
    block_diagonal: SkipJsonSchema[dict[Name, StrictInt] | None] = Field(
        None,
        description="Of products over all units how many equal blocks their matrices have along the diagonal, 0 elsewhere.",
    )
    norm_parts: SkipJsonSchema[StrictInt | None] = Field(
        None,
        description="Into how many equal parts a head is divided that norms and means over a head are over, each over one.",
    )
    description: StrictStr | None = Field(None, description="What the cell is, in words.")
    source: StrictStr | None = Field(None, description="Where it is published.")

    @field_validator("inputs", mode="before")
    @classmethod
    def _inputs_are_of_channels_or_steps(cls, names: Any) -> Any:
        for name, axis in names.items() if isinstance(names, Mapping) else ():
            _check_name(name)
            if axis != "step" and (axis != 1 or isinstance(axis, bool | float)):
                raise ValueError(
                    f"{shown(axis)} is given for {name}; allowed: step, for one value per step, or 1, for one per channel"
                )
        return tuple(names) if isinstance(names, list) else names

    @field_validator("states", "parameters", mode="before")
    @classmethod
    def _axes_exist(cls, names: Any) -> Any:
        for name, axis in names.items() if isinstance(names, Mapping) else ():
            _check_name(name)
            if axis not in ("n", "p") and (axis != 1 or isinstance(axis, bool | float)):
                raise ValueError(
                    f"{shown(axis)} is given for {name}; allowed: n, for n values per channel, p, for P projected units, or 1"
                )
        return tuple(names) if isinstance(names, list) else names


def _check_name(name: object) -> None:
    if not re.fullmatch(_NAME, str(name)):
        raise ValueError(f"{shown(name)} is given; allowed: names, a letter, then at most 63 letters, digits or _")


def named_with(axis: str, names: tuple[str, ...] | Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the names that a cell file lists with an axis, n or p, or as inputs of one value per step."""
    return tuple(name for name, listed in names.items() if listed == axis) if isinstance(names, Mapping) else ()


@dataclass(frozen=True)
class CellSource:
    """A cell before its equations are read.

    `document` is valid as a `CellFile`; `canonical` identifies the content in a cache key: the file's bytes, or the mapping as
    JSON with sorted keys. `recurrent_bias`: the recurrent product has a bias, unless a spec says otherwise. `has_vectors`: the
    file lists names with n values per channel; `has_products`: it lists products; `has_step_inputs`: it lists inputs of one
    value per step.
    """

    name: str
    document: Document
    canonical: bytes
    recurrent_bias: bool
    has_vectors: bool = False
    has_products: bool = False
    has_step_inputs: bool = False


def library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells without vectors, inputs X.*, projected units or coupled states, sorted."""
    return _names_in(_LIBRARY)


def vector_library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells with n values per channel, sorted."""
    return _names_in(_VECTOR_LIBRARY)


def input_library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells with inputs X.*, sorted."""
    return _names_in(_INPUT_LIBRARY)


def projected_library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells with P projected units, sorted."""
    return _names_in(_PROJECTED_LIBRARY)


def coupled_library_names() -> tuple[str, ...]:
    """Return the names of the built-in cells whose states feed each other and are scans by blocks, sorted."""
    return _names_in(_COUPLED_LIBRARY)


def library_folders() -> tuple[tuple[str, ...], ...]:
    """Return the names of all built-in cells, by feature."""
    return tuple(map(_names_in, _FOLDERS))


def _names_in(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in package_folder(folder).glob("*.yaml")))


def find_cell(model: str | Mapping[str, Any] | Document, folder: Path, where: str) -> CellSource:
    """Return the cell that `model` means: a built-in name, a path relative to `folder`, or the mapping of an inline cell.

    A text is a path when it ends in .yaml or .yml or holds a path separator. Messages show the lines of an inline cell that is
    a document, such as `spec.document.part("model")`. `where` names the asking document in them. Raises `BadInput` for an
    unknown name, an unreadable file, or content that is not a cell file's.
    """
    if isinstance(model, Document):
        return _inline(model)
    if isinstance(model, Mapping):
        return _inline(replace(document_from_mapping(model, where), inside=("model",)))
    if _is_path(model):
        return _from_file(folder / model, model, where, neighbours_in=folder)
    for library in _FOLDERS:
        if model in _names_in(library):
            return _from_file(package_folder(library) / f"{model}.yaml", f"{model}.yaml", where)
    names = tuple(name for library in library_folders() for name in library)
    raise Document(where, {}).error(
        ("model",),
        f"there is no built-in cell {shown(model)}{nearest_name(model, names)}; give one that 'minrnn-gen cells' lists, "
        "the path of a .yaml file, or an inline cell",
    )


def _is_path(model: str) -> bool:
    return model.endswith(_SUFFIXES) or any(separator in model for separator in {os.sep, "/", os.altsep or "/"})


def _from_file(path: Path, called: str, where: str, neighbours_in: Path | None = None) -> CellSource:
    place = f"{where}: model: {called}"
    content = read_bytes(path, place, ordinary=True, neighbours_in=neighbours_in)
    demand_key(content, "equations", place, "cell file")
    document = document_of(content, called)
    cell = validated(document, CellFile)
    return _source(cell, document, content)


def _inline(document: Document) -> CellSource:
    cell = validated(document, CellFile)
    canonical = json.dumps(cell.model_dump(exclude_none=True), sort_keys=True, separators=(",", ":"))
    return _source(cell, document, canonical.encode())


def _source(cell: CellFile, document: Document, canonical: bytes) -> CellSource:
    has_vectors = bool(named_with("n", cell.states) or named_with("n", cell.parameters) or cell.shared)
    has_p = any(named_with("p", names) for names in (cell.states, cell.parameters))
    has_products = has_p or bool(cell.products)
    return CellSource(
        cell.name, document, canonical, cell.recurrent_bias, has_vectors, has_products, bool(named_with("step", cell.inputs))
    )
