"""Tables of parameters of the reference, read from the sources without an import: name, type, shape and default."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of keywords that stand once, for calls, for specs and for layers, with their default in a table.
KEYWORDS = {
    "minrnn_gen/call/keywords.py": "`None`",
    "minrnn_gen/config/spec.py": "the spec's",
    "minrnn_gen/torch/layers/options.py": "[a spec's](spec-schema.md)",
}
# Classes that are called rather than made.
CALLED = {"Kernel": "__call__"}
# Types that have no shape, whatever a call has by the same name.
NO_ARRAYS = ("bool", "int", "float", "str")
Definition = ast.FunctionDef | ast.ClassDef


@functools.cache
def module_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def file_of(module: str) -> Path:
    """Return the file of a module by its dotted name."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definition_of(module: str, name: str) -> Definition | None:
    """Return the function or class that `module` has by this name, its own or imported; None for anything else."""
    for node in ast.walk(module_tree(file_of(module))):
        match node:
            case ast.FunctionDef() | ast.ClassDef() if node.name == name:
                return node
            case ast.ImportFrom(module=str(origin), names=names) if any(
                (alias.asname or alias.name) == name for alias in names
            ):
                return definition_of(origin, name) if origin != module and file_of(origin).exists() else None
    return None


def keywords_of(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type, default) of the keywords that a class in `KEYWORDS` lists, its base's first."""
    for path, default in KEYWORDS.items():
        for node in ast.walk(module_tree(ROOT / path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                for base in node.bases:
                    yield from keywords_of(ast.unparse(base))
                for field in node.body:
                    if isinstance(field, ast.AnnAssign):
                        yield ast.unparse(field.target), ast.unparse(field.annotation), default


def parameters_of(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type, default) of each parameter, the default as a cell of a table."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in [*zip(positional, defaults, strict=True), *by_name]:
        if argument.arg != "self":
            annotation = ast.unparse(argument.annotation) if argument.annotation else ""
            yield argument.arg, annotation, quoted(ast.unparse(default)) if default else "needed"
    yield from keywords_of(unpacked_by(function))


def unpacked_by(function: ast.FunctionDef) -> str:
    """Return the class of the keywords that a function takes by **, "" without one."""
    kwarg = function.args.kwarg
    found = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(kwarg.annotation)) if kwarg and kwarg.annotation else None
    return found[1] if found else ""


@functools.cache
def shapes_of_calls() -> dict[str, str]:
    """Return the shape of each array of a call, from the tables of docs/python.md."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    shapes: dict[str, str] = {}
    for line in text.partition("## Calling a kernel")[2].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 3 or "[" not in cells[1]:
            continue
        names = [name.strip() for name in cells[0].partition(", the ")[0].partition(" with ")[0].split(",")]
        parts = re.split(r", (?=[\[{])", cells[1]) if len(names) > 1 else [cells[1].partition(" in ")[0].partition(",  ")[0]]
        for name, shape in zip(names, parts, strict=False):
            shapes.setdefault(name, shape)
    return shapes


def shapes_of(definition: Definition, function: ast.FunctionDef) -> dict[str, str]:
    """Return the shapes of parameters: those of a call, and those that the docstring lists as "name: [...]"."""
    shapes = dict(shapes_of_calls()) if any(keywords_of(unpacked_by(function))) else {}
    text = " ".join((ast.get_docstring(definition) or "").split())
    for names, shape in re.findall(r"((?:\w+, )*\w+): (\[[^\]]*\])", text):
        shapes |= dict.fromkeys(names.split(", "), shape)
    return shapes


def table_of(module: str, name: str) -> str:
    """Return the table of the parameters of a public name as Markdown; empty for what takes none of its own."""
    definition = definition_of(module, name)
    function: ast.FunctionDef | None = definition if isinstance(definition, ast.FunctionDef) else None
    if isinstance(definition, ast.ClassDef):
        method = CALLED.get(name, "__init__")
        function = next((node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == method), None)
    rows = list(parameters_of(function)) if function else []
    if not definition or not function or not rows:
        return ""
    shapes = shapes_of(definition, function)
    cells = [
        (
            f"`{name}`",
            "array" if kind == "Any" and name in shapes else quoted(kind),
            "" if kind in NO_ARRAYS else shapes.get(name, ""),
            default,
        )
        for name, kind, default in rows
    ]
    lines = ["| parameter | type | shape | default |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Return code for a cell of a table; a bar within code ends no cell."""
    return f"`{text}`" if text else ""
