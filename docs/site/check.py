"""Guarantees of the built site: every link leads somewhere, nothing comes from the network, and it stays small.

`python docs/site/check.py build/site` names what is wrong, with its page, and exits with 1. Where there is a Chromium, it opens
every page as on a phone, and names what its console says and pages that are wider than the phone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BYTES_MOST = 20 * 1024 * 1024
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}
PHONE_PIXELS = 400
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Parsed(HTMLParser):
    """The links, the anchors and the loaded files of one page."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element links to, loads, or is called."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loads = LOADED.get(tag, "href" if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()) else "")
        if given.get(loads):
            self.loaded.append(given[loads])


def parsed(page: Path) -> Parsed:
    """Return what is in `page`."""
    parser = Parsed()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def faults(site: Path) -> list[str]:
    """Return a sentence for each dead link, each file that the network would have, and a site that is too large."""
    pages = {page.resolve(): parsed(page) for page in sorted(site.rglob("*.html"))}
    wrong = []
    for page, content in pages.items():
        name = page.relative_to(site.resolve())
        for address in content.links + content.loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in content.loaded and parts.scheme != "data":
                    wrong.append(f"{name}: {address} comes from the network")
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            # What opens a page that does not exist is served from anywhere, so that its links are absolute.
            if name.name == "404.html":
                continue
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                wrong.append(f"{name}: {address} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{name}: {address} has no such heading")
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    if size > BYTES_MOST:
        wrong.append(f"the site has {size} bytes; at most {BYTES_MOST} are allowed")
    print(f"{len(pages)} pages, {size / 1e6:.1f} MB")
    return wrong


def opened(browser: str, site: Path) -> list[str]:
    """Return what a browser's console says of all pages, open at once on a phone, and which have to be scrolled sideways."""
    site = site.resolve()
    addresses = [page.as_uri() for page in sorted(site.rglob("*.html"))] + [f"{site.as_uri()}/index.html?q=look-back"]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "phones.html"
        page.write_text(_PHONES % {"addresses": json.dumps(addresses), "pixels": PHONE_PIXELS}, encoding="utf-8")
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=20000")
        files = ("--allow-file-access-from-files", f"--user-data-dir={folder}", "--dump-dom", page.as_uri())
        answer = subprocess.run([browser, *options, *files], capture_output=True, text=True, timeout=120, check=False)
    shown = re.search(r'data-widths="([^"]*)"', answer.stdout)
    if not shown:
        return [f"{browser} shows nothing: {answer.stderr[-500:]}"]
    widths: dict[str, int] = json.loads(unescape(shown[1]))
    wrong = [line for line in answer.stderr.splitlines() if "CONSOLE" in line]
    wrong += [f"{address}: not opened" for address in addresses if address not in widths]
    return wrong + [
        f"{address}: {width} pixels wide on a phone of {PHONE_PIXELS}"
        for address, width in widths.items()
        if width > PHONE_PIXELS
    ]


_PHONES = """<!DOCTYPE html><meta charset="utf-8"><body><script>
for (const address of %(addresses)s) {
  const frame = document.createElement("iframe");
  frame.width = %(pixels)d; frame.height = 900; frame.src = address;
  document.body.append(frame);
}
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  const widths = frames.map(frame => [frame.src, frame.contentDocument.documentElement.scrollWidth]);
  document.body.dataset.widths = JSON.stringify(Object.fromEntries(widths));
});
</script>"""


def main(site: Path) -> int:
    """Print what is wrong with `site`; return 1 where anything is."""
    wrong = faults(site)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser:
        wrong += opened(browser, site)
    else:
        print(f"not opened in a browser: there is none of {', '.join(BROWSERS)}")
    print("\n".join(wrong) or "every link leads somewhere, and nothing comes from the network")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
