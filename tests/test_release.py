"""Checks of a release: one version, a changelog with a section, and no stray file."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import minrnn_gen

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("release_script", ROOT / "release" / "release.py")
assert _spec is not None and _spec.loader is not None
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)

TRACKED = {"minrnn_gen/__init__.py", "templates/scan.cu.j2", "gpu_profiles/h200.yaml", "tests/test_it.py"}
WHEEL = [
    "minrnn_gen/__init__.py",
    "minrnn_gen/templates/scan.cu.j2",
    "minrnn_gen/gpu_profiles/h200.yaml",
    "minrnn_gen-1.2.3.dist-info/METADATA",
    "minrnn_gen-1.2.3.dist-info/entry_points.txt",
    "minrnn_gen-1.2.3.dist-info/licenses/LICENSE",
]
METADATA = "Metadata-Version: 2.4\nVersion: 1.2.3\nLicense-Expression: Apache-2.0\n\n"


def test_the_version_stands_in_one_place() -> None:
    assert release.version_of((ROOT / release.VERSION_FILE).read_text(encoding="utf-8")) == minrnn_gen.__version__
    with pytest.raises(release.NotReleasable, match="no line"):
        release.version_of('__version__ = "soon"\n')


def test_the_changelog_gets_a_section_and_an_empty_one_above_it() -> None:
    text = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n"
    after = release.released(text, "0.2.0", "2026-02-02")
    assert after == text.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 (2026-02-02)\n")
    with pytest.raises(release.NotReleasable, match="says nothing"):
        release.released(after, "0.3.0", "2026-03-03")
    with pytest.raises(release.NotReleasable, match="already"):
        release.released(text, "0.1.0", "2026-02-02")
    assert release.released((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), minrnn_gen.__version__, "2026-02-02")


@pytest.mark.parametrize(
    ("names", "metadata", "fault"),
    [
        (WHEEL[1:], METADATA, "__init__.py is not in the wheel"),
        ([*WHEEL, "minrnn_gen/__pycache__/x.pyc"], METADATA, "not in the repository"),
        ([*WHEEL, "tests/test_it.py"], METADATA, "not in the repository"),
        (WHEEL, METADATA.replace("1.2.3", "1.2.4"), "version is 1.2.4"),
        (WHEEL[:-1], METADATA, "licence"),
        (WHEEL, METADATA.replace("Apache-2.0", "MIT"), "licence"),
        ([*WHEEL[:4], WHEEL[5]], METADATA, "entry point"),
    ],
)
def test_a_wheel_with_a_fault_is_refused(names: list[str], metadata: str, fault: str) -> None:
    assert release.wheel_faults([*WHEEL, release.EXTENSION], TRACKED, METADATA, "1.2.3") == []
    (found,) = release.wheel_faults(names, TRACKED, metadata, "1.2.3")
    assert fault in found


def test_an_sdist_with_a_stray_file_is_refused() -> None:
    needed = ["pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "hatch_build.py", "Makefile"]
    names = [f"minrnn_gen-1.2.3/{name}" for name in [*needed, "PKG-INFO"]]
    assert release.sdist_faults(names, set(needed)) == []
    assert release.sdist_faults([*names, "minrnn_gen-1.2.3/notes.txt"], set(needed)) == [
        "notes.txt is in the sdist, and not in the repository"
    ]
    assert release.sdist_faults(names[1:], set(needed)) == ["pyproject.toml is not in the sdist"]


def test_a_command_that_fails_stands_in_the_way() -> None:
    with pytest.raises(release.NotReleasable, match="ended with 3: why"):
        release.run("sh", "-c", "echo why; exit 3")


def test_make_release_is_a_dry_run_unless_a_tag_is_asked_for() -> None:
    command = ["make", "-n", "VENV=no-such-folder", "PYTHON=python3", "release"]
    plain = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tagged = subprocess.run([*command, "TAG=yes"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--tag" not in plain and "release/release.py --tag" in tagged


def workflow() -> dict[str, Any]:
    """Return the workflow of the wheels; YAML takes its key `on` for a boolean."""
    content: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in content.items()}


def steps_of(job: dict[str, Any]) -> Iterator[str]:
    for step in job["steps"]:
        yield step.get("run") or step["uses"]


def test_the_workflow_tries_wheels_on_each_python_and_publishes_tags_by_trust() -> None:
    jobs = workflow()["jobs"]
    (setup,) = (step for step in jobs["linux"]["steps"] if "setup-python" in step.get("uses", ""))
    assert {f"python{version}" for version in setup["with"]["python-version"].split()} == set(release.PYTHONS)
    assert jobs["linux"]["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert workflow()["permissions"] == {"contents": "read"} and workflow()["on"]["push"] == {"tags": ["v*"]}
    assert all(set(job.get("needs", [])) <= set(jobs) or job["needs"] in jobs for job in jobs.values())
    publish = jobs["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')" and set(publish["needs"]) == set(jobs) - {"publish"}
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert "pypa/gh-action-pypi-publish@" in "".join(steps_of(publish))
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8").lower()
    assert "secrets." not in text and "token:" not in text.replace("id-token: write", "")


def test_the_workflow_runs_targets_that_there_are_and_commands_that_parse() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [line for job in workflow()["jobs"].values() for step in steps_of(job) for line in step.splitlines()]
    targets = [line.split()[1] for line in commands if line.startswith("make ")]
    assert targets and all(f"\n{target}:" in makefile for target in targets)
    assert [line for line in commands if " new " in line] == ["minrnn-gen new spec mine.yaml"]


def test_what_is_cited_is_this_version() -> None:
    page = (ROOT / "docs" / "which-cell.md").read_text(encoding="utf-8")
    assert f"version = {{{minrnn_gen.__version__}}}" in page
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert "version" not in citation and citation["license"] == release.LICENCE


def test_issue_templates_are_forms() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        content = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert form.name == "config.yml" or {"name", "description", "body"} <= set(content)


def is_sent_to_the_image(path: str) -> bool:
    """Return whether .dockerignore leaves a path of the checkout in the build's context: the last line that fits decides."""
    is_sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if (
            line
            and not line.startswith("#")
            and any(
                fnmatch(part, pattern.removeprefix("**/")) if pattern.startswith("**/") else part == pattern or pattern == "*"
                for part in (path.split("/") if pattern.startswith("**/") else [path.split("/")[0]])
            )
        ):
            is_sent = line.startswith("!")
    return is_sent


def test_the_image_copies_what_a_wheel_is_made_of_and_has_compilers() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {name for line in text.splitlines() if line.startswith("COPY ") for name in line.split()[1:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {"pyproject.toml", "hatch_build.py", project["project"]["readme"], *project["project"]["license-files"]}
    assert copied == needed | set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]) | {"constraints.txt"}
    assert all((ROOT / name).exists() and is_sent_to_the_image(name) for name in copied)
    for path in (
        ".git/config",
        ".venv/bin/python",
        "build/site/index.html",
        "tests/conftest.py",
        "minrnn_gen/native/_trip.abi3.so",
    ):
        assert not is_sent_to_the_image(path), path
    assert is_sent_to_the_image("minrnn_gen/native/trip.c") and is_sent_to_the_image("templates/ptx/matrix.cuh.j2")
    # Without them the host's part of a call is Python's, and `verify` has nothing to compile with.
    assert {"gcc", "g++", "libc6-dev"} <= set(text.split()) and "--constraint /source/constraints.txt" in text
