"""Fixtures of the tuner's tests: a stand-in for the compiler, and a cache of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_compiler import BuilderOf, Compiler

from minrnn_gen import api
from minrnn_gen.build import builder
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes
from minrnn_gen.config.spec import load_spec
from minrnn_gen.tune import candidates, lookup, tuner

SPEC = {"model": "min_gru", "hidden_size": 64, "training": False}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(builder, "compile_source", made)
    for module in (builder, candidates, tuner, lookup):
        monkeypatch.setattr(module, "toolchain_version", lambda: "nvrtc 13.4")
    return made


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MINRNN_DEBUG", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def builder_of(cache: Path) -> BuilderOf:
    """Builders that ask the memory, as those of `compile()` do."""

    def made(gpu: str = "h200", **spec: Any) -> Builder:
        target = Target(load_profile(gpu), profile_bytes(gpu), "spec")
        return Builder(load_spec(SPEC | spec), target, Store(cache), preferred=api._remembered)

    return made
