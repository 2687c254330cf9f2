"""Templates say a thing once."""

from __future__ import annotations

from templates_twice import RUN_LINES, repeats, templates

# Lines of all templates that may stand twice.
LINES_MOST = 73


def test_few_lines_stand_twice() -> None:
    found = list(repeats(templates()))
    assert sum(repeat.count for repeat in found) <= LINES_MOST, "\n".join(map(str, found))


def test_a_run_that_stands_twice_is_found_whatever_its_spaces_and_comments() -> None:
    code = [f"call({number});" for number in range(2 * RUN_LINES)]
    again = [f"    {line}  // again\n" for line in code[1 : 2 + RUN_LINES]]
    (found,) = repeats({"a": "\n".join(code), "b": "first();\n" + "\n".join(again)})
    assert (found.template, found.count, found.of.template, found.of.line) == ("b", RUN_LINES + 1, "a", 2)
    assert not list(repeats({"a": "\n".join(code), "b": "\n".join(code[: RUN_LINES - 1])}))
