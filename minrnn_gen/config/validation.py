"""Errors of pydantic as sentences: the value, what is allowed, the nearest valid spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from minrnn_gen.errors import nearest_name, nearest_of, shown

_JsonSchema = Mapping[str, Any]
_Path = tuple[str | int, ...]

# Factors of numbers in other units.
_MULTIPLES: dict[str, dict[str, float]] = {
    "bytes": {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "bytes per second": {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "ns": {"us": 1e3},
    "us": {"ns": 1e-3, "ms": 1e3},
    "Hz": {"kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
}
_PLAIN_TYPES = {"string": "text", "boolean": "true or false", "null": "null", "object": "a mapping"}


@dataclass(frozen=True)
class Violation:
    """A sentence for the wrong value at a key path, without its place."""

    path: _Path
    message: str


def hint_of_key(key: object, known: Iterable[str], known_elsewhere: Mapping[str, str]) -> str:
    """Return the likely spelling of a key that is not `known`, in brackets, or the empty string."""
    instead = known_elsewhere.get(key) if isinstance(key, str) else None
    return f" ({instead})" if instead else nearest_name(key, known)


def violations(
    error: pydantic.ValidationError,
    model: type[pydantic.BaseModel],
    data: Mapping[str, Any],
    known_elsewhere: Mapping[str, str],
) -> list[Violation]:
    """Return the violations, one for each key, in the order to fix them.

    Unknown keys come first and missing ones last: a misspelt key is both, and counts once, as its spelling. The allowed keys of
    a mapping with unknown keys are listed once.
    """
    rank = {"extra_forbidden": 0, "missing": 2}
    root = model.model_json_schema()
    violated: list[Violation] = []
    misspelt: set[_Path] = set()
    for violation in sorted(error.errors(include_url=False), key=lambda violation: rank.get(violation["type"], 1)):
        path, value = _located(violation["loc"], data)
        if violation["type"] == "missing":
            path = (*path, violation["loc"][-1])
        # Each branch of a union is violated by itself.
        if path in misspelt or any(_is_within(path, other.path) or _is_within(other.path, path) for other in violated):
            continue
        if violation["type"] == "extra_forbidden":
            branches = _branches(_schema_at(root, root, path[:-1]), root)
            known = [key for branch in branches for key in branch.get("properties", {})]
            if path[-1] not in known_elsewhere and (nearest := nearest_of(path[-1], known)):
                misspelt.add((*path[:-1], nearest))
            is_first = not any(other.path[:-1] == path[:-1] for other in violated)
            allowed = f"; allowed: {', '.join(known)}" if is_first else ""
            violated.append(Violation(path, f"unknown key{hint_of_key(path[-1], known, known_elsewhere)}{allowed}"))
        else:
            violated.append(Violation(path, _message(violation, path, value, root)))
    return violated


def _is_within(path: _Path, outer: _Path) -> bool:
    return path[: len(outer)] == outer


def _message(violation: Any, path: _Path, value: Any, root: _JsonSchema) -> str:
    """Return the violation of a present or missing value."""
    kind, schema = violation["type"], _schema_at(root, root, path)
    if kind == "missing":
        return f"this key is missing; give {_allowed(schema, root)}"
    if kind in ("value_error", "assertion_error"):
        return " ".join(str(violation["ctx"]["error"]).split())
    if not schema or violation["loc"][-1] == "[key]":
        return f"{shown(value)} is given: {violation['msg']}"
    hint = nearest_name(value, _choices(schema, root)) + _in_another_unit(value, schema, root)
    return f"{shown(value)} is given{hint}; allowed: {_allowed(schema, root)}"


def _in_another_unit(value: Any, schema: _JsonSchema, root: _JsonSchema) -> str:
    """Return " (227 KiB would be 232,448 bytes)" for a number that is within bounds in another unit, or the empty string."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    for branch in _branches(schema, root):
        for unit, multiple in _MULTIPLES.get(branch.get("unit", ""), {}).items():
            if branch["minimum"] <= value * multiple <= branch["maximum"]:
                return f" ({value:g} {unit} would be {number_text(value * multiple)} {branch['unit']})"
    return ""


def _located(loc: _Path, data: Any) -> tuple[_Path, Any]:
    """Return the keys of `loc` that `data` has, and the value there; the rest of `loc` are names of union branches."""
    path: _Path = ()
    for part in loc:
        inner = dict(enumerate(data)) if isinstance(data, list) else data
        if isinstance(inner, Mapping) and part in inner:
            path, data = (*path, part), inner[part]
    return path, data


def _schema_at(schema: _JsonSchema, root: _JsonSchema, path: _Path) -> _JsonSchema:
    """Return the JSON schema of the value at `path`, or an empty schema if there is none."""
    if not path:
        return schema
    for branch in _branches(schema, root):
        if isinstance(path[0], int):
            inner = dict(enumerate(branch.get("prefixItems", ()))).get(path[0], branch.get("items"))
        else:
            of_any_name = next(iter(branch.get("patternProperties", {}).values()), branch.get("additionalProperties"))
            inner = branch.get("properties", {}).get(path[0], of_any_name)
        if isinstance(inner, Mapping) and (branch_schema := _schema_at(inner, root, path[1:])):
            return branch_schema
    return {}


def _branches(schema: _JsonSchema, root: _JsonSchema) -> list[_JsonSchema]:
    """Return the alternatives of `schema`, itself if it has none, with references into `root` followed."""
    if "$ref" in schema:
        return _branches(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    return [branch for alternative in alternatives for branch in _branches(alternative, root)] if alternatives else [schema]


def _choices(schema: _JsonSchema, root: _JsonSchema) -> list[str]:
    return [str(choice) for branch in _branches(schema, root) for choice in branch.get("enum", [])]


def _allowed(schema: _JsonSchema, root: _JsonSchema) -> str:
    """Return in words what `schema` allows, such as "an integer from 1 to 8 or null"."""
    return " or ".join(dict.fromkeys(_allowed_by_branch(branch, root) for branch in _branches(schema, root)))


def _allowed_by_branch(schema: _JsonSchema, root: _JsonSchema) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        text = "an integer" if kind == "integer" else "a number"
        if "unit" not in schema:
            return text + _range(schema, "minimum", "maximum")
        least, most = number_text(schema["minimum"]), number_text(schema["maximum"])
        return f"{text} from {least} to {most} {schema['unit']} ({schema['reason']})"
    if kind == "array":
        per_item = f", each {_allowed(schema['items'], root)}" if "items" in schema else ""
        return "a list" + _range(schema, "minItems", "maxItems", " items") + per_item
    text = _PLAIN_TYPES.get(str(kind), "another value")
    if kind == "string":
        text += _range(schema, "minLength", "maxLength", " characters")
        text += f" matching {schema['pattern']}" if "pattern" in schema else ""
    return text


def number_text(number: float) -> str:
    """Return a number with a unit: 1,024 or 1e+14."""
    return f"{number:g}" if isinstance(number, float) and (number >= 1e6 or number % 1) else f"{number:,.0f}"


def _range(schema: _JsonSchema, least_key: str, most_key: str, unit: str = "") -> str:
    least, most = schema.get(least_key), schema.get(most_key)
    limits = [
        f"greater than {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else "",
        f"less than {schema['exclusiveMaximum']}" if "exclusiveMaximum" in schema else "",
    ]
    if least is not None and most is not None:
        limits.append(f"from {least} to {most}{unit}")
    elif least is not None:
        limits.append(f"of at least {least}{unit}")
    elif most is not None:
        limits.append(f"of at most {most}{unit}")
    return "".join(f" {limit}" for limit in limits if limit)
