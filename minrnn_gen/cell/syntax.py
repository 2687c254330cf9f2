"""Equation text, untrusted, to a Python syntax tree of bounded size, with positions that point into the author's file."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.config.documents import SIZE_LIMIT_BYTES, Document
from minrnn_gen.errors import BadInput, nearest_name

OPERATION_LIMIT = 2_000
# The built-in cells nest 8 deep. A hundred levels keep every walk over a tree within Python's own recursion limit.
DEPTH_LIMIT = 100

_LINE_END = re.compile(r"\r\n|\r|\n")
_INSTEAD_OF = {"^": "; use ** for a power", "@": "; W.<gate> and R.<gate> are products already"}
_FOREIGN = re.compile(r"[^A-Za-z0-9_.,()\[\]+\-*/<>=! \t\n]")
_WITHOUT_GATE = re.compile(r"\b([WR])\s*\.(?!\s*[A-Za-z_])")
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d[\w.]*|\S")
_WORD_WITH_DIGITS = re.compile(r"[A-Za-z_]\w*|(?:\d|\.\d)(?:[eE][+-]|[\w.])*")


@dataclass(frozen=True)
class EquationText:
    """A text in the equation language, the value of `key` in `document`.

    `first_line` and `indentation` place the text in the file; without a first line positions count from the text's own start.
    """

    document: Document
    key: str
    text: str
    first_line: int | None = None
    indentation: int = 0

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without comments."""
        # The language has no text literals, so that # always starts a comment, which may hold any character.
        return tuple(line.split("#", 1)[0].rstrip(" \t") for line in _LINE_END.split(self.text))

    def error(self, line: int, column: int, message: str) -> BadInput:
        """Return the error "file:line:column: message" for a 1-based position in the text.

        Where the text's place in the file is unknown, it is "file:line: key: line and column in the text: message".
        """
        column += self.indentation
        if self.first_line is None:
            return self.document.error((self.key,), f"line {line}, column {column}: {message}")
        place = f"{self.document.where}:{self.first_line + line - 1}:{column}"
        return Document(place, {}).error((), message)

    def error_at(self, node: ast.AST, message: str) -> BadInput:
        """Return the error for the position of a node of this text's tree."""
        return self.error(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, message)


@dataclass(frozen=True)
class Place:
    """Where a name is used or defined: a node of the tree of a text."""

    text: EquationText
    node: ast.expr

    @property
    def line(self) -> int:
        """The line in the author's file, or in the text where that is unknown."""
        return self.node.lineno - 1 + (self.text.first_line or 1)

    def error(self, message: str) -> BadInput:
        """Return the error for this place."""
        return self.text.error_at(self.node, message)


def located(document: Document, key: str, text: str, file_text: str) -> EquationText:
    """Return `text`, the value of `key`, without its indentation, and placed in `file_text` if it is written there as it is.

    Such text is a literal block, or a single line next to its key, with or without quotes.
    """
    bare, own_indentation = without_indentation(text)
    own_lines = _LINE_END.split(text)
    lines = _LINE_END.split(file_text)
    for index, line in enumerate(lines):
        if re.match(rf"{key}\s*:\s*\|", line):
            block = lines[index + 1 : index + len(own_lines)]
            indentation = next((_indentation(line) for line in block if line.strip()), 0)
            if [line[indentation:].rstrip() for line in block] == [line.rstrip() for line in own_lines[:-1]]:
                return EquationText(document, key, bare, index + 2, indentation)
        beside = re.match(rf"{key}\s*:\s*['\"]?\s*{re.escape(bare)}", line)
        if beside and bare.strip() and "\n" not in bare:
            return EquationText(document, key, bare, index + 1, beside.end() - len(bare))
    return EquationText(document, key, bare, None, own_indentation)


def without_indentation(text: str) -> tuple[str, int]:
    """Return a text without the common indentation of its equations, and the width of that indentation."""
    lines = _LINE_END.split(text)
    indentation = min((_indentation(line) for line in lines if line.split("#", 1)[0].strip()), default=0)
    return "\n".join(line[indentation:] for line in lines), indentation


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def equation_statements(source: EquationText) -> list[ast.stmt]:
    """Return the statements of `source`, one per equation. Raises `BadInput`."""
    tree = _parsed(source, "exec")
    return tree.body if isinstance(tree, ast.Module) else []


def output_expression(source: EquationText) -> ast.expr:
    """Return the single expression of `source`. Raises `BadInput`."""
    tree = _parsed(source, "eval")
    if not isinstance(tree, ast.Expression):
        raise source.error(1, 1, "an expression is expected here")
    return tree.body


