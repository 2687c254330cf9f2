"""Consoles of the pages are executed: every command that a page shows runs, and prints what the page shows of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.documentation import PAGES, ROOT, blocks, name_of
from support.everyday import for_each

from minrnn_gen.build.nvrtc import nvrtc_version
from minrnn_gen.cli.main import main
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.interpret.toolchain import has_compiler

# What every run may print otherwise: how long the compiler took, and which registers its version found.
VOLATILE = ((r"\d[\d.]* s\b", "… s"), (r"(?m)^(\w+ +)\d+ of (?=\d+ +[\d,]+ of )", r"\1… of "))
ON_A_GPU = {
    "tune": "measures candidates on a GPU",
    "calibrate": "measures a GPU",
    "check-gpu": "runs kernels on a GPU",
    "benchmarks": "measures on a GPU, against libraries that are installed for it",
}
# Commands of ten seconds and more.
LONG = {"verify", "export", "compare"}
# The page's reader has written such a file.
READERS_SPEC = "model: min_gru\nhidden_size: 32\nprecision: bf16\n"


@dataclass(frozen=True)
class Shown:
    """A command of a page, as typed, and what the page shows of its output, None where it shows nothing."""

    page: Path
    line: int
    command: str
    output: str | None


def shown_on(page: Path) -> Iterator[Shown]:
    """Give every command behind a "$": in a block with the language console its output follows; by itself, none does."""
    fenced = set[int]()
    for block in blocks(page):
        fenced |= set(range(block.line, block.end))
        if block.language == "console":
            commands = list(re.finditer(r"(?m)^\$ (.*)\n", block.text))
            ends = [*(match.start() for match in commands[1:]), len(block.text)]
            for match, end in zip(commands, ends, strict=True):
                line = block.line + block.text.count("\n", 0, match.start())
                yield Shown(page, line, match[1], block.text[match.end() : end])
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if number not in fenced and text.startswith("    $ "):
            yield Shown(page, number, text.removeprefix("    $ "), None)


EVERY = [shown for page in PAGES for shown in shown_on(page)]


def words_of(shown: Shown) -> list[str]:
    """Return the command and its arguments, without the program."""
    words = shlex.split(shown.command.replace("python -m benchmarks", "minrnn-gen benchmarks"))
    assert words[0] == "minrnn-gen", shown.command
    return words[1:]


def comparable(output: str) -> str:
    """Return `output` without what every run may print otherwise, and without blanks at the ends of lines."""
    for pattern, stands in VOLATILE:
        output = re.sub(pattern, stands, output)
    return "\n".join(line.rstrip() for line in output.splitlines())


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(
            shown,
            id=f"{name_of(shown.page)}:{shown.line}",
            marks=pytest.mark.matrix_full if words_of(shown)[0] in LONG else (),
        )
        for shown in EVERY
    ],
)
def test_a_console_shows_what_the_command_prints(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command, *arguments = words_of(shown)
    if command in ON_A_GPU:
        pytest.skip(f"{command} {ON_A_GPU[command]}")
    needs_nvrtc = command == "compile" or "cuda" in arguments
    if needs_nvrtc:
        try:
            nvrtc_version()
        except ToolchainMissing as missing:
            pytest.skip(str(missing))
    if command == "verify" and not has_compiler():
        pytest.skip("no C++ compiler on this system")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "spec.yaml").write_text(READERS_SPEC, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # Nothing is in the cache of a reader who tries the first command.
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    capsys.readouterr()
    assert main([command, *arguments]) == 0, capsys.readouterr().err
    if shown.output is not None:
        assert comparable(capsys.readouterr().out) == comparable(shown.output)


def test_pages_show_commands_and_output() -> None:
    assert len(EVERY) > 20 and any(shown.output for shown in EVERY)
    assert {words_of(shown)[0] for shown in EVERY} >= {"compile", "explain", "run", "cells", *LONG, *ON_A_GPU}


@for_each(PAGES)
def test_an_install_names_extras_that_there_are(page: Path) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = page.read_text(encoding="utf-8")
    for named in re.findall(r'"\.\[([\w,]+)\]"', text):
        assert set(named.split(",")) <= set(extras), named


def test_an_install_line_promises_what_its_extra_brings() -> None:
    """Compiling needs NVRTC alone; CuPy, which calls on a GPU need, is a download of gigabytes."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    lines = [found for text in texts for found in re.findall(r'^ +pip install "\.\[([\w,]+)\]" +(\S.*)$', text, re.MULTILINE)]
    said = {extra: told for extra, told in lines if extra.startswith(("cuda", "nvrtc"))}
    assert any(extra.startswith("nvrtc") for extra in said)
    assert {extra for extra, told in said.items() if "compile" in told} == {
        extra for extra in said if extra.startswith("nvrtc")
    }
