"""The command line answers at once: what a warm request imports, and how much of a processor a process takes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_runner import EXAMPLES
from support.patience import within

HEAVY = {"sympy", "cupy", "numpy", "jinja2", "constraint", "rich", "torch", "ml_dtypes", "platformdirs", "filelock"}
# Other commands, and what runs kernels.
OTHERS = {"minrnn_gen.cli.tune", "minrnn_gen.cli.doctor", "minrnn_gen.kernel", "minrnn_gen.run.executor", "minrnn_gen.torch"}
ARGUMENTS = ["compile", str(EXAMPLES / "min_gru.yaml"), "--gpu", "h100", "--json"]
# The targets are 2.0 s of time on two quiet cores with an empty cache, and 0.45 s with a warm one. Other tests run beside this
# one: time says little then, and a processor that is shared is slower, too.
COLD_SECONDS_MOST, WARM_SECONDS_MOST = 4.0, 1.2


@pytest.mark.usefixtures("nvrtc")
def test_a_process_is_quick_and_a_warm_one_imports_nothing_heavy(tmp_path: Path) -> None:
    environment = os.environ | {"MINRNN_CACHE_DIR": str(tmp_path)}
    program = (
        "import sys; from minrnn_gen.cli.main import main; status = main(sys.argv[1:]); "
        f"print(sorted({HEAVY | OTHERS!r} & set(sys.modules)), file=sys.stderr); sys.exit(status)"
    )

    def processor_seconds() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    def run() -> tuple[float, bool, str]:
        started = processor_seconds()
        done = subprocess.run(
            [sys.executable, "-c", program, *ARGUMENTS], env=environment, capture_output=True, text=True, check=True
        )
        return processor_seconds() - started, json.loads(done.stdout)["cached"], done.stderr

    cold_seconds, cached, _ = run()
    assert not cached
    assert cold_seconds < within(COLD_SECONDS_MOST)
    warm = [run() for _ in range(3)]
    assert {(cached, imported) for _, cached, imported in warm} == {(True, "[]\n")}
    assert min(seconds for seconds, _, _ in warm) < within(WARM_SECONDS_MOST)
