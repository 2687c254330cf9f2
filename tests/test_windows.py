"""Paths of the code that only Windows takes, with stand-ins: libraries, drives, folders, line ends, what is not built."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
import sys
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Any

import pytest

import minrnn_gen.config.documents as documents
import minrnn_gen.gpu.cublas
import minrnn_gen.gpu.driver
from minrnn_gen.build.trust import distrust, make_private_folder
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.interpret import toolchain
from minrnn_gen.tune import history, pool

ROOT = Path(__file__).resolve().parent.parent


def as_on_windows(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as it is when Windows imports it, beside the one that is in use."""
    monkeypatch.setattr(sys, "platform", "win32")
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location(f"windows_{module.__name__.rpartition('.')[2]}", module.__file__)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copy)
    spec.loader.exec_module(copy)
    return copy


def test_the_driver_is_nvcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = as_on_windows(minrnn_gen.gpu.driver, monkeypatch)
    asked: list[str] = []

    class Library:
        def __init__(self, name: str) -> None:
            asked.append(name)
            if name != "nvcuda.dll":
                raise OSError

        def __getattr__(self, name: str) -> Any:
            return lambda *_: 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert driver.device_count() == 0 and driver.driver_version() == "0.0" and driver.driver_release() is None
    assert set(asked) == {"nvcuda.dll", "nvml.dll"}


def test_cublas_is_looked_for_by_its_names_there_without_flags_that_windows_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    cublas = as_on_windows(minrnn_gen.gpu.cublas, monkeypatch)
    asked: list[tuple[str, int]] = []

    def refuse(name: str, mode: int = 0) -> None:
        asked.append((name, mode))
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(cublas, "load_library", lambda: None)
    monkeypatch.delattr(os, "RTLD_NOLOAD", raising=False)
    monkeypatch.delattr(os, "RTLD_NOW", raising=False)
    with pytest.raises(ToolchainMissing, match="cuBLAS is not installed"):
        cublas._library()
    assert asked == [("cublas64_13.dll", 0), ("cublas64_12.dll", 0)]


def test_a_drive_that_is_not_there_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    top = Path(Path.cwd().anchor)
    assert PureWindowsPath("Z:\\").parent == PureWindowsPath("Z:\\") and top.parent == top
    with pytest.raises(FileNotFoundError, match="no such drive"):
        make_private_folder(top / "cache")


def test_without_user_ids_every_file_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    file.chmod(0o666)
    assert distrust(file.stat()) is not None
    monkeypatch.delattr(os, "geteuid")
    assert distrust(file.stat()) is None


def test_a_folder_in_the_place_of_a_file_is_called_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(documents.os, "open", denied)
    with pytest.raises(BadInput, match="this is a folder"):
        documents.read_bytes(tmp_path, "here")
    with pytest.raises(BadInput, match="cannot be read"):
        documents.read_bytes(tmp_path / "file", "here")


def test_results_are_written_as_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary, flags, opened = 1 << 15, [], os.open

    def open_as_there(path: Path, how: int, mode: int) -> int:
        flags.append(how)
        return opened(path, how & ~binary, mode)

    monkeypatch.setattr(history.os, "O_BINARY", binary, raising=False)
    monkeypatch.setattr(history.os, "open", open_as_there)
    history.append_results(tmp_path / "results.jsonl", ())
    assert [how & binary for how in flags] == [binary]


def test_kernels_are_not_emulated_there_and_the_c_part_is_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    toolchain._compiler.cache_clear()
    with pytest.raises(ToolchainMissing, match="Subsystem for Linux"):
        toolchain.cpp_compiler()
    pytest.importorskip("hatchling")
    why_not = runpy.run_path(str(ROOT / "hatch_build.py"))["why_not"]
    assert "no stable interface" in why_not(ROOT / "minrnn_gen/native/trip.c", tmp_path / "trip.so")


def test_workers_are_started_and_never_forked() -> None:
    text = Path(pool.__file__).read_text(encoding="utf-8")
    assert 'get_context("spawn")' in text
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "minrnn_gen").rglob("*.py")]
    assert not any("os.fork(" in source or "import fcntl" in source or "import resource" in source for source in sources)
