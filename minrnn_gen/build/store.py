"""The cache: finished kernels as plain files, renamed into place whole and verified whenever they are read.

    <folder>/store-1/entries/<key>/      manifest.json and the files it lists, each with its size and sha256
    <folder>/store-1/requests/<key>.json a small mapping that leads from a request key to a content key
    <folder>/store-1/locks/<key>.lock    held while one process makes what the others wait for
    <folder>/store-1/temporary/          what is being written or removed; leftovers of killed processes are swept by age

Correctness rests on the rename and on the verification alone. Locks only spare work, and a disk that is read-only or full
costs the cache, never the result. So do files that another user may have written (`build.trust`): what is kept here is run.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from minrnn_gen.build.entry import FILE_NAME, MANIFEST, Entry, read_entry, read_request, sweep
from minrnn_gen.build.sealing import FILE_MODE, UNREADABLE, sealed, sha256, unsealed, write_new
from minrnn_gen.build.trust import Untrusted, demand_trust, make_private_folder
from minrnn_gen.config.environment import chosen_cache_folder, shared_cache_folder
from minrnn_gen.config.package_files import PACKAGE_FOLDER, package_folder

# Raised when the layout above or the meaning of a file changes, so that versions side by side never read each other's.
_LAYOUT = "store-1"
_KEY = re.compile(r"[0-9a-f]{64}")
# Names of files being written: the process and a random part. Nothing else is swept.
_TEMPORARY_NAME = re.compile(r"[0-9]{1,20}-[0-9a-f]{16}")
# Writing an entry takes milliseconds; an hour leaves room for a suspended process and for a file server's clock.
_STALE_SECONDS = 3600.0
# The slowest compile seen takes seconds: past this the holder is stuck, and doing its work twice beats waiting.
_LOCK_SECONDS = 120.0
# A second try follows the removal of a damaged entry, a third a neighbour who was quicker at the same.
_PLACE_ATTEMPTS = 3

# Others may read and never write, whatever the umask.
_FOLDER_MODE = 0o755
_SUFFIX = {"entries": "", "requests": ".json", "locks": ".lock"}
WHY_NO_FOLDER = "no home folder is known"
# Where none is: a folder that cannot be, on which everything fails as on a disk that cannot be written.
NO_FOLDER = Path(os.devnull, "minrnn-gen")

_Found = TypeVar("_Found")


def cache_folder() -> Path:
    """Return the cache's absolute folder: `MINRNN_CACHE_DIR`, else `minrnn-gen` in `XDG_CACHE_HOME` or the user's cache.

    It is `NO_FOLDER` where no home folder is known, as in a container run under a user id without a name.
    """
    try:
        if chosen := chosen_cache_folder():
            return chosen
        if shared := shared_cache_folder():
            return shared / "minrnn-gen"
        import platformdirs  # takes longer to import than this module and everything else it needs

        folder = platformdirs.user_cache_path("minrnn-gen", appauthor=False)
        if not folder.is_absolute() and folder.parts[0] != "~":
            folder = Path.home() / ".cache" / "minrnn-gen"  # some versions follow a relative XDG_CACHE_HOME
    except RuntimeError:
        return NO_FOLDER
    # Some versions leave the sign for a home that they do not know.
    return NO_FOLDER if folder.parts[0] == "~" else Path(os.path.abspath(folder))


def digest(*parts: bytes | str) -> str:
    """Return the sha256, in hex, of the sequence of parts: equal if and only if every part is equal, in type and value."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(f"{'text' if isinstance(part, str) else 'bytes'} {len(data)}:".encode())
        state.update(data)
    return state.hexdigest()


def package_digest() -> str:
    """Return a digest of what decides which kernels are generated for GPUs: modules, cell library, templates."""
    return digest(_modules_digest(), templates_digest())


def templates_digest() -> str:
    """Return a digest of the templates of CUDA alone: kernels for CPUs have their whole text as key, exports have none."""
    return _tree_digest(package_folder("templates"), "", without=("cpu/", "export/"))


@functools.cache
def _modules_digest() -> str:
    # Once per process: a module edited later is not the one that runs here. Templates are read again for every render.
    return digest(_tree_digest(PACKAGE_FOLDER, ".py"), _tree_digest(PACKAGE_FOLDER / "cell" / "library", ".yaml"))


def _tree_digest(folder: Path, suffix: str, without: tuple[str, ...] = ()) -> str:
    """Return a digest of the files of a folder with this suffix, but those whose path in it begins as one of `without`."""
    names = sorted(name for name in _files_below(str(folder)) if name.endswith(suffix) and not name.startswith(without))
    return digest(*(part for name in names for part in (name, _content(f"{folder}/{name}"))))


