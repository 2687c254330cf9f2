"""What pydantic found wrong with plain data, as one sentence: the value, what is allowed, the nearest valid spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from minrnn_gen.errors import nearest_name, shown

_JsonSchema = Mapping[str, Any]
_Path = tuple[str | int, ...]

_PLAIN_TYPES = {"string": "text", "boolean": "true or false", "null": "null", "object": "a mapping"}


def first_violation(
    error: pydantic.ValidationError, model: type[pydantic.BaseModel], data: Mapping[str, Any]
) -> tuple[_Path, str]:
    """Return the key path and the sentence of the violation to mend first.

    An unknown key comes first and a missing one last: a misspelt key is both, and its spelling is what must be mended.
    """
    rank = {"extra_forbidden": 0, "missing": 2}
    violation = min(error.errors(include_url=False), key=lambda violation: rank.get(violation["type"], 1))
    root = model.model_json_schema()
    path, value = _located(violation["loc"], data)
    kind = violation["type"]
    if kind == "extra_forbidden":
        known = [key for branch in _branches(_schema_at(root, root, path[:-1]), root) for key in branch.get("properties", {})]
        return path, f"unknown key{nearest_name(path[-1], known)}; allowed: {', '.join(known)}"
    if kind == "missing":
        path = (*path, violation["loc"][-1])
        return path, f"this key is missing; give {_allowed(_schema_at(root, root, path), root)}"
    if kind in ("value_error", "assertion_error"):
        return path, " ".join(str(violation["ctx"]["error"]).split())
    schema = _schema_at(root, root, path)
    if not schema or violation["loc"][-1] == "[key]":
        return path, f"{shown(value)} is given: {violation['msg']}"
    return path, f"{shown(value)} is given{nearest_name(value, _choices(schema, root))}; allowed: {_allowed(schema, root)}"


def _located(loc: _Path, data: Any) -> tuple[_Path, Any]:
    """Return the keys of `loc` that `data` has, and the value there; the rest of `loc` are names of union branches."""
    path: _Path = ()
    for part in loc:
        inner = dict(enumerate(data)) if isinstance(data, list) else data
        if isinstance(inner, Mapping) and part in inner:
            path, data = (*path, part), inner[part]
    return path, data


def _schema_at(schema: _JsonSchema, root: _JsonSchema, path: _Path) -> _JsonSchema:
    """Return the JSON schema of the value at `path`, or an empty one where nothing is said about it."""
    if not path:
        return schema
    for branch in _branches(schema, root):
        if isinstance(path[0], int):
            inner = dict(enumerate(branch.get("prefixItems", ()))).get(path[0], branch.get("items"))
        else:
            inner = branch.get("properties", {}).get(path[0], branch.get("additionalProperties"))
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
        return ("an integer" if kind == "integer" else "a number") + _range(schema, "minimum", "maximum")
    if kind == "array":
        per_item = f", each {_allowed(schema['items'], root)}" if "items" in schema else ""
        return "a list" + _range(schema, "minItems", "maxItems", " items") + per_item
    text = _PLAIN_TYPES.get(str(kind), "another value")
    if kind == "string":
        text += _range(schema, "minLength", "maxLength", " characters")
        text += f" matching {schema['pattern']}" if "pattern" in schema else ""
    return text


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
