"""JAX from pip alone: an empty environment without torch, toolkit or compiler runs the example of README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What must not be within reach.
MISSING = ("torch", "cupy", "triton")
COMPILERS = ("cc", "gcc", "clang", "c++", "nvcc")
PROGRAM = f"""
import importlib.util, shutil, sys
assert not any(map(importlib.util.find_spec, {MISSING})) and not any(map(shutil.which, {COMPILERS}))
{{example}}
assert all(bool((gradient != 0).any()) for gradient in jax.grad(loss)(params, jax.numpy.ones((2, 5, 32))).values())
import minrnn_gen, minrnn_gen.native.trip
assert minrnn_gen.__file__.startswith(sys.prefix) and minrnn_gen.native.trip.LIBRARY is None
"""


def run(*command: str | Path, cwd: Path, environment: dict[str, str]) -> str:
    answer = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[-3000:]
    return answer.stdout


def readme_example() -> tuple[str, str]:
    """Return README's example in JAX, and what its last line says that it prints."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A recurrence in JAX")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block
    return block[1], block[1].rstrip().rpartition("  # ")[2]


@pytest.mark.matrix_full
@pytest.mark.timeout(600)
def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    without = ("PYTHON", "MINRNN_", "XDG_", "JAX_", "XLA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    wheel = run(sys.executable, "-c", build, cwd=ROOT, environment={**clean, "CC": "no-such-compiler"}).splitlines()[-1]
    run(sys.executable, "-m", "venv", tmp_path / "empty", cwd=tmp_path, environment=clean)
    programs = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    index = subprocess.run(
        [*pip, "download", "--quiet", "--no-deps", "filelock", "--dest", tmp_path / "index"],
        env=clean,
        capture_output=True,
        check=False,
    )
    if index.returncode:
        pytest.skip("pip reaches no index here")
    run(*pip, "install", "--quiet", f"{tmp_path / wheel}[jax]", cwd=tmp_path, environment=clean)
    example, printed = readme_example()
    alone = {**clean, "PATH": str(programs), "MINRNN_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    alone.pop("CC", None)
    program = textwrap.dedent(PROGRAM).format(example=example)
    assert run(programs / "python", "-c", program, cwd=tmp_path, environment=alone).split("\n")[0] == printed
