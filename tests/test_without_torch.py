"""Where torch cannot be installed the tests that need it are skipped for that reason, and everything else runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_without_torch(*arguments: str) -> str:
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "support.without_torch", *arguments]
    words += ["--hypothesis-profile", "unshrunk"]
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import pytest; sys.exit(pytest.main({words!r}))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-1000:]
    return answer.stdout


@pytest.mark.matrix_full
def test_every_file_that_names_torch_is_collected_without_it() -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"\btorch\b", path.read_text(encoding="utf-8"))]
    assert len(files) > 20
    out = run_without_torch("--collect-only", *(str(path) for path in files if path != Path(__file__).resolve()))
    assert "error" not in out.splitlines()[-1]


def test_what_needs_torch_is_skipped_for_that_reason() -> None:
    out = run_without_torch("tests/cell/test_cell_gradient.py::test_a_gradient_is_torchs")
    assert "torch is not installed: pip install torch" in out and "skipped" in out.splitlines()[-1]
