"""The history of measurements: a file of JSON lines for each GPU, which people can read, join and edit."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minrnn_gen.build.store import NO_FOLDER, Store, digest
from minrnn_gen.build.trust import make_private_folder
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.tune.results import TIMES_MOST, CandidateKey, Result, Setting, distance, median_us, result_from

LOG = logging.getLogger("minrnn_gen")
# A factor of four in all between the sizes: beyond, how often a GPU is filled, and with it what is fastest, is another matter.
DISTANCE_MOST = 2.0
# Cells whose results stay in memory.
CELLS_INDEXED = 32
# Results that ship with the package, those of kernels in its examples.
SHIPPED = "gpu_profiles/tuned"


@dataclass(frozen=True)
class Best:
    """The fastest candidate that is known to be right, and the setting in which it was measured.

    `is_shipped`: it was found right before the package shipped, as the same kernel, to the byte, that this toolchain compiles.
    """

    setting: Setting
    family: str
    variables: dict[str, int]
    median_us: float
    is_exact: bool
    is_shipped: bool = False


@dataclass(frozen=True)
class History:
    """Results in a folder next to the store's kernels, one file for each GPU's profile, and those that ship with the package.

    Any number of processes may add at once. A truncated or invalid line costs that line alone; a full or read-only disk costs
    the history, not the result.
    """

    store: Store
    shipped: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.store.folder / "tuning"

    def path(self, gpu: str) -> Path:
        """Return the file of a GPU."""
        return self.folder / f"{gpu}.jsonl"

    def gpus(self) -> tuple[str, ...]:
        """Return the GPUs with measured or imported results."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.jsonl")))

    def add(self, results: Sequence[Result]) -> None:
        """Append results to their files."""
        by_gpu: dict[str, list[Result]] = {}
        for result in results:
            by_gpu.setdefault(result.setting.gpu, []).append(result)
        for gpu, gpu_results in by_gpu.items():
            with self.store.lock(digest("results of measuring", gpu)):
                try:
                    make_private_folder(self.folder)
                    append_results(self.path(gpu), gpu_results)
                except OSError as error:
                    _notice_unwritable(self.folder, error.strerror or type(error).__name__)

    def results(self, gpu: str) -> tuple[Result, ...]:
        """Return every readable result that was measured or imported for a GPU."""
        return tuple(read_results(self.path(gpu)))

    def known(self, setting: Setting) -> tuple[Result, ...]:
        """Return the results of exactly this setting, shipped ones first."""
        here = [result for result in _alike(self.path(setting.gpu), setting) if result.setting == setting]
        return (*self._shipped(setting).get(setting, ()), *here)

    def best(self, setting: Setting) -> Best | None:
        """Return the best known candidate of `setting`, else of the nearest sizes on the same GPU, else None.

        A device or driver that is not known, as where no GPU is at hand, stands for any of them. A shipped result serves its
        own sizes and toolchain alone: any other would need a run first, which was not requested.
        """
        alike = _alike(self.path(setting.gpu), setting)
        # Results of another GPU of the same profile, such as one with more memory, do not count.
        alike = tuple(result for result in alike if not setting.device or result.setting.device == setting.device)
        # A wrong result is wrong wherever the same text is compiled; a candidate that failed or hung may run with other sizes.
        bad = [result for result in alike if result.outcome != "measured"]
        excluded = {result.candidate for result in bad if result.outcome == "wrong" or result.setting == setting}
        groups: dict[Setting, list[Result]] = {}
        for result in alike:
            groups.setdefault(result.setting, []).append(result)

        def order(group: Setting) -> tuple[float, bool, bool]:
            return distance(group, setting), group.toolchain != setting.toolchain, group.driver != setting.driver

        def fastest(of: Setting, results: Iterable[Result], is_exact: bool, is_shipped: bool) -> Best | None:
            winner = fastest_of(result for result in results if result.candidate not in excluded)
            if winner is None:
                return None
            return Best(of, winner.family, dict(winner.variables), median_us(winner.times_us), is_exact, is_shipped)

        nearest = [group for group in sorted(groups, key=order) if distance(group, setting) <= DISTANCE_MOST]
        exact = [group for group in nearest if not any(order(group)[: 3 if setting.driver else 2])]
        shipped = self._shipped(setting)
        bests = [fastest(group, groups[group], True, False) for group in exact]
        bests += [fastest(group, shipped[group], True, True) for group in shipped]
        bests += [fastest(group, groups[group], False, False) for group in nearest if group not in exact]
        return next((best for best in bests if best is not None), None)

    def sizes_measured(self, setting: Setting) -> tuple[tuple[int, int], ...]:
        """Return the measured batches and times of settings that differ in these alone, newest first.

        Shipped results rank after those measured here; any driver matches, and any device where the device is unknown.
        """
        sizes: dict[tuple[int, int], None] = {}
        here = reversed(_alike(self.path(setting.gpu), setting))
        shipped = _alike(self.shipped / f"{setting.gpu}.jsonl", setting) if self.shipped is not None else ()
        for result in (*here, *shipped):
            measured = result.setting
            if (measured.hidden_size, measured.heads) == (setting.hidden_size, setting.heads):
                sizes.setdefault((measured.batch, measured.time))
        return tuple(sizes)

    def _shipped(self, setting: Setting) -> dict[Setting, list[Result]]:
        """Return the shipped results of this setting, whatever the driver."""
        groups: dict[Setting, list[Result]] = {}
        if self.shipped is not None:
            for result in _alike(self.shipped / f"{setting.gpu}.jsonl", setting):
                device = setting.device or result.setting.device
                if result.setting == replace(setting, device=device, driver=result.setting.driver):
                    groups.setdefault(result.setting, []).append(result)
        return groups


