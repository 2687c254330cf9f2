"""Pages that go from Python to programs without it: their commands and their Python run in their order, in one folder."""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.documentation import ROOT, blocks
from support.exported_operators import torch_folder
from support.patience import within
from support.served_weights import weights, write_safetensors

from minrnn_gen.build.nvrtc import nvrtc_version
from minrnn_gen.errors import ToolchainMissing

PAGES = ("export", "aot-inductor")
PROGRAMS = ("cc", "c++", "cmake", "ctest", "python", "minrnn-gen", "./")
# No command and no Python, but what one says or is given.
SAID = ("export: a single step of a bidirectional spec", "char_lm::", "rnn_char_lm::")


def steps(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the language ("sh" or "python") and the text of all that a page tells to run, from top to bottom.

    A command is a line, and lines of Python without others between are one text.
    """
    found = [(block.line, "python", block.text) for block in blocks(page) if block.language == "python"]
    fenced = {line for block in blocks(page) for line in range(block.line, block.end)}
    last = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("    ") or number in fenced:
            continue
        text = line.strip().removeprefix("$ ")
        if text.startswith(PROGRAMS) and not text.startswith("cmake_"):
            found.append((number, "sh", text))
        elif not text.startswith(SAID):
            ast.parse(text)
            first, _, before = found.pop() if last == number - 1 else (number, "python", "")
            found.append((first, "python", f"{before}{text}\n"))
            last = number
    yield from sorted(found)


def steps_run(page: str) -> list[tuple[int, str, str]]:
    """Return the steps of a page but those of ONNX: tests/export/test_operators_onnx.py runs them in a process of its own."""
    return [step for step in steps(ROOT / "docs" / "how-to" / f"{page}.md") if "onnx" not in step[2]]


@pytest.mark.parametrize("page", PAGES)
def test_what_pages_tell_to_run_is_known(page: str) -> None:
    """No text needs a name that none of those before it gives."""
    known = {*vars(builtins)}
    assert len(steps_run(page)) > 5
    for line, language, text in steps_run(page):
        if language == "python":
            nodes = [*ast.walk(ast.parse(text))]
            names = [node for node in nodes if isinstance(node, ast.Name)]
            known |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
            known |= {(alias.asname or alias.name).partition(".")[0] for node in nodes for alias in getattr(node, "names", ())}
            assert {name.id for name in names} - known == set(), f"{page}:{line}"


@pytest.mark.matrix_full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's own exporters
@pytest.mark.parametrize("page", PAGES)
def test_all_that_a_page_tells_to_run_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = str(torch_folder())
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        pytest.skip("no cmake, or no C++ compiler")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "spec.yaml").write_text("model: min_gru\nhidden_size: 32\n")
    write_safetensors(tmp_path / "weights.safetensors", weights())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, Any] = {"__name__": "documentation", "contextlib": contextlib}
    for line, language, text in steps_run(page):
        if "--target cuda" in text or "cell/check.c" in text:
            try:
                nvrtc_version()
            except ToolchainMissing:
                continue
        if language == "python":
            # The folder that it writes into stays, where commands look for it.
            text = text.replace("tempfile.TemporaryDirectory()", 'contextlib.nullcontext("operators")')
            exec(compile("\n" * (line - 1) + text, page, "exec"), namespace)
            continue
        command = text.replace("TORCH/", f"{torch}/").replace("=TORCH ", f"={torch} ")
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=within(600), check=False)
        assert ran.returncode == 0, f"{page}:{line}: {text}\n{ran.stdout}{ran.stderr}"
        for library in tmp_path.glob("build/*.so"):
            # Once: a library that is loaded and overwritten ends the process by SIGSEGV, at the latest when it is unloaded.
            if not (tmp_path / library.name).exists():
                shutil.copy(library, tmp_path)


def test_every_example_is_run_by_a_test() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".c", ".cpp", ".ipynb")]
    alone = [path for path in examples if path.parent.name != "training"]
    assert len(alone) > 10
    assert [path.name for path in alone if path.stem not in texts] == []
