"""Files that the user requested: written to a path of any kind; a plain file is replaced whole."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minrnn_gen.errors import BadInput, shown

# Paths that stand for this process's open descriptors, as /dev/stdout does by a link.
_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/(?:self|thread-self|\d+)/fd/(\d+)")
# As many links as Linux follows.
_LINKS_MOST = 40
# A file may be writable in a folder that is not, or be one that is mounted: then it is written where it is.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV)


@contextmanager
def refused_by_option(option: str, path: str | os.PathLike[str], allowed: str = "the path of a file") -> Iterator[None]:
    """Raise BadInput that names `option` and `path` where the block cannot write there."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a valid path"
        raise BadInput(f"{option}: {shown(os.fspath(path))} cannot be written ({reason}); give {allowed} that can") from None


def write_output(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`: a pipe, a device, an open descriptor, or a file, through links.

    A file is replaced whole or not at all, and keeps its rights. Raises OSError, or ValueError for an invalid path.
    """
    name = os.fspath(path)
    descriptor = _descriptor_of(name)
    if descriptor is not None:
        # Earlier output comes first.
        sys.stdout.flush()
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(content)
        return
    try:
        status = os.stat(name)
    except FileNotFoundError:
        _replace(Path(os.path.realpath(name)), content, None)
        return
    if not stat.S_ISREG(status.st_mode):
        _write_in_place(name, content)
        return
    try:
        _replace(Path(os.path.realpath(name)), content, stat.S_IMODE(status.st_mode))
    except OSError as error:
        if error.errno not in _IN_PLACE:
            raise
        _write_in_place(name, content)


def _descriptor_of(path: str) -> int | None:
    """Return the open descriptor that a path stands for, by links too; None where it is none."""
    for _ in range(_LINKS_MOST):
        path = os.path.abspath(path)
        if match := _DESCRIPTOR.fullmatch(path):
            return int(match[1] or match[2])
        if not os.path.islink(path):
            return None
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _write_in_place(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    scratch = path.with_name(f".minrnn-gen-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(scratch, "xb") as file:
            file.write(content)
            if mode is not None:
                os.chmod(scratch, mode)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