def open_history(store: Store) -> History:
    """Return the history next to `store`, with the results that ship with the package."""
    return History(store, package_folder("gpu_profiles").parent / SHIPPED)


def times_of(results: Iterable[Result]) -> dict[CandidateKey, tuple[float, ...]]:
    """Return all times of each correct candidate, from results of one setting."""
    times: dict[CandidateKey, tuple[float, ...]] = {}
    spoilt: set[CandidateKey] = set()
    for result in results:
        if result.outcome == "measured":
            times[result.candidate] = times.get(result.candidate, ()) + result.times_us
        else:
            spoilt.add(result.candidate)
    return {key: times_us for key, times_us in times.items() if key not in spoilt}


def fastest_of(results: Iterable[Result]) -> Result | None:
    """Return the fastest candidate among results of one setting, its times merged into one result; None without times."""
    results = list(results)
    times = times_of(results)
    if not times:
        return None
    fastest = min(times, key=lambda candidate: (median_us(times[candidate]), candidate))
    return replace(next(result for result in results if result.candidate == fastest), times_us=times[fastest][-TIMES_MOST:])


def _alike(path: Path, setting: Setting) -> tuple[Result, ...]:
    """Return the results in a file whose settings differ from `setting` at most in sizes, device, driver and toolchain."""
    same = setting.without_sizes
    try:
        status = path.stat()
    except OSError:
        return ()
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return _by_problem(path, stamp, same.cell_digest, same.sources).get(same, ())


@functools.lru_cache(maxsize=CELLS_INDEXED)
def _by_problem(path: Path, _stamp: tuple[int, ...], *digests: str) -> Mapping[Setting, tuple[Result, ...]]:
    """Return the results of one cell and these templates by their settings without sizes, read once until the file changes."""
    groups: dict[Setting, list[Result]] = {}
    for result in read_results(path, *digests):
        groups.setdefault(result.setting.without_sizes, []).append(result)
    return {setting: tuple(results) for setting, results in groups.items()}


def read_results(path: Path, *words: str) -> Iterator[Result]:
    """Yield the results in a file; invalid lines are skipped, and a missing file has no results.

    With `words`, lines that lack one of them are not parsed: parsing the many lines of other cells would take most of the time.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
    except OSError as error:
        LOG.debug("%s: cannot be read (%s)", path, error.strerror)
        return
    needed = [word.encode() for word in words]
    for number, line in enumerate(lines, start=1):
        if line.strip() and all(word in line for word in needed):
            try:
                yield result_from(line)
            except (ValueError, RecursionError) as reason:
                LOG.debug("%s:%d: skipped, not a result (%s)", path, number, str(reason).splitlines()[0])


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Append results to a file, each on its own line even after a truncated one; raises OSError where that fails."""
    data = "".join(result.line() + "\n" for result in results).encode()
    # Without O_BINARY Windows would end lines with two characters.
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    try:
        # The last writer may have been killed within a line, or the disk was full: ours begins on the next line.
        end = os.lseek(file, 0, os.SEEK_END)
        if end and os.lseek(file, end - 1, os.SEEK_SET) >= 0 and os.read(file, 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    finally:
        os.close(file)


@functools.cache
def _notice_unwritable(folder: Path, reason: str) -> None:
    # Once per process, as in the store, which itself reports a missing folder.
    if folder.parent == NO_FOLDER:
        return
    LOG.warning("%s: results cannot be kept (%s); going on without, or set MINRNN_CACHE_DIR to another folder", folder, reason)
