"""Untrusted YAML text to plain data that remembers its lines, then to a validated model.

The YAML read here is the plain part of version 1.2: mappings, lists and the scalars of its core schema (YAML 1.2.2, chapter
10.3), so that `y`, `n`, `on` and `off` are text. Tags, anchors, aliases and several documents in one file are refused.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from minrnn_gen.config.validation import Violation, violations
from minrnn_gen.errors import BadInput, nearest_name, shown

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=pydantic.BaseModel)

# The largest honest file is a cell of a few dozen lines, about 2 KiB; 64 KiB keep the slowest text below a second.
SIZE_LIMIT_BYTES = 64 * 1024
# A profile nests three deep; the limit only has to lie below Python's recursion limit.
DEPTH_LIMIT = 16
# Sizes, counts and rates all fit; beyond it floats and JSON readers disagree about integers.
INTEGER_LIMIT = 2**64
NUMBER_LIMIT_CHARACTERS = 64
# The most violations in one error, which stays a few lines.
VIOLATION_LIMIT = 6

_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Document:
    """A mapping read from YAML text or handed over as a dict.

    `where` is the file's name as the user gave it, or "<dict>"; `lines` maps a key path to its 1-based line (empty for a dict);
    `inside` is the key path of this mapping in the file, empty for the whole file; `origins` names the source of each key that
    is not from there, such as "--set".
    """

    where: str
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    inside: KeyPath = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def error(self, path: KeyPath, message: str) -> BadInput:
        """Return the error "where:line: key: message" for the key at `path`; a missing key has the line of its mapping."""
        return BadInput(": ".join(filter(None, (self._place(path), _key_name(self.inside + path), message))))

    def errors(self, violated: Sequence[Violation]) -> BadInput:
        """Return the error of several violations; the places of all but the first are brief: "; also line 4: key: message"."""
        said = [str(self.error(violated[0].path, violated[0].message))]
        for violation in violated[1:VIOLATION_LIMIT]:
            place, key = self._place(violation.path), _key_name(self.inside + violation.path)
            brief = place.removeprefix(_placed(self.where)).replace(":", "line ", 1)
            said.append("also " + ": ".join(filter(None, (brief, key, violation.message))))
        if len(violated) > VIOLATION_LIMIT:
            said.append(f"and {len(violated) - VIOLATION_LIMIT} more")
        return BadInput("; ".join(said))

    def part(self, key: str) -> Document:
        """Return the mapping under `key` as a document whose errors still name the file, the line and the whole key."""
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        return Document(self.origins.get(key, self.where), self.data[key], lines, (*self.inside, key))

    def _place(self, path: KeyPath) -> str:
        if path and path[0] in self.origins:
            return self.origins[str(path[0])]
        lines = (self.lines[path[:length]] for length in range(len(path), -1, -1) if path[:length] in self.lines)
        return _placed(self.where, next(lines, None))


def read_document(path: str | os.PathLike[str], where: str | None = None) -> Document:
    """Read the YAML file at `path`, called `where` (by default `path`) in errors.

    A file that is missing, a folder, unreadable, larger than `SIZE_LIMIT_BYTES` or not UTF-8 is `BadInput`.
    """
    where = os.fspath(path) if where is None else where
    return document_of(read_bytes(path, where), where)


def read_bytes(path: str | os.PathLike[str], where: str, *, ordinary: bool = False, neighbours_in: Path | None = None) -> bytes:
    """Read the YAML file at `path`, called `where` in errors; `ordinary`: no pipe or device, which may never end.

    A file that is missing, a folder, unreadable or larger than `SIZE_LIMIT_BYTES` is `BadInput`. The error of a missing file
    suggests the nearest name; where untrusted text names the path, only names in the folder `neighbours_in` may appear.
    """
    place = _placed(where)
    # Opening a pipe without this waits for its other end.
    flags = getattr(os, "O_NONBLOCK", 0) if ordinary else 0
    try:
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            status = os.fstat(file.fileno())
            is_device = ordinary and not stat.S_ISREG(status.st_mode)
            content = b"" if is_device else file.read(SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        nearest = _nearest_file(os.fspath(path), neighbours_in)
        raise BadInput(f"{place}: no such file{nearest}; give the path of a YAML file") from None
    except (OSError, ValueError) as error:
        # Windows refuses a folder for want of permission.
        if isinstance(error, IsADirectoryError) or (isinstance(error, PermissionError) and os.path.isdir(path)):
            raise BadInput(f"{place}: this is a folder; give the path of a YAML file in it") from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"{place}: cannot be read ({reason}); give the path of a readable YAML file") from None
    if is_device:
        raise BadInput(f"{place}: this is a pipe or a device; give the path of a YAML file")
    _refuse_size(max(status.st_size, len(content)), place)
    return content


def demand_key(content: bytes, key: str, where: str, kind: str) -> None:
    """Raise BadInput if the `content` of a file lacks `key`, which every file of this `kind` has.

    Untrusted text may name any file: unless the file is of this kind, no error shows its content.
    """
    if not re.search(rb"\b" + key.encode() + rb"[\"']?[ \t]*:", content):
        raise BadInput(f"{_placed(where)}: this is no {kind}, for it has no key {key}; give the path of one")


def document_of(content: bytes, where: str) -> Document:
    """Read the `content` of a YAML file as `parse_document` reads text; anything but UTF-8 is `BadInput`."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{_placed(where, line)}: byte 0x{content[error.start]:02x} is not UTF-8; save it as UTF-8") from None
    return parse_document(text, where)


