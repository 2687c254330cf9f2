"""The spec: its keys, its limits, its canonical form, its schema, and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.config.documents import VIOLATION_LIMIT, parse_document
from minrnn_gen.config.spec import Spec, load_spec, spec_schema
from minrnn_gen.errors import BadInput

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = [path for path in sorted((CHECKOUT / "examples").glob("*.yaml")) if "model:" in path.read_text()]  # not the cells
KEYS = "model, hidden_size, precision, heads, state_size, groups, projection_size, input_size, layout, direction, " + (
    "training, batch, time, recurrent_bias, scan_arithmetic, functions, fp32_product, recurrent_gradient_clip, gpu"
)
WHOLE: dict[str, Any] = {"model": "min_gru", "hidden_size": 512}

SIZES = st.integers(1, 2**20)
HINTS = st.none() | st.integers(1, 2**40)
INLINE_CELLS = st.fixed_dictionaries(
    {"equations": st.text("ht[]=W.a*- 1\n", max_size=20)}, optional={"gates": st.lists(st.text("nyrz"))}
)
VALID: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"model": st.sampled_from(["min_gru", "cells/own.yaml", "n", "\u00e9\U0001f600"]) | INLINE_CELLS, "hidden_size": SIZES},
    optional={
        "precision": st.sampled_from(["fp64", "fp32", "fp16", "bf16"]),
        "heads": st.just(1),
        "state_size": st.none() | st.integers(1, 256),
        "groups": st.none() | SIZES,
        "projection_size": st.none() | SIZES,
        "input_size": st.none() | SIZES,
        "layout": st.sampled_from(["BTD", "TBD", "BDT"]),
        "direction": st.sampled_from(["forward", "reverse", "bidirectional"]),
        "training": st.booleans(),
        "batch": HINTS,
        "time": HINTS,
        "recurrent_bias": st.none() | st.booleans(),
        "scan_arithmetic": st.sampled_from(["linear", "log"]),
        "functions": st.sampled_from([None, "accurate"]),
        "fp32_product": st.sampled_from(["tf32x3", "tf32", "fma"]),
        "recurrent_gradient_clip": st.none() | st.integers(1, 10) | st.floats(1e-300, 1e300),
        "gpu": st.none() | st.sampled_from(["h200", "on", "1.5"]),
    },
)


def refusal(source: Any, /, **overrides: Any) -> str:
    with pytest.raises(BadInput) as caught:
        load_spec(source, **overrides)
    return str(caught.value)


def test_three_lines_are_a_whole_spec() -> None:
    text = (CHECKOUT / "examples" / "min_gru.yaml").read_text()
    assert text == "model: min_gru\nhidden_size: 512\nprecision: bf16\n"
    spec = load_spec(CHECKOUT / "examples" / "min_gru.yaml")
    assert spec.model_dump(exclude={"model", "hidden_size", "precision"}) == {
        "heads": 1,
        "state_size": None,
        "groups": None,
        "projection_size": None,
        "input_size": None,
        "layout": "BTD",
        "direction": "forward",
        "training": True,
        "batch": None,
        "time": None,
        "recurrent_bias": None,
        "scan_arithmetic": "linear",
        "functions": None,
        "fp32_product": "tf32x3",
        "recurrent_gradient_clip": None,
        "gpu": None,
    }
    assert (spec.model, spec.hidden_size, spec.precision, spec.head_dim) == ("min_gru", 512, "bf16", 512)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid_specs_from_path_dict_and_text(path: Path) -> None:
    spec = load_spec(path)
    data = parse_document(path.read_text(), path.name).data
    assert load_spec(str(path)) == load_spec(data) == load_spec(spec) == spec
    assert fits(data, spec_schema())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hiden_size": 5}, f"hiden_size: unknown key (did you mean 'hidden_size'?); allowed: {KEYS}"),
        *[
            ({"hidden_size": value}, f"hidden_size: {text} is given; allowed: an integer from 1 to 1048576")
            for value, text in [
                (0, "0"),
                (-1, "-1"),
                ("512", "'512'"),
                (10**9, "1000000000"),
                (2**20 + 1, "1048577"),
                (512.0, "512.0"),
                (True, "true"),
                (None, "null"),
                ([512], "[512]"),
                ({"a": 1}, "{'a': 1}"),
            ]
        ],
        ({"hidden_size": float("nan")}, "hidden_size: an infinity or NaN is given; only finite numbers are allowed"),
        ({"hidden_size": 2**64}, "hidden_size: 18446744073709551616 is given; integers must lie below 2**64"),
        ({"heads": 7}, "heads: 7 does not divide hidden_size 512; allowed: a divisor, the nearest is 8"),
        ({"heads": 1024}, "heads: 1024 does not divide hidden_size 512; allowed: a divisor, the nearest is 512"),
        ({"heads": 0}, "heads: 0 is given; allowed: an integer from 1 to 1048576"),
        ({"input_size": 0}, "input_size: 0 is given; allowed: an integer from 1 to 1048576 or null"),
        ({"batch": 2**40 + 1}, "batch: 1099511627777 is given; allowed: an integer from 1 to 1099511627776 or null"),
        ({"time": 1e6}, "time: 1000000.0 is given; allowed: an integer from 1 to 1099511627776 or null"),
        ({"precision": "BF16"}, "precision: 'BF16' is given (did you mean 'bf16'?); allowed: fp64, fp32, fp16, bf16"),
        ({"precision": 32}, "precision: 32 is given (did you mean 'fp32'?); allowed: fp64, fp32, fp16, bf16"),
        ({"layout": "btd"}, "layout: 'btd' is given (did you mean 'BTD'?); allowed: BTD, TBD, BDT"),
        ({"direction": "backward"}, "direction: 'backward' is given; allowed: forward, reverse, bidirectional"),
        ({"training": "yes"}, "training: 'yes' is given; allowed: true or false"),
        ({"training": None}, "training: null is given; allowed: true or false"),
        ({"recurrent_bias": 1}, "recurrent_bias: 1 is given; allowed: true or false or null"),
        ({"scan_arithmetic": "logs"}, "scan_arithmetic: 'logs' is given (did you mean 'log'?); allowed: linear, log"),
        ({"functions": "exact"}, "functions: 'exact' is given; allowed: accurate, fast or null"),
        (
            {"functions": "fast", "precision": "fp64"},
            "functions: 'fast' is given, which precision fp64 does not have; allowed: accurate or null",
        ),
        ({"fp32_product": False}, "fp32_product: false is given; allowed: tf32x3, tf32, fma"),
        ({"recurrent_gradient_clip": 0}, "recurrent_gradient_clip: 0 is given; allowed: a number greater than 0 or null"),
        ({"recurrent_gradient_clip": True}, "recurrent_gradient_clip: true is given; allowed: a number greater than 0 or null"),
        ({"gpu": ["h200"]}, "gpu: ['h200'] is given; allowed: text from 1 to 4096 characters or null"),
        ({"gpu": "a\nb"}, "gpu: 'a\\nb' is given; allowed: a name or a path in one line"),
        ({"model": ""}, "model: '' is given; allowed: text from 1 to 4096 characters or a mapping"),
        ({"model": 3}, "model: 3 is given; allowed: text from 1 to 4096 characters or a mapping"),
        (
            {"model": "h[t] = W.h\n"},
            "model: 'h[t] = W.h\\n' is given; allowed: a name or a path in one line; "
            "a cell written here is a mapping with the key equations",
        ),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {**WHOLE, **changed}
    assert refusal(given) == f"<dict>: {message}"
    assert refusal(WHOLE, **changed).removeprefix("<dict>: ") == message or "hiden_size" in changed
    line = list(given).index(next(iter(changed))) + 1
    if all(value == value and value != 2**64 for value in changed.values()):
        path = tmp_path / "bad.yaml"
        path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in given.items()))
        assert refusal(path) == f"{path}:{line}: {message}".replace(str(path), shortened(path), 1)


def shortened(path: Path) -> str:
    return str(path) if len(str(path)) <= 100 else "..." + str(path)[-97:]


@pytest.mark.parametrize("key", list(WHOLE))
def test_model_and_hidden_size_are_needed(key: str) -> None:
    assert refusal({name: value for name, value in WHOLE.items() if name != key}).startswith(
        f"<dict>: {key}: this key is missing; give "
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "3 is given where a spec is needed: the path of a YAML file, a dict or a Spec"),
        (None, "null is given where a spec is needed: the path of a YAML file, a dict or a Spec"),
        (b"a.yaml", "b'a.yaml' is given where a spec is needed: the path of a YAML file, a dict or a Spec"),
        (
            "model: min_gru\nhidden_size: 5",
            "'model: min_gru\\nhidden_size: 5' is given where a path is needed; save the text as a YAML file, or give a dict",
        ),
        ("", "'': no such file; give the path of a YAML file"),
    ],
)
def test_a_source_is_a_path_a_dict_or_a_spec(source: Any, message: str) -> None:
    assert refusal(source) == message


def test_a_missing_file_is_answered_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("min_gru.yaml").write_text("model: min_gru")
    assert refusal("mingru.yml") == "mingru.yml: no such file (did you mean 'min_gru.yaml'?); give the path of a YAML file"


def test_overrides_replace_keys_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("hidden_size: 512\nmodel: min_gru\nheads: 4\n")
    assert load_spec(path, hidden_size=8, gpu="h200") == load_spec(
        {"model": "min_gru", "hidden_size": 8, "heads": 4, "gpu": "h200"}
    )
    assert load_spec(load_spec(path), precision="fp16").folder == tmp_path
    assert load_spec(load_spec(path, time=5), time=None) == load_spec(path)
    assert (
        refusal(path, hiden_size=4) == f"'hiden_size' (did you mean 'hidden_size'?) overrides no key of a spec; allowed: {KEYS}"
    )
    both = "'hiden_size' (did you mean 'hidden_size'?) and 'q' override no key of a spec"
    assert refusal(path, hiden_size=4, q=5) == f"{both}; allowed: {KEYS}"
    assert refusal(path, source=4).startswith("'source' overrides no key of a spec")
    # What the keyword gave is no fault of the file.
    assert refusal(path, hidden_size="8") == "keyword: hidden_size: '8' is given; allowed: an integer from 1 to 1048576"
    # The line is that of heads, which the file has; the override made it wrong.
    assert refusal(path, hidden_size=6).endswith(
        "a.yaml:3: heads: 4 does not divide hidden_size 6; allowed: a divisor, the nearest is 3"
    )
    assert refusal(path, model=object()).startswith("keyword: model: a builtins.object is given; allowed: str, ")


WRONG_BY_KEY = {key: [1] for key in Spec.model_fields if key != "model"}


def test_everything_wrong_with_a_spec_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("modle: min_gru\nhiden_size: 8\nprecison: fp32\nheads: x\nq: 1\n")
    assert refusal(path) == (
        f"{shortened(path)}:1: modle: unknown key (did you mean 'model'?); allowed: {KEYS}; "
        "also line 2: hiden_size: unknown key (did you mean 'hidden_size'?); "
        "also line 3: precison: unknown key (did you mean 'precision'?); also line 5: q: unknown key; "
        "also line 4: heads: 'x' is given; allowed: an integer from 1 to 1048576"
    )
    path.write_text("heads: x\n")
    assert refusal(path, batch="y").count("; also ") == 3  # batch, and both keys that are missing
    assert "; also keyword: batch: 'y' is given" in refusal(path, batch="y")


@given(st.sets(st.sampled_from(sorted(WRONG_BY_KEY)), min_size=1))
def test_each_wrong_key_is_named_and_beyond_some_their_number(keys: set[str]) -> None:
    message = refusal({"model": "min_gru", "hidden_size": 8, **{key: WRONG_BY_KEY[key] for key in keys}})
    said = [sentence for sentence in message.split("; also ") if "[1] is given" in sentence]
    more = re.search(r"; and (\d+) more$", message)
    assert len(said) + int(more[1] if more else 0) == len(keys) and (not more or len(said) == VIOLATION_LIMIT)


def test_a_spec_knows_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    Path("specs/a.yaml").write_text("hidden_size: 512\nmodel:\n  equations: |\n    h[t] = W.h\n  gates: [h]\n")
    spec = load_spec("specs/a.yaml")
    monkeypatch.chdir("/")
    assert (spec.where, spec.folder) == ("specs/a.yaml", tmp_path / "specs")
    assert str(spec.error("model", "m")) == "specs/a.yaml:2: model: m"
    assert str(spec.error("gpu", "m")) == "specs/a.yaml: gpu: m"
    assert str(spec.document.part("model").error(("gates", 0), "m")) == "specs/a.yaml:5: model.gates.0: m"
    monkeypatch.chdir(tmp_path)
    from_dict = load_spec(spec.document.data)
    assert (from_dict.where, from_dict.folder) == ("<dict>", tmp_path)
    assert from_dict == spec
    assert hash(from_dict) == hash(spec)
    overridden = load_spec(spec, model="min_gru", gpu="h200")
    assert str(overridden.error("hidden_size", "m")) == "specs/a.yaml:1: hidden_size: m"
    assert str(overridden.error("model", "m")) == "keyword: model: m"
    assert Spec(model="min_gru", hidden_size=4).where == "<dict>"


def test_a_spec_never_changes() -> None:
    cell: dict[str, Any] = {"equations": "h[t] = W.h", "gates": ["h"]}
    spec = load_spec({"model": cell, "hidden_size": 4})
    cell["gates"].append("z")
    assert spec.model == {"equations": "h[t] = W.h", "gates": ["h"]}
    with pytest.raises(ValueError, match="frozen"):
        spec.hidden_size = 5


@given(VALID, st.randoms())
def test_the_canonical_form_holds_the_spec_whatever_the_order_of_its_keys(data: dict[str, Any], random: Any) -> None:
    spec = load_spec(data)
    canonical = spec.canonical()
    # Of cells without n values per channel it is what it was before there were others.
    unset = {key for key in ("state_size", "groups", "projection_size") if data.get(key) is None}
    assert list(json.loads(canonical)) == sorted({*Spec.model_fields} - unset)
    assert load_spec(json.loads(canonical)) == spec
    assert load_spec(parse_document(canonical, "a.json").data).canonical() == canonical
    keys = list(data)
    random.shuffle(keys)
    assert load_spec({key: data[key] for key in keys}).canonical() == canonical


@given(VALID, VALID)
def test_specs_are_equal_just_when_their_keys_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = load_spec(one), load_spec(other)
    assert (first == second) == (first.model_dump() == second.model_dump())


def test_the_canonical_form_is_the_same_under_any_hash_seed_and_loading_stays_light() -> None:
    program = (
        "import sys; from minrnn_gen.config.spec import load_spec; "
        "print(*(load_spec(path).canonical() for path in sys.argv[1:]), sep='\\n'); "
        "print(sorted({'numpy', 'sympy', 'cupy', 'torch', 'jinja2', 'constraint'} & set(sys.modules)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *map(str, EXAMPLES)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert outputs == {"\n".join([*(load_spec(path).canonical() for path in EXAMPLES), "[]", ""])}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """The part of JSON schema (draft 2020-12) that a spec's schema uses."""
    if "anyOf" in schema:
        return any(fits(value, branch) for branch in schema["anyOf"])
    known = {"type", "enum", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "properties", "required"}
    assert schema.keys() <= known | {"additionalProperties", "title", "description", "default", "$schema"}
    kinds = {"object": dict, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    return (
        isinstance(value, kinds[schema["type"]])  # type: ignore[arg-type]
        and (schema["type"] == "boolean" or not isinstance(value, bool))
        and ("enum" not in schema or value in schema["enum"])
        and ("minimum" not in schema or value >= schema["minimum"])
        and ("maximum" not in schema or value <= schema["maximum"])
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("minLength" not in schema or schema["minLength"] <= len(value) <= schema["maxLength"])
        and set(schema.get("required", ())) <= set(value if isinstance(value, dict) else ())
        and all(
            fits(item, schema["properties"][key]) if key in schema.get("properties", {}) else schema["additionalProperties"]
            for key, item in (value.items() if isinstance(value, dict) else ())
        )
    )


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1, -1, 2**20, 2**20 + 1, 2**40, 2**40 + 1, 0.5, "", "x", "log", "BTD", "bf16", "reverse", {}, []]
)


