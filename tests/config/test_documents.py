"""Untrusted YAML: what is read, on which line, and what is refused with which words."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from support.patience import within

from minrnn_gen.config.documents import (
    DEPTH_LIMIT,
    SIZE_LIMIT_BYTES,
    Document,
    KeyPath,
    document_from_mapping,
    parse_document,
    read_document,
    validated,
)
from minrnn_gen.errors import BadInput, nearest_name, shown

# Tab, newline and what is printable in YAML, without the breaks U+0085, U+2028 and U+2029 and without surrogates.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn"]) | st.sampled_from("\t\n"), max_size=20
)
NUMBERS = st.integers(-(2**64) + 1, 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def refusal(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        parse_document(text, "a.yaml")
    return str(caught.value)


@given(st.dictionaries(TEXT, PLAIN, max_size=5))
def test_json_is_yaml(data: dict[str, Any]) -> None:
    assert parse_document(json.dumps(data, ensure_ascii=False), "a.json").data == data


@given(st.dictionaries(TEXT, PLAIN, max_size=5))
def test_a_dict_is_copied_whole(data: dict[str, Any]) -> None:
    document = document_from_mapping(data)
    assert document.data == data
    assert document.data is not data
    assert (document.where, document.lines) == ("<dict>", {})


# YAML 1.2.2, 10.3.2, with what YAML 1.1 reads otherwise.
@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        *[(word, word) for word in ("y", "n", "Y", "N", "yes", "no", "on", "off", "On", "OFF", "tRUE", "nUll", "<<", "=")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
        *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("0x10", 16),
        ("0o14", 12),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e9", 1e9),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5E-3", -0.0015),
        ("nan", "nan"),
        ("inf", "inf"),
        ("'012'", "012"),
        ('"true"', "true"),
        ('""', ""),
    ],
)
def test_scalars_are_those_of_the_core_schema(scalar: str, value: object) -> None:
    read = parse_document(f"key: {scalar}\nlist: [a, {scalar or '~'}]", "a.yaml").data
    assert (read["key"], type(read["key"])) == (value, type(value))
    assert read["list"][1] == value


def test_gates_may_be_called_n_and_y() -> None:
    assert parse_document("gates: [r, z, n, y]\ny: 1", "a.yaml").data == {"gates": ["r", "z", "n", "y"], "y": 1}


@pytest.mark.parametrize("number", ["012", "-01", "00"])
def test_a_leading_zero_is_ambiguous(number: str) -> None:
    assert refusal(f"a: 1\nkey: {number}") == (
        f"a.yaml:2: key: {number} is octal to some readers and decimal to others; write {int(number)}, or '{number}' for text"
    )


@pytest.mark.parametrize(
    "number", [".inf", "-.INF", ".nan", "1e999", "1" * 30, "1" * 5000, "0x" + "f" * 5000, "-18446744073709551616"]
)
def test_numbers_are_finite_and_below_2_to_the_64(number: str) -> None:
    assert refusal(f"a: 1\nkey: {number}").startswith("a.yaml:2: key: ")


TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


def key_paths(data: Any, path: KeyPath = ()) -> list[KeyPath]:
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    return [found for key, value in items for found in ((*path, key), *key_paths(value, (*path, key)))]


@given(st.dictionaries(st.text("abc", min_size=1), TREES, min_size=1, max_size=4), st.integers(0, 3))
def test_every_key_path_has_its_line(data: dict[str, Any], blank: int) -> None:
    text = "\n" * blank + yaml.safe_dump(data, default_flow_style=False, sort_keys=False)
    document = parse_document(text, "a.yaml")
    assert list(document.lines) == key_paths(data)
    for path, line in document.lines.items():
        written = text.splitlines()[line - 1]
        assert ("-" if isinstance(path[-1], int) else f"{path[-1]}:") in written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml:1: the file is empty; a mapping of keys to values is needed"),
        ("# only a comment", "a.yaml:1: the file is empty; a mapping of keys to values is needed"),
        ("min_gru", "a.yaml:1: 'min_gru' is given; the whole file must be one mapping, lines of 'key: value'"),
        ("- a\n- b", "a.yaml:1: ['a', 'b'] is given; the whole file must be one mapping, lines of 'key: value'"),
        ("a: 1\nb: 2\na: 3", "a.yaml:3: a: this key is already on line 1; keep one of the two"),
        ("m:\n  k: 1\n  'k': 2", "a.yaml:3: m.k: this key is already on line 2; keep one of the two"),
        ("a: 1\n---\nb: 2", "a.yaml:2: a second document starts here; only one is allowed in a file"),
        ("a: 1\n1: 2", "a.yaml:2: a key must be text, and 1 is not; quote it"),
        ("true: 2", "a.yaml:1: a key must be text, and true is not; quote it"),
        ("~: 2", "a.yaml:1: a key must be text, and null is not; quote it"),
        ("a: {{ b }}", "a.yaml:1: a: a key must be text, not a list or mapping; quote it, or correct the braces"),
        ("a: 1\nb: &x 2", "a.yaml:2: b: the anchor &x is not allowed; remove it"),
        ("a: *x", "a.yaml:1: a: the alias *x is not allowed; write the value out"),
        ("a: !!int 3", "a.yaml:1: a: the tag 'tag:yaml.org,2002:int' is not allowed; only plain values are, remove it"),
        ("a: !anything 3", "a.yaml:1: a: the tag '!anything' is not allowed; only plain values are, remove it"),
        ("a: ! 3", "a.yaml:1: a: the tag '!' is not allowed; only plain values are, remove it"),
        ("a: 1\nb: 'x", "a.yaml:2: not valid YAML: found unexpected end of stream"),
        ("a: 1\n\tb: 2", "a.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\nb: 2: 3", "a.yaml:2: not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: \0", "a.yaml:2: the character U+0000 is not allowed in a text file; remove it"),
        ("a: \x1b[2J", "a.yaml:1: the character U+001B is not allowed in a text file; remove it"),
        ("a: \u2028b: 2", "a.yaml:1: the character U+2028 is not allowed in a text file; remove it"),
        ("a: \ud800", "a.yaml:1: the character U+D800 is not allowed in a text file; remove it"),
        ('a: "\\0"', "a.yaml:1: a: '\\x00' holds the character U+0000, which is not allowed; remove it"),
        ('a: "\\ud800"', "a.yaml:1: a: '\\ud800' holds the character U+D800, which is not allowed; remove it"),
        ('a: "\\UFFFFFFFF"', "a.yaml: not valid YAML: a character or number out of range"),
        ("%YAML " + "1" * 5000 + ".1\n---\na: 1", "a.yaml: not valid YAML: a character or number out of range"),
    ],
)
def test_what_is_not_plain_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


def test_tags_execute_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    for tag in ("!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir", "!!python/name:os.mkdir"):
        assert "the tag" in refusal(f"model: {tag} [{marker}]")
    assert not marker.exists()


def test_bombs_are_refused_before_they_grow() -> None:
    levels = "\n".join(
        f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]" for name, below in zip("bcdefghi", "abcdefgh", strict=True)
    )
    assert "anchor" in refusal(f"a: &a [x]\n{levels}")
    shared: Any = ["x"] * 10
    for _ in range(DEPTH_LIMIT - 3):
        shared = [shared] * 10
    with pytest.raises(BadInput, match=f"more than {SIZE_LIMIT_BYTES} characters and values"):
        document_from_mapping({"a": shared})


@pytest.mark.parametrize(
    "text", ["[" * 60_000, "{a: " * 15_000, "\n".join(" " * n + "a:" for n in range(300)), "a: " + "- " * 30_000]
)
def test_depth_is_limited(text: str) -> None:
    assert "nested deeper than 16 levels" in refusal(text) or "not valid YAML" in refusal(text)


def test_sixteen_levels_are_allowed_and_seventeen_are_not() -> None:
    deep: Any = 1
    for _ in range(DEPTH_LIMIT):
        deep = {"a": deep}
    assert parse_document(json.dumps(deep), "a.yaml").data == document_from_mapping(deep).data == deep
    assert "nested deeper" in refusal(json.dumps({"a": deep}))
    with pytest.raises(BadInput, match="nested deeper"):
        document_from_mapping({"a": deep})
    cyclic: dict[str, Any] = {}
    cyclic["a"] = cyclic
    with pytest.raises(BadInput, match="nested deeper"):
        document_from_mapping(cyclic)


def test_the_size_is_limited_and_named() -> None:
    start = time.process_time()
    assert refusal("a: " + "x" * 2**20) == "a.yaml: the text has 1048579 bytes; at most 65536 are allowed"
    assert time.process_time() - start < within(1.0)
    assert refusal("a: " + "\u00e9" * 40_000) == "a.yaml: the text has 80003 bytes; at most 65536 are allowed"
    assert len(parse_document("a: " + "x" * (SIZE_LIMIT_BYTES - 3), "a.yaml").data["a"]) == SIZE_LIMIT_BYTES - 3


class Lookalike(str):
    """Not the str it seems to be."""


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        {1, 2},
        1j,
        object(),
        Lookalike("x"),
        Path("x"),
        len,
        float("nan"),
        float("-inf"),
        pytest.param(10**5000, id="huge"),
        "\0",
    ],
)
def test_a_dict_holds_plain_data_only(value: object) -> None:
    with pytest.raises(BadInput, match=r"^<dict>: a\.1: "):
        document_from_mapping({"a": [0, value]})


@pytest.mark.parametrize("key", [1, None, True, ("a",), Lookalike("x"), "\0"])
def test_the_keys_of_a_dict_are_text(key: Any) -> None:
    with pytest.raises(BadInput, match=r"^<dict>: a"):
        document_from_mapping({"a": {key: 1}})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * 2**20)
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    for name, message in {
        "latin.yaml": "x:2: byte 0xe9 is not UTF-8; save it as UTF-8",
        "large.yaml": "x: the text has 1048576 bytes; at most 65536 are allowed",
        "lage.yaml": "x: no such file (did you mean 'large.yaml'?); give the path of a YAML file",
        "none/a.yaml": f"x: no such file (nor a folder {shown(str(tmp_path / 'none'))}); give the path of a YAML file",
        ".": "x: this is a folder; give the path of a YAML file in it",
        "bom.yaml/a": "x: cannot be read (Not a directory); give the path of a readable YAML file",
        "a\0b": "x: cannot be read (embedded null byte); give the path of a readable YAML file",
        "a" * 5000: "x: cannot be read (File name too long); give the path of a readable YAML file",
    }.items():
        with pytest.raises(BadInput) as caught:
            read_document(f"{tmp_path}/{name}", "x")
        assert str(caught.value) == message
    document = read_document(tmp_path / "bom.yaml")
    assert (document.where, document.data, document.lines[("b",)]) == (str(tmp_path / "bom.yaml"), {"a": 1, "b": 2}, 2)


def test_errors_have_the_line_of_the_nearest_key_that_is_there() -> None:
    document = parse_document("a: 1\nb:\n  c:\n    - d: 1", "a.yaml")
    assert str(document.error(("b", "c", 0, "d"), "m")) == "a.yaml:4: b.c.0.d: m"
    assert str(document.error(("b", "x"), "m")) == "a.yaml:2: b.x: m"
    assert str(document.error(("x",), "m")) == "a.yaml: x: m"
    assert str(document.error((), "m")) == "a.yaml: m"
    part = document.part("b")
    assert part.data == {"c": [{"d": 1}]}
    assert str(part.error(("c", 0), "m")) == "a.yaml:4: b.c.0: m"
    assert str(part.error((), "m")) == str(part.error((), "m")) == "a.yaml:2: b: m"
    assert str(part.error(("x",), "m")) == "a.yaml:2: b.x: m"


@given(st.text(max_size=300), st.lists(st.text(max_size=100) | st.integers(), max_size=5))
def test_errors_are_one_printable_line(where: str, path: list[str | int]) -> None:
    message = str(Document(where, {}).error(tuple(path), "m"))
    assert message.isprintable()
    assert len(message) < 200


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: float
    names: tuple[str, ...] = ()


class Sheet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["linear", "log"] = "linear"
    count: Annotated[int, Field(ge=1, le=8)] | None = None
    most: int = Field(0, lt=9)
    switch: bool = False
    name: str = Field("x", pattern="^[a-z]+$")
    part: Part | None = None
    parts: dict[str, Part] = {}
    pair: tuple[int, int] = (0, 0)
    few: list[int] = Field([], max_length=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "coun: 1",
            ":1: coun: unknown key (did you mean 'count'?); allowed: kind, count, most, switch, name, part, parts, pair, few",
        ),
        ("part:\n  rat: 1", ":2: part.rat: unknown key (did you mean 'rate'?); allowed: rate, names"),
        ("part:\n  names: [a]", ":1: part.rate: this key is missing; give a number"),
        ("parts:\n  p:\n    rate: x", ":3: parts.p.rate: 'x' is given; allowed: a number"),
        ("part:\n  rate: 1\n  names:\n  - a\n  - 1", ":5: part.names.1: 1 is given; allowed: text"),
        ("part:\n  rate: 1\n  names: a", ":3: part.names: 'a' is given; allowed: a list, each text"),
        ("part: 3", ":1: part: 3 is given; allowed: a mapping or null"),
        ("kind: Log", ":1: kind: 'Log' is given (did you mean 'log'?); allowed: linear, log"),
        ("kind: 3", ":1: kind: 3 is given; allowed: linear, log"),
        ("count: 0", ":1: count: 0 is given; allowed: an integer from 1 to 8 or null"),
        ("count: '1'", ":1: count: '1' is given; allowed: an integer from 1 to 8 or null"),
        ("count: 1.0", ":1: count: 1.0 is given; allowed: an integer from 1 to 8 or null"),
        ("count: true", ":1: count: true is given; allowed: an integer from 1 to 8 or null"),
        ("most: 9", ":1: most: 9 is given; allowed: an integer less than 9"),
        ("switch: yes", ":1: switch: 'yes' is given; allowed: true or false"),
        ("switch: 1", ":1: switch: 1 is given; allowed: true or false"),
        ("name: A", ":1: name: 'A' is given; allowed: text matching ^[a-z]+$"),
        ("name:", ":1: name: null is given; allowed: text matching ^[a-z]+$"),
        ("pair: [1]", ":1: pair.1: this key is missing; give an integer"),
        ("few: [1, 2, 3]", ":1: few: [1, 2, 3] is given; allowed: a list of at most 2 items, each an integer"),
    ],
)
def test_violations_say_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        validated(parse_document(text, "a.yaml"), Sheet)
    assert str(caught.value) == "a.yaml" + message


def test_lists_become_tuples_and_integers_floats() -> None:
    sheet = validated(parse_document("part: {rate: 1, names: [a, b]}", "a.yaml"), Sheet)
    assert sheet.part == Part(rate=1.0, names=("a", "b"))


@given(st.none() | st.integers() | st.text() | st.binary() | st.floats() | PLAIN)
def test_a_value_is_shown_in_one_short_line(value: object) -> None:
    assert shown(value).isprintable()
    assert len(shown(value)) <= 120


def test_values_too_large_to_print_are_shown_by_their_size() -> None:
    assert shown(10**5000) == "an integer of 16610 bits"
    assert shown([10**5000])
    assert shown("x" * 10**6).startswith("'xxx")


def test_the_nearest_name_looks_past_the_case() -> None:
    assert nearest_name("BF16", ["fp32", "bf16"]) == " (did you mean 'bf16'?)"
    assert nearest_name("btd", ["TBD", "BTD"]) == " (did you mean 'BTD'?)"
    assert nearest_name(10**5000, ["x"]) == nearest_name("q", ["x"]) == ""
