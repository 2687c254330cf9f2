"""The cache: finished kernels as plain files, renamed into place whole and verified whenever they are read.

    <folder>/store-1/entries/<key>/      manifest.json and the files it lists, each with its size and sha256
    <folder>/store-1/requests/<key>.json a small mapping that leads from a request key to a content key
    <folder>/store-1/locks/<key>.lock    held while one process makes what the others wait for
    <folder>/store-1/temporary/          what is being written or removed; leftovers of killed processes are swept by age

Correctness rests on the rename and on the verification alone. Locks only spare work, and a disk that is read-only or full
costs the cache, never the result.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from minrnn_gen.config.environment import chosen_cache_folder, shared_cache_folder
from minrnn_gen.config.package_files import PACKAGE_FOLDER, package_folder

# Raised when the layout above or the meaning of a file changes, so that versions side by side never read each other's.
_LAYOUT = "store-1"
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
# Letters first: no hidden file, no "..", nothing with a separator, on any system.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
# Writing an entry takes milliseconds; an hour leaves room for a suspended process and for a file server's clock.
_STALE_SECONDS = 3600.0
# The slowest compile seen takes seconds: past this the holder is stuck, and doing its work twice beats waiting.
_LOCK_SECONDS = 120.0
# A second try follows the removal of a damaged entry, a third a neighbour who was quicker at the same.
_PLACE_ATTEMPTS = 3

_SUFFIX = {"entries": "", "requests": ".json", "locks": ".lock"}
# What reading a file of arbitrary content as one of ours can raise; RecursionError: JSON nested too deep.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)

_Found = TypeVar("_Found")


def cache_folder() -> Path:
    """Return the cache's absolute folder: `MINRNN_CACHE_DIR`, else `minrnn-gen` in `XDG_CACHE_HOME` or the user's cache."""
    if chosen := chosen_cache_folder():
        return chosen
    if shared := shared_cache_folder():
        return shared / "minrnn-gen"
    import platformdirs  # takes longer to import than this module and everything else it needs

    return platformdirs.user_cache_path("minrnn-gen", appauthor=False)


def digest(*parts: bytes | str) -> str:
    """Return the sha256, in hex, of the sequence of parts: equal if and only if every part is equal, in type and value."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(f"{'text' if isinstance(part, str) else 'bytes'} {len(data)}:".encode())
        state.update(data)
    return state.hexdigest()


def package_digest() -> str:
    """Return a digest of everything in this package that decides what is generated: modules, cell library, templates."""
    return digest(_modules_digest(), templates_digest())


def templates_digest() -> str:
    """Return a digest of the templates alone."""
    return _tree_digest(package_folder("templates"), "*")


@functools.cache
def _modules_digest() -> str:
    # Once per process: a module edited later is not the one that runs here. Templates are read anew, as they are rendered anew.
    return digest(_tree_digest(PACKAGE_FOLDER, "*.py"), _tree_digest(PACKAGE_FOLDER / "cell" / "library", "*.yaml"))


def _tree_digest(folder: Path, pattern: str) -> str:
    paths = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob(pattern) if path.is_file())
    return digest(*(part for name, path in paths for part in (name, path.read_bytes())))


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


