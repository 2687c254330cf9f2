"""Whatever happened to a file of the cache: noticed, removed, made again; never a wrong byte, never a traceback."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.build.store import Store, digest

KEY = digest("a kernel")
FILES = {"kernel.cu": b"// text\n", "kernel.cubin": bytes(range(256)) * 4}
MANIFEST = {"registers": 80, "slack": 0.25, "name": "gru"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def entry_folder(store: Store) -> Path:
    folder = store.put(KEY, FILES, MANIFEST).folder
    assert folder is not None
    return folder


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("")


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def become_empty(path: Path) -> None:
    path.write_bytes(b"")


FILE_DAMAGE: list[Callable[[Path], None]] = [
    flip_bit,
    truncate,
    grow,
    become_empty,
    become_folder,
    become_pipe,
    become_loop,
    Path.unlink,
]


def seal(body: object) -> str:
    """Return a file that passes for undamaged: what the store meets when somebody edits it and mends the digest."""
    canonical = json.dumps(body, separators=(",", ":")).encode()
    return json.dumps({"sha256": hashlib.sha256(canonical).hexdigest(), "body": body})


MANIFEST_TEXTS = {
    "no JSON": "{",
    "no text": "\udc80",
    "another JSON": "[1, 2]",
    "a number": "1" * 5000,
    "too deep": "[" * 100_000,
    "not a number": '{"sha256": "", "body": NaN}',
    "no digest": json.dumps({"body": {"key": KEY, "files": {}, "manifest": {}}}),
    "wrong digest": json.dumps({"sha256": "0" * 64, "body": {"key": KEY, "files": {}, "manifest": {}}}),
    "another key": seal({"key": digest("other"), "files": {}, "manifest": {}, "request": {}}),
    "no files": seal({"key": KEY, "manifest": {}}),
    "files in a list": seal({"key": KEY, "files": ["kernel.cu"], "manifest": {}}),
    "a listing of numbers": seal({"key": KEY, "files": {"kernel.cu": 3}, "manifest": {}}),
    "a file elsewhere": seal({"key": KEY, "files": {"../../secret": {"bytes": 0, "sha256": ""}}, "manifest": {}}),
    "a body of text": seal("body"),
}


def expect_rebuilt(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minrnn_gen"):
        assert store.find(KEY) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    assert store.find(KEY) is None, "the damage is gone after the first look"
    put = store.put(KEY, FILES, MANIFEST)
    assert store.find(KEY) == put
    assert put.folder is not None
    assert caplog.records == []


@pytest.mark.parametrize("name", ["manifest.json", "kernel.cu", "kernel.cubin"])
@pytest.mark.parametrize("damage", FILE_DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_noticed_and_rebuilt(
    store: Store, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    damage(entry_folder(store) / name)
    expect_rebuilt(store, caplog)


@pytest.mark.parametrize("text", MANIFEST_TEXTS.values(), ids=MANIFEST_TEXTS.keys())
def test_a_manifest_of_any_content_is_noticed_and_rebuilt(store: Store, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (entry_folder(store) / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    expect_rebuilt(store, caplog)


@given(st.data())
def test_no_changed_bit_of_an_entry_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = Store(tmp_path_factory.mktemp("cache"))
    put = store.put(KEY, FILES, MANIFEST)
    assert put.folder is not None
    path = put.folder / data.draw(st.sampled_from(["manifest.json", "kernel.cu", "kernel.cubin"]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    # A changed blank of the manifest changes nothing it says.
    assert store.find(KEY) in (None, put)


@pytest.mark.parametrize("replacement", ["file", "empty folder", "broken link"])
def test_something_else_in_place_of_an_entry_gives_way(
    store: Store, caplog: pytest.LogCaptureFixture, replacement: str
) -> None:
    folder = entry_folder(store)
    shutil.rmtree(folder)
    if replacement == "file":
        folder.write_text("")
    elif replacement == "empty folder":
        folder.mkdir()
    else:
        folder.symlink_to("nowhere")
    expect_rebuilt(store, caplog)


def test_putting_over_a_damaged_entry_replaces_it(store: Store) -> None:
    flip_bit(entry_folder(store) / "kernel.cubin")
    put = store.put(KEY, {"kernel.cubin": b"new"}, {})
    assert put.files == {"kernel.cubin": b"new"}
    assert store.find(KEY) == put


@pytest.mark.parametrize("damage", FILE_DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_request_is_noticed_and_forgotten(
    store: Store, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    store.put_request(KEY, {"content": KEY})
    damage(store.folder / "store-1" / "requests" / f"{KEY}.json")
    assert store.find_request(KEY) is None
    assert len(caplog.records) == (damage is not Path.unlink)
    store.put_request(KEY, {"content": KEY})
    assert store.find_request(KEY) == {"content": KEY}


@pytest.mark.parametrize("text", MANIFEST_TEXTS.values(), ids=MANIFEST_TEXTS.keys())
def test_a_request_of_any_content_is_forgotten(store: Store, text: str) -> None:
    store.put_request(KEY, {"content": KEY})
    (store.folder / "store-1" / "requests" / f"{KEY}.json").write_bytes(text.encode(errors="surrogateescape"))
    assert store.find_request(KEY) is None
