"""Host time of launches that leave Python: what an exported kernel adds to the driver's own call."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.exported import WARNINGS, run_in

import minrnn_gen
from minrnn_gen.build.c_compiler import COMPILERS, c_compiler

SCAN = {"model": "min_gru", "hidden_size": 64, "training": False}
DENSE = {"model": "lstm", "hidden_size": 64, "heads": 2, "precision": "bf16", "training": False}
# Above the driver's own launch in the same run.
ADDED_NS_MOST = 1000

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler"),
]


@pytest.mark.parametrize("spec", [SCAN, DENSE], ids=["scan", "dense"])
def test_a_launch_adds_little_to_the_drivers(tmp_path: Path, spec: dict[str, Any]) -> None:
    minrnn_gen.compile(spec).export(tmp_path, target="cuda", name="cell", sizes=[(4, 16)])
    shutil.copy(Path(__file__).with_name("launch_time.c"), tmp_path)
    options = ("-std=c99", "-O2", *WARNINGS, "launch_time.c", "-o", "launch_time", "-ldl", "-pthread")
    built = run_in(tmp_path, c_compiler().program, *options)
    assert built.returncode == 0, built.stderr
    for threads in (1, 8):  # each with a stream of its own
        ran = run_in(tmp_path, str(tmp_path / "launch_time"), str(threads))
        assert ran.returncode == 0, ran.stderr
        print(spec["model"], ran.stdout, end="")
        times = json.loads(ran.stdout)
        assert times["equal"] == 1
        assert times["ours_ns"] - times["drivers_ns"] <= ADDED_NS_MOST, times
