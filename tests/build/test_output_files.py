"""A requested output goes to whatever the path names: a file, a link's target, a pipe, a device, stdout."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minrnn_gen.build.output_files import write_output

CONTENT = b"results\n" * 20_000  # more than a pipe holds


def test_a_new_file_and_one_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new"
    write_output(path, b"first")
    path.chmod(0o640)
    with path.open("rb") as reader:
        write_output(path, CONTENT)
        assert reader.read() == b"first", "who reads the old one reads it to its end"
    assert path.read_bytes() == CONTENT and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("target", ["there", "not yet"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if target == "there":
        (folder / target).write_text("before")
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to(folder / target)
    write_output(tmp_path / "link", CONTENT)
    assert (tmp_path / "link").is_symlink() and (folder / target).read_bytes() == CONTENT
    assert not (folder / target).is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "link", "second"}


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_output(pipe, CONTENT)
    reader.join()
    assert read == [CONTENT] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to() -> None:
    write_output(os.devnull, CONTENT)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            write_output("/dev/full", CONTENT)


PRINT_AND_WRITE = """
import sys
from minrnn_gen.build.output_files import write_output
print("before")
write_output(sys.argv[1], b"written\\n")
print("after")
"""


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("mode", ["wb", "ab", "pipe"])
def test_stdout_keeps_its_order_whatever_it_is(tmp_path: Path, path: str, mode: str) -> None:
    """A file that it is redirected to is neither replaced nor cut."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    log = tmp_path / "log"
    log.write_text("old\n")
    command = [sys.executable, "-c", PRINT_AND_WRITE, path]
    if mode == "pipe":
        output = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout
    else:
        with log.open(mode) as file:
            subprocess.run(command, cwd=tmp_path, check=True, stdout=file)
        output = log.read_bytes().removeprefix(b"old\n" if mode == "ab" else b"")
    assert output == b"before\nwritten\nafter\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
def test_a_file_in_a_folder_that_cannot_be_changed_is_written_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "mounted"
    path.write_text("before")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    write_output(path, CONTENT)
    assert path.read_bytes() == CONTENT and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_output(path, CONTENT)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["folder", "folder/none/file", "nul\0", "x" * 300])
def test_what_cannot_be_written_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises((OSError, ValueError)):
        write_output(tmp_path / name, CONTENT)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
