"""The pages of the documentation as data: code blocks, tables, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md")
PAGES = [ROOT / name for name in AT_THE_TOP] + sorted((ROOT / "docs").rglob("*.md"))

_FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line in the page of its first line of text (from 1), its language, its text, and the next line's."""

    line: int
    language: str
    text: str
    end: int


def name_of(page: Path) -> str:
    """Return the page's path from the top of the checkout."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the page's fenced blocks."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if not fence:
            continue
        if opened is None:
            opened = (number + 1, fence[1])
        else:
            first, language = opened
            found.append(Block(first, language, "".join(text + "\n" for text in lines[first - 1 : number - 1]), number + 1))
            opened = None
    assert opened is None, f"{name_of(page)}:{opened and opened[0] - 1}: a block is not closed"
    return found


def prose(page: Path) -> str:
    """Return the page without its fenced and indented blocks and without code in the line: where Markdown is markup."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^    .*$", "", text, flags=re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Return the page's headings as links spell them: small letters, hyphens for blanks, no punctuation."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def table(page: Path, *columns: str) -> list[tuple[str, ...]]:
    """Return the rows of all tables of `page` whose first columns are called `columns`."""
    rows = tables([page], *columns)
    assert rows, f"{name_of(page)}: there is no table with the columns {', '.join(columns)}"
    return rows


def tables(pages: Iterable[Path], *columns: str) -> list[tuple[str, ...]]:
    """Return the rows of all tables of `pages` whose first columns are called `columns`."""
    rows: list[tuple[str, ...]] = []
    for page in pages:
        inside = False
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            if not line.startswith("|"):
                inside = False
            elif cells[: len(columns)] == columns:
                inside = True
            elif inside and not set(line) <= set("|-: "):
                rows.append(cells)
    return rows


def code(cell: str) -> list[str]:
    """Return what stands in backquotes in a table's cell."""
    return re.findall(r"`([^`]+)`", cell)
