"""The cache runs only what the user and root wrote, and touches nothing that is not its own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from minrnn_gen.build import store as store_module
from minrnn_gen.build.sealing import sealed
from minrnn_gen.build.store import NO_FOLDER, Store, cache_folder, digest
from minrnn_gen.cli.main import main

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no user ids")

KEY, OTHER_KEY = digest("a kernel"), digest("another kernel")
FILES = {"kernel.cu": b"// text\n", "kernel.so": b"code"}
FOLDERS = ("", "store-1", "store-1/entries", "store-1/requests", "store-1/temporary", "store-1/locks")
ENTRY = (f"store-1/entries/{KEY}", *(f"store-1/entries/{KEY}/{name}" for name in ("manifest.json", *FILES)))
REQUEST = f"store-1/requests/{KEY}.json"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    before = os.umask(0o022)
    yield Store(tmp_path / "cache")
    os.umask(before)


def filled(store: Store) -> Store:
    assert store.put(KEY, FILES, {}).folder is not None
    store.put_request(KEY, {"content": KEY})
    with store.lock(KEY):
        pass
    return store


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


def use_everything(store: Store) -> None:
    assert store.put(OTHER_KEY, FILES, {}).files == FILES
    store.put_request(OTHER_KEY, {"content": OTHER_KEY})
    with store.lock(OTHER_KEY):
        pass
    store.forget_requests()
    list(store.entries())
    store.size_bytes()
    store.clear()


def age(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (0, 0), follow_symlinks=False)


def bystanders(folder: Path) -> Path:
    """Make a folder with files and folders of somebody's, some of which are called as the cache's own, and all old."""
    (folder / "project" / KEY).mkdir(parents=True)
    for name in ("notes.txt", f"{KEY}.json", f"{KEY}.lock", f"{KEY}/manifest.json", "17-00000000000000ff"):
        (folder / "project" / name).write_text("years of work")
    age(folder)
    return folder


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_a_link_in_place_of_a_folder_is_not_followed(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Nothing behind it is read, written, swept or cleared: it may lead to anything."""
    filled(store)
    elsewhere = bystanders(tmp_path / "elsewhere")
    shutil.rmtree(store.folder / name)
    (store.folder / name).symlink_to(elsewhere / "project")
    before = listing(elsewhere)
    use_everything(store)
    assert listing(elsewhere) == before
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"{store.folder / name} is a link" in message and "MINRNN_CACHE_DIR" in message


