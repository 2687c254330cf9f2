"""Results out of a memory as a file, and into another."""

from __future__ import annotations

import json
import os
from pathlib import Path

from minrnn_gen.errors import BadInput, shown
from minrnn_gen.tune.memory import Memory, read_results
from minrnn_gen.tune.results import Result
from minrnn_gen.tune.t4 import t4_of


def export_results(memory: Memory, path: str, *, as_t4: bool = False, gpu: str | None = None) -> int:
    """Write every result, or those of one GPU, to a file, and return how many; raises BadInput where there are none."""
    found = [result for name in memory.gpus() if gpu in (None, name) for result in memory.results(name)]
    # Once each: what shipped may have been imported too.
    results = list({result.line(): result for result in found}.values())
    if not results:
        of = f" of {shown(gpu)}" if gpu else ""
        raise BadInput(f"--export: there are no results{of} in {memory.folder}; tune a spec, or import some")
    text = json.dumps(t4_of(results), indent=1) + "\n" if as_t4 else "".join(result.line() + "\n" for result in results)
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return len(results)


def import_results(memory: Memory, path: str) -> int:
    """Add the results in a file that are not there yet, and return how many; raises BadInput for a file without any.

    What was compiled before is decided anew when it is next asked for.
    """
    if not Path(path).is_file():
        raise BadInput(f"--import: {shown(path)} is no file; give one that --export wrote, or a memory's own")
    given = list(read_results(Path(path)))
    if not given:
        raise BadInput(f"--import: {shown(path)} has no results; expected is JSON lines as --export writes them")
    new: dict[str, Result] = {result.line(): result for result in given}
    for gpu in {result.setting.gpu for result in given}:
        for known in memory.results(gpu):
            new.pop(known.line(), None)
    memory.add(list(new.values()))
    if new:
        memory.store.forget_requests()
    return len(new)
