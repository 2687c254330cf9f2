"""`make test` and `make demo` on any system: what is fetched for which machine, and that it is said beforehand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")


def recipe(tmp_path: Path, target: str, *, system: str, has_gpu: bool, settings: tuple[str, ...] = ()) -> str:
    """Return what make would run on a machine."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, script in (("uname", f"echo {system}"), ("nvidia-smi", f"exit {int(not has_gpu)}")):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "CUDA", "TORCH"))}
    environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    command = ["make", "-n", "VENV=no-such-folder", "PYTHON=python3", *settings, target]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_linux_without_a_gpu_gets_the_build_for_cpus_or_none(tmp_path: Path) -> None:
    text = recipe(tmp_path, "test", system="Linux", has_gpu=False)
    builds = [line for line in text.splitlines() if "pip install" in line and "torch==" in line]
    assert builds and all("+cpu" in line for line in builds)
    assert "the tests that need it are skipped" in text and "[test,nvrtc13]" in text


def test_a_gpu_and_other_systems_get_what_the_index_has(tmp_path: Path) -> None:
    for system, has_gpu in (("Linux", True), ("Darwin", False)):
        text = recipe(tmp_path, "test", system=system, has_gpu=has_gpu)
        assert "+cpu" not in text and "constraints.txt torch || echo" in text
        assert ("[test,cuda13]" in text) == (system == "Linux") and "nvrtc13" not in text


def test_torch_and_cuda_can_be_left_out(tmp_path: Path) -> None:
    text = recipe(tmp_path, "test", system="Linux", has_gpu=False, settings=("TORCH=", "CUDA="))
    assert "torch" not in text and "cuda" not in text.lower().replace("cuda=", "")


@pytest.mark.parametrize("target", ["test", "demo"])
def test_what_is_downloaded_is_said_beforehand(target: str, tmp_path: Path) -> None:
    lines = recipe(tmp_path, target, system="Linux", has_gpu=False).splitlines()
    said = next(number for number, line in enumerate(lines) if line.startswith("echo") and "GB" in line)
    assert said < next(number for number, line in enumerate(lines) if "pip install" in line)
    assert ("torch" in "\n".join(lines)) == (target == "test")


def test_the_site_is_checked_with_every_change(tmp_path: Path) -> None:
    assert '"docs-check BLOCKS="' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    whole = recipe(tmp_path, "docs-check", system="Linux", has_gpu=False)
    assert 'pytest -q -m "matrix_full or not matrix_full" tests/docs' in whole
    alone = recipe(tmp_path, "docs-check", system="Linux", has_gpu=False, settings=("BLOCKS=",))
    for text in (whole, alone):
        assert "mkdocs build --strict" in text and "docs/site/check.py" in text and "codespell" in text
    # What make test has run is not run again, nor installed for.
    assert "pytest" not in alone and "torch" not in alone
    assert "docs-check BLOCKS=" in recipe(tmp_path, "test-all", system="Linux", has_gpu=False)


def test_declared_versions_are_tried_at_both_ends(tmp_path: Path) -> None:
    """Each requirement has a lowest version, and `make test-all` installs them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in ("cuda13", "nvrtc13", "torch", "jax", "onnx", "runner")]
    requirements = [*project["dependencies"], *(one for extra in extras for one in extra)]
    assert [requirement for requirement in requirements if ">=" not in requirement] == []
    text = recipe(tmp_path, "test-lowest", system="Linux", has_gpu=False)
    assert '--resolution lowest-direct --torch-backend auto --editable ".[runner]"' in text
    assert '--resolution lowest-direct --torch-backend auto --editable ".[test,onnx,nvrtc13,torch]"' in text
    assert "--resolution highest" in recipe(tmp_path, "test-newest", system="Linux", has_gpu=False)
    assert "docs-check BLOCKS= test-lowest test-newest" in recipe(tmp_path, "test-all", system="Linux", has_gpu=False)