names = st.one_of(
    st.from_regex(r"[0-9]{1,6}-[0-9a-f]{16}", fullmatch=True), st.sampled_from(["notes.txt", "17", "17-xyz", ".hidden", "é"])
)
kinds = st.sampled_from(["file", "folder of files", "folder of a folder", "link to a file", "link to a folder", "pipe"])


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, kinds, max_size=4))
def test_only_what_is_named_and_made_as_ours_is_swept(tmp_path_factory: pytest.TempPathFactory, things: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("sweep")
    store, elsewhere = Store(folder / "cache"), bystanders(folder / "elsewhere")
    store.put(KEY, FILES, {})
    before, temporary = listing(elsewhere), store.folder / "store-1" / "temporary"
    for name, kind in things.items():
        path = temporary / name
        if kind == "file":
            path.write_text("half")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind.startswith("link"):
            path.symlink_to(elsewhere / "project" / ("notes.txt" if kind == "link to a file" else ""))
        else:
            path.mkdir()
            (path / "kernel.cu").write_text("half")
            if kind == "folder of a folder":
                (path / "deeper").mkdir()
    age(temporary)
    store.put_request(KEY, {})
    ours = {name for name, kind in things.items() if kind in ("file", "folder of files") and name[-17:-16] == "-"}
    assert {path.name for path in temporary.iterdir()} == things.keys() - ours
    assert listing(elsewhere) == before


def writable_by_others(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWOTH)


def writable_by_the_group(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)


def a_link(path: Path) -> None:
    moved = path.parent.parent / "moved"
    path.rename(moved)
    path.symlink_to(moved)


UNSAFE = [writable_by_others, writable_by_the_group]


@pytest.mark.parametrize("spoil", UNSAFE, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("name", FOLDERS[:3])
def test_what_others_may_have_written_is_not_used(
    store: Store, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], name: str
) -> None:
    filled(store)
    spoil(store.folder / name)
    before = listing(store.folder)
    for _ in range(2):
        assert store.find(KEY) is None
        assert list(store.entries()) == []
        assert store.put(KEY, FILES, {}).files == FILES
    assert len(caplog.records) == 1
    assert "may be written by others" in caplog.records[0].getMessage()
    assert listing(store.folder).items() >= {name: before[name] for name in ENTRY}.items(), "and neither is it removed"


@pytest.mark.parametrize("spoil", [*UNSAFE, a_link], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("name", [*ENTRY, REQUEST])
def test_an_entry_that_others_may_have_written_is_made_again(
    store: Store, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], name: str
) -> None:
    filled(store)
    spoil(store.folder / name)
    find = store.find_request if name == REQUEST else store.find
    assert find(KEY) is None
    assert len(caplog.records) == 1
    filled(store)
    assert find(KEY) is not None
    assert len(caplog.records) == 1


def test_many_entries_that_are_not_trusted_are_said_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    keys = [digest(str(number)) for number in range(4)]
    for key in keys:
        store.put(key, FILES, {})
        writable_by_others(store.folder / "store-1" / "entries" / key)
    assert [store.find(key) for key in keys] == [None] * 4
    assert len(caplog.records) == 1


@pytest.mark.parametrize("foreign", [*FOLDERS[:3], *ENTRY])
def test_what_belongs_to_another_user_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, foreign: str
) -> None:
    """Root may give a file away; who is not root is seen here by the numbers alone."""
    filled(store)
    path, lstat, statted = store.folder / foreign, os.lstat, os.stat

    def as_of_another(status: os.stat_result, seen: object) -> os.stat_result:
        fields = list(status)
        if os.fspath(seen) == str(path):  # type: ignore[call-overload]
            fields[stat.ST_UID] = os.geteuid() + 7
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", lambda seen, **options: as_of_another(lstat(seen, **options), seen))
    monkeypatch.setattr(os, "stat", lambda seen, **options: as_of_another(statted(seen, **options), seen))
    assert store.find(KEY) is None
    assert [f"belongs to user {os.geteuid() + 7}" in record.getMessage() for record in caplog.records] == [True]


def test_what_root_wrote_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store)
    if os.geteuid() != 0:
        pytest.skip("these files are root's only where root runs the tests")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert store.find(KEY) is not None


@pytest.mark.parametrize(("mode", "is_used"), [(0o755, True), (0o777, False), (0o1777, True), (0o775, None), (0o1775, True)])
def test_a_folder_above_counts_where_others_may_rename_what_is_in_it(tmp_path: Path, mode: int, is_used: bool | None) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    if is_used is None:  # a group of the user's own is no other
        is_used = above.stat().st_uid == above.stat().st_gid
    store = Store(above / "cache")
    assert (store.put(KEY, FILES, {}).folder is not None) == is_used
    assert (store.find(KEY) is not None) == is_used


