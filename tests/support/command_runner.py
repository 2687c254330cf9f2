"""Helpers of the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Answer:
    """Output of a command, and its exit status."""

    status: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        """stdout as the one JSON object that it must be."""
        assert self.error == ""
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer


Command = Callable[..., Answer]


def runner(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> Command:
    """Return what runs a command line on given arguments, in this process, and answers in three parts."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run
