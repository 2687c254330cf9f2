"""How long lines and bodies of kernels are, and how they choose between texts."""

from __future__ import annotations

import re
from pathlib import Path

from minrnn_gen.config.package_files import package_folder

FOLDER = Path(package_folder("templates"))
# Those of C have one kernel a file, without a limit of a body.
CUDA = {
    path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(FOLDER.rglob("*.j2"))
    if path.parent.name not in {"cpu", "export"}
}
HOST_C = {path.name: path.read_text(encoding="utf-8") for path in sorted((FOLDER / "export").glob("cuda*.j2"))}
KERNELS = {name: text for name, text in CUDA.items() if name.endswith(".cu.j2") and "/" not in name}

COLUMNS_MOST = 140

BODY_LINES_MOST = 150
LONGER_BODIES: dict[str, int] = {}


def test_lines_are_short() -> None:
    longer = [
        f"{name}:{number}"
        for name, text in CUDA.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS_MOST
    ]
    assert longer == []


def test_lines_of_native_code_are_short() -> None:
    folders = [*FOLDER.glob("cpu/*.j2"), *FOLDER.glob("export/cpu*.j2")]
    lines = [(path.name, line) for path in folders for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines
    assert [line for line in lines if len(line[1]) > COLUMNS_MOST] == []


def test_bodies_of_kernels_are_short() -> None:
    longest: dict[str, int] = {}
    for name, text in KERNELS.items():
        for body in re.findall(r'^extern "C" __global__.*?\{\n(.*?)^\}$', text, re.M | re.S):
            longest[name] = max(longest.get(name, 0), body.count("\n"))
    longer = {name: lines for name, lines in longest.items() if lines > BODY_LINES_MOST}
    assert {name for name, lines in longer.items() if lines > LONGER_BODIES.get(name, 0)} == set(), longer
    assert longest.keys() == KERNELS.keys()


def test_choices_are_blocks() -> None:
    # `{{ a if b else c }}` in a line of CUDA.
    choices = [
        f"{name}: {choice}"
        for name, text in CUDA.items()
        for choice in re.findall(r"\{\{[^{}]* if [^{}]* else [^{}]*\}\}", re.sub(r"//[^\n]*", "", text))
    ]
    assert choices == []


def test_the_c_of_exports_for_gpus_has_short_lines_and_no_choices() -> None:
    lines = [(name, line) for name, text in HOST_C.items() for line in text.splitlines()]
    assert [(name, line) for name, line in lines if len(line) > COLUMNS_MOST] == []
    assert [(name, line) for name, line in lines if re.search(r"\{\{[^{}]* if [^{}]* else [^{}]*\}\}", line)] == []
