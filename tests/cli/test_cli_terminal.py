"""Tables are whole wherever they are printed: no column is cut to 80 characters that nobody asked for."""

from __future__ import annotations

import pytest
from support.command_runner import Command
from support.everyday import in_turn


@pytest.mark.parametrize(
    ("colors", "kind", "columns"), in_turn([None, "1"], [None, "dumb", "unknown", "xterm-256color"], [None, "40"])
)
def test_a_table_in_a_pipe_is_whole_whatever_the_terminal_is_called(
    command: Command, monkeypatch: pytest.MonkeyPatch, colors: str | None, kind: str | None, columns: str | None
) -> None:
    for name in ("FORCE_COLOR", "TERM", "COLUMNS", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    plain = command("cells").out
    assert max(map(len, plain.splitlines())) > 80 and "…" not in plain
    for name, value in (("FORCE_COLOR", colors), ("TERM", kind), ("COLUMNS", columns)):
        if value is not None:
            monkeypatch.setenv(name, value)
    # Without the signs for colours, which a terminal that has none is spared.
    monkeypatch.setenv("NO_COLOR", "1")
    assert command("cells").out.replace("\x1b[2m", "").replace("\x1b[0m", "").split() == plain.split()
