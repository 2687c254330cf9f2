"""Completion by the shells' own protocols, and help that says what each command does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.command_runner import EXAMPLES, Command

from minrnn_gen.cell.files import library_names
from minrnn_gen.cli import completion
from minrnn_gen.cli.main import app
from minrnn_gen.config.gpu_profile import profile_names
from minrnn_gen.config.spec import Spec


def run_program(*arguments: str, **variables: str) -> str:
    """Return what the program prints as a process of its own."""
    command = [sys.executable, "-m", "minrnn_gen.cli.main", *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout


def test_the_shell_completes_commands_and_installs_that_in_one_command(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "minrnn-gen expl", "COMP_CWORD": "1", "_MINRNN_GEN_COMPLETE": "complete_bash"}
    assert run_program(**words).split() == ["explain"]
    undetected = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "installed in" in run_program("--install-completion", "bash", **undetected)
    assert "_minrnn_gen_completion" in "".join(path.read_text() for path in tmp_path.rglob("*minrnn-gen*"))


def bash(words: str) -> set[str]:
    index = str(len(words.split(" ")) - 1)
    return set(run_program(COMP_WORDS=words, COMP_CWORD=index, _MINRNN_GEN_COMPLETE="complete_bash").split())


def zsh(words: str) -> set[str]:
    return set(re.findall(r'"([^"]*)"', run_program(_TYPER_COMPLETE_ARGS=words, _MINRNN_GEN_COMPLETE="complete_zsh")))


def fish(words: str) -> set[str]:
    variables = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_MINRNN_GEN_COMPLETE": "complete_fish"}
    return set(run_program(_TYPER_COMPLETE_ARGS=words, **variables).split())


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_a_shell_completes_gpus_and_cells(
    shell: Callable[[str], set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # whose files are no profiles
    assert shell("minrnn-gen compile spec.yaml --gpu h") == {name for name in profile_names() if name.startswith("h")}
    assert shell("minrnn-gen cells show min_l") == {name for name in library_names() if name.startswith("min_l")}


def commands_of(group: Any) -> dict[str, Any]:
    """Return the commands of a group by their names; those of a command are none."""
    return {name: group.get_command(None, name) for name in getattr(group, "list_commands", lambda _: ())(None)}


def parameters(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Give every parameter of every command with the command's path."""
    for parameter in command.params:
        yield " ".join((*path, parameter.name)), parameter
    for name, inner in commands_of(command).items():
        yield from parameters(inner, (*path, name))


# What the names that a parameter takes are called in its help or by its metavar, and one of them.
NAMES = {
    r"shipped profile|profile.s name|profiles by name": "h200",
    r"built-in cell": "min_gru",
    r"^\[?SPEC\b": "examples/",
    r"^KEY=VALUE": "heads=",
}


@pytest.mark.parametrize(("names", "one"), NAMES.items())
def test_whatever_takes_a_name_completes_it(names: str, one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    command = typer.main.get_command(app)
    context = command.make_context("minrnn-gen", ["gpus"])
    taking = [
        (path, parameter)
        for path, parameter in parameters(command)
        if re.search(names, f"{parameter.metavar}") or re.search(names, getattr(parameter, "help", None) or "")
    ]
    assert taking
    for path, parameter in taking:
        assert one in [item.value for item in parameter.shell_complete(context, one[:2])], path


def test_what_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hopper.yaml").write_text("")
    (tmp_path / "hints.txt").write_text("")
    (tmp_path / "homes").mkdir()
    assert completion.gpus("h") == ["h100", "h200", "homes/", "hopper.yaml"]
    assert completion.gpu_lists("h100,h") == ["h100,h200", "h100,homes/", "h100,hopper.yaml"]
    assert completion.specs("nowhere/x") == []
    assert completion.assignments("") == [f"{key}=" for key in Spec.model_fields]


@pytest.mark.parametrize("group", [[], ["new"], ["cells"], ["cache"]], ids=" ".join)
def test_help_cuts_no_summary(command: Command, group: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command(*group, "--help").out
    assert "..." not in shown.split("Commands:")[1]
    inner = typer.main.get_command(app)
    for word in group:
        inner = commands_of(inner)[word]
    said = " ".join(shown.split())
    for name, each in commands_of(inner).items():
        assert f"{name} {' '.join((each.help or '').split('.')[0].split())}." in said
