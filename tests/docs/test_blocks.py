"""The documentation holds: its Python runs and prints what is shown, its YAML is valid, its commands exist."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.documentation import PAGES, ROOT, Block, blocks, name_of
from support.everyday import for_each
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.config.documents import document_from_mapping, parse_document
from minrnn_gen.config.spec import load_spec

# Pages whose Python takes ten seconds: `make docs-check` and `make test-all` run it.
LONG = {"jax", "interpret", "migration", "recurrent-rl"}
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
# A block is for a GPU when it imports CuPy, moves a tensor there, or uses a variable that is called after a GPU or torch.
ON_A_GPU = re.compile(r"^import cupy$|\.cuda\(|\b\w+_(?:gpu|torch)\b", re.MULTILINE)
COMMAND = re.compile(r"(?:^(?:    |\$ )|`)minrnn-gen((?: [a-z]+(?![^ `\n]))+)([^`\n]*)", re.MULTILINE)


def run(page: Path, chosen: Sequence[Block]) -> None:
    """Run the blocks of one page one after the other; a block of text right below one shows what it prints."""
    shown = {block.line: block for block in blocks(page) if block.language == "text"}
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for block in chosen:
        printed = io.StringIO()
        # Blank lines in front, so that a traceback names the line of the page.
        program = compile("\n" * (block.line - 1) + block.text, name_of(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
        expected = shown.get(block.end + 2)  # a blank line and a fence lie between
        if expected:
            assert printed.getvalue() == expected.text, f"{name_of(page)}:{expected.line}"


# Every day kernels are planned and rendered, which is all that arrays of the host need; in the whole matrix also compiled.
@pytest.mark.parametrize(
    ("page", "compiles"),
    [
        pytest.param(
            page,
            compiles,
            id=name_of(page) + "-compiled" * compiles,
            marks=pytest.mark.matrix_full if compiles or page.stem in LONG else (),
        )
        for page in WITH_PYTHON
        for compiles in (False, True)
    ],
)
def test_python_runs_with_numpy(page: Path, compiles: bool, monkeypatch: pytest.MonkeyPatch, emulated_kernels: Path) -> None:
    monkeypatch.chdir(ROOT)
    if page.stem == "interpret":  # with the machine that the other workers have compiled
        monkeypatch.setenv("MINRNN_CACHE_DIR", str(emulated_kernels))
    chosen = [block for block in blocks(page) if block.language == "python" and not ON_A_GPU.search(block.text)]
    if any("import torch" in block.text for block in chosen):
        pytest.importorskip("torch")
    if "import jax" in chosen[0].text:
        pytest.importorskip("jax")
    elif not importlib.util.find_spec("jax"):  # one example among others
        chosen = [block for block in chosen if "import jax" not in block.text]
    with contextlib.nullcontext() if compiles else nothing_compiled():
        run(page, chosen)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "page", [page for page in WITH_PYTHON if any(ON_A_GPU.search(block.text) for block in blocks(page))], ids=name_of
)
def test_python_runs_on_a_gpu(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    chosen = [block for block in blocks(page) if block.language == "python"]
    for library in ("cupy", "torch"):
        if any(f"import {library}" in block.text for block in chosen):
            pytest.importorskip(library)
    run(page, chosen)


@for_each(PAGES)
def test_yaml_is_a_spec_or_a_cell(page: Path) -> None:
    for block in blocks(page):
        if block.language != "yaml":
            continue
        where = f"{name_of(page)}:{block.line}"
        data = parse_document(block.text, where).data
        if "equations" in data:
            parse_cell(find_cell(data, ROOT, where))
        else:
            spec = load_spec(data)
            if isinstance(spec.model, dict):
                parse_cell(find_cell(document_from_mapping(spec.model), ROOT, where))


# Nothing to ask before there is a command line.
if importlib.util.find_spec("minrnn_gen.cli.main"):

    def commands() -> dict[str, set[str]]:
        """Return every command that a page shows, as typed up to its first argument, with the options it is shown with."""
        found: dict[str, set[str]] = {}
        for page in PAGES:
            for words, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
                found.setdefault(words.strip(), set()).update(re.findall(r"--[a-z][a-z-]*", rest))
        return found

    @pytest.mark.parametrize("command", sorted(commands()))
    def test_the_command_exists_with_its_options(
        command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        main = importlib.import_module("minrnn_gen.cli.main").main
        assert main([*command.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert {option for option in commands()[command] if option not in shown} == set()
