"""Build of FlashRNN's kernels for one shape: `python -m MODULE BASELINE MODEL HEADS HEAD_DIM BATCH FOLDER`.

The kernels run once. Everything that is compiled stays in the folder, where the path of the final library is written at the
end. If the build fails, the reason is the last line printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.contenders.flash import LIBRARY_FILE, Build, flashrnn_module, function_of, run_of
from benchmarks.harness.gpu import Gpu, open_gpu
from benchmarks.harness.rounds import failure_of
from benchmarks.problems.scan_problems import Problem
from benchmarks.reference.dense_inputs import Inputs
from minrnn_gen.build.store import digest

# Enough steps for every part of a kernel; its own trial takes two.
TIME = 32
# Concurrent compilers of one build: as many builds run as there are processors, and a compiler takes a gigabyte.
COMPILERS = "2"


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of the build and its trial."""
    baseline, model, heads, head_dim, batch, folder = arguments
    try:
        gpu = open_gpu()
        build = Build(baseline, model, int(heads), int(head_dim), int(batch), gpu.name)
        began = gpu.seconds()
        library = built(build, gpu, Path(folder))
        record = {"library": library, "seconds": gpu.seconds() - began}
        (Path(folder) / LIBRARY_FILE).write_text(json.dumps(record))
    except Exception as error:
        # A failed compilation has its error in one of very many lines.
        messages = [line for line in str(error).splitlines() if "error:" in line]
        print(failure_of(RuntimeError(messages[0]) if messages else error))
        return 1
    return 0


def built(build: Build, gpu: Gpu, folder: Path) -> str:
    """Build into `folder`, run forward and backward, and return the path of the library that ran."""
    os.environ.setdefault("MAX_JOBS", COMPILERS)
    # A lock that a killed build has left would be waited for without end.
    for lock in folder.rglob("lock"):
        lock.unlink()
    module = flashrnn_module()
    compiling: Any = importlib.import_module("flashrnn.flashrnn.cuda_init")
    choosing: Any = importlib.import_module("flashrnn.flashrnn.cuda_init_parametric")
    # FlashRNN waits for up to ten seconds lest two builds meet in one folder; here every build has its own.
    compiling.time = SimpleNamespace(sleep=lambda _: None)
    libraries: list[str] = []
    load = compiling.load

    def load_apart(*, extra_cflags: Sequence[str] = (), **more: Any) -> Any:
        """Load from a folder of its own for every set of flags, so that candidates do not overwrite each other."""
        own = folder / digest(*extra_cflags)[:16]
        own.mkdir(parents=True, exist_ok=True)
        library = load(extra_cflags=extra_cflags, build_directory=str(own), **more)
        libraries.append(str(library.__file__))
        return library

    module.load = choosing.load = load_apart
    problem = Problem(
        table="cells",
        task="forward + backward",
        model=build.model,
        precision="bf16",
        batch=build.batch,
        time=TIME,
        channels=build.heads * build.head_dim,
        heads=build.heads,
    )
    run_of(problem, gpu.torch, Inputs(problem, gpu), function_of(module, build))()
    gpu.finish()
    return libraries[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