def parse_document(text: str, where: str) -> Document:
    """Read YAML `text` as one mapping; tags, anchors, duplicate keys and oversized text are `BadInput`."""
    _refuse_size(len(text.encode("utf-8", "surrogatepass")), _placed(where))
    if odd := _NOT_TEXT.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        raise BadInput(f"{_placed(where, line)}: the character U+{ord(odd[0]):04X} is not allowed in a text file; remove it")
    return _read(text, where)


@functools.lru_cache(maxsize=64)
def _read(text: str, where: str) -> Document:
    # Profiles and cells are read for every kernel that is made, and PyYAML takes longer for them than planning it does. Nobody
    # changes a document, which is a Mapping.
    return _Reader(text, where).document()


def document_from_mapping(mapping: Mapping[str, Any], where: str = "<dict>") -> Document:
    """Copy `mapping`, made of str, int, float, bool, None, list, tuple and dict only, under the limits of YAML text."""
    return Document(where, _Copier(where).copied(mapping, ()))


def validated(document: Document, model: type[Model], known_elsewhere: Mapping[str, str] | None = None) -> Model:
    """Validate `document` as `model`; all errors become one `BadInput`, with a sentence for each key and its allowed values.

    `known_elsewhere`: names that are keys of other files, and what to do instead. Validation is strict, as of JSON: a list is a
    tuple and an integer a float, but "512", 512.0 and true are no integers.
    """
    try:
        return model.model_validate_json(json.dumps(document.data), strict=True)
    except pydantic.ValidationError as error:
        violated = violations(error, model, document.data, known_elsewhere or {})
    raise document.errors(violated)