def _files_below(folder: str, below: str = "") -> Iterator[str]:
    """Yield the files of a folder and of those in it by their paths there, of one that is absent none; faster than pathlib."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files_below(entry.path, f"{below}{entry.name}/")
            elif entry.is_file():
                yield below + entry.name


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


class Store:
    """The cache in one folder, which need not exist yet; any number of processes and threads may use it at once.

    Keys are sha256 digests in hex, as `digest` returns them. Whatever cannot be read back as it was written is reported to the
    logger "minrnn_gen", removed, and treated as absent. A folder that another user may write in, or that is a link, is neither
    read nor written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str, check: Callable[[Entry], object] = lambda _: None) -> Entry | None:
        """Return the entry `key`, every byte of it verified, or None.

        An entry in which `check` raises one of `sealing.UNREADABLE` lacks what its reader needs: it is damaged like others.
        """
        path = self._path("entries", key)

        def read() -> Entry:
            entry = read_entry(path, key)
            check(entry)
            return entry

        return self._verified("entries", path, read)

    def put(self, key: str, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Entry:
        """Store `files` and the JSON mapping `manifest` as the entry `key` and return it; an entry already there is kept.

        Raises ValueError for a file name that is not a plain one, ValueError or TypeError for a manifest that is not JSON.
        """
        for name in files:
            if name == MANIFEST or not FILE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a file of an entry: expected a plain file name other than {MANIFEST}")
        listing = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()}
        listed = sealed({"key": key, "files": listing, "manifest": dict(manifest)})
        # The manifest as a reader will see it (lists for tuples), so that a first and a later answer are the same.
        entry = Entry(key, None, unsealed(listed, key)["manifest"], dict(files))
        path = self._path("entries", key)
        with self._going_on_without_disk():
            scratch = self._new_temporary()
            try:
                os.mkdir(scratch, _FOLDER_MODE)
                for name, data in {**files, MANIFEST: listed}.items():
                    write_new(scratch / name, data)
                return self._placed(scratch, path, entry)
            finally:
                _remove(scratch)
        return entry

    def find_request(self, key: str) -> Mapping[str, Any] | None:
        """Return the mapping last put under the request key `key`, verified, or None."""
        path = self._path("requests", key)
        return self._verified("requests", path, lambda: read_request(path, key))

    def discard_request(self, key: str, reason: object) -> None:
        """Remove the request `key`, which leads to nothing that can be used, and report the reason."""
        self._discard_damaged(self._path("requests", key), reason)

    def put_request(self, key: str, mapping: Mapping[str, Any]) -> None:
        """Put the JSON `mapping` under the request key `key`, in place of what was there.

        Raises ValueError or TypeError for a mapping that is not JSON.
        """
        data = sealed({"key": key, "request": dict(mapping)})
        path = self._path("requests", key)
        with self._going_on_without_disk():
            scratch = self._new_temporary()
            try:
                write_new(scratch, data)
                self._make_folder("requests")
                os.replace(scratch, path)
            finally:
                _remove(scratch)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the lock `key`, so that of many processes one makes a thing and the others find it; not reentrant.

        Where no lock can be had (a read-only disk, a holder that is stuck) the block runs all the same.
        """
        path = self._path("locks", key)
        import filelock  # slow to import, and a request that is found needs no lock

        lock = filelock.FileLock(path, timeout=_LOCK_SECONDS, mode=FILE_MODE)
        with self._going_on_without_disk():
            self._make_folder("locks")
            try:
                lock.acquire()
            except filelock.Timeout:
                _notice(f"{path}: still locked after {_LOCK_SECONDS:.0f} s; going on without the lock")
        try:
            yield
        finally:
            lock.release()

    def entries(self) -> Iterator[Entry]:
        """Yield every entry in the order of the keys, verified like `find`."""
        for path in self._paths("entries"):
            if entry := self.find(path.name):
                yield entry

    def size_bytes(self) -> int:
        """Return the size of the cache: that of all its files, temporary ones included."""
        total = 0
        if not self._is_trusted():
            return total
        for folder, _, names in os.walk(self.folder / _LAYOUT):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:  # removed by another process meanwhile
                    continue
        return total

    def forget_request(self, key: str) -> None:
        """Remove the request `key`, so that it is decided again."""
        self._discard(self._path("requests", key))

    def forget_requests(self) -> None:
        """Remove every request, so that all are decided again; entries stay."""
        for path in self._paths("requests"):
            self._discard(path)

    def clear(self) -> int:
        """Remove every entry, request and lock, nothing else in the folder, and return how many entries are gone."""
        for path in (*self._paths("requests"), *self._paths("locks")):
            self._discard(path)
        return sum(self._discard(path) for path in self._paths("entries"))

    def _path(self, kind: str, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a key: expected 64 hexadecimal digits in lower case, as digest() returns them")
        return self.folder / _LAYOUT / kind / (key + _SUFFIX[kind])

    def _paths(self, kind: str) -> list[Path]:
        try:
            names = sorted(os.listdir(self.folder / _LAYOUT / kind)) if self._is_trusted(kind) else []
        except OSError:
            return []
        return [self.folder / _LAYOUT / kind / name for name in names if _KEY.fullmatch(name.removesuffix(_SUFFIX[kind]))]

    def _is_trusted(self, *kind: str) -> bool:
        """Whether only the user and root may write in these folders; says once where others may, too."""
        try:
            demand_trust(self.folder, (_LAYOUT, *kind))
        except Untrusted as reason:
            _notice_untrusted(self.folder, str(reason))
            return False
        return True

    def _verified(self, kind: str, path: Path, read: Callable[[], _Found]) -> _Found | None:
        try:
            seen = os.lstat(path)
        except OSError:
            return None
        if not self._is_trusted(kind):
            return None
        try:
            return read()
        except Untrusted as reason:
            if _is_same_file(path, seen):
                _notice_untrusted(self.folder, str(reason))
                self._discard(path)
        except UNREADABLE as reason:
            # Not damaged, but removed or replaced by another process while it was being read: theirs stays.
            if _is_same_file(path, seen):
                self._discard_damaged(path, reason)
        return None

    def _discard_damaged(self, path: Path, reason: object) -> None:
        _notice(f"{path}: damaged ({reason}); it is removed, to be rebuilt")
        self._discard(path)

    def _placed(self, scratch: Path, path: Path, entry: Entry) -> Entry:
        self._make_folder("entries")
        for _ in range(_PLACE_ATTEMPTS):
            with suppress(OSError):
                os.rename(scratch, path)
                return replace(entry, folder=path)
            if theirs := self.find(entry.key):
                return theirs
        raise OSError(f"{path.name} cannot be put in place")

    def _discard(self, path: Path) -> bool:
        # Renamed first, so that no process sees a half removed entry.
        try:
            scratch = self._new_temporary()
            os.rename(path, scratch)
        except OSError:
            return False
        _remove(scratch)
        return True

    def _new_temporary(self) -> Path:
        folder = self._make_folder("temporary")
        oldest = time.time() - _STALE_SECONDS
        with os.scandir(folder) as leftovers:
            for leftover in leftovers:
                try:
                    if _TEMPORARY_NAME.fullmatch(leftover.name) and leftover.stat(follow_symlinks=False).st_mtime < oldest:
                        sweep(leftover)
                except OSError:  # swept by another process meanwhile, or cannot be
                    continue
        return folder / f"{os.getpid()}-{os.urandom(8).hex()}"

    def _make_folder(self, kind: str) -> Path:
        """Make and return a folder of the store; raises Untrusted if another user may write in it, or in one above."""
        make_private_folder(self.folder)
        folder = self.folder / _LAYOUT / kind
        demand_trust(self.folder, (_LAYOUT, kind))
        for path in (folder.parent, folder):
            with suppress(FileExistsError):
                os.mkdir(path, _FOLDER_MODE)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return folder

    @contextmanager
    def _going_on_without_disk(self) -> Iterator[None]:
        try:
            yield
        except Untrusted as reason:
            _notice_untrusted(self.folder, str(reason))
        except OSError as error:
            _notice_unwritable(self.folder, error.strerror or type(error).__name__)


def _is_same_file(path: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), seen)
    except OSError:
        return False


def _remove(path: Path) -> None:
    import shutil

    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _notice(message: str) -> None:
    import logging

    logging.getLogger("minrnn_gen").warning(message)


@functools.cache
def _notice_unwritable(folder: Path, reason: str) -> None:
    # functools.cache: said once per process, since every kernel would meet the same disk.
    if folder == NO_FOLDER:
        _notice(f"{WHY_NO_FOLDER}; going on without a cache, or set MINRNN_CACHE_DIR to a folder")
        return
    _notice(f"{folder}: the cache cannot be written ({reason}); going on without it, or set MINRNN_CACHE_DIR to another folder")


_untrusted_seen: set[Path] = set()


def _notice_untrusted(folder: Path, reason: str) -> None:
    # Once per process and cache, whatever else is not trusted.
    if folder not in _untrusted_seen:
        _untrusted_seen.add(folder)
        _notice(
            f"{reason}: what is cached there is not used, since kernels are run and only you and root may have written them; "
            f"take others' rights away (chmod -R go-w), or set MINRNN_CACHE_DIR to a folder of your own"
        )
