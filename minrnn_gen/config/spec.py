"""Spec: what the user wants. YAML or a dict in, a canonical form and a JSON schema out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from minrnn_gen.config.documents import Document, document_from_mapping, read_document, validated
from minrnn_gen.config.gpu_names import shipped_name
from minrnn_gen.config.validation import hint_of_key
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.precision import (
    PRECISION_NAMES,
    Fp32Product,
    FunctionAccuracy,
    PrecisionName,
    named_precision,
    why_unsupported,
)

# Beyond these no GPU holds the arrays; within them every product of two sizes and a word fits 64 bits.
SIZE_LIMIT = 2**20
HINT_LIMIT = 2**40
# What vectors of a channel may have: those of a thread, or of the lanes of a warp with 8 each, lie in registers.
STATE_SIZE_LIMIT = 256
_OF_AXES = ("state_size", "groups", "projection_size")

# Arguments of layers that are no keys of a spec, and what to do instead.
ARGUMENTS_OF_LAYERS = {
    "num_layers": "a spec is one layer: export each as a kernel, or a model by minrnn_gen.torch.export_operators",
    "dropout": "a spec is one layer: drop values of its output before the next",
    "bidirectional": "write direction: bidirectional",
    "batch_first": "write layout: BTD, or TBD for time first",
    "bias": "give it in the call",
    "forget_bias": "give a bias of gate f in the call",
    "proj_size": "write projection_size, for a cell with projected units such as lstm_projected",
    "dtype": "write precision",
    "device": "arrays of a call are where it runs",
}

_NO_SPEC = (
    "this is a cell, and a spec is needed; write one next to it with the keys model, this file's path, and hidden_size, or a "
    "dict {'model': …, 'hidden_size': …}"
)

_Size = Annotated[int, Field(ge=1, le=SIZE_LIMIT)]
_Hint = Annotated[int, Field(ge=1, le=HINT_LIMIT)]
# Linux allows paths of 4096 bytes (PATH_MAX).
_Name = Annotated[str, Field(min_length=1, max_length=4096)]


class Spec(BaseModel):
    """A request: which cell, which sizes, which precision. Made by `load_spec`; never changed.

    Two specs are equal if their canonical forms are, wherever they came from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: _Name | dict[str, Any] = Field(
        description="The cell: the name of a built-in cell, the path of a cell file, or a cell file's mapping."
    )
    hidden_size: _Size = Field(description="H, the number of units, heads times head_dim.")
    precision: PrecisionName = Field(
        default="fp32", description="Storage of x, R, weight and y; arithmetic and carried state are fp32 (fp64 for fp64)."
    )
    heads: _Size = Field(default=1, description="Blocks of the block-diagonal recurrent matrix; must divide hidden_size.")
    state_size: Annotated[int, Field(ge=1, le=STATE_SIZE_LIMIT)] | None = Field(
        default=None,
        description="n, the values per channel of the states, parameters and inputs S.* that have this axis; null without any.",
    )
    groups: _Size | None = Field(
        default=None,
        description="Groups of channels that share inputs S.*; must divide hidden_size; null means 1, or that there are none.",
    )
    projection_size: _Size | None = Field(
        default=None,
        description=(
            "P, the projected units of states, parameters and products that have the axis p; the heads must divide it; null "
            "without any."
        ),
    )
    input_size: _Size | None = Field(
        default=None,
        description="I, the features of the input; given, the kernel owns the input projection, else x is pre-activations.",
    )
    layout: Literal["BTD", "TBD", "BDT"] = Field(
        default="BTD", description="Order of batch (B), time (T) and features (D) in x and y."
    )
    direction: Literal["forward", "reverse", "bidirectional"] = Field(
        default="forward", description="The order in which time runs."
    )
    training: bool = Field(default=True, description="true generates the gradients too.")
    batch: _Hint | None = Field(
        default=None, description="Batch for which `compile` builds ahead; the sizes of each call choose its kernel."
    )
    time: _Hint | None = Field(
        default=None, description="Sequence length for which `compile` builds ahead; the sizes of each call choose its kernel."
    )
    recurrent_bias: bool | None = Field(
        default=None,
        description="Whether the recurrent product has a bias; null means as the cell's file has it: true for gru, else false.",
    )
    scan_arithmetic: Literal["linear", "log"] = Field(
        default="linear",
        description=(
            "How steps are composed: as they are, or as logarithms, as in the minRNN paper; log needs coefficients that are "
            "never negative."
        ),
    )
    functions: FunctionAccuracy | None = Field(
        default=None,
        description=(
            "How sigmoid, tanh, exp and log are computed on a GPU: to a few units in the last place, or as fast as it can; "
            "null means fast for fp16 and bf16, else accurate; fp64 has no fast ones."
        ),
    )
    fp32_product: Fp32Product = Field(
        default="tf32x3",
        description=(
            "How a GPU multiplies matrices in fp32: in persistent kernels by three tf32 products for each (tf32x3) or by fused "
            "multiply-adds (fma), elsewhere in float32; or everywhere by one tf32 product (tf32), as cuDNN by default."
        ),
    )
    recurrent_gradient_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description=(
            "Bound on each element of the gradient of a dense cell's output that arrives at a step from later ones; null means "
            "none."
        ),
    )
    gpu: _Name | None = Field(
        default=None, description="The GPU profile, a name or a path; null means the GPU at hand, or the default."
    )

    _document: Document = PrivateAttr()
    _folder: Path = PrivateAttr()

    @field_validator("precision", mode="before")
    @classmethod
    def _precision_is_supported(cls, precision: object) -> object:
        if isinstance(precision, str) and (why := why_unsupported(precision)):
            raise ValueError(f"{shown(precision)} is given; allowed: {', '.join(PRECISION_NAMES)}{why}")
        return precision

    @field_validator("model", "gpu")
    @classmethod
    def _one_line(cls, value: str | dict[str, Any] | None, info: ValidationInfo) -> str | dict[str, Any] | None:
        if isinstance(value, str) and any(break_ in value for break_ in "\t\n\r"):
            hint = "; a cell written here is a mapping with the key equations" if info.field_name == "model" else ""
            raise ValueError(f"{shown(value)} is given; allowed: a name or a path in one line{hint}")
        return value

    @field_validator("gpu")
    @classmethod
    def _as_the_profile_is_called(cls, gpu: str | None) -> str | None:
        return gpu and (shipped_name(gpu) or gpu)

    @field_validator("heads")
    @classmethod
    def _heads_divide(cls, heads: int, info: ValidationInfo) -> int:
        hidden_size = info.data.get("hidden_size")
        if hidden_size is not None and hidden_size % heads:
            small = [divisor for divisor in range(1, math.isqrt(hidden_size) + 1) if hidden_size % divisor == 0]
            nearest = min(
                {*small, *(hidden_size // divisor for divisor in small)}, key=lambda divisor: (abs(divisor - heads), divisor)
            )
            raise ValueError(f"{heads} does not divide hidden_size {hidden_size}; allowed: a divisor, the nearest is {nearest}")
        return heads

    @field_validator("functions")
    @classmethod
    def _functions_exist(cls, functions: FunctionAccuracy | None, info: ValidationInfo) -> FunctionAccuracy | None:
        if functions == "fast" and info.data.get("precision") == "fp64":
            raise ValueError("'fast' is given, which precision fp64 does not have; allowed: accurate or null")
        return functions

    def model_post_init(self, _context: Any) -> None:
        """Start as a spec that came from a dict in the working directory."""
        self._document = Document("<dict>", self.model_dump())
        self._folder = Path.cwd()

    @property
    def head_dim(self) -> int:
        """D, the units of one head."""
        return self.hidden_size // self.heads

    @property
    def document(self) -> Document:
        """Document that the spec was read from; `document.part("model")` is an inline cell with its lines."""
        return self._document

    @property
    def where(self) -> str:
        """The spec file's name as the user gave it, or "<dict>"; for messages only, never for generated files."""
        return self._document.where

    @property
    def folder(self) -> Path:
        """The folder at which relative paths in the spec start: the spec file's, or the working directory."""
        return self._folder

    @property
    def gpu_asked(self) -> str | None:
        """The requested GPU profile: a name, or a path that starts where the spec's folder does."""
        if self.gpu is None:
            return None
        path = self._folder / self.gpu
        return str(path) if path.suffix in (".yaml", ".yml") else self.gpu

    def error(self, key: str, message: str) -> BadInput:
        """Return the error "where:line: key: message" about the spec's key `key`."""
        return self._document.error((key,), message)

    def canonical(self) -> str:
        """Return all keys, sorted and with defaults filled in, as JSON: equal text for equal specs, on every machine.

        Keys of cells with the axes n and p are present where they are set.
        """
        named = {key: value for key, value in self.model_dump().items() if key not in _OF_AXES or value is not None}
        return json.dumps(named, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def __eq__(self, other: object) -> bool:
        return self.canonical() == other.canonical() if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical())


class TorchDtype(Protocol):
    """A dtype of torch, which a precision may be given as."""

    @property
    def is_floating_point(self) -> bool:
        """Whether the dtype is floating-point."""


class SpecKeys(TypedDict, total=False):
    """The keys of a spec as keywords: what type checkers hold and editors complete."""

    model: str | Mapping[str, Any]
    hidden_size: int
    precision: PrecisionName | TorchDtype
    heads: int
    state_size: int | None
    groups: int | None
    projection_size: int | None
    input_size: int | None
    layout: Literal["BTD", "TBD", "BDT"]
    direction: Literal["forward", "reverse", "bidirectional"]
    training: bool
    batch: int | None
    time: int | None
    recurrent_bias: bool | None
    scan_arithmetic: Literal["linear", "log"]
    functions: FunctionAccuracy | None
    fp32_product: Fp32Product
    recurrent_gradient_clip: float | None
    gpu: str | None


def load_spec(source: str | os.PathLike[str] | Mapping[str, Any] | Spec, /, **overrides: Any) -> Spec:
    """Return the spec in the YAML file at a path, in a dict, or in another spec, with keys replaced by `overrides`.

    Relative paths, overriding ones too, start at the file's folder, or at the working directory for a dict. Whatever is
    wrong with the source, a file that cannot be read included, is `BadInput`.
    """
    return overridden_spec(source, {"keyword": overrides})


def spec_of_arguments(keys: Mapping[str, Any], caller: str) -> Spec:
    """Return the spec that the arguments of a layer or function make; errors begin with `caller`, where others name a file."""
    return overridden_spec(keys, {}, caller)


def overridden_spec(
    source: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    overrides: Mapping[str, Mapping[str, Any]],
    dict_name: str = "<dict>",
) -> Spec:
    """Return the spec as `load_spec` does; overriding keys are grouped by their source, such as "--set", for errors.

    `dict_name`: how errors call a source that is a dict.
    """
    overriding = {key: value for keys in overrides.values() for key, value in keys.items()}
    known = list(Spec.model_fields)
    if unknown := [key for key in overriding if key not in known]:
        named = " and ".join(f"{shown(key)}{hint_of_key(key, known, ARGUMENTS_OF_LAYERS)}" for key in unknown)
        verb = "overrides" if len(unknown) == 1 else "override"
        raise BadInput(f"{named} {verb} no key of a spec; allowed: {', '.join(known)}")
    if isinstance(source, Spec) and not overriding:
        return source
    document, folder = _origin(source, dict_name)
    if "equations" in document.data and "model" not in document.data:
        raise document.error(("equations",), _NO_SPEC)
    replaced: dict[str, Any] = {}
    origins = dict(document.origins)
    for origin, keys in overrides.items():
        place = origin if document.lines else document.where  # a dict and the keywords with it are one place to the caller
        replaced |= document_from_mapping(_with_named_precision(keys), place).data
        origins |= dict.fromkeys(keys, place)
    lines = {path: line for path, line in document.lines.items() if path[0] not in replaced}
    document = Document(document.where, {**document.data, **replaced}, lines, origins=origins)
    spec = validated(document, Spec, ARGUMENTS_OF_LAYERS)
    spec._document, spec._folder = document, folder
    return spec


def spec_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a spec, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Spec.model_json_schema(),
        "title": "minrnn-gen spec",
        "description": "What to generate: which cell, which sizes, which precision.",
    }


def _origin(source: object, dict_name: str) -> tuple[Document, Path]:
    if isinstance(source, Spec):
        said = source.document
        return Document(said.where, source.model_dump(), said.lines, origins=said.origins), source.folder
    if isinstance(source, Mapping):
        return document_from_mapping(_with_named_precision(source), dict_name), Path.cwd()
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"{shown(source)} is given where a spec is needed: the path of a YAML file, a dict or a Spec")
    path = os.fsdecode(source)
    if "\n" in path:
        raise BadInput(f"{shown(path)} is given where a path is needed; save the text as a YAML file, or give a dict")
    if path.isidentifier() and not Path(path).exists():
        raise BadInput(
            f"{shown(path)}: no such file; if it is a cell, give a spec: a YAML file, or a dict such as "
            f"{{'model': {path[:60]!r}, 'hidden_size': 512}}"
        )
    return read_document(path), Path(path).absolute().parent


def _with_named_precision(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a spec, with a torch dtype as the precision replaced by its name."""
    return {**mapping, "precision": named_precision(mapping["precision"])} if "precision" in mapping else mapping
