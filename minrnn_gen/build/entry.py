"""Entries and requests read from the store: verified byte for byte, or one of `sealing.UNREADABLE` is raised."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrnn_gen.build.sealing import read_own, sha256, unsealed
from minrnn_gen.build.trust import Untrusted, distrust

MANIFEST = "manifest.json"
# Letters first: no hidden file, no "..", nothing with a separator, on any system.
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


@dataclass(frozen=True)
class Entry:
    """One finished kernel: its files, read and verified, and the manifest its maker gave it.

    `folder` holds the same files on disk; it is None where the cache could not be written.
    """

    key: str
    folder: Path | None
    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(map(len, self.files.values()))


def read_entry(path: Path, key: str) -> Entry:
    """Return the entry `key` in the folder `path`."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ValueError("a link")
    if reason := distrust(status):
        raise Untrusted(f"{path} {reason}")
    body = unsealed(read_own(path / MANIFEST), key)
    files = {}
    for name, expected in body["files"].items():
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"{MANIFEST} lists the file {name!r}")
        data = read_own(path / name, expected["bytes"])
        if sha256(data) != expected["sha256"]:
            raise ValueError(f"{name} differs from its sha256")
        files[name] = data
    manifest = body["manifest"]
    if not isinstance(manifest, dict):
        raise ValueError(f"{MANIFEST} holds no manifest")
    return Entry(key, path, manifest, files)


def read_request(path: Path, key: str) -> dict[str, Any]:
    """Return the mapping of the request `key` in the file `path`."""
    request = unsealed(read_own(path), key)["request"]
    if not isinstance(request, dict):
        raise ValueError("no mapping")
    return request


def sweep(leftover: os.DirEntry[str]) -> None:
    """Remove leftovers of a killed minrnn-gen process: a file, or a folder of plain files; anything else stays."""
    if leftover.is_dir(follow_symlinks=False):
        with os.scandir(leftover.path) as inside:
            for file in inside:
                if FILE_NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    os.unlink(file.path)
        os.rmdir(leftover.path)
    elif leftover.is_file(follow_symlinks=False):
        os.unlink(leftover.path)