@given(VALID, st.dictionaries(st.sampled_from([*Spec.model_fields, "extra"]).filter("heads".__ne__), VALUES, max_size=2))
def test_the_schema_accepts_just_what_load_spec_accepts(data: dict[str, Any], changed: dict[str, Any]) -> None:
    data = {**data, **changed}
    try:
        load_spec(data)
    except BadInput:
        assert not fits(data, spec_schema())
    else:
        assert fits(data, spec_schema())


def test_the_schema_says_what_it_is_and_describes_every_key() -> None:
    schema = spec_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "minrnn-gen spec"
    assert json.loads(json.dumps(schema)) == schema
    assert list(schema["properties"]) == KEYS.split(", ")
    assert all(properties["description"].endswith(".") for properties in schema["properties"].values())


def test_the_documentation_has_every_key_with_its_default_and_description() -> None:
    table = (CHECKOUT / "docs" / "spec.md").read_text()
    for name, schema in spec_schema()["properties"].items():
        default = f"`{json.dumps(schema['default'])}`".replace('"', "") if "default" in schema else "needed"
        rows = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, f"docs/spec.md has no row for {name}"
        assert rows[0].endswith(f"| {default} | {schema['description']} |")


def test_a_cell_in_the_place_of_a_spec_says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"name": "own", "equations": "h[t] = W.z * h[t-1]"}
    (tmp_path / "own.yaml").write_text(json.dumps(cell))
    monkeypatch.chdir(tmp_path)
    for source in ("own.yaml", cell):
        with pytest.raises(BadInput, match=r"this is a cell, and a spec is needed; .* model, .* hidden_size"):
            load_spec(source)
    with pytest.raises(BadInput, match=r"\{'model': 'min_gru', 'hidden_size': 512\}"):
        load_spec("min_gru")
    assert load_spec({"model": cell, "hidden_size": 4}).model == cell


def test_a_precision_may_be_a_dtype_of_torch() -> None:
    torch = pytest.importorskip("torch")
    names = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    for dtype, name in names.items():
        assert load_spec({"model": "min_gru", "hidden_size": 4, "precision": dtype}).precision == name
        assert load_spec({"model": "min_gru", "hidden_size": 4}, precision=dtype).precision == name
    with pytest.raises(BadInput, match="precision"):
        load_spec({"model": "min_gru", "hidden_size": 4}, precision=torch.int8)
