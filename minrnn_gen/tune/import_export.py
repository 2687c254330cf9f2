"""Results exported from a history to a file, and imported from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from minrnn_gen.build.output_files import refused_by_option, write_output
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.tune.history import History, fastest_of, read_results
from minrnn_gen.tune.results import Result, Setting
from minrnn_gen.tune.t4_format import t4_of

ExportFormat = Literal["lines", "t4", "fastest"]


def export_results(history: History, path: str, *, form: ExportFormat = "lines", gpu: str | None = None) -> int:
    """Write every result, or those of one GPU, to a file, and return how many; raises BadInput where there are none.

    "fastest" writes only the fastest candidate of each setting, which is all that compiling needs.
    """
    results = [result for name in history.gpus() if gpu in (None, name) for result in history.results(name)]
    if not results:
        of = f" of {shown(gpu)}" if gpu else ""
        raise BadInput(f"--export: there are no results{of} in {history.folder}; tune a spec, or import some")
    if form == "fastest":
        settings: dict[Setting, list[Result]] = {}
        for result in results:
            settings.setdefault(result.setting, []).append(result)
        results = [fastest for fastest in map(fastest_of, settings.values()) if fastest is not None]
    text = json.dumps(t4_of(results), indent=1) + "\n" if form == "t4" else "".join(result.line() + "\n" for result in results)
    with refused_by_option("--export", path):
        write_output(path, text.encode())
    return len(results)


def import_results(history: History, path: str) -> int:
    """Add the results in a file that are not there yet, and return how many; raises BadInput for a file without any.

    Kernels compiled before are chosen again at their next request.
    """
    if not _is_file(path):
        raise BadInput(f"--import: {shown(path)} is no file; give one that --export wrote, or a history's own")
    read = list(read_results(Path(path)))
    if not read:
        raise BadInput(f"--import: {shown(path)} has no results; expected is JSON lines as --export writes them")
    new: dict[str, Result] = {result.line(): result for result in read}
    for gpu in {result.setting.gpu for result in read}:
        for known in history.results(gpu):
            new.pop(known.line(), None)
    history.add(list(new.values()))
    if new:
        history.store.forget_requests()
    return len(new)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False
