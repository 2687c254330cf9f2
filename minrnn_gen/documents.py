"""Untrusted YAML text to plain data that remembers its lines, and from there to a validated model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pydantic
import yaml

from minrnn_gen.errors import BadInput

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=pydantic.BaseModel)


@dataclass(frozen=True)
class Document:
    """A mapping read from YAML text or handed over as a dict.

    `where` is the file's name as the user gave it, or "<dict>"; `lines` maps a key path to its 1-based line (empty for a dict).
    """

    where: str
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def error(self, path: KeyPath, message: str) -> BadInput:
        """Return the error "where:line: key: message" for the key at `path`."""
        line = self.lines.get(path)
        place = self.where if line is None else f"{self.where}:{line}"
        key = ".".join(str(part) for part in path)
        return BadInput(f"{place}: {key}: {message}" if key else f"{place}: {message}")


def parse_document(text: str, where: str) -> Document:
    """Read YAML `text` as one mapping; tags, anchors, duplicate keys and oversized text are `BadInput`."""
    return Document(where, yaml.safe_load(text))


def validated(document: Document, model: type[Model]) -> Model:
    """Validate `document` as `model`; the first violation becomes one `BadInput` sentence with what is allowed."""
    return model.model_validate(document.data)
