"""Command line of an example: an option for every setting, in full or small, and the device."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from minrnn_gen.errors import MinrnnError
from training.library import TORCH, Library

RESULTS = Path(__file__).resolve().parent.parent / "results"

S = TypeVar("S")


@dataclass(frozen=True)
class Command(Generic[S]):
    """Parsed command line of an example; `text` is the command with all options that the results depend on, and no others."""

    name: str
    text: str
    settings: S
    library: Library
    device: str
    folder: Path


def run_command(
    name: str,
    purpose: str,
    full: S,
    small: S,
    example: Callable[[Command[S]], None],
    arguments: Sequence[str] | None,
    library: Library = TORCH,
) -> int:
    """Run the example with the parsed arguments and return the exit status; an error is reported in one sentence.

    `full` and `small` are frozen dataclasses of one type, whose fields (numbers, or tuples of numbers or words) become options.
    """
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a setting for a CPU; options that are given still count")
    parser.add_argument("--device", default="cuda" if library.has_gpu() else "cpu", choices=("cpu", "cuda"), help="where")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    for field in dataclasses.fields(full):  # type: ignore[arg-type]
        usual = getattr(full, field.name)
        kind: dict[str, Any] = {"type": type(usual)}
        if isinstance(usual, tuple):
            kind = {"type": type(usual[0]), "nargs": "+"}
        help_text = f"{_typed(usual)}, small {_typed(getattr(small, field.name))}"
        parser.add_argument(f"--{field.name.replace('_', '-')}", default=argparse.SUPPRESS, help=help_text, **kind)
    options = vars(parser.parse_args(arguments))
    if options["device"] == "cuda" and not library.has_gpu():
        parser.error(f"--device is cuda, but {library.name} finds no GPU; give --device cpu")
    is_small, device, folder = options.pop("small"), options.pop("device"), options.pop("out")
    base = small if is_small else full
    wanted = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    for key, value in wanted.items():
        entries = value if isinstance(value, tuple) else (value,)
        numbers = [entry for entry in entries if isinstance(entry, int | float)]
        if key != "seed" and any(number <= 0 for number in numbers):
            parser.error(f"--{key.replace('_', '-')} is {_typed(value)}; numbers above 0 are expected")
    changed = {key: value for key, value in wanted.items() if value != getattr(base, key)}
    text = f"python examples/{name}.py" + " --small" * is_small
    text += "".join(f" --{key.replace('_', '-')} {_typed(value)}" for key, value in changed.items())
    settings = dataclasses.replace(base, **changed)  # type: ignore[type-var]
    try:
        example(Command(name, text, settings, library, device, folder))
    except MinrnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _typed(value: object) -> str:
    """Return a value as it is typed after its option."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
