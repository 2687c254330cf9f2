"""The command line: its commands, and the only place where errors become sentences and exit statuses."""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import typer

from minrnn_gen import __version__
from minrnn_gen.cli.terminal import Commands, command_line, print_json, print_note
from minrnn_gen.errors import MinrnnError, nearest_name

PROGRAM = "minrnn-gen"
FAILED, BAD_INPUT = 1, 2
# As a shell reports a process that SIGINT ended: 128 + 2.
INTERRUPTED = 130

# The library carries its own copy of Click, or uses the one installed; either way this is its usage error.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# Each command's module, imported to run the command or to show its help.
_MODULES: Mapping[str, Callable[[], ModuleType]] = {
    "compile": lambda: import_module("minrnn_gen.cli.compile"),
    "explain": lambda: import_module("minrnn_gen.cli.explain"),
    "render": lambda: import_module("minrnn_gen.cli.render"),
    "run": lambda: import_module("minrnn_gen.cli.run"),
    "compare": lambda: import_module("minrnn_gen.cli.compare"),
    "export": lambda: import_module("minrnn_gen.cli.export"),
    "verify": lambda: import_module("minrnn_gen.cli.verify"),
    "tune": lambda: import_module("minrnn_gen.cli.tune"),
    "calibrate": lambda: import_module("minrnn_gen.cli.calibrate"),
    "check-gpu": lambda: import_module("minrnn_gen.cli.check_gpu"),
    "gpus": lambda: import_module("minrnn_gen.cli.gpus"),
    "schema": lambda: import_module("minrnn_gen.cli.schema"),
    "doctor": lambda: import_module("minrnn_gen.cli.doctor"),
    "new": lambda: import_module("minrnn_gen.cli.new"),
    "cells": lambda: import_module("minrnn_gen.cli.cells"),
    "cache": lambda: import_module("minrnn_gen.cli.cache"),
}


class _LazyCommands(Commands):
    """The commands of the program, each imported on demand: a process runs one of them."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of all commands, as help lists them."""
        return list(_MODULES)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, None where there is none."""
        if cmd_name not in self.commands and cmd_name in _MODULES:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands.get(cmd_name)


def _loaded(name: str) -> Any:
    """Return a command as the library runs it: a function of its module, or the group of commands `app` there."""
    module = _MODULES[name]()
    of = getattr(module, "app", None)
    if of is None:
        of = command_line("")
        of.command(name)(getattr(module, name.replace("-", "_")))
    command = typer.main.get_command(of)
    command.name = name
    return command


app = command_line(
    "A recurrent-kernel compiler: a few lines of spec in, a specialised CUDA kernel out.", completes=True, cls=_LazyCommands
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if version:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@functools.cache
def _command(of: typer.Typer) -> Any:
    """Return a whole command line; the signatures of all its commands are read for it, once per process."""
    return typer.main.get_command(of)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 the request cannot be met, 2 bad input.

    `arguments` follow the program's name; by default the process's own.
    """
    return run_command(app, PROGRAM, arguments)


def run_command(of: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command of a program, as `main` does."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Names that this terminal's encoding lacks are escaped rather than a reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _command(of).main(words, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return status or 0
    except (MinrnnError, _UsageError, MemoryError, OSError) as error:
        return _failed(error, as_json="--json" in words)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _failed(error: Exception, as_json: bool) -> int:
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # The reader of our output is gone; at exit Python would flush into the closed pipe once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    sentence, status = _answer(error)
    if as_json:
        print_json({"error": sentence, "exit_status": status})
    else:
        print_note(f"error: {sentence}")
    return status


def _answer(error: Exception) -> tuple[str, int]:
    if isinstance(error, MinrnnError):
        return str(error), error.exit_status
    if isinstance(error, _UsageError):
        return _usage_sentence(error), BAD_INPUT
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; give smaller sizes", FAILED
    return str(error), FAILED


def _usage_sentence(error: Exception) -> str:
    """Return a usage error as one sentence in the manner of the others."""
    message = str(error.format_message()).rstrip(".").replace("Value error, ", "")  # type: ignore[attr-defined]
    # Of a name that is nearly right, the library's own suggestion is a second sentence.
    message = re.sub(r"\.? \(?Did you mean (.*)\?\)?$", r" (did you mean \1?)", message)
    context = getattr(error, "ctx", None)
    # Libraries suggest several commands, one, or none.
    if context is not None and (unknown := re.match(r"[Nn]o such command '([^']*)'", message)):
        message = unknown[0] + nearest_name(unknown[1], context.command.list_commands(context))
    where = context.command_path if context is not None else PROGRAM
    return f"{message[:1].lower()}{message[1:]}; see '{where} --help'"


if __name__ == "__main__":
    sys.exit(main())
