"""`minrnn-gen new`: a commented start of a spec, a cell file or a GPU profile, which compiles as it is written."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from minrnn_gen.build.output_files import refused_by_option, write_output
from minrnn_gen.cli import completion
from minrnn_gen.cli.schema import Kind, schema_of
from minrnn_gen.cli.terminal import command_line, print_note
from minrnn_gen.config.documents import scalar_text
from minrnn_gen.config.gpu_profile import (
    DEFAULT_GPU,
    MEASURED,
    NOT_MEASURED,
    GpuProfile,
    load_profile,
    profile_names,
    shipped_name,
)
from minrnn_gen.config.package_files import package_folder
from minrnn_gen.errors import BadInput, nearest_name, shown

app = command_line("Write a commented start of a spec, a cell file or a GPU profile.")

Target = Annotated[str, typer.Argument(metavar="FILE", help="Where to; no file is replaced.", show_default=False)]
WithSchema = Annotated[
    bool, typer.Option("--schema", help="Write its JSON schema beside it, and name it in the first line, for editors.")
]
Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="A built-in cell, or the path of a cell file.", autocompletion=completion.cells
    ),
]
Like = Annotated[
    str,
    typer.Option("--like", metavar="GPU", help="The shipped profile to begin with.", autocompletion=completion.shipped_gpus),
]

# As long as a name of a cell or a profile may be.
NAME_LENGTH = 64
WIDTH = 100

SPEC_START = """\
# What to generate. Try it: minrnn-gen explain {file}
model: {model}
hidden_size: 512
precision: bf16

# Every other key at its default; remove the # of a line to change it.
{keys}
"""

CELL_START = """\
# A cell: what one time step computes, for each unit. Look at it: minrnn-gen cells show {file}
name: {name}

# Learned vectors, one value for each unit, by their bare names in the equations.
parameters: [leak]

# W.g is the input's part of gate g, h[t-1] the state one step earlier, and every h[t] = … defines a state. The functions are
# sigmoid, tanh, relu, exp, log, softplus, silu, sqrt, min, max, abs and where(x > 0, a, b). A state that enters linearly and
# by its own unit alone, as here, makes the cell a scan, whose time runs in parallel. tanh(h[t-1]) would make it diagonal;
# R.z, the product of the previous output with a learned matrix, would make it dense. X.m, with `inputs: [m]`, is an input
# that W does not multiply, such as a mask or a time gap.
equations: |
  z    = sigmoid(W.z)
  h[t] = sigmoid(leak) * (1 - z) * h[t-1] + z * W.h

# The order of the gates in x; without it, the order of their first use.
gates: [z, h]

# What the cell returns, and R multiplies: a state, or without R an expression such as tanh(h[t]); without it, the first state.
output: h
"""

PROFILE_START = """\
# What one GPU has. Replace every number that differs, and in `sources` say where each comes from. On such a GPU
# minrnn-gen calibrate --out FILE writes the numbers that can be measured. Plan with it: minrnn-gen explain SPEC --gpu {file}
# The numbers below are those of {like}; each source says so until it is replaced.
"""


@app.command()
def spec(file: Target, model: Model = "min_gru", with_schema: WithSchema = False) -> None:
    """Write a spec with every key, its default and its meaning."""
    start = SPEC_START.format(file=_argument(file), model=scalar_text(model, "--model"), keys=_keys())
    _write(file, Kind.SPEC, start, with_schema)
    print_note(f"next: minrnn-gen run {_argument(file)}")


@app.command()
def cell(file: Target, with_schema: WithSchema = False) -> None:
    """Write a cell file whose equations a reader can go on from."""
    _write(file, Kind.CELL, CELL_START.format(file=_argument(file), name=_name_of(file, "my_cell")), with_schema)
    print_note(f"next: minrnn-gen cells show {_argument(file)}, and a spec: minrnn-gen new spec FILE --model {_argument(file)}")


@app.command()
def profile(file: Target, like: Like = DEFAULT_GPU, with_schema: WithSchema = False) -> None:
    """Write a GPU profile with the numbers and sources of a shipped one."""
    names, name = profile_names(), shipped_name(like)
    if name is None:
        raise BadInput(f"--like: {shown(like)} is no shipped profile{nearest_name(like, names)}; one of {', '.join(names)}")
    shipped = (package_folder("gpu_profiles") / f"{name}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^name: .*$", f"name: {_name_of(file, 'my_gpu')}", shipped, count=1)
    text = _marked_as_copied(text, load_profile(name))
    _write(file, Kind.GPU, PROFILE_START.format(file=_argument(file), like=name) + text, with_schema)


def _marked_as_copied(text: str, like: GpuProfile) -> str:
    """Return the text of the profile `like` in which every source says that its number is another GPU's."""
    numbers, _ = text.split("\nsources:\n")
    numbers = re.sub(r"(?m)^checked: .*\n", "", numbers)
    numbers = re.sub(rf"(?m)^({'|'.join(MEASURED)}): .*$", rf"\g<0>  # of {like.name}, {NOT_MEASURED}", numbers)
    lines = []
    for field, source in like.sources.items():
        copied = f"copied from {like.name}, {NOT_MEASURED}" if field in MEASURED else f"copied from {like.name}"
        lines.append(f"  {field}: {scalar_text(f'{copied}: {source}', field)}")
    return "\n".join([numbers, "sources:", *lines, ""])


def _keys() -> str:
    """Return every key of a spec that has a default, as comments."""
    schema = schema_of(Kind.SPEC)
    lines = []
    for key, value in schema["properties"].items():
        if key in schema["required"] or key == "precision":
            continue
        lines += [
            "",
            *(f"#   {line}" for line in _wrapped(value["description"])),
            f"# {key}: {scalar_text(value['default'], key)}",
        ]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def _argument(file: str) -> str:
    """Return a path as a shell takes it, for a comment or a note; FILE where a line of text cannot hold it."""
    return shlex.quote(file) if file.isprintable() else "FILE"


def _name_of(file: str, otherwise: str) -> str:
    """Return the name of a file without its ending as the name of a cell or a profile."""
    name = re.sub(r"[^a-z0-9_]", "_", Path(file).stem.lower())[:NAME_LENGTH]
    return name if re.match(r"[a-z]", name) else otherwise


def _write(file: str, kind: Kind, text: str, with_schema: bool) -> None:
    path = Path(file)
    if os.path.lexists(path) and not path.is_char_device():
        raise BadInput(f"FILE: {shown(file)} is there already; give another path, or remove it first")
    with refused_by_option("FILE", file):
        if with_schema:
            beside = path.with_name(f"{kind}.schema.json")
            write_output(beside, (json.dumps(schema_of(kind), indent=2) + "\n").encode())
            text = f"# yaml-language-server: $schema={beside.name}\n{text}"
        write_output(path, text.encode())
    print_note(f"written to {shown(file)}")
