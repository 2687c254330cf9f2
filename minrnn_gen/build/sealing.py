"""Sealed files: JSON and bytes that are read back as they were written, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minrnn_gen.build.trust import Untrusted, distrust

# Exceptions of reading a file of arbitrary content as one of ours; RecursionError: JSON nested too deep.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
# Others may read and never write, whatever the umask: the store itself does not use what they may write.
FILE_MODE = 0o644


def sealed(body: Mapping[str, Any]) -> bytes:
    """Return a JSON file with `body` and its digest; raises ValueError or TypeError for what is not JSON."""
    text = json.dumps({"sha256": sha256(_canonical(body)), "body": body}, indent=1, allow_nan=False)
    return text.encode() + b"\n"


def unsealed(data: bytes, key: str) -> dict[str, Any]:
    """Return the body of a file that `sealed` made for `key`; raises one of `UNREADABLE` for anything else."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.keys() != {"sha256", "body"}:
        raise ValueError("not a sealed JSON file")
    body: dict[str, Any] = document["body"]
    if sha256(_canonical(body)) != document["sha256"]:
        raise ValueError("JSON differs from its sha256")
    if body["key"] != key:
        raise ValueError(f"made for the key {body['key']}")
    return body


def read_own(path: Path, size_bytes: int | None = None) -> bytes:
    """Return the content of a file of the store, of `size_bytes` where that is known; raises one of `UNREADABLE`.

    Links, pipes and devices are refused; raises Untrusted if another user may have written the file.
    """
    # Looked at before it is opened: a pipe would block, a device would never end.
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is {'a link' if stat.S_ISLNK(status.st_mode) else 'not a file'}")
    if reason := distrust(status):
        raise Untrusted(f"{path} {reason}")
    if size_bytes is not None and status.st_size != size_bytes:
        raise ValueError(f"{path.name} has {status.st_size} bytes instead of {size_bytes}")
    return path.read_bytes()


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, through to the disk; raises OSError where that fails."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
        file.write(data)
        file.flush()
        # Some disks say only here that they are full. The folder needs none: a rename lost in a power cut is an absent entry.
        os.fsync(file.fileno())


def sha256(data: bytes) -> str:
    """Return the sha256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def _canonical(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
