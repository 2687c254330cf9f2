"""How these tests run a command of the benchmarks: in this process."""

from __future__ import annotations

from functools import partial

import pytest
from support.command_runner import Command, runner

from benchmarks.__main__ import PROGRAM, app
from minrnn_gen.cli.main import run_command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `python -m benchmarks` on the given arguments."""
    return runner(partial(run_command, app, PROGRAM), capsys)
