"""Nobody is sent to a page or a heading that is not there, and no page is without a way to it."""

from __future__ import annotations

import re
from pathlib import Path

from support.documentation import PAGES, ROOT, anchors, name_of, prose
from support.everyday import for_each

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


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in LINK.findall(prose(ROOT / "README.md"))}
    assert [name_of(page) for page in PAGES if page.name != "README.md" and page not in linked] == [], (
        "list the page under Documentation in README.md"
    )
