"""What a reader of the built site relies on: every link leads somewhere, nothing comes from the network, and it stays small.

`python docs/site/check.py build/site` names what is wrong, with its page, and exits with 1. Where there is a Chromium, it opens
a page of each kind from its file and prints what the console says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BYTES_MOST = 20 * 1024 * 1024
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}
OPENED = ("index.html", "reference/minrnn_gen.html", "kernels/scan.html", "index.html?q=look-back")
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


def console(browser: str, address: str) -> list[str]:
    """Return what the console of `browser` says of a page."""
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=4000")
    answer = subprocess.run(
        [browser, *options, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=False
    )
    if not answer.stdout:
        return [f"{address}: {browser} shows nothing"]
    return [f"{address}: {line}" for line in answer.stderr.splitlines() if "CONSOLE" in line]


def main(site: Path) -> int:
    """Print what is wrong with `site`; return 1 where anything is."""
    wrong = faults(site)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser:
        for name in OPENED:
            wrong += console(browser, f"{site.resolve().as_uri()}/{name}")
    else:
        print(f"not opened in a browser: there is none of {', '.join(BROWSERS)}")
    print("\n".join(wrong) or "every link leads somewhere, and nothing comes from the network")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
