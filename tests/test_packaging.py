"""The wheel holds everything that users need and nothing else, and works from anywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from support.everyday import one_in

ROOT = Path(__file__).resolve().parent.parent
MOVED = ("templates", "gpu_profiles")
# What is compiled where there is a compiler.
EXTENSION = Path("minrnn_gen/native/_trip.abi3.so")
# Not installed wherever the tests run, so that the metadata cannot tell.
DISTRIBUTIONS = {
    "cupy": "cupy",
    "cupy_backends": "cupy",
    "torch": "torch",
    "accelerated_scan": "accelerated-scan",
    "fla": "fla-core",
    "jax": "jax",
    "matplotlib": "matplotlib",
}
# Packages that ours takes a place in: whoever asks for that, or measures beside them, has them, so nothing here installs them.
EXCHANGED = {"mamba_ssm", "minGRU_pytorch", "torchrl", "transformers", "xlstm"}


def run(*command: str, cwd: Path, **environment: str) -> str:
    answer = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def files_below(name: str) -> set[str]:
    """Return the files of the checkout's folder `name`, relative to the checkout, without what an install leaves there."""
    paths = (path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    paths = (path for path in paths if path.name != EXTENSION.name)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributions")
    # First the sdist, then the wheel from the sdist: a file missing there is missing here. Without isolation: no network.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_two_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    moved = {f"minrnn_gen/{name}" for folder in MOVED for name in files_below(folder)}
    assert moved, "the checkout has templates and profiles"
    compiled = {EXTENSION.as_posix()} if wheel.name.split("-")[-2] == "abi3" else set()
    assert names == files_below("minrnn_gen") | moved | compiled


def test_the_wheel_holds_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_what_it_takes_to_carry_on(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "Makefile", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    for folder in ("minrnn_gen", *MOVED, "tests", "examples", "benchmarks", "docs", ".ci"):
        wanted |= files_below(folder)
    assert wanted <= names


def test_the_installed_wheel_finds_its_files_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(place), str(wheel), cwd=elsewhere)
    program = f"""
import minrnn_gen
from minrnn_gen.config.package_files import package_folder
print(minrnn_gen.__file__)
for name in {MOVED!r}:
    folder = package_folder(name)
    print(folder, sum(path.is_file() for path in folder.rglob("*")))
"""
    lines = run(sys.executable, "-c", program, cwd=elsewhere, PYTHONPATH=str(place)).splitlines()
    package = place / "minrnn_gen"
    assert lines == [
        str(package / "__init__.py"),
        *(f"{package / name} {len(files_below(name))}" for name in MOVED),
    ]


# What each command is called with: a spec, files that it writes, or nothing.
ARGUMENTS = {
    **dict.fromkeys(("compile", "explain", "render", "run", "compare", "verify", "tune"), (("SPEC",),)),
    "export": (("SPEC", "--out", "exported"),),
    "calibrate": ((),),
    "check-gpu": ((),),
    "gpus": ((),),
    "cells": ((), ("show", "gru")),
    "cache": (("path",), ("list",)),
    "new": (("spec", "a.yaml"), ("cell", "b.yaml"), ("profile", "c.yaml")),
    "schema": ((),),
    "doctor": ((),),
}
FROM_A_ZIP = """
import contextlib, io, sys
import numpy as np
import minrnn_gen
from minrnn_gen.cli import doctor
from minrnn_gen.cli.main import app, main
from minrnn_gen.errors import MinrnnError
from typer.main import get_command

assert ".whl" in minrnn_gen.__file__
doctor._why_not = lambda _: ""  # of other libraries, which take seconds
spec, commands = sys.argv[1], ARGUMENTS
assert {*get_command(app).list_commands(None)} == {*commands}, "a command is not tried here"
for command, calls in commands.items():
    for call in calls:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = main([command, *(spec if word == "SPEC" else word for word in call)])
        print(f"{command} {' '.join(call)}: {status}: {said.getvalue()}")
ones = np.ones((1, 2, 3), np.float32)
calls = {
    "compile()": lambda: minrnn_gen.compile({"model": "min_gru", "hidden_size": 4}),
    "scan()": lambda: minrnn_gen.scan(ones, ones),
    "scan_backward()": lambda: minrnn_gen.scan_backward(ones, ones, ones),
}
if HAS_TORCH:
    import torch
    import minrnn_gen.torch as front
    calls["torch"] = lambda: front.GRU(3, 4)(torch.ones(1, 2, 3))
    calls["torch.scan"] = lambda: front.scan(torch.ones(1, 2, 3), torch.ones(1, 2, 3))
for name, call in calls.items():
    try:
        call()
        print(f"{name}: 0: ")
    except MinrnnError as error:
        print(f"{name}: 1: error: {error}")
"""


@pytest.mark.parametrize("has_torch", one_in(2, [False, True]))
def test_from_a_zip_all_works_or_says_one_whole_sentence(has_torch: bool, wheel: Path, tmp_path: Path) -> None:
    """The wheel is one: Python imports from it, but files in it are none."""
    if has_torch:
        pytest.importorskip("torch")
    program = FROM_A_ZIP.replace("ARGUMENTS", repr(ARGUMENTS)).replace("HAS_TORCH", repr(has_torch))
    spec = str(ROOT / "examples" / "min_gru.yaml")
    settings = {"PYTHONPATH": str(wheel), "MINRNN_CACHE_DIR": str(tmp_path / "cache")}
    said = run(sys.executable, "-c", program, spec, cwd=tmp_path, **settings)
    answers = dict(re.findall(r"(?m)^(.*): (?=[012]: )([012]: .*)$", said))
    assert len(answers) > 15
    whole = "minrnn_gen is imported from "
    for call, answer in answers.items():
        status, _, sentence = answer.partition(": ")
        assert status == "0" or sentence.startswith("error: ") or call == "doctor ", (call, answer)
        assert not re.search(r"\bof ?[,;]|, ,|\(\)|: ?;|one of ?$", sentence), (call, answer)
    for call in ("compile SPEC", "gpus ", "cells ", "cells show gru", "new profile c.yaml", "compile()"):
        assert whole in answers[call] and answers[call].endswith("install it by pip, unpacked"), answers[call]
    assert answers["scan()"] == answers["schema "] == "0: "


@pytest.mark.parametrize("settings", [{}, {"CC": "no-such-compiler"}, {"MINRNN_PURE_PYTHON": "1"}])
def test_a_wheel_is_pure_python_where_there_is_no_compiler_or_it_is_asked_for(settings: dict[str, str], tmp_path: Path) -> None:
    """With one its C part is there and is used, with every Python from 3.11 on."""
    is_pure = bool(settings)
    if not is_pure and (shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").is_file()):
        pytest.skip("no C compiler, or no headers of Python")
    program = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    name = run(sys.executable, "-c", program, cwd=ROOT, **settings).splitlines()[-1]
    assert ("-py3-none-any" in name) == is_pure and ("-cp311-abi3-" in name) == (not is_pure)
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert (EXTENSION.as_posix() in archive.namelist()) == (not is_pure)
        archive.extractall(tmp_path / "place")
    program = "from minrnn_gen.native.trip import LIBRARY; print(LIBRARY and LIBRARY.__file__)"
    (line,) = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(tmp_path / "place")).splitlines()
    assert line == ("None" if is_pure else str(tmp_path / "place" / EXTENSION))


def test_an_editable_install_is_the_checkout_itself(tmp_path: Path) -> None:
    program = f"import hatchling.build; print(hatchling.build.build_editable({str(tmp_path)!r}))"
    name = run(sys.executable, "-c", program, cwd=ROOT).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / name) as archive:
        (pointer,) = (name for name in archive.namelist() if ".dist-info/" not in name)
        assert archive.read(pointer).decode().split() == [str(ROOT)]


@pytest.mark.parametrize("folder", MOVED)
def test_the_two_folders_hold_no_python(folder: str) -> None:
    assert list((ROOT / folder).rglob("*.py*")) == []


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["cuda13"], *extras["torch"], *extras["onnx"], *extras["bench"]]
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-") for requirement in declared}
    names |= {"cupy"} if "cupy-cuda13x" in names else set()
    installed = packages_distributions()
    missing = set()
    for path in (ROOT / "minrnn_gen").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"minrnn_gen"} - EXCHANGED:
                owners = [DISTRIBUTIONS[module]] if module in DISTRIBUTIONS else installed.get(module, [module])
                if not names & {owner.lower().replace("_", "-") for owner in owners}:
                    missing.add(module)
    assert missing == set()
