"""Each command in a process of its own, where nothing was imported before it but what it imports itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.everyday import one_in

ROOT = Path(__file__).resolve().parents[2]
SPEC = "examples/min_gru.yaml"
SMALL = ("--set", "hidden_size=8", "--set", "heads=1")
COMMANDS = (
    ("explain", SPEC, *SMALL),
    ("tune", "--help"),
    ("render", SPEC, *SMALL),
    ("run", SPEC, *SMALL, "--device", "cpu", "--batch", "1", "--time", "2"),
    ("export", SPEC, *SMALL, "--target", "cpu", "--partial", "--out", "{folder}"),
    ("gpus",),
    ("cells", "show", "lstm"),
    ("schema", "spec"),
)


@pytest.mark.parametrize("words", one_in(4, [(words,) for words in COMMANDS]))
def test_a_command_needs_no_other_before_it(words: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "MINRNN_CACHE_DIR": str(tmp_path / "cache"), "MINRNN_CPU": "numpy"}
    command = [sys.executable, "-m", "minrnn_gen.cli.main", *(word.format(folder=tmp_path / "out") for word in words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and done.returncode == 0 and done.stdout, done.stderr[-2000:]
