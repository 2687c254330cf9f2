"""A report as one HTML file: it loads nothing, says so to the browser, and follows the reader's light or dark scheme."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --ground: #fff; --line: #d1d9e0; --blue: #0969da;
  --red: #cf222e; --code: #f6f8fa; --comment: #59636e; --number: #0550ae; --other: #8c959f; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --ground: #0d1117; --line: #3d444d;
  --blue: #4493f8; --red: #f85149; --code: #151b23; --comment: #9198a1; --number: #79c0ff; --other: #656c76; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0.4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 0.5rem; overflow-wrap: anywhere; }
p { margin: 0.3rem 0; color: var(--soft); overflow-wrap: anywhere; }
table { border-collapse: collapse; }
th { text-align: left; font-weight: 600; vertical-align: top; padding: 0.15rem 0.8rem 0.15rem 0; }
td { vertical-align: top; padding: 0.15rem 0.8rem 0.15rem 0; font-variant-numeric: tabular-nums; }
table.facts td { overflow-wrap: anywhere; }
tr.pick, td.pick { color: var(--blue); font-weight: 600; }
.two { columns: 2 30rem; column-gap: 2.5rem; }
.two > section { break-inside: avoid; padding-top: 0.1rem; }
.scroll { overflow-x: auto; }
svg.wide { display: block; width: 100%; min-width: 30rem; max-width: 60rem; }
svg.bar { width: 9rem; height: 0.7rem; vertical-align: middle; }
svg.span { width: min(18rem, 34vw); height: 0.9rem; vertical-align: middle; }
svg.key { width: 0.8rem; height: 0.8rem; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg text.pick { fill: var(--blue); font-weight: 600; stroke: var(--ground); stroke-width: 4; paint-order: stroke; }
.grid { stroke: var(--line); } .other { fill: var(--other); } circle.other { fill-opacity: 0.8; }
circle.pick { fill: var(--blue); stroke: var(--ground); stroke-width: 2; }
.free { fill: var(--line); fill-opacity: 0.5; } .value { fill: var(--blue); } .full { fill: var(--red); }
.part0 { fill: #0969da; } .part1 { fill: #1a7f37; } .part2 { fill: #bf8700; } .part3 { fill: #8250df; }
.part4 { fill: #bc4c00; } .part5 { fill: #1b7c83; } .part6 { fill: #cf222e; } .part7 { fill: #6e7781; }
.beside { display: grid; grid-template-columns: minmax(14rem, 20rem) minmax(0, 1fr); gap: 1.5rem; }
.beside > aside { position: sticky; top: 1rem; align-self: start; max-height: 95vh; overflow-y: auto; }
pre { margin: 0; padding: 0.8rem; background: var(--code); overflow-x: auto; font: 12px/1.45 ui-monospace, monospace; }
pre i { color: var(--comment); font-style: normal; } pre b { color: var(--number); font-weight: 600; }
@media (max-width: 50rem) { .beside { grid-template-columns: minmax(0, 1fr); }
  .beside > aside { position: static; max-height: none; } svg.bar { width: 5rem; } }
"""


def page(title: str, sections: Iterable[str], style: str = "", script: str = "") -> str:
    """Return a page of sections that are HTML, with its own `style` and the one `script` that the browser may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
    )
    end = f"\n<script>{script}</script>" if script else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}{style}</style></head><body>\n'
        + "\n".join((f"<h1>{escape(title)}</h1>", *sections))
        + f"{end}\n</body></html>\n"
    )


def section(title: str, words: str, content: str) -> str:
    """Return a section: a heading, a sentence, and content that is HTML."""
    said = f"<p>{escape(words)}</p>" if words else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return labelled phrases as a table."""
    lines = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows)
    return f'<table class="facts">{lines}</table>'
