"""The page of versions says what pyproject.toml asks for, and a target tries both ends of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from support.documentation import ROOT, code, table

PAGE = ROOT / "docs" / "versions.md"
# Extras of users; the others are of those who work on the project.
EXTRAS = ("cuda13", "cuda12", "nvrtc13", "torch", "jax", "onnx")


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    content: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return content


def split(requirement: str) -> tuple[str, str]:
    """Return the package that a requirement names, and the versions that it allows."""
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[\w,]+\])?(.*)", requirement)
    assert match is not None, requirement
    return match[1], match[2]


def asked_for(project: dict[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield package, versions and extra of each requirement of users; no extra is empty."""
    dependencies, extras = project["dependencies"], project["optional-dependencies"]
    assert isinstance(dependencies, list) and isinstance(extras, dict)
    yield from ((*split(requirement), "") for requirement in dependencies)
    yield from ((*split(requirement), extra) for extra in EXTRAS for requirement in extras[extra])


def test_the_table_is_what_pyproject_asks_for(project: dict[str, object]) -> None:
    (python, *rows) = table(PAGE, "package", "versions", "for")
    assert python[:2] == ("Python", project["requires-python"])
    shown = {(code(package)[0], versions): set(code(needed)) for package, versions, needed in rows}
    wanted: dict[tuple[str, str], set[str]] = {}
    for package, versions, extra in asked_for(project):
        wanted.setdefault((package, versions), set()).update({f"[{extra}]"} if extra else ())
    assert shown == wanted


def test_the_lowest_versions_were_run(project: dict[str, object]) -> None:
    bounds = {package: versions for package, versions, _ in asked_for(project)}
    bounds["Python"] = str(project["requires-python"])
    for shown, lowest, *_ in table(PAGE, "with", "lowest", "others", "tests", "below"):
        bound = bounds[(code(shown) or [shown])[0]].partition(",")[0].removeprefix(">=")
        assert f"{lowest}.".startswith(f"{bound}."), f"{shown} was run with {lowest}, and {bound} is allowed"


def test_no_extra_of_users_is_left_out(project: dict[str, object]) -> None:
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    assert set(extras) - set(EXTRAS) == {"bench", "examples", "docs", "runner", "test", "dev"}


def test_both_ends_are_tried_by_one_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ntest-versions: test-lowest test-newest test-wheels\n" in makefile
    assert "make test-versions" in PAGE.read_text(encoding="utf-8")
