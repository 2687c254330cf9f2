"""How these tests run a command: in this process, and with its answer in three parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_runner import EXAMPLES, Command, runner

from minrnn_gen.build.nvrtc import nvrtc_version
from minrnn_gen.cli.main import main
from minrnn_gen.errors import ToolchainMissing


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line on the given arguments."""

    return runner(main, capsys)


@pytest.fixture
def no_libraries_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `doctor` take libraries that are installed for sound: importing torch, JAX and ONNX takes seconds."""
    monkeypatch.setattr("minrnn_gen.cli.doctor._why_not", lambda _: "")


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """The version of NVRTC; without it there is nothing to compile with."""
    try:
        return nvrtc_version()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def min_gru() -> Path:
    return EXAMPLES / "min_gru.yaml"
