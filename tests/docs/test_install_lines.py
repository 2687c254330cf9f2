"""Install lines of pages and messages match the Makefile and pyproject.toml: the index of torch, and the extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder, pattern in (
        (".", "*.md"),
        ("docs", "**/*.md"),
        ("minrnn_gen", "**/*.py"),
        ("examples", "**/*.py"),
        (".", "Dockerfile"),
    )
    for path in sorted((ROOT / folder).glob(pattern))
}


def test_the_index_of_torch_is_added_as_the_makefile_adds_it() -> None:
    """A torch from its own index needs packages that are on the default one alone, so the index is never the only one."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (url,) = re.findall(r"^TORCH_CPU := (\S+)$", makefile, re.MULTILINE)
    assert "--extra-index-url $(TORCH_CPU)" in makefile
    named = {name: text for name, text in TEXTS.items() if url in text}
    assert {"README.md", "docs/start.md", "minrnn_gen/errors.py"} <= set(named)
    for name, text in named.items():
        assert text.count(f"pip install torch --extra-index-url {url}") == text.count(url), name
    assert not [name for name, text in TEXTS.items() if re.search(r"(?<!-extra)-index-url|\s-i\s+https?:", text)]


def test_extras_that_are_named_exist() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    named = {
        extra: name
        for name, text in TEXTS.items()
        for several in re.findall(r"pip install [\"']?(?:\.|minrnn-gen)\[([\w,]+)\]", text)
        for extra in several.split(",")
    }
    assert {"cuda13", "jax", "torch"} <= set(named)
    assert {extra: name for extra, name in named.items() if extra not in extras} == {}