def node_text(source: EquationText, node: ast.expr | ast.stmt) -> str:
    """Return how `node` is written, at most its first line and 40 characters."""
    line = source.lines[node.lineno - 1]
    end = node.end_col_offset if node.end_lineno == node.lineno else None
    text = line[node.col_offset : end].strip()
    return text if len(text) <= 40 else f"{text[:37]}..."


def why_a_word(name: str, what: str) -> str:
    """Return why a word of the language cannot be a name."""
    return f"'{name}' is a word of the language and cannot be {what}; choose another name"


def why_no_part(source: EquationText, node: ast.expr) -> str:
    """Return why a piece of Python's syntax is no expression of the language."""
    if isinstance(node, ast.Compare):
        return "a comparison can only be the first argument of where(condition, a, b)"
    if isinstance(node, ast.IfExp):
        return "`a if condition else b` is written where(condition, a, b)"
    if isinstance(node, ast.BoolOp | ast.UnaryOp):
        return "conditions are combined by nesting where(condition, a, b)"
    return f"'{node_text(source, node)}' is not part of the equation language"


def why_no_function(node: ast.Call, name: str, functions: Iterable[str]) -> str:
    """Return why the name in a call is none of the `functions`."""
    product = "" if isinstance(node.func, ast.Name) else ", unless a * is missing before the bracket"
    known = tuple(functions)
    return f"'{name[:40]}' is not a function of the language{nearest_name(name, known)}{product}; use one of {', '.join(known)}"


def _parsed(source: EquationText, mode: str) -> ast.AST:
    if len(source.text.encode("utf-8", "surrogatepass")) > SIZE_LIMIT_BYTES:
        raise source.error(1, 1, f"the text is longer than {SIZE_LIMIT_BYTES} bytes, the most a cell may have")
    _check_characters(source)
    try:
        return ast.parse("\n".join(source.lines), mode=mode)
    except SyntaxError as error:
        wanted = "`name = expression` or `state[t] = expression`" if mode == "exec" else "one expression"
        place = (max(error.lineno or 1, 1), max(error.offset or 1, 1))
        raise source.error(*place, f"this cannot be read ({error.msg}); write {wanted}") from None
    except (ValueError, MemoryError, RecursionError):
        raise source.error(1, 1, f"the text nests deeper than {DEPTH_LIMIT} levels; name the parts") from None


def nearest_form(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for a name that nothing defines: the closest that is `known`, or W.g where it is W_g."""
    if name[:2] in ("W_", "R_", "S_", "X_") and name[2:].isidentifier():
        return f" (did you mean '{name[0]}.{name[2:]}'?)"
    return nearest_name(name, known)


def _check_characters(source: EquationText) -> None:
    """Refuse, before Python's parser runs, unused characters and text that would make that parser work hard."""
    operators = depth = 0
    for number, line in enumerate(source.lines, start=1):
        if foreign := _FOREIGN.search(line):
            instead = _INSTEAD_OF.get(foreign[0], "")
            raise source.error(
                number, foreign.start() + 1, f"the character {foreign[0]!r} has no meaning in an equation{instead}"
            )
        if bare := _WITHOUT_GATE.search(line):
            raise source.error(number, bare.start() + 1, f"'{bare[1]}.' needs a gate's name; write {bare[1]}.<gate>")
        for word in _WORD_WITH_DIGITS.finditer(line):
            if not word[0][0].isalpha() and word[0][0] != "_" and not _NUMBER.fullmatch(word[0]):
                shown = word[0][:40]
                raise source.error(number, word.start() + 1, f"'{shown}' is neither a number (such as 0.5 or 1e-3) nor a name")
        _refuse_missing_operator(source, number, line)
        for column, character in enumerate(line, start=1):
            operators += character in "+-*/("
            depth += (character in "([") - (character in ")]")
            if depth > DEPTH_LIMIT:
                raise source.error(number, column, f"brackets nest deeper than {DEPTH_LIMIT} levels; name the parts")
        if operators > 2 * OPERATION_LIMIT:  # ** counts twice
            raise source.error(number, 1, f"there are more than {OPERATION_LIMIT:,} operations, the most a cell may have")


def _refuse_missing_operator(source: EquationText, number: int, line: str) -> None:
    """Refuse two adjacent operands, since Python's parser only says that they are invalid."""
    left = ""
    for token in _TOKEN.finditer(line):
        right = token[0]
        is_operand = right[0].isalnum() or (right[0] in "_." and len(right) > 1) or right == "_"
        follows = left in (")", "]") or (is_operand and bool(left) and (left[-1].isalnum() or left[-1] == "_"))
        if follows and is_operand and not (keyword.iskeyword(left) or keyword.iskeyword(right)):
            where = f"between {left[-40:]!r} and {right[:40]!r}"
            raise source.error(number, token.start() + 1, f"a * is missing {where}; write it out")
        left = right
