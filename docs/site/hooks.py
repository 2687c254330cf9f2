"""Pages of the site that lie outside docs/ or are made while it is built, and the links between all of them.

MkDocs calls the functions `on_…`. README.md becomes the start page, files outside docs/ that a page links to are published
below `files/`, and the reference is made from docstrings and JSON schemas.
"""

from __future__ import annotations

import os
import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import API, AT_THE_TOP, FENCE, LINK, anchor_of, api_page, published_name, schema_page, source_of, with_links
from parameters import ROOT
from reports import decisions, records, with_reports

from minrnn_gen.cli.schema import Kind

# A table of so many columns needs the place of the table of contents.
WIDE_COLUMNS = 8


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that other readers of Markdown give them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor_of
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the top of the checkout, the files that pages link to, and what is generated."""
    for name, page in AT_THE_TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for page, topic in API.items():
        files.append(File.generated(config, f"reference/{page}.md", content=api_page(topic)))
    for kind in Kind:
        files.append(File.generated(config, f"reference/{kind}-schema.md", content=schema_page(kind)))
    for name, text in (*records(), *decisions()):
        files.append(File.generated(config, name, content=text))
    for source in sorted(linked_files(files)):
        published = published_name(source)
        files.append(File.generated(config, published, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to where the site has what they lead to, add those to reports, and widen pages of wide tables."""
    if max((line.count("|") - 1 for line in markdown.splitlines() if line.startswith("|")), default=0) >= WIDE_COLUMNS:
        page.meta.setdefault("hide", ["toc"])
    return with_reports(with_links(markdown, source_of(page.file.src_uri), page.file.src_uri), page.file.src_uri)


def linked_files(files: Files) -> set[str]:
    """Return the files outside docs/ that pages link to, as paths from the top of the checkout."""
    found = set()
    for file in files.documentation_pages():
        if file.src_uri.startswith("reference/"):
            continue
        source = source_of(file.src_uri)
        for link in LINK.findall(FENCE.sub("", (ROOT / source).read_text(encoding="utf-8"))):
            target = link.partition("#")[0]
            if not target or re.match(r"[a-z]+:", target):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if path not in AT_THE_TOP and not path.startswith("docs/") and os.path.isfile(ROOT / path):
                found.add(path)
    return found