class Store:
    """The cache in one folder, which need not exist yet; any number of processes and threads may use it at once.

    Keys are sha256 digests in hex, as `digest` returns them. Whatever cannot be read back as it was written is reported to the
    logger "minrnn_gen", removed, and treated as absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Entry | None:
        """Return the entry `key`, every byte of it verified, or None."""
        path = self._path("entries", key)
        return self._verified(path, _read_entry, key)

    def put(self, key: str, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Entry:
        """Store `files` and the JSON mapping `manifest` as the entry `key` and return it; an entry already there is kept.

        Raises ValueError for a file name that is not a plain one, ValueError or TypeError for a manifest that is not JSON.
        """
        for name in files:
            if name == _MANIFEST or not _FILE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a file of an entry: expected a plain file name other than {_MANIFEST}")
        listing = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
        sealed = _sealed({"key": key, "files": listing, "manifest": dict(manifest)})
        # The manifest as a reader will see it (lists for tuples), so that a first and a later answer are the same.
        entry = Entry(key, None, _unsealed(sealed, key)["manifest"], dict(files))
        path = self._path("entries", key)
        with self._going_on_without_disk():
            scratch = self._new_temporary()
            try:
                scratch.mkdir()
                for name, data in {**files, _MANIFEST: sealed}.items():
                    _write(scratch / name, data)
                return self._placed(scratch, path, entry)
            finally:
                _remove(scratch)
        return entry

    def find_request(self, key: str) -> Mapping[str, Any] | None:
        """Return the mapping last put under the request key `key`, verified, or None."""
        path = self._path("requests", key)
        return self._verified(path, _read_request, key)

    def put_request(self, key: str, mapping: Mapping[str, Any]) -> None:
        """Put the JSON `mapping` under the request key `key`, in place of what was there.

        Raises ValueError or TypeError for a mapping that is not JSON.
        """
        sealed = _sealed({"key": key, "request": dict(mapping)})
        path = self._path("requests", key)
        with self._going_on_without_disk():
            scratch = self._new_temporary()
            try:
                _write(scratch, sealed)
                path.parent.mkdir(exist_ok=True)
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

        lock = filelock.FileLock(path, timeout=_LOCK_SECONDS)
        with self._going_on_without_disk():
            self._make_folder(path.parent)
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
        """Return what the cache occupies: the size of all its files, temporary ones included."""
        total = 0
        for folder, _, names in os.walk(self.folder / _LAYOUT):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:  # removed by somebody else meanwhile
                    continue
        return total

    def forget_requests(self) -> None:
        """Remove every request, so that what is asked for is decided anew; entries stay."""
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
            names = sorted(os.listdir(self.folder / _LAYOUT / kind))
        except OSError:
            return []
        return [self.folder / _LAYOUT / kind / name for name in names if _KEY.fullmatch(name.removesuffix(_SUFFIX[kind]))]

    def _verified(self, path: Path, read: Callable[[Path, str], _Found], key: str) -> _Found | None:
        try:
            seen = os.lstat(path)
        except OSError:
            return None
        try:
            return read(path, key)
        except _UNREADABLE as reason:
            # Not damaged, but removed or replaced by somebody else while it was being read: theirs stays.
            if _is_same_file(path, seen):
                _notice(f"{path}: damaged ({reason}); it is removed, to be made again")
                self._discard(path)
            return None

    def _placed(self, scratch: Path, path: Path, entry: Entry) -> Entry:
        path.parent.mkdir(exist_ok=True)
        for _ in range(_PLACE_ATTEMPTS):
            with suppress(OSError):
                os.rename(scratch, path)
                return replace(entry, folder=path)
            if theirs := self.find(entry.key):
                return theirs
        raise OSError(f"{path.name} cannot be put in place")

    def _discard(self, path: Path) -> bool:
        # Renamed first: nobody ever sees an entry that is half removed.
        try:
            scratch = self._new_temporary()
            os.rename(path, scratch)
        except OSError:
            return False
        _remove(scratch)
        return True

    def _new_temporary(self) -> Path:
        folder = self.folder / _LAYOUT / "temporary"
        self._make_folder(folder)
        oldest = time.time() - _STALE_SECONDS
        with os.scandir(folder) as leftovers:
            for leftover in leftovers:
                try:
                    if leftover.stat(follow_symlinks=False).st_mtime < oldest:
                        _remove(Path(leftover.path))
                except FileNotFoundError:  # swept by somebody else meanwhile
                    continue
        return folder / f"{os.getpid()}-{os.urandom(8).hex()}"

    def _make_folder(self, folder: Path) -> None:
        # Private to the user, as the XDG specification asks; a folder that exists keeps the rights somebody chose for it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _going_on_without_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _notice_unwritable(self.folder, error.strerror or type(error).__name__)


def _read_entry(path: Path, key: str) -> Entry:
    body = _unsealed(_read(path / _MANIFEST), key)
    files = {}
    for name, expected in body["files"].items():
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{_MANIFEST} lists the file {name!r}")
        data = _read(path / name, expected["bytes"])
        if _sha256(data) != expected["sha256"]:
            raise ValueError(f"{name} differs from its sha256")
        files[name] = data
    return Entry(key, path, body["manifest"], files)


def _read_request(path: Path, key: str) -> dict[str, Any]:
    request: dict[str, Any] = _unsealed(_read(path), key)["request"]
    return request


def _sealed(body: Mapping[str, Any]) -> bytes:
    text = json.dumps({"sha256": _sha256(_canonical(body)), "body": body}, indent=1, allow_nan=False)
    return text.encode() + b"\n"


def _unsealed(data: bytes, key: str) -> dict[str, Any]:
    document = json.loads(data)
    if not isinstance(document, dict) or document.keys() != {"sha256", "body"}:
        raise ValueError("not a sealed JSON file")
    body: dict[str, Any] = document["body"]
    if _sha256(_canonical(body)) != document["sha256"]:
        raise ValueError("JSON differs from its sha256")
    if body["key"] != key:
        raise ValueError(f"made for the key {body['key']}")
    return body


def _canonical(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _read(path: Path, size_bytes: int | None = None) -> bytes:
    # Looked at before it is opened: a pipe would block, a device would never end.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is not a file")
    if size_bytes is not None and status.st_size != size_bytes:
        raise ValueError(f"{path.name} has {status.st_size} bytes instead of {size_bytes}")
    return path.read_bytes()


def _is_same_file(path: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), seen)
    except OSError:
        return False


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        # Some disks say only here that they are full. The folder needs none: a rename lost in a power cut is an absent entry.
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    import shutil

    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _notice(message: str) -> None:
    import logging

    logging.getLogger("minrnn_gen").warning(message)


@functools.cache
def _notice_unwritable(folder: Path, reason: str) -> None:
    # functools.cache: said once per process, since every kernel would meet the same disk.
    _notice(f"{folder}: the cache cannot be written ({reason}); going on without it, or set MINRNN_CACHE_DIR to another folder")