class _Reader:
    """One pass over the parser's events: nothing is built before the event that would make it dangerous is seen."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._lines: dict[KeyPath, int] = {}

    def document(self) -> Document:
        """Return the text's one document."""
        self._next()
        if isinstance(start := self._next(), yaml.StreamEndEvent):
            raise self._error(start, (), "the file is empty; a mapping of keys to values is needed")
        root = self._next()
        data = self._value(root, ())
        if not isinstance(data, dict):
            raise self._error(root, (), f"{shown(data)} is given; the whole file must be one mapping, lines of 'key: value'")
        self._next()
        if not isinstance(second := self._next(), yaml.StreamEndEvent):
            raise self._error(second, (), "a second document starts here; only one is allowed in a file")
        return Document(self._where, data, self._lines)

    def _next(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else None
            problem = " ".join(str(error.problem).split())[:120]
        # PyYAML lets these two through for characters above U+10FFFF and for version numbers of thousands of digits.
        except (yaml.YAMLError, ValueError, OverflowError):
            line, problem = None, "a character or number out of range"
        raise BadInput(f"{_placed(self._where, line)}: not valid YAML: {problem}")

    def _value(self, event: yaml.Event, path: KeyPath) -> Any:
        if isinstance(event, yaml.AliasEvent):
            raise self._error(event, path, f"the alias *{str(event.anchor)[:40]} is not allowed; write the value out")
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            raise self._error(event, path, f"the anchor &{event.anchor[:40]} is not allowed; remove it")
        if event.tag is not None:
            raise self._error(event, path, f"the tag {shown(event.tag)} is not allowed; only plain values are, remove it")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= DEPTH_LIMIT:
            raise self._error(event, path, f"nested deeper than {DEPTH_LIMIT} levels")
        return self._list(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)

    def _list(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            here = (*path, len(items))
            self._lines[here] = _line(event)
            items.append(self._value(event, here))
        return items

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                raise self._error(event, path, "a key must be text, not a list or mapping; quote it, or correct the braces")
            key = self._value(event, path)
            if not isinstance(key, str):
                raise self._error(event, path, f"a key must be text, and {shown(key)} is not; quote it")
            here = (*path, key)
            if here in self._lines:
                raise self._error(event, here, f"this key is already on line {self._lines[here]}; keep one of the two")
            self._lines[here] = _line(event)
            mapping[key] = self._value(self._next(), here)
        return mapping

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> str | int | float | bool | None:
        try:
            return _plain(event.value) if event.style is None else _checked(event.value)
        except _Refused as refused:
            raise self._error(event, path, str(refused)) from None

    def _error(self, event: yaml.Event, path: KeyPath, message: str) -> BadInput:
        return Document(self._where, {}, {path: _line(event)}).error(path, message)


class _Copier:
    """Copies plain data and counts the values: a few shared lists can stand for more values than memory holds."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._size = 0

    def copied(self, value: Any, path: KeyPath) -> Any:
        """Return `value` as new dicts and lists."""
        self._size += len(value) if isinstance(value, str) else 1
        if self._size > SIZE_LIMIT_BYTES:
            raise self._error(path, f"more than {SIZE_LIMIT_BYTES} characters and values are given in all; give fewer")
        if isinstance(value, Mapping | list | tuple) and len(path) >= DEPTH_LIMIT:
            raise self._error(path, f"nested deeper than {DEPTH_LIMIT} levels")
        if isinstance(value, Mapping):
            return {self._key(key, path): self.copied(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copied(item, (*path, index)) for index, item in enumerate(value)]
        if value is not None and type(value) not in (str, int, float, bool):
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            raise self._error(path, f"a {name[:80]} is given; allowed: str, int, float, bool, None, list and dict")
        try:
            return _checked(value)
        except _Refused as refused:
            raise self._error(path, str(refused)) from None

    def _key(self, key: Any, path: KeyPath) -> str:
        if type(key) is not str:
            raise self._error(path, f"a key must be a str, and {shown(key)} is not")
        self.copied(key, (*path, key))
        return key

    def _error(self, path: KeyPath, message: str) -> BadInput:
        return Document(self._where, {}).error(path, message)


class _Refused(Exception):
    """A scalar that no document may hold; the caller that knows its place adds it."""


def _plain(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar by YAML 1.2's core schema, except that 012, which is 10 or 12, is refused."""
    if text in _WORDS:
        return _WORDS[text]
    integer, hexadecimal, octal = _DECIMAL.fullmatch(text), _HEXADECIMAL.fullmatch(text), _OCTAL.fullmatch(text)
    if not (integer or hexadecimal or octal or _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        return _checked(text)
    if len(text) > NUMBER_LIMIT_CHARACTERS:
        raise _Refused(f"a number of {len(text)} characters is given; at most {NUMBER_LIMIT_CHARACTERS} are allowed")
    if integer:
        digits = text.lstrip("+-")
        if digits[0] == "0" and digits != "0":
            raise _Refused(f"{text} is octal to some readers and decimal to others; write {int(text)}, or '{text}' for text")
        return _checked(int(text))
    if hexadecimal or octal:
        return _checked(int(text, 0))
    return _checked(float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text) else math.nan)


_Scalar = TypeVar("_Scalar", str, int, float, bool, None)


def scalar_text(value: object, where: str) -> str:
    """Return a value as a scalar of YAML, in one line; raises BadInput, about `where`, for text that no file holds."""
    if isinstance(value, str):
        try:
            _checked(value)
        except _Refused as refused:
            raise BadInput(f"{where}: {refused}") from None
        if _WORD.fullmatch(value) and value not in _WORDS:
            return value
    return json.dumps(value, ensure_ascii=False)


def _checked(value: _Scalar) -> _Scalar:
    """Return the scalar `value` unless it is text with control characters, a huge integer, an infinity or a NaN."""
    if isinstance(value, str) and (odd := _NOT_TEXT.search(value)):
        raise _Refused(f"{shown(value)} holds the character U+{ord(odd[0]):04X}, which is not allowed; remove it")
    if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
        raise _Refused(f"{shown(value)} is given; integers must lie below 2**64")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refused("an infinity or NaN is given; only finite numbers are allowed")
    return value


def _refuse_size(size_bytes: int, place: str) -> None:
    if size_bytes > SIZE_LIMIT_BYTES:
        raise BadInput(f"{place}: the text has {size_bytes} bytes; at most {SIZE_LIMIT_BYTES} are allowed")


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _placed(where: str, line: int | None = None) -> str:
    """Return "where:line" in one printable line; a long path keeps its end, which says more than its beginning."""
    where = where if where.isprintable() and where else ascii(where)
    where = where if len(where) <= 100 else "..." + where[-97:]
    return where if line is None else f"{where}:{line}"


def _key_name(path: KeyPath) -> str:
    name = ".".join(part if isinstance(part, str) and part.isprintable() and part else ascii(part) for part in path)
    return name if len(name) <= 60 else name[:28] + "..." + name[-29:]


def _nearest_file(path: str, neighbours_in: Path | None) -> str:
    folder, name = os.path.split(path)
    try:
        if neighbours_in is not None and not Path(folder).resolve().is_relative_to(neighbours_in.resolve()):
            return ""
        names = sorted(name for name in os.listdir(folder or os.curdir) if name.isprintable())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
        return f" (nor a folder {shown(folder)})"
    stem, _ = os.path.splitext(name)  # a common suffix alone makes no two names alike
    return nearest_name(name, [candidate for candidate in names if nearest_name(stem, [os.path.splitext(candidate)[0]])])
