"""How these tests run a command of the benchmarks: in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest
from support.command_runner import Command, runner

from benchmarks.__main__ import PROGRAM, app
from minrnn_gen.cli.main import run_command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `python -m benchmarks` on the given arguments."""
    return runner(partial(run_command, app, PROGRAM), capsys)


@pytest.fixture(autouse=True)
def no_stand_in_is_left() -> Iterator[None]:
    """Fail where a module that came from no file stays, under a name that other code looks for."""
    before = set(sys.modules)
    yield
    packages = {name for name in set(sys.modules) - before if name.isidentifier() and not name.startswith("_")}
    assert {name for name in packages if getattr(sys.modules[name], "__spec__", None) is None} == set()
