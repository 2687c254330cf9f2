"""Files that a spec names may be any files of this machine: errors about them show neither content nor other names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from minrnn_gen.cell.files import find_cell
from minrnn_gen.config.documents import SIZE_LIMIT_BYTES
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import BadInput
from minrnn_gen.run.target import target_of

# A word that no message has by itself.
SECRET = "Xyzzy42"
# Where a file may hold it: in text, in keys and values, where YAML ends or says what it found.
PIECES = [
    *(
        "root:x:0:0:",
        "key: ",
        "\n",
        "  - ",
        "- ",
        "&",
        "*",
        "!",
        "!!",
        "{",
        "}",
        "[",
        "]",
        "%",
        "@",
        "`",
        "\t",
        '"',
        "'",
        "? ",
        ": ",
        "---\n",
    ),
    *("name: ", "gates: ", "%YAML 1.", "\\x", "\0", "é", "\udcff", " equations", "sm_count: ", SECRET, SECRET, SECRET),
]
KEYS = ("model", "gpu")


def refusal_of(folder: Path, key: str, path: str) -> str:
    """Return the one sentence with which a spec in `folder` is refused, in which `key` names a path."""
    (folder / "spec.yaml").write_text(
        f"model: min_gru\nhidden_size: 8\n{key}: {path}\n" if key != "model" else f"hidden_size: 8\nmodel: {path}\n"
    )
    spec = load_spec(folder / "spec.yaml")
    with pytest.raises(BadInput) as caught:
        find_cell(spec.model, spec.folder, spec.where)
        target_of(spec)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    assert message.count(": this is") + message.count("cannot be read") <= 1, "no error within an error"
    return message


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("model", f"root:x:0:0:{SECRET}:/root:/bin/bash\n")
@example("gpu", f"{SECRET}: [\n")
@example("model", f"name: {SECRET}\nmachine: 1\n")
def test_nothing_of_a_file_of_another_kind_is_shown(tmp_path: Path, key: str, text: str) -> None:
    # What has the key of a cell's text is a cell file, of which errors show lines.
    assume(not re.search(r"\bequations[\"']?[ \t]*:", text))
    other = tmp_path / "other"
    other.mkdir(exist_ok=True)
    (other / "file.yaml").write_bytes(text.encode(errors="surrogateescape"))
    message = refusal_of(tmp_path, key, "other/file.yaml")
    assert SECRET not in message
    assert "file.yaml: this is no " in message and "for it has no key " in message


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../passwd.yaml", "../elsewhere/passwd.yaml", "within/../../elsewhere/passwd.yaml", "link/x.yaml"]
)
def test_names_outside_the_folder_of_the_spec_are_not_said(tmp_path: Path, key: str, path: str) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for made in (folder / "within", elsewhere):
        made.mkdir(parents=True)
    for name in ("passwd_.yaml", "x_.yaml"):
        (elsewhere / name).write_text("")
        (tmp_path / name).write_text("")
    (folder / "link").symlink_to(elsewhere)
    message = refusal_of(folder, key, path)
    assert "passwd_" not in message and "x_" not in message and "did you mean" not in message
    assert "nor a folder" not in message


@pytest.mark.parametrize("key", KEYS)
def test_names_inside_the_folder_of_the_spec_help(tmp_path: Path, key: str) -> None:
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "mine.yaml").write_text("")
    assert "did you mean 'mine.yaml'?" in refusal_of(tmp_path, key, "within/mime.yaml")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "a pipe or a device"),
        ("/dev/null", "a pipe or a device"),
        ("./pipe.yaml", "a pipe or a device"),
        ("./huge.yaml", "at most 65536 are allowed"),
        ("./folder.yaml", "this is a folder"),
        ("./loop.yaml", "cannot be read"),
        ("/proc/self/environ", "this is no "),
    ],
)
def test_what_is_no_ordinary_file_is_one_sentence(tmp_path: Path, key: str, path: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert said in refusal_of(tmp_path, key, path)


def test_no_more_is_read_than_a_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever size the system says: files of /proc have none."""
    path = tmp_path / "cell.yaml"
    path.write_bytes(b"equations: h[t] = W.h\n" + b"#" * (4 * SIZE_LIMIT_BYTES))
    monkeypatch.setattr(
        os, "fstat", lambda number, fstat=os.fstat: os.stat_result([*fstat(number)[:6], 0, *fstat(number)[7:10]])
    )
    assert f"{SIZE_LIMIT_BYTES + 1} bytes" in refusal_of(tmp_path, "model", "./cell.yaml")
