"""Charts and tables of a report: complete, safe whatever their texts say, and they answer a reader in a browser."""

from __future__ import annotations

import html
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.browser import assert_is_readable, assert_is_whole, needs_browser
from support.examples import examples

from minrnn_gen.report.chart import SCRIPT, STYLE, Cell, Line, Scales, chart, table
from minrnn_gen.report.drawing import HEIGHT, WIDTH
from minrnn_gen.report.page import page, section

SCALES = Scales("time steps", "ms", is_x_log=True, is_y_log=True)
LINES = (
    Line("ours", [(256.0, 0.5, "half"), (1024.0, 1.0, "one")], "#0072B2", is_thick=True),
    Line("black", [(256.0, 20.0, "twenty"), (1024.0, 40.0, "forty")], "#000000", "--"),
    Line("dots", [(512.0, 3.0, "three")], "#CC3311", None),
)
ROWS = ([Cell("b"), Cell("9.5", 9.5)], [Cell("a"), Cell("", None)], [Cell("c", is_pick=True), Cell("10", 10.0)])
# What a reader does, in JavaScript: points at a dot, hides a line, sorts twice, searches.
READER = """frame => {
  const page = frame.contentDocument, window = frame.contentWindow, figure = page.querySelector("figure");
  const dot = figure.querySelector('[data-says="three"]'), box = dot.getBoundingClientRect();
  const at = {clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true};
  dot.dispatchEvent(new window.PointerEvent("pointermove", at));
  const said = figure.querySelector("output").textContent, dim = page.querySelectorAll(".dim").length;
  const button = figure.querySelectorAll("button")[1];
  button.click();
  const gone = [...page.querySelectorAll("[data-line].gone")].map(line => line.dataset.line);
  const pressed = button.getAttribute("aria-pressed");
  button.click();
  const column = number => [...page.querySelectorAll("tbody tr")].map(row => row.cells[number].textContent);
  const heads = page.querySelectorAll("thead th"), orders = [];
  heads[0].click(); orders.push(column(0).join(""));
  heads[1].click(); orders.push(column(0).join(""));
  heads[1].click(); orders.push(column(0).join(""));
  const field = page.querySelector("input");
  field.value = "9.5"; field.dispatchEvent(new window.Event("input"));
  const found = [...page.querySelectorAll("tbody tr:not(.gone)")].map(row => row.cells[0].textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  return {dark, said, dim, gone, pressed, back: page.querySelectorAll("[data-line].gone").length, orders, found};
}"""


def report() -> str:
    return page("a report", [section("a chart", "", chart(LINES, SCALES)), table(["name", "ms"], ROWS)], STYLE, SCRIPT)


def test_a_report_is_whole_and_runs_its_own_script_alone() -> None:
    text = report()
    assert_is_whole(text)
    assert text.count("<script") == 1 and "script-src 'sha256-" in text and "default-src 'none'" in text
    assert len(re.findall(r"<button", text)) == len(LINES) and len(re.findall(r"data-says=", text)) == 5


# In the dark: pages of the other tests are light.
@needs_browser
def test_it_answers_a_reader_at_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    answers = assert_is_readable(report(), tmp_path, READER, is_dark=True)
    assert len(answers) == 2
    for answer in answers:
        # An empty cell is last, whichever way a table is sorted.
        assert answer == {
            "dark": True, "said": "three", "dim": 2, "gone": ["1"], "pressed": "false", "back": 0,
            "orders": ["abc", "bca", "cba"], "found": ["b"],
        }  # fmt: skip


positive = st.floats(1e-6, 1e9)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=5), st.booleans(), st.booleans(), st.booleans())
def test_every_point_is_within_the_figure(points: list[tuple[float, float]], is_x: bool, is_y: bool, diagonal: bool) -> None:
    drawn = chart([Line("a", [(x, y, "") for x, y in points], "#fff")], Scales("x", "y", is_x, is_y, diagonal))
    places = re.findall(r'class="dot" cx="([-\d.]+)" cy="([-\d.]+)" r="3.4"', drawn)
    assert len(places) == len(points)
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)


@settings(max_examples=examples(20))
@given(st.text(max_size=20))
def test_texts_are_text(words: str) -> None:
    hostile = f"</script><script>alert(1)</script>{words}"
    drawn = chart([Line(hostile, [(1.0, 1.0, hostile)], "#fff")], Scales(hostile, hostile))
    text = page(hostile, [section(hostile, hostile, drawn), table([hostile], [[Cell(hostile)]])])
    assert "<script" not in text and html.escape(hostile) in text
