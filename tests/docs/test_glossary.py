"""Every word of the glossary lives in the code: the identifier or the file beside it is there."""

from __future__ import annotations

import functools
import re

from support.documentation import ROOT, code, table
from support.everyday import for_each

GLOSSARY = ROOT / "docs" / "glossary.md"
ROWS = {word: (meaning, place) for word, meaning, place in table(GLOSSARY, "word", "meaning", "in the code")}
CODE_SUFFIXES = {".py", ".h", ".cpp", ".j2", ".cu"}
WORDS_PER_SENTENCE = 25


@functools.cache
def identifiers() -> frozenset[str]:
    """Return every identifier of the templates, the package and its benchmarks."""
    files = (path for folder in ("templates", "minrnn_gen", "benchmarks") for path in (ROOT / folder).rglob("*"))
    text = (path.read_text(encoding="utf-8") for path in files if path.suffix in CODE_SUFFIXES)
    return frozenset(word for part in text for word in re.findall(r"[A-Za-z_]\w*", part))


@for_each(ROWS)
def test_the_word_lives_in_the_code(word: str) -> None:
    (name,) = code(ROWS[word][1])
    if "/" in name:
        assert (ROOT / name).exists(), f"{word}: {name} does not exist"
    else:
        assert name in identifiers(), f"{word}: {name} occurs neither in templates/, minrnn_gen/ nor benchmarks/"


@for_each(ROWS)
def test_the_meaning_is_one_sentence(word: str) -> None:
    meaning, _ = ROWS[word]
    assert meaning.endswith(".") and ". " not in meaning, word
    assert len(meaning.split()) <= WORDS_PER_SENTENCE, word


def test_the_words_are_in_order() -> None:
    words = [word.lower() for word in ROWS]
    assert words == sorted(words)
