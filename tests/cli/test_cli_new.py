"""`minrnn-gen new`: what it writes compiles as it stands and with its keys uncommented."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.command_runner import Command

from minrnn_gen.cell.files import library_names
from minrnn_gen.cli import new
from minrnn_gen.cli.schema import Kind, schema_of
from minrnn_gen.config.documents import parse_document
from minrnn_gen.config.gpu_profile import MEASURED, load_profile, profile_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput


@pytest.mark.parametrize("model", library_names())
def test_a_new_spec_compiles_and_shows_every_key_at_its_default(command: Command, tmp_path: Path, model: str) -> None:
    file = tmp_path / "mine.yaml"
    assert command("new", "spec", file, "--model", model).status == 0
    text = file.read_text(encoding="utf-8")
    shown = re.sub(r"(?m)^# (?=[a-z0-9_]+: )(?!yaml)", "", text)
    whole = load_spec(shown_file(tmp_path, shown))
    assert whole.canonical() == load_spec({"model": model, "hidden_size": 512, "precision": "bf16"}).canonical()
    assert load_spec(file).canonical() == whole.canonical()
    assert all(re.search(rf"(?m)^{key}: ", shown) for key in schema_of(Kind.SPEC)["properties"])


def shown_file(folder: Path, text: str) -> Path:
    """Return a file with this text."""
    path = folder / "shown.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_new_cell_is_a_scan_that_compiles(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "Leaky Gate-2.yaml"
    written = command("new", "cell", file)
    assert written.status == 0 and f"minrnn-gen cells show '{file}'" in written.error
    assert command("cells", "show", file, "--json").json["class"] == "affine-diagonal"
    text = file.read_text(encoding="utf-8")
    keys = schema_of(Kind.CELL)["properties"]
    defaults = {key for key, about in keys.items() if "by default" in about.get("description", "")}
    # What the file would choose by itself is said, but for inputs S.* and X.*, which it lacks; one state has no order.
    assert {key for key in defaults if re.search(rf"(?m)^{key}: ", text)} == defaults - {"shared", "states", "inputs"}
    assert command("new", "spec", tmp_path / "mine.yaml", "--model", file.name).status == 0
    assert "leaky_gate_2" in command("explain", tmp_path / "mine.yaml", "--gpu", "h200").out


def test_a_new_profile_is_the_shipped_one_by_another_name(command: Command, tmp_path: Path) -> None:
    for like in profile_names():
        file = tmp_path / f"my_{like}.yaml"
        assert command("new", "profile", file, "--like", like).status == 0
        written, shipped = load_profile(str(file)), load_profile(like)
        assert written.model_dump(exclude={"sources"}) == shipped.model_dump(exclude={"sources"}) | {
            "name": f"my_{like}",
            "checked": None,
        }
        for field, source in shipped.sources.items():
            copied = f"copied from {like}, not measured on this GPU: " if field in MEASURED else f"copied from {like}: "
            assert written.sources[field] == copied + source
        assert set(written.assumed) >= {field for field in MEASURED if getattr(shipped, field) is not None}


@pytest.mark.parametrize("kind", Kind)
def test_the_schema_is_written_beside_and_named_in_the_first_line(command: Command, tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "mine.yaml"
    assert command("new", {"gpu": "profile"}.get(kind, kind), file, "--schema").status == 0
    first = file.read_text(encoding="utf-8").splitlines()[0]
    beside = tmp_path / first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads(beside.read_text(encoding="utf-8")) == schema_of(kind)


def test_what_is_there_is_left_alone_and_a_wrong_name_is_refused(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    refused = command("new", "cell", file)
    assert refused.status == 2 and "is there already" in refused.error and file.read_text() == "mine"
    wrong = command("new", "profile", tmp_path / "gpu.yaml", "--like", "h20")
    assert wrong.status == 2 and "did you mean 'h200'?" in wrong.error and not (tmp_path / "gpu.yaml").exists()
    nowhere = command("new", "spec", tmp_path / "none" / "mine.yaml")
    assert nowhere.status == 2 and "cannot be written" in nowhere.error


# Line breaks of YAML, comments, quotes, ends of comments in C, and what is no Unicode text.
ODD_TEXT = st.text(st.sampled_from("a.:#'\"\\*/ {}[]&!|>%@`-\n\r\t\x00\x1b\x85\u2028\ufeff\udc80é😀"), min_size=1, max_size=20)


@given(ODD_TEXT)
@example("y\nmodel: lstm # .yaml")
@example("True")
@example("~")
def test_a_model_is_one_value_of_the_spec_or_refused(model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.yaml"
        try:
            new.spec(str(file), model)
        except BadInput as refused:
            assert str(refused).startswith("--model: ") and not file.exists()
            return
        written = parse_document(file.read_text(encoding="utf-8"), "mine.yaml").data
    assert written == {"model": model, "hidden_size": 512, "precision": "bf16"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no files of such names")
@given(ODD_TEXT.filter(lambda name: not {"/", "\0"} & {*name}))
@example("a\nname: other\n#.yaml")
def test_a_file_of_any_name_is_written_with_what_its_start_has(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = {}
        for part, write in (("spec", new.spec), ("cell", new.cell), ("gpu", new.profile)):
            (Path(folder) / part).mkdir()
            for file in (Path(folder) / part / f"x{name}", Path(folder) / part / "plain.yaml"):
                write(str(file))
                written = parse_document(file.read_text(encoding="utf-8"), "it").data
                assert keys.setdefault(part, written | {"name": ""}) == written | {"name": ""}
