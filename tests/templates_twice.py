"""Lines of the templates that stand twice: `python tests/templates_twice.py` counts them and lists where.

A run is six neighbouring lines of code, the same to the letter once whitespace is folded and blank lines and comments are
skipped. A line stands twice where a run that contains it has stood before, in the order of the files' names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TEMPLATES = Path(__file__).parents[1] / "templates"
RUN_LINES = 6


@dataclass(frozen=True)
class Place:
    """A line of a template."""

    template: str
    line: int


@dataclass(frozen=True)
class Repeat:
    """Neighbouring lines of `template` that all stand twice; `of` is where the first of them stood before."""

    template: str
    first: int
    last: int
    count: int
    of: Place

    def __str__(self) -> str:
        return f"{self.count:4} lines: {self.template}:{self.first}-{self.last} as from {self.of.template}:{self.of.line}"


def templates() -> dict[str, str]:
    """Return the text of every template by name, in the order of the names."""
    return {path.relative_to(TEMPLATES).as_posix(): path.read_text("utf-8") for path in sorted(TEMPLATES.rglob("*.j2"))}


def code_of(text: str) -> list[tuple[int, str]]:
    """Return the numbered lines of code, whitespace folded; blank lines and comments are none."""
    text = re.sub(r"\{#.*?#\}|/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.S)
    folded = ((number, " ".join(line.partition("//")[0].split())) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in folded if line]


def repeats(texts: Mapping[str, str]) -> Iterator[Repeat]:
    """Yield what stands twice, template by template."""
    seen: dict[tuple[str, ...], Place] = {}
    for template, text in texts.items():
        code = code_of(text)
        before: dict[int, Place] = {}  # by the index of a line that stands twice
        for start in range(len(code) - RUN_LINES + 1):
            run = tuple(line for _, line in code[start : start + RUN_LINES])
            place = seen.setdefault(run, Place(template, code[start][0]))
            if place != Place(template, code[start][0]):
                for index in range(start, start + RUN_LINES):
                    before.setdefault(index, place)
        start = 0
        while start < len(code):
            end = start
            while end in before:
                end += 1
            if end > start:
                yield Repeat(template, code[start][0], code[end - 1][0], end - start, before[start])
            start = end + 1


def main() -> None:
    """List what stands twice, the longest first, and count it."""
    found = sorted(repeats(templates()), key=lambda repeat: -repeat.count)
    print(*found, f"{sum(repeat.count for repeat in found)} lines stand twice", sep="\n")


if __name__ == "__main__":
    main()
