"""Nobody is sent to a page or a heading that is not there, and no page is without a way to it."""

from __future__ import annotations

import re
from pathlib import Path

from support.documentation import PAGES, ROOT, anchors, name_of, prose
from support.everyday import for_each

# Endings of files that are examples themselves; folders hold what they share and what they gave.
EXAMPLES = {".py", ".ipynb", ".yaml", ".c", ".cpp"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@for_each(PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == [], f"{name_of(page)}: nothing is there"


def test_the_readme_ends_with_eight_places_to_go() -> None:
    end = prose(ROOT / "README.md").partition("## Where to go next")[2]
    assert len(re.findall(r"^\d\. ", end, re.MULTILINE)) == 8


def test_the_gallery_has_every_example() -> None:
    gallery = ROOT / "docs" / "gallery.md"
    linked = {(gallery.parent / target).resolve() for target in LINK.findall(prose(gallery))}
    examples = ROOT / "examples"
    files = {path for folder in (examples, examples / "serve") for path in folder.iterdir() if path.suffix in EXAMPLES}
    assert files - linked == set(), "show the example in docs/gallery.md"
