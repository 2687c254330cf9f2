"""Top-level names of a C text, under a prefix, so that several texts fit into one file."""

from __future__ import annotations

import re

# Comments and strings stay as they are; everything else is words and what lies between them.
_PIECE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|<[\w/.]+\.h>|(?:->|\.)?\b[A-Za-z_]\w*|.", re.DOTALL)
# Declarations on a line at the top level: a macro, a type, a function or a variable.
_DECLARATIONS = (
    re.compile(r"^[ ]*#[ ]*define (\w+)", re.MULTILINE),
    re.compile(r"^typedef [^;{]*?(\w+)(?: __attribute__\(\(.*\)\))?;", re.MULTILINE),
    re.compile(r"^struct (\w+)", re.MULTILINE),
    re.compile(r"^(?:static |INLINE |SELDOM |void |long |int )(?:[^\n;={]*?[ *])?(\w+)\(", re.MULTILINE),
    re.compile(r"^static (?:__thread )?(?:[\w]+[ *]+)+(\w+(?:, \w+)*)(?:\[\w+\])?(?: =|;)", re.MULTILINE),
    re.compile(r"^static void \(\*(\w+)\)", re.MULTILINE),
    re.compile(r"^BY_LANE\((\w+),", re.MULTILINE),
)
_ENTRY = re.compile(r"^(?=(?:void|long|int) \w+\()", re.MULTILINE)
# Names of the compiler and keywords stay as they are.
_KEPT = re.compile(r"_{1,2}[A-Za-z]\w*|inline|unused|void|long|int")


def declared_names(text: str) -> frozenset[str]:
    """Return the names that a text declares at its top level."""
    declared = {name for pattern in _DECLARATIONS for names in pattern.findall(text) for name in names.split(", ")}
    return frozenset(name for name in declared if not _KEPT.fullmatch(name))


def with_prefix(text: str, prefix: str) -> str:
    """Return a text whose top-level names begin with `prefix` and are seen in this file alone; members keep their names."""
    names = declared_names(text)
    renamed = _PIECE.sub(lambda piece: f"{prefix}{piece[0]}" if piece[0] in names else piece[0], text)
    return _ENTRY.sub("static ", renamed)
