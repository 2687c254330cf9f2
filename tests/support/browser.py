"""Pages opened in the system's Chromium: what its console says, and what a reader of two widths gets to see."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.patience import within

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this system")
# A desk's window and a phone's; below these sizes and contrasts (WCAG 2, AA) text is hard to read.
WIDTHS = (1280, 400)
FONT_PX_LEAST, CONTRAST_LEAST = 9.0, 4.5
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}

# In a frame as wide as a window the page finds itself in one.
_PROBE = """
const rgb = color => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
function ground(element) {
  for (; element; element = element.parentElement) {
    const color = rgb(getComputedStyle(element).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
}
function measured(frame) {
  const page = frame.contentDocument, texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const seen = {width: frame.width, overflow: page.documentElement.scrollWidth - frame.width, font: 99, contrast: 99};
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement, style = getComputedStyle(element);
    if (!node.textContent.trim() || element.closest("script,style,title") || !element.getClientRects().length) continue;
    const is_svg = element.namespaceURI.endsWith("svg"), scale = is_svg ? element.getScreenCTM().a || 1 : 1;
    const turned = is_svg ? Math.hypot(element.getScreenCTM().a, element.getScreenCTM().b) : scale;
    seen.font = Math.min(seen.font, parseFloat(style.fontSize) * turned);
    const ink = light(rgb(is_svg ? style.fill : style.color));
    seen.contrast = Math.min(seen.contrast, contrast(ink, light(ground(element))));
  }
  seen.tried = tried(frame);
  return seen;
}
addEventListener("load", () => {
  document.body.dataset.seen = JSON.stringify([...document.querySelectorAll("iframe")].map(measured));
});
"""
NOTHING_TRIED = "() => null"


class Balanced(HTMLParser):
    """A parser that refuses an element that is not closed where it should be, and notes what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def assert_is_whole(page: str) -> None:
    """Hold a page to elements that are closed, and to nothing that would be loaded."""
    parser = Balanced()
    parser.feed(page)
    assert parser.opened == [] and parser.loaded == ["data:,"]
    assert "@import" not in page and "url(" not in page.partition("<pre>")[0]


def assert_is_readable(page: str, folder: Path, tried: str = NOTHING_TRIED, *, is_dark: bool = False) -> list[Any]:
    """Open a page in windows of both widths and hold it to a quiet console and text that can be read.

    `is_dark`: a reader who prefers dark pages. Returns what `tried`, a function of JavaScript that gets the frame of a page,
    answers for each width.
    """
    frames = "".join(f'<iframe width="{width}" height="2000" srcdoc="{html.escape(page)}"></iframe>' for width in WIDTHS)
    file = folder / "frames.html"
    file.write_text(f"<meta charset=utf-8><script>const tried = {tried};{_PROBE}</script><body>{frames}", encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom")
    scheme = ("--force-dark-mode",) if is_dark else ()
    command = [str(BROWSER), *options, *scheme, f"--user-data-dir={folder}", file.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=within(60), check=True)
    assert [line for line in answer.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r'data-seen="([^"]*)"', answer.stdout)
    assert found, answer.stdout[:500]
    seen = json.loads(html.unescape(found[1]))
    for one_width in seen:
        assert one_width["overflow"] <= 0, one_width
        assert one_width["font"] >= FONT_PX_LEAST and one_width["contrast"] >= CONTRAST_LEAST, one_width
    return [one_width["tried"] for one_width in seen]