def test_the_cache_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    (tmp_path / "disk").chmod(0o700)
    assert Store(tmp_path / "cache").put(KEY, FILES, {}).folder is not None
    assert Store(tmp_path / "cache").find(KEY) is not None
    writable_by_others(tmp_path / "disk")
    assert Store(tmp_path / "cache").find(KEY) is None


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o027, 0o077])
def test_what_is_written_is_trusted_whatever_the_umask(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, umask: int
) -> None:
    os.umask(umask)
    in_new_folders = Store(tmp_path / "home" / ".cache" / "minrnn-gen")
    for written in (store, in_new_folders):
        filled(written)
        assert written.find(KEY) is not None
        assert written.find_request(KEY) is not None
        for path in (written.folder, *written.folder.rglob("*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path
    assert caplog.records == []


def test_a_kernel_copied_to_the_place_of_another_is_damaged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Whether its code alone, or the entry as a whole."""
    for copy_of in (str(KEY), f"{KEY}/kernel.so"):
        store.clear()
        store.put(KEY, FILES, {})
        store.put(OTHER_KEY, {"kernel.cu": b"", "kernel.so": b"abcd"}, {})
        entries = store.folder / "store-1" / "entries"
        target = entries / copy_of.replace(KEY, OTHER_KEY)
        if target.is_dir():
            shutil.rmtree(target)
            shutil.copytree(entries / copy_of, target)
        else:
            shutil.copyfile(entries / copy_of, target)
        assert store.find(OTHER_KEY) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True, True]


def test_an_entry_without_what_its_reader_needs_is_damaged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.put(KEY, FILES, {})
    assert store.find(KEY, lambda entry: entry.files["kernel.so"]) is not None
    assert store.find(KEY, lambda entry: entry.files["kernel.cubin"]) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True]
    assert store.find(KEY) is None


@pytest.mark.parametrize("value", [[], 3, None, "text"])
def test_a_sealed_request_that_is_no_mapping_is_damaged(store: Store, caplog: pytest.LogCaptureFixture, value: object) -> None:
    filled(store)
    (store.folder / REQUEST).write_bytes(sealed({"key": KEY, "request": value}))
    assert store.find_request(KEY) is None
    assert ["damaged" in record.getMessage() for record in caplog.records] == [True]


PLACES = ("HOME", "XDG_CACHE_HOME", "MINRNN_CACHE_DIR")


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def unknown(_: object) -> None:
        raise KeyError("uid not found")

    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


@pytest.mark.parametrize("chosen", [None, "", "~", "~/kernels", "~nobody-of-this-name/kernels"])
def test_without_a_home_there_is_no_cache_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, chosen: str | None
) -> None:
    no_home(monkeypatch)
    store_module._notice_unwritable.cache_clear()
    if chosen is not None:
        monkeypatch.setenv("MINRNN_CACHE_DIR", chosen)
    store = Store(cache_folder())
    assert store.folder == NO_FOLDER
    for _ in range(2):
        use_everything(store)
        assert (store.find(KEY), store.find_request(KEY), store.size_bytes()) == (None, None, 0)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "no home folder is known" in message and "MINRNN_CACHE_DIR" in message


WITHOUT_HOME = """
import os, pwd, sys

def unknown(_):
    raise KeyError("uid not found")

pwd.getpwuid = pwd.getpwnam = unknown
os.environ.pop("HOME", None)
from minrnn_gen.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_does_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("model: min_gru\nhidden_size: 8\ngpu: h200\n")
    environment = {name: value for name, value in os.environ.items() if name not in PLACES}
    command = [sys.executable, "-c", WITHOUT_HOME, "render", "spec.yaml"]
    rendered = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert rendered.returncode == 0 and "scan_forward" in rendered.stdout
    assert rendered.stderr.count("\n") == rendered.stderr.count("no home folder is known") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"], "and there is no folder called ~"


def test_cupy_is_imported_where_its_own_folder_cannot_be_made(tmp_path: Path) -> None:
    """Else CuPy fails on import, as its user has no home, or one that cannot be written."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    (tmp_path / "file").write_text("")
    program = "from minrnn_gen.build.nvrtc import make_cupy_cache; make_cupy_cache(); import cupy"
    environment = os.environ | {"HOME": str(tmp_path / "file")}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_commands_about_the_cache_say_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_home(monkeypatch)
    for command in ("path", "list", "clear"):
        assert main(["cache", command, "--json"]) == 2
        assert "no home folder is known" in json.loads(capsys.readouterr().out)["error"]
    monkeypatch.setattr("minrnn_gen.cli.doctor._why_not", lambda _: "")  # of libraries, which take seconds
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (cache,) = (finding for finding in findings if finding["name"] == "cache")
    assert not cache["is_well"] and cache["state"] == "no home folder is known"
