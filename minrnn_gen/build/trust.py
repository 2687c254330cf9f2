"""Trust in files of the cache: compiled code runs in this process, so only the user and root may have written it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(OSError):
    """A file or folder that another user may have written, or a link where the cache has none; the message says which."""


def distrust(status: os.stat_result) -> str | None:
    """Return why a file of this `status` is not trusted, None where only the user and root may write it.

    Everything is trusted on systems without user ids, such as Windows, which protect files by other means.
    """
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    return "may be written by others" if status.st_mode & _WRITTEN_BY_OTHERS else None


def demand_trust(root: Path, inner: Iterable[str]) -> None:
    """Raise Untrusted where another user may write in the cache's folder `root` or in `inner`, folders nested in this order.

    A missing folder is no reason to raise. Links that the user made may lead to `root`; below it no link is trusted.
    """
    _demand_trusted_root(root)
    path = root
    for name in inner:
        path = path / name
        try:
            status = os.lstat(path)
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise Untrusted(f"{path} is a link")
        if reason := distrust(status):
            raise Untrusted(f"{path} {reason}")


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for the user alone, whatever the umask.

    The XDG base directory specification requires it; an existing folder keeps its rights.
    """
    if folder.is_dir():
        return
    if folder.parent == folder:
        raise FileNotFoundError(errno.ENOENT, "there is no such drive", str(folder))
    make_private_folder(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise


def _demand_trusted_root(root: Path) -> None:
    real = Path(os.path.realpath(root))
    try:
        reached, status = os.lstat(root), os.stat(real)
    except OSError:
        pass
    else:
        # A link has no rights of its own; in a folder like /tmp its owner chose its target.
        if stat.S_ISLNK(reached.st_mode) and reached.st_uid != status.st_uid and (reason := _foreign(reached)):
            raise Untrusted(f"{root}, a link, {reason}")
        if (reason := distrust(status)) and (_foreign(status) or not status.st_mode & stat.S_ISVTX):
            raise Untrusted(f"{root} {reason}")
    for above in dict.fromkeys((*root.parents, *real.parents)):
        try:
            status = os.stat(above)
        except OSError:
            continue
        if _is_open(status):
            raise Untrusted(f"{above}, above {root}, may be written by others")


def _foreign(status: os.stat_result) -> str | None:
    if hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    return None


def _is_open(status: os.stat_result) -> bool:
    """Whether others may rename the contents of a folder: in a sticky folder, such as /tmp, only an entry's owner may.

    A group with the number of the folder's owner is that user's own, as most systems make one for each.
    """
    if not hasattr(os, "geteuid") or not stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return False
    own_group = status.st_gid == status.st_uid
    return bool(status.st_mode & (stat.S_IWOTH if own_group else _WRITTEN_BY_OTHERS))
