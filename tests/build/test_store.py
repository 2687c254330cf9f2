"""The cache gives back exactly what was put, or nothing."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.build.store import Store, digest

KEY = digest("a kernel")
FILES = {"kernel.cu": b"// text\n", "kernel.cubin": bytes(range(256)) * 4, "empty": b""}
MANIFEST = {"registers": 80, "slack": 0.25, "name": "gru", "shape": [1, 2], "nothing": None, "z": {"y": True, "a": False}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
manifests = st.dictionaries(st.text(), json_values, max_size=4)
file_names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,20}", fullmatch=True).filter(lambda name: name != "manifest.json")
file_sets = st.dictionaries(file_names, st.binary(max_size=64), max_size=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


@given(file_sets, manifests)
def test_what_is_put_is_found(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], manifest: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    put = Store(folder).put(KEY, files, manifest)
    found = Store(folder).find(KEY)
    assert found == put
    assert found is not None
    assert (found.files, found.manifest) == (files, manifest)
    assert list(found.manifest) == list(manifest)
    assert found.size_bytes == sum(len(data) for data in files.values())
    assert found.folder is not None
    assert {path.name: path.read_bytes() for path in found.folder.iterdir() if path.name in files} == files


@given(manifests, manifests)
def test_the_last_request_counts(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, object], last: dict[str, object]
) -> None:
    store = Store(tmp_path_factory.mktemp("cache"))
    assert store.find_request(KEY) is None
    store.put_request(KEY, first)
    assert store.find_request(KEY) == first
    store.put_request(KEY, last)
    assert store.find_request(KEY) == last


def test_the_first_answer_equals_the_later_ones(store: Store) -> None:
    assert store.put(KEY, {}, {"shape": (1, 2)}) == store.find(KEY)


def test_nothing_is_found_and_nothing_is_made_where_nothing_was_put(store: Store) -> None:
    assert store.find(KEY) is None
    assert store.find_request(KEY) is None
    assert list(store.entries()) == []
    assert (store.clear(), store.size_bytes()) == (0, 0)
    assert not (store.folder / "store-1" / "entries").exists()


def test_an_entry_already_there_is_kept(store: Store) -> None:
    first = store.put(KEY, {"a": b"first"}, {"by": 1})
    assert store.put(KEY, {"a": b"second"}, {"by": 2}) == first
    assert store.find(KEY) == first


def test_no_temporary_file_stays(store: Store) -> None:
    for _ in range(2):
        store.put(KEY, FILES, MANIFEST)
        store.put_request(KEY, {"content": KEY})
    assert list((store.folder / "store-1" / "temporary").iterdir()) == []


def test_leftovers_of_killed_processes_are_swept_by_age(store: Store) -> None:
    store.put(KEY, FILES, MANIFEST)
    temporary = store.folder / "store-1" / "temporary"
    old_folder, old_file, new_folder = (f"{pid}-{pid:016x}" for pid in (17, 18, 19))
    for name, age_seconds in ((old_folder, 7200), (old_file, 7200), (new_folder, 60)):
        path = temporary / name
        if name != old_file:
            path.mkdir()
            (path / "kernel.cu").write_text("half")
        else:
            path.write_text("half")
        os.utime(path, (time.time() - age_seconds,) * 2)
    store.put(digest("another"), FILES, MANIFEST)
    assert [path.name for path in temporary.iterdir()] == [new_folder]


def test_the_folder_is_private(store: Store) -> None:
    store.put(KEY, FILES, MANIFEST)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_entries_sizes_and_clearing(store: Store) -> None:
    keys = sorted(digest(str(number)) for number in range(4))
    for key in keys:
        store.put(key, {"kernel.cu": key.encode()}, {})
        store.put_request(key, {"content": key})
        with store.lock(key):
            pass
    assert [entry.key for entry in store.entries()] == keys
    assert store.size_bytes() == sum(path.stat().st_size for path in files_below(store.folder)) > 4 * 64
    bystander = store.folder / "store-1" / "entries" / "notes.txt"
    bystander.write_text("not ours")
    assert store.clear() == 4
    assert files_below(store.folder) == [bystander]
    assert list(store.entries()) == []


@pytest.mark.parametrize("key", ["", "a", KEY.upper(), KEY + "0", "../" + KEY[3:], KEY[:-1] + "\n"])
def test_a_key_is_a_digest(store: Store, key: str) -> None:
    for use in (store.find, store.find_request, lambda key: store.put(key, {}, {}), lambda key: store.put_request(key, {})):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            use(key)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "..\\a", ".hidden", "manifest.json", "a\n", "ü", "x" * 200])
def test_a_file_name_is_a_plain_one(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        store.put(KEY, {name: b""}, {})


def test_a_manifest_is_json(store: Store) -> None:
    for value in (float("nan"), b"bytes", {1, 2}, object()):
        with pytest.raises((ValueError, TypeError)):
            store.put(KEY, {}, {"value": value})
    assert store.find(KEY) is None


def expect_to_go_on_without_disk(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        entry = store.put(KEY, FILES, MANIFEST)
        assert (entry.folder, entry.files, entry.manifest) == (None, FILES, MANIFEST)
        store.put_request(KEY, {"content": KEY})
        with store.lock(KEY):
            pass
        assert store.find(KEY) is None
        assert store.find_request(KEY) is None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) >= 1, "each thing is said once"
    assert all("cannot be written" in message and "MINRNN_CACHE_DIR" in message for message in messages)


@pytest.mark.parametrize("where", ["cache", "cache/store-1", "cache/store-1/temporary"])
def test_a_file_in_place_of_a_folder_costs_only_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str) -> None:
    blocked = tmp_path / where
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("")
    store = Store(tmp_path / "cache")
    entry = store.put(KEY, FILES, MANIFEST)
    assert (entry.folder, entry.files) == (None, FILES)
    assert store.find(KEY) is None
    store.put_request(KEY, {})
    assert store.find_request(KEY) is None
    with store.lock(KEY):
        pass
    assert blocked.read_text() == ""
    assert len(caplog.records) == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_read_only_disk_costs_only_the_cache(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    expect_to_go_on_without_disk(store, caplog)
    assert not store.folder.exists()


def test_a_read_only_disk_still_serves_what_it_holds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put = store.put(KEY, FILES, MANIFEST)
    store.put_request(KEY, {"content": KEY})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, refuse)
    assert store.find(KEY) == put
    assert store.find_request(KEY) == {"content": KEY}
    assert store.put(KEY, FILES, MANIFEST).files == FILES
    assert store.clear() == 0
    assert store.find(KEY) == put


@pytest.mark.parametrize("full_after", range(4))
def test_a_full_disk_costs_only_the_cache(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full_after: int
) -> None:
    calls = 0

    def fill(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls > full_after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    entry = store.put(KEY, FILES, MANIFEST)
    assert (entry.folder, entry.files, entry.manifest) == (None, FILES, MANIFEST)
    assert len(caplog.records) == 1
    assert files_below(store.folder) == [], "what could not be finished is removed"


def test_a_lock_keeps_others_out_until_it_is_released(store: Store) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with store.lock(KEY):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_locks_of_different_keys_are_independent_and_an_error_releases(store: Store) -> None:
    with store.lock(KEY), store.lock(digest("other")):
        pass
    with pytest.raises(ZeroDivisionError), store.lock(KEY):
        raise ZeroDivisionError
    with store.lock(KEY):
        pass


def test_a_stuck_holder_is_not_waited_for_forever(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("minrnn_gen.build.store._LOCK_SECONDS", 0.1)
    entered = threading.Event()

    def wait_behind() -> None:
        with store.lock(KEY):
            entered.set()

    with store.lock(KEY):
        thread = threading.Thread(target=wait_behind)
        thread.start()
        thread.join()
    assert entered.is_set()
    assert ["still locked" in record.getMessage() for record in caplog.records] == [True]
