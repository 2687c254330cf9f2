"""Keys: where the cache lies, and what makes two requests the same."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import within

from minrnn_gen.build import store
from minrnn_gen.build.store import cache_folder, digest, package_digest

parts = st.lists(st.binary(max_size=8) | st.text(max_size=8), max_size=4)


@given(parts, parts)
def test_digests_are_equal_exactly_when_the_parts_are(first: list[bytes | str], second: list[bytes | str]) -> None:
    same = first == second
    assert (digest(*first) == digest(*second)) is same


@given(parts.filter(bool), st.data())
def test_the_place_of_a_cut_matters(given_parts: list[bytes | str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(given_parts) - 1))
    part = given_parts[index]
    cut = data.draw(st.integers(0, len(part)))
    divided = [*given_parts[:index], part[:cut], part[cut:], *given_parts[index + 1 :]]
    assert digest(*given_parts) != digest(*divided)


def test_a_digest_never_changes_between_versions() -> None:
    # printf 'text 1:abytes 2:bc' | sha256sum
    assert digest("a", b"bc") == "60da1f110ed93abef9ab5afe6b0cf8bff73be5ecd284c74772f5dee5d82f7e13"


def test_the_chosen_folder_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.setenv("MINRNN_CACHE_DIR", "")
    assert cache_folder() == tmp_path / "xdg" / "minrnn-gen"


def test_a_relative_choice_is_made_absolute_and_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINRNN_CACHE_DIR", "here/../there")
    assert cache_folder() == tmp_path / "there"
    monkeypatch.setenv("MINRNN_CACHE_DIR", "~/kernels")
    assert cache_folder() == tmp_path / "home" / "kernels"


@pytest.mark.parametrize("shared", [None, "", "relative/is/ignored"])
def test_without_a_choice_it_is_the_users_own_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: str | None
) -> None:
    monkeypatch.delenv("MINRNN_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if shared is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
    folder = cache_folder()
    assert folder.is_absolute()
    assert folder.is_relative_to(tmp_path)
    assert folder.name == "minrnn-gen"


def test_the_package_digest_follows_every_template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "package_folder", lambda name: tmp_path / name)
    seen = {package_digest()}
    (tmp_path / "templates" / "ptx").mkdir(parents=True)
    template = tmp_path / "templates" / "ptx" / "a.cu.j2"
    for text in ("", "x", "y"):
        template.write_text(text)
        seen.add(package_digest())
    seen.add((template.rename(template.with_name("b.cu.j2")), package_digest())[1])
    assert len(seen) == 5
    template.write_text("y")
    (tmp_path / "templates" / "ptx" / "b.cu.j2").unlink()
    assert package_digest() in seen


def test_the_package_digest_follows_every_module_and_cell(tmp_path: Path) -> None:
    copy = tmp_path / "minrnn_gen"
    (copy / "cell" / "library").mkdir(parents=True)
    (copy / "templates").mkdir()  # whose digest is a part of the package's
    package = Path(store.__file__).parent.parent
    modules = [f"build/{name}.py" for name in ("entry", "sealing", "store", "trust")]
    modules += ["errors.py", "config/environment.py", "config/package_files.py"]
    for name in ("__init__.py", "build/__init__.py", "config/__init__.py", *modules):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes((package / name).read_bytes())

    def fresh_digest() -> str:
        command = [sys.executable, "-c", "from minrnn_gen.build.store import package_digest; print(package_digest())"]
        return subprocess.run(command, cwd=tmp_path, env={}, check=True, capture_output=True, text=True).stdout

    plain = fresh_digest()
    assert fresh_digest() == plain
    (copy / "cell" / "library" / "a.yaml").write_text("name: a\n")
    with_cell = fresh_digest()
    (copy / "cell" / "b.py").write_text("")
    assert len({plain, with_cell, fresh_digest()}) == 3


def test_the_package_digest_is_quick() -> None:
    store._modules_digest.cache_clear()
    started = time.process_time()
    package_digest()
    # It is part of every request: 10 ms on a quiet machine, with room here for a busy one.
    assert time.process_time() - started < within(0.1)


def test_importing_the_store_loads_nothing_heavy() -> None:
    heavy = {"numpy", "cupy", "sympy", "torch", "jinja2", "pydantic", "platformdirs", "filelock"}
    program = f"import sys, minrnn_gen.build.store; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"
